"""`ServerWatch`: sees when a shard or the weights of a run die or hang.

Ray starts them again by itself. One that hangs it leaves alone, and everybody who asks it waits: so
it is asked for a beat now and then, and one that gives none is ended, for Ray to start it again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import RunFailed
from .settings import CrewSettings
from .team import Failed, Gone, Server, Team


class ServerWatch:
    """`watch.look(now, cycle)` now and then; `watch.silent(now)`: whether others wait for one."""

    def __init__(
        self, servers: Sequence[Server], team: Team, crew: CrewSettings, note: Callable[..., None]
    ) -> None:
        self.servers, self.team, self.crew, self._note = servers, team, crew, note
        self.every = min(2.0, crew.hang_s / 4)
        self.moving = False  # whole states are on their way, which takes as long as starting
        self.restarts = 0

    def look(self, now: float, cycle: int) -> None:
        """Hear who answers, ask again, and end who hangs; the run is at a cycle."""
        calls = [server.call for server in self.servers if server.call is not None]
        ended = set(self.team.wait(calls, len(calls), 0.0)) if calls else set[Any]()
        for server in self.servers:
            if server.heard is None:
                server.heard = now
            if server.call in ended:
                self._hear(server, now, cycle)
            if server.call is None and now - server.asked >= self.every:
                server.call, server.asked = self.team.call(server.handle, "beat"), now
            self._judge(server, now, cycle)

    def skip(self, seconds: float) -> None:
        """No one could be heard for so long."""
        for server in self.servers:
            if server.heard is not None:
                server.heard += seconds

    def silent(self, now: float) -> bool:
        """Whether one of them owes an answer: those that wait for it cannot be judged."""
        return any(s.heard is not None and now - s.heard > 2 * self.every for s in self.servers)

    def _hear(self, server: Server, now: float, cycle: int) -> None:
        call, server.call = server.call, None
        try:
            self.team.result(call)
        except Failed as error:
            raise RunFailed(f"{server.name} failed: {error}\n{error.traceback}") from error
        except Gone as error:
            if server.there:
                self._away(server, now, cycle, str(error))
            return
        server.heard = now
        if not server.there:
            server.there = True
            self._note("back" if server.incarnation else "started", server, cycle=cycle)

    def _judge(self, server: Server, now: float, cycle: int) -> None:
        assert server.heard is not None
        quiet = now - server.heard
        starting = self.moving or not server.there
        if quiet <= (self.crew.start_s if starting else self.crew.hang_s):
            return
        if not server.there:
            raise RunFailed(
                f"{server.name} has been away for {quiet:.0f} s; look at the cluster's nodes (ray "
                "status) and at events.jsonl, or raise --crew.start-s"
            )
        why = f"it gave no answer for {quiet:.0f} s"
        self._note("hangs", server, cycle=cycle)
        self.team.restart(server.handle)
        server.call = None
        self._away(server, now, cycle, why)

    def _away(self, server: Server, now: float, cycle: int, why: str) -> None:
        self._note("lost", server, why=why)
        server.there, server.heard = False, now
        server.incarnation += 1
        self.restarts += 1
        server.failures = 1 if cycle > server.cycle else server.failures + 1
        server.cycle = cycle
        if server.failures >= self.crew.failures:
            raise RunFailed(
                f"{server.name} was lost {server.failures} times at cycle {cycle} ({why}), so "
                "another try would not help. Look at what ended it (out of memory? see "
                "events.jsonl and the logs of Ray); millpond resume continues from the last state"
            )
