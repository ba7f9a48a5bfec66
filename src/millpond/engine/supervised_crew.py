"""`SupervisedCrew`: the actors and learners of a run, in processes or on Ray, for `CrewLoop`.

Running freely, each goes as fast as it can: actors are ahead of the learners by what is in flight,
and a learner takes exactly the updates that its rows call for. So samples per row are those of the
sequential run, and only the age of the acting parameters differs. In lockstep all go from cycle to
cycle together, and the run equals mode `sequential` bit for bit.

A lost actor is replaced by a new incarnation, after a cut. A lost learner takes the run back to its
resume state. A lost server comes back by itself. Every such event goes to `events.jsonl` in the
run's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import LearnerLost, RunFailed
from .checkpoint import Arrays
from .episode_stats import Sums
from .events import Events
from .hang_watch import HangWatch
from .learner import Progress
from .settings import Settings
from .stopping import stop_if_asked
from .stopwatch import SHARES
from .team import CALL_S, Failed, Gone, Member, StartPoint, Team
from .trace import Trace

_SLICE_S = 0.5
_PAUSE_S = 60.0


class SupervisedCrew:
    """with SupervisedCrew(settings, folder, team) as crew: crew.run(100)"""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        team: Team,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.settings, self.team = settings, team
        crew = settings.crew
        self.lockstep = crew.lockstep or settings.way == "lockstep"
        self.trace = Trace(folder) if crew.trace else None
        self._note = Events(folder).note
        self.members: dict[tuple[str, int], Member] = {}
        self.watch = HangWatch(self.members, team, crew, self._note, clock)
        self.restarts, self.cycle, self.bad = 0, 0, False
        self.goal = 0  # the cycle that everybody runs to; 0: none
        self._last = -(-settings.steps // (settings.envs * settings.learns.turns))
        self._running: dict[Any, Member] = {}  # by their calls of `run` that have not ended
        self._paused: set[Member] = set()  # asked to end their `run` before the goal
        self._said: dict[tuple[str, int], Any] = {}  # what the last `run` of each returned
        self._failures = [0] * settings.actors
        # Members that hang are killed sooner. A server may hang while it exports or restores, be
        # ended for it, and start again.
        self._patience = crew.start_s + crew.hang_s
        self._call_s = max(CALL_S, self._patience)
        self._long_s = 2 * crew.start_s + CALL_S
        self._before: tuple[str, str] = "", ""  # why an actor failed last, and its traceback
        self._starting = True  # there is nothing to save yet

    def __enter__(self) -> SupervisedCrew:
        self._await_servers()
        start = self._start_at(0)
        for index in range(len(self.settings.groups)):
            self._join("learner", index, 0, start, self.team.start_learner(index))
        for index in range(self.settings.actors):
            self._join("actor", index, 0, start, self.team.start_actor(index, 0, start))
        self.check()
        self._starting = False
        return self

    def __exit__(self, *_: object) -> None:
        """The team ends its members."""

    def _start_at(self, cycle: int) -> StartPoint:
        blank = np.zeros(self.settings.policies, np.uint32)
        return StartPoint([cycle] * len(self.settings.groups), blank)

    def _await_servers(self) -> None:
        """Raise if a server cannot start: everybody else would wait for it."""
        calls = [(one, self.team.call(one.handle, "beat")) for one in self.team.servers]
        for server, call in calls:
            try:
                self.result(call)
            except Failed as error:
                raise _failed(f"{server.name} failed: {error}", error.traceback) from error
            except Gone as error:
                raise RunFailed(f"{server.name} does not start: {error}") from error

    def _join(
        self, role: str, index: int, incarnation: int, start: StartPoint, handle: Any
    ) -> Member:
        member = self.members[role, index] = Member(role, index, incarnation, start, handle)
        self.watch.ask(member)
        self._note("started", member, cycle=min(start.cycles), **self.team.about(handle))
        return member

    def check(self) -> None:
        """Wait for a beat of every member; lost actors are replaced."""
        for role in ("learner", "actor"):
            self.ask(role, "beat")

    # --- running ---------------------------------------------------------------------------------

    def run(self, cycle: int) -> None:
        """Run until every learner has taken that many cycles, or a policy is bad."""
        if self.lockstep:
            while self.cycle < cycle and not self.bad:
                self._run_all(self.cycle + 1)
                self._until_stopped()
                if self.trace and not self.bad:
                    self._write_trace()
            return
        if self.goal < max(cycle, self._last):
            self._run_all(max(cycle, self._last))
        self.until(lambda: self.cycle >= cycle or self.bad)

    def _run_all(self, goal: int) -> None:
        """Start everybody, learners first, as they wait for rows; running learners get the goal."""
        self.goal = goal
        under_way = set(self._running.values())  # replaced ones may be among them
        for key in sorted(self.members, reverse=True):
            member = self.members[key]
            if member not in under_way:
                self._run(member)
            elif member.role == "learner":
                self.team.call(member.handle, "aim", goal)

    def _run(self, member: Member) -> None:
        self._running[self.team.call(member.handle, "run", self.goal)] = member

    def _until_stopped(self) -> None:
        """Wait until all calls of `run` have ended."""
        self.until(lambda: not self._running, all_of_them=True)
        self._look_at_learners(0)

    def until(self, done: Callable[[], bool], all_of_them: bool = False) -> None:
        """Wait until `done()`, and meanwhile supervise everybody."""
        before: Any = None
        since = time.monotonic()
        while not done():
            if not all_of_them:
                self._look_at_learners(0.05 if self._running else 0.0)
            calls = list(self._running)
            number = len(calls) if all_of_them else 1
            for call in self.team.wait(calls, max(1, number), _SLICE_S if all_of_them else 0.0):
                self._ended(call)
            self.watch.look(self.cycle)
            now = (self.cycle, len(self._running), self.restarts, self.watch.restarts)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > self._patience:
                raise RunFailed(
                    f"nothing has happened for {self._patience:g} s at cycle {self.cycle}; every "
                    "process waits for another. Look at events.jsonl, and on a cluster at its "
                    "nodes (ray status); if they are healthy, please report it with events.jsonl"
                )

    def _look_at_learners(self, wait_s: float) -> None:
        """See how far the slowest learner is, waiting `wait_s` for the next cycle of each."""
        found: list[int] = []
        for index in range(len(self.settings.groups)):
            member = self.members["learner", index]
            asked = self.team.call(member.handle, "reach", self.cycle + 1, wait_s)
            try:
                at, bad = self.result(asked)
            except (Gone, Failed) as error:
                self._lost(member, error)
                raise AssertionError("a lost learner ends the run") from error
            found.append(at)
            self.bad = self.bad or bad
        self.cycle = min(found)

    def _ended(self, call: Any) -> None:
        member = self._running.pop(call)
        if self.members.get((member.role, member.index)) is not member:
            return  # it was replaced
        try:
            said = self._said[member.role, member.index] = self.team.result(call)
        except (Gone, Failed) as error:
            self._lost(member, error)
            return
        early = said[0] < self.goal or member in self._paused  # it did not know the new goal
        self._paused.discard(member)
        if early and not self.bad:
            self._run(member)

    def _write_trace(self) -> None:
        rows = [self._said["actor", i][1] for i in range(self.settings.actors)]
        learners = [self._said["learner", i][1] for i in range(len(self.settings.groups))]
        assert self.trace
        self.trace.write(self.cycle, rows, [one for some in learners for one in some])

    # --- asking ----------------------------------------------------------------------------------

    def ask(self, role: str, method: str, *args: Any) -> list[Any]:
        """Call a method of all members of a role; one that is lost is replaced and asked again."""
        return self._ask_each(role, method, lambda _: args)

    def _ask_each(
        self,
        role: str,
        method: str,
        args: Callable[[int], Sequence[Any]],
        timeout: float | None = None,
    ) -> list[Any]:
        def begin(key: tuple[str, int]) -> tuple[Member, Any]:
            member = self.members[key]
            return member, self.team.call(member.handle, method, *args(key[1]))

        asked = {key: begin(key) for key in sorted(self.members) if key[0] == role}
        found: list[Any] = []
        for key in asked:
            while len(found) <= key[1]:
                member, call = asked[key]
                try:
                    found.append(self.result(call, timeout))
                except (Gone, Failed) as error:
                    if self.members[key] is member:
                        self._lost(member, error)
                    asked[key] = begin(key)
        return found

    def result(self, call: Any, timeout: float | None = None) -> Any:
        """What a call returned. A member that hangs meanwhile is killed; its call raises `Gone`."""
        timeout = self._call_s if timeout is None else timeout
        deadline = time.monotonic() + timeout
        while not self.team.wait([call], 1, _SLICE_S):
            if self._starting:
                stop_if_asked()
            self.watch.look(self.cycle)
            if time.monotonic() > deadline:
                raise Gone(f"no answer within {timeout:g} s")
        return self.team.result(call)

    def reports(self) -> tuple[list[Sums], list[Progress]]:
        """What every actor and every learner reports."""
        actors = [Sums(*one) for one in self.ask("actor", "report")]
        return actors, [Progress(*one) for one in self.ask("learner", "report")]

    def params(self) -> list[Any]:
        """The parameters of every learner, [its policies]."""
        return self.ask("learner", "params")

    def batch(self) -> Any:
        """The batch of the first update that was not finite."""
        return next((found for found in self.ask("learner", "batch") if found), None)

    def pace(self) -> dict[str, Any]:
        """How members spend their time, and how often one was replaced."""
        shares: dict[str, list[float]] = {}
        for role in ("actor", "learner"):
            for index, beat in enumerate(self.ask(role, "beat")):
                spent = np.array([beat["spent"][name] for name in SHARES])
                shares[f"{role} {index}"] = (spent / max(1e-9, spent.sum())).round(4).tolist()
        return {
            "restarts": self.restarts + self.watch.restarts,
            "shares": shares,
            "share_names": list(SHARES),
            **self.team.pace(self),
        }

    # --- saving ----------------------------------------------------------------------------------

    def export(self) -> tuple[list[Arrays], list[Arrays]]:
        """The state of every actor and every policy, all at the same cycle."""
        self.meet()
        actors = self.ask("actor", "export")
        # A new incarnation that has not acted yet is exported as it begins, so the cut before its
        # rows must be in what the learners export.
        for (role, index), member in sorted(self.members.items()):
            if role == "actor" and member.incarnation and max(member.start.cycles) >= self.cycle:
                self.ask("learner", "cut", index)
        with self._moving():
            found = self._ask_each("learner", "export", lambda _: (), self._long_s)
        return actors, [policy for some in found for policy in some]

    @contextlib.contextmanager
    def _moving(self) -> Generator[None]:
        """While servers export or restore all they hold, they need not answer."""
        self.watch.moving = True
        try:
            yield
        finally:
            self.watch.moving = False

    def meet(self) -> None:
        """Pause the actors, and run everybody up to the cycle of the foremost one."""
        if self.lockstep or not self._running:
            return
        self.goal = 0
        # Wait only after all may go on: to end its cycle, one may need the rows of another.
        self._paused = {one for one in self._running.values() if one.role == "actor"}
        self._run_all(max(self.ask("actor", "pause", _PAUSE_S)))
        self._until_stopped()
        self.goal = 0

    def restore(self, actors: Sequence[Arrays], learners: Sequence[Arrays]) -> None:
        """Continue from an exported state."""
        self.cycle = int(learners[0]["cycles"])
        given = [([learners[policy] for policy in group],) for group in self.settings.groups]
        with self._moving():
            self._ask_each("learner", "restore", lambda i: given[i], self._long_s)
        for member in self.members.values():  # if one is lost now, its successor begins here
            member.start = self._start_at(self.cycle)
        whole = self._ask_each("actor", "restore", lambda i: (self.cycle, actors[i]))
        for index, kept in enumerate(whole):
            if not kept:
                self.ask("learner", "cut", index)
        if self.trace:
            self.trace.cut(self.cycle)

    # --- faults ----------------------------------------------------------------------------------

    def _lost(self, member: Member, error: Gone | Failed) -> None:
        """A member is gone: replace an actor, or raise if the run cannot continue."""
        failed = isinstance(error, Failed)
        why, traceback = (str(error), error.traceback) if failed else (member.hung or error, "")
        self._note("lost", member, why=str(why), traceback=traceback)
        crew = self.settings.crew
        self.restarts += 1
        # A member that raised while starting would raise again. One that was killed may start the
        # next time, and so may the successor of one that had started.
        for_good = self._starting and not member.incarnation
        if failed and (member.role == "learner" or for_good):
            raise self._after_all(f"{member.name} failed: {why}", traceback) from error
        if self.restarts > crew.restarts:
            used = f"{member.name}: {why}; {crew.restarts} restarts are used up"
            raise _failed(used, traceback) from error
        if member.role == "learner":
            raise LearnerLost(f"{member.name}: {why}") from error
        if failed:
            self._before = f"{member.name} failed: {why}", traceback
        self.team.kill(member.handle)
        index, start = member.index, self.team.progress(member, self)
        got_on = sum(start.cycles) > sum(member.start.cycles)
        self._failures[index] = 0 if got_on else self._failures[index] + 1
        if self._failures[index] >= crew.failures:
            raise _failed(
                f"{member.name}: {why}; it failed {self._failures[index]} times without a step in "
                "between, so another try would not help",
                traceback,
            ) from error
        incarnation = member.incarnation + 1
        handle = self.team.start_actor(index, incarnation, start)
        new = self._join("actor", index, incarnation, start, handle)
        if self.goal:
            self._run(new)

    def _after_all(self, why: str, traceback: str) -> RunFailed:
        """The error that ends the run, with an earlier failure of an actor as a likely cause."""
        before, its = self._before
        if not before:
            return _failed(why, traceback)
        return _failed(f"{before}; then {why}", its + traceback)


def _failed(why: str, traceback: str) -> RunFailed:
    """The error that ends a run, with the traceback of the member that caused it."""
    error = RunFailed(f"{why}\n{traceback}" if traceback else why)
    error.traceback = traceback
    return error
