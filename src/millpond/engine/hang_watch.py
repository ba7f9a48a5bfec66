"""`HangWatch`: notices when a member or a server of a run hangs, and ends it.

Everybody is asked for a beat now and then. A member hangs if it works but its beats stand still; it
is killed, and whoever waits for its answer sees that. Ray starts a server that died again by
itself, but not one that hangs, for which everybody waits: so a server without a beat is ended too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from ..errors import RunFailed
from .settings import CrewSettings
from .team import Failed, Gone, Member, Server, Team


class HangWatch:
    """`watch.look(cycle)`, at least once every few seconds; `cycle` is that of the run."""

    def __init__(
        self,
        members: Mapping[tuple[str, int], Member],
        team: Team,
        crew: CrewSettings,
        note: Callable[..., None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.members, self.team, self.crew, self._note = members, team, crew, note
        self.every = min(2.0, crew.hang_s / 4)
        self.moving = False  # servers export or restore, which takes as long as starting
        self.restarts = 0  # of servers
        self.clock = clock
        self._looked = clock()

    def ask(self, one: Member | Server) -> None:
        """Ask for a beat."""
        one.call = self.team.call(one.handle, "beat")

    def look(self, cycle: int) -> None:
        """Take the beats that have come, ask for others, and end whoever hangs."""
        now = self.clock()
        members = list(self.members.values())
        if (away := now - self._looked) > 3 * self.every:  # evaluating, say: nobody was heard
            for one in (*members, *self.team.servers):
                if one.seen is not None:
                    one.seen += away
            self._looked = now
        self._look_at_servers(now, cycle)
        if self.is_waiting(now):  # whoever waits for a server is not to blame
            for member in members:
                member.seen = now
        for member, call in self._answered(members):
            self._hear_member(member, call, now)
        if now - self._looked < self.every:
            return
        self._looked = now
        for member in members:
            if member.call is None:
                self.ask(member)
            self._judge_member(member, now, cycle)

    def is_waiting(self, now: float) -> bool:
        """Whether a server owes an answer: members that wait for it cannot be judged."""
        late = 2 * self.every
        return any(one.seen is not None and now - one.seen > late for one in self.team.servers)

    def _answered(self, some: Collection[Any]) -> Iterator[tuple[Any, Any]]:
        """Everybody whose beat has come or failed, with the call."""
        asked = {one.call: one for one in some if one.call is not None}
        for call in self.team.wait(list(asked), len(asked), 0.0) if asked else ():
            asked[call].call = None
            yield asked[call], call

    # --- members ---------------------------------------------------------------------------------

    def _hear_member(self, member: Member, call: Any, now: float) -> None:
        try:
            beat = self.team.result(call)
        except (Gone, Failed):
            return  # whoever asks it for anything else finds out too
        if not member.ready:
            member.ready = True
            if member.incarnation:
                self._note("back", member, cycle=min(member.start.cycles))
        if beat["beats"] != member.beats or beat["waits"]:
            member.beats, member.seen, member.starting = beat["beats"], now, beat["starting"]

    def _judge_member(self, member: Member, now: float, cycle: int) -> None:
        if member.seen is None:
            member.seen = now
        patience = self.crew.start_s if member.starting else self.crew.hang_s
        if now - member.seen > patience and not member.hung:
            member.hung = f"hung for {patience:g} s at cycle {cycle}"
            self._note("hangs", member, cycle=cycle)
            self.team.kill(member.handle)

    # --- servers ---------------------------------------------------------------------------------

    def _look_at_servers(self, now: float, cycle: int) -> None:
        for server, call in self._answered(self.team.servers):
            self._hear_server(server, call, now, cycle)
        for server in self.team.servers:
            if server.seen is None:
                server.seen = now
            if server.call is None and now - server.asked >= self.every:
                server.asked = now
                self.ask(server)
            self._judge_server(server, now - server.seen, now, cycle)

    def _hear_server(self, server: Server, call: Any, now: float, cycle: int) -> None:
        try:
            self.team.result(call)
        except Failed as error:
            raise RunFailed(f"{server.name} failed: {error}\n{error.traceback}") from error
        except Gone as error:
            if server.there:
                self._lose_server(server, now, cycle, str(error))
            return
        server.seen = now
        if not server.there:
            server.there = True
            self._note("back" if server.incarnation else "started", server, cycle=cycle)

    def _judge_server(self, server: Server, quiet: float, now: float, cycle: int) -> None:
        starting = self.moving or not server.there
        if quiet <= (self.crew.start_s if starting else self.crew.hang_s):
            return
        if not server.there:
            raise RunFailed(
                f"{server.name} has been away for {quiet:.0f} s; look at the cluster's nodes (ray "
                "status) and at events.jsonl, or raise --crew.start-s"
            )
        self._note("hangs", server, cycle=cycle)
        self.team.restart(server.handle)
        server.call = None
        self._lose_server(server, now, cycle, f"it gave no answer for {quiet:.0f} s")

    def _lose_server(self, server: Server, now: float, cycle: int, why: str) -> None:
        self._note("lost", server, why=why)
        server.there, server.seen = False, now
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
