"""`MemberWatch`: kills an actor or a learner that hangs; whoever waits for its answer sees that.

Every member is asked for a beat now and then. One that works but whose beats have stopped hangs,
unless it waits for a server that owes an answer, or no one could have heard it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from .server_watch import ServerWatch
from .settings import CrewSettings
from .team import Failed, Gone, Member, Team


class MemberWatch:
    """`watch.look(cycle)` now and then, at least once in a few seconds."""

    def __init__(
        self,
        members: Mapping[tuple[str, int], Member],
        team: Team,
        crew: CrewSettings,
        note: Callable[..., None],
    ) -> None:
        self.members, self.team, self.crew, self._note = members, team, crew, note
        self.servers = ServerWatch(team.servers, team, crew, note)
        self._beats: dict[Any, Member] = {}  # that were asked for and have not come
        self._looked = time.monotonic()

    def ask(self, member: Member) -> None:
        """Ask for a beat."""
        self._beats[self.team.call(member.handle, "beat")] = member

    def look(self, cycle: int) -> None:
        """Hear who answers, and kill who hangs; the run is at a cycle."""
        crew, now = self.crew, time.monotonic()
        every = min(2.0, crew.hang_s / 4)
        if (away := now - self._looked) > 3 * every:  # evaluating, say: no one could be heard
            for member in self.members.values():
                if member.seen is not None:
                    member.seen += away
            self.servers.skip(away)
            self._looked = now
        self.servers.look(now, cycle)
        if self.servers.silent(now):  # who waits for it is not to blame
            for member in self.members.values():
                member.seen = now
        if self._beats:
            for call in self.team.wait(list(self._beats), len(self._beats), 0.0):
                self._hear(call, now)
        if now - self._looked < every:
            return
        self._looked = now
        asked = set(self._beats.values())
        for member in list(self.members.values()):
            if member not in asked:
                self.ask(member)
            self._judge(member, now, cycle)

    def _hear(self, call: Any, now: float) -> None:
        member = self._beats.pop(call)
        try:
            beat = self.team.result(call)
        except (Gone, Failed):
            return  # whoever asks it for anything else finds out too
        if not member.ready:
            member.ready = True
            if member.incarnation:
                self._note("back", member, cycle=min(member.begun.cycles))
        if beat["beats"] != member.beats or beat["waits"]:
            member.beats, member.seen, member.starting = beat["beats"], now, beat["starting"]

    def _judge(self, member: Member, now: float, cycle: int) -> None:
        if member.seen is None:
            member.seen = now
        patience = self.crew.start_s if member.starting else self.crew.hang_s
        if now - member.seen > patience and not member.hung:
            member.hung = f"hung for {patience:g} s at cycle {cycle}"
            self._note("hangs", member, cycle=cycle)
            self.team.kill(member.handle)
