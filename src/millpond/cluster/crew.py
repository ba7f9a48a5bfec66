"""`ClusterCrew`: a run's actors and learners on a cluster, for `CrewLoop`.

A lost actor comes back as a new incarnation, after a cut. A lost shard comes back by itself, and
actors send it again what no learner has taken; one that hangs is ended first. A lost learner takes
the run back to its resume state. What happened is written to `events.jsonl` in the run's folder.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..engine.crew import SHARES
from ..engine.episode_stats import Sums
from ..engine.events import Events
from ..engine.learner import Progress
from ..engine.settings import Settings
from ..engine.stopping import stop_if_asked
from ..engine.trace import Trace
from ..errors import LearnerLost, RunFailed
from .transport import CALL_S
from .watch import Failed, Gone, Server, ServerWatch

_SLICE_S = 0.5
_PAUSE_S = 60.0


class Team(Protocol):
    """How members are started and called."""

    shards: list[Any]
    weights: Any

    def start_actor(self, index: int, incarnation: int, cycle: int, steps: np.ndarray) -> Any: ...

    def start_learner(self, index: int) -> Any: ...

    def call(self, member: Any, method: str, *args: Any) -> Any: ...

    def wait(self, calls: Sequence[Any], number: int, timeout: float) -> list[Any]: ...

    def result(self, call: Any, timeout: float = ...) -> Any: ...

    def kill(self, member: Any) -> None: ...

    def restart(self, member: Any) -> None: ...


@dataclass(frozen=True, eq=False)
class Member:
    """One actor or learner, in one incarnation."""

    role: str
    index: int
    incarnation: int
    begun: int  # the cycle at which it began
    handle: Any

    @property
    def name(self) -> str:
        """`actor 0`, `actor 0 (incarnation 2)`."""
        again = f" (incarnation {self.incarnation})" if self.incarnation else ""
        return f"{self.role} {self.index}{again}"


class Seen(NamedTuple):
    """What a member's newest beat said."""

    incarnation: int
    beats: int
    at: float  # when it got on last, or waited
    starting: bool  # its first steps are compiled: that may take as long as starting


class ClusterCrew:
    """with ClusterCrew(settings, folder, team) as crew: crew.run(100)"""

    def __init__(self, settings: Settings, folder: Path, team: Team) -> None:
        self.settings, self.folder, self.team = settings, folder, team
        self.trace = Trace(folder) if settings.crew.trace else None
        self._note = Events(folder).note
        self.members: dict[tuple[str, int], Member] = {}
        self.restarts, self.cycle, self.bad = 0, 0, False
        self.goal = 0  # where all run to; 0: nowhere
        self._last = -(-settings.steps // (settings.envs * settings.learns.turns))
        self._running: dict[Any, Member] = {}  # calls of `run` that have not ended
        self._said: dict[tuple[str, int], Any] = {}  # what the newest `run` of each returned
        self._failures = [0] * settings.actors
        self._seen: dict[tuple[str, int], Seen] = {}
        self._beats: dict[Any, Member] = {}
        self._looked = time.monotonic()
        # A shard may hang while it moves all it holds, be ended for it, and begin again.
        self._long_s = 2 * settings.crew.start_s + CALL_S
        self._starting = True  # nothing has been done yet that could be saved
        servers = [Server("shard", index, shard) for index, shard in enumerate(team.shards)]
        servers.append(Server("weights", 0, team.weights))
        self._servers = ServerWatch(servers, team, settings.crew, self._note)

    def __enter__(self) -> ClusterCrew:
        blank = np.zeros(self.settings.policies, np.uint32)
        try:
            self._await_shards()
            for index in range(len(self.settings.groups)):
                self._join("learner", index, 0, 0, self.team.start_learner(index))
            for index in range(self.settings.actors):
                self._join("actor", index, 0, 0, self.team.start_actor(index, 0, 0, blank))
            for role in ("learner", "actor"):
                self._ask(role, "beat", timeout=self.settings.crew.start_s)
            self._starting = False
        except BaseException:
            self.close()
            raise
        return self

    def _await_shards(self) -> None:
        """A shard that cannot start would be waited for in vain by everybody else."""
        calls = [self.team.call(shard, "stats") for shard in self.team.shards]
        for index, call in enumerate(calls):
            try:
                self._result(call, self.settings.crew.start_s)
            except Failed as error:
                why = f"shard {index} failed: {error}\n{error.traceback}"
                raise RunFailed(why) from error
            except Gone as error:
                raise RunFailed(f"shard {index} does not start: {error}") from error

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End every actor and learner."""
        for member in self.members.values():
            self.team.kill(member.handle)
        self.members.clear()

    def _join(self, role: str, index: int, incarnation: int, begun: int, handle: Any) -> Member:
        member = Member(role, index, incarnation, begun, handle)
        self.members[role, index] = member
        # It may hang before it is heard of for the first time.
        self._seen[role, index] = Seen(incarnation, -1, time.monotonic(), starting=True)
        self._note("started" if not incarnation else "back", member, cycle=begun)
        return member

    # --- running ---------------------------------------------------------------------------------

    def run(self, cycle: int) -> None:
        """Until every learner has taken so many cycles, or a policy is bad."""
        if self.settings.crew.lockstep:
            while self.cycle < cycle and not self.bad:
                self._run_all(self.cycle + 1)
                self._until_stopped()
                if self.trace and not self.bad:
                    self._write_trace()
            return
        if self.goal < max(cycle, self._last):
            self._run_all(max(cycle, self._last))
        self._until(lambda: self.cycle >= cycle or self.bad)

    def _run_all(self, goal: int) -> None:
        """Learners first: they wait for rows. Those that are under way are told the new goal."""
        self.goal = goal
        under_way = {(member.role, member.index) for member in self._running.values()}
        for key in sorted(self.members, reverse=True):
            member = self.members[key]
            if key not in under_way:
                self._run(member)
            elif member.role == "learner":
                self.team.call(member.handle, "aim", goal)

    def _run(self, member: Member) -> None:
        self._running[self.team.call(member.handle, "run", self.goal)] = member

    def _until_stopped(self) -> None:
        """Until all calls of `run` have ended."""
        self._until(lambda: not self._running, all_of_them=True)
        for index in range(len(self.settings.groups)):
            self.cycle, _ = self._said["learner", index]
        self._look_at_learners(0)

    def _until(self, done: Callable[[], bool], all_of_them: bool = False) -> None:
        before: Any = None
        since = time.monotonic()
        patience = self.settings.crew.start_s + self.settings.crew.hang_s
        while not done():
            if not all_of_them:
                self._look_at_learners(0.05 if self._running else 0.0)
            calls = list(self._running)
            number = len(calls) if all_of_them else 1
            for call in self.team.wait(calls, max(1, number), _SLICE_S if all_of_them else 0.0):
                self._ended(call)
            self._look_for_hangs()
            now = (self.cycle, len(self._running), self.restarts, self._servers.restarts)
            if now != before:
                before, since = now, time.monotonic()
            elif time.monotonic() - since > patience:
                raise RunFailed(
                    f"nothing has happened for {patience:g} s at cycle {self.cycle}; every process "
                    "waits for another. Look at the cluster (ray status) and at events.jsonl"
                )

    def _look_at_learners(self, wait_s: float) -> None:
        """How far the slowest of them is; waits a little for it to get on."""
        found: list[int] = []
        for index in range(len(self.settings.groups)):
            member = self.members["learner", index]
            asked = self.team.call(member.handle, "reach", self.cycle + 1, wait_s)
            at, bad = self._answer(member, asked)
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
        if said[0] < self.goal and not self.bad:
            self._run(member)  # it had ended before it was told the new goal

    def _write_trace(self) -> None:
        rows = [self._said["actor", i][1] for i in range(self.settings.actors)]
        learners = [self._said["learner", i][1] for i in range(len(self.settings.groups))]
        assert self.trace
        self.trace.write(self.cycle, rows, [one for some in learners for one in some])

    # --- asking ----------------------------------------------------------------------------------

    def _ask(self, role: str, method: str, *args: Any, timeout: float = CALL_S) -> list[Any]:
        """Call every member of a role; one that is lost meanwhile is asked in its next form."""
        return self._ask_each(role, method, lambda _: args, timeout)

    def _ask_each(
        self, role: str, method: str, args: Callable[[int], Sequence[Any]], timeout: float = CALL_S
    ) -> list[Any]:
        keys = [key for key in sorted(self.members) if key[0] == role]
        asked = {
            key: (member := self.members[key], self.team.call(member.handle, method, *args(key[1])))
            for key in keys
        }
        found: list[Any] = []
        for key in keys:
            while True:
                member, call = asked[key]
                try:
                    found.append(self._result(call, timeout))
                    break
                except (Gone, Failed) as error:
                    if self.members[key] is member:
                        self._lost(member, error)
                    member = self.members[key]
                    asked[key] = member, self.team.call(member.handle, method, *args(key[1]))
        return found

    def _result(self, call: Any, timeout: float) -> Any:
        """What a call returned; who hangs meanwhile is killed, and the call then raises `Gone`."""
        deadline = time.monotonic() + timeout
        while not self.team.wait([call], 1, _SLICE_S):
            if self._starting:
                stop_if_asked()
            self._look_for_hangs()
            if time.monotonic() > deadline:
                raise Gone(f"no answer within {timeout:g} s")
        return self.team.result(call)

    def _answer(self, member: Member, call: Any) -> Any:
        try:
            return self._result(call, CALL_S)
        except (Gone, Failed) as error:
            self._lost(member, error)
            raise AssertionError("a lost learner ends the run") from error

    def reports(self) -> tuple[list[Sums], list[Progress]]:
        """Of every actor its sums, of every policy its progress."""
        actors = [Sums(**one) for one in self._ask("actor", "report")]
        learners = [Progress(**one) for some in self._ask("learner", "report") for one in some]
        return actors, learners

    def params(self) -> list[Any]:
        """Every learner's parameters, [its policies]."""
        return self._ask("learner", "params")

    def batch(self) -> Any:
        """The batch of the first update that was not finite."""
        return next((found for found in self._ask("learner", "batch") if found), None)

    def pace(self) -> dict[str, Any]:
        """How everybody spent their time, and what the shards hold, each and all together."""
        shares: dict[str, list[float]] = {}
        for role in ("actor", "learner"):
            for index, beat in enumerate(self._ask(role, "beat")):
                spent = np.array([beat["spent"][name] for name in SHARES])
                shares[f"{role} {index}"] = (spent / max(1e-9, spent.sum())).round(4).tolist()
        shards = self.shard_stats()
        names = ("stored", "bytes", "chunks", "rows", "again", "refused", "drawn")
        total = {name: sum(one.get(name, 0) for one in shards) for name in names}
        return {
            "restarts": self.restarts + self._servers.restarts,
            "shares": shares,
            "share_names": list(SHARES),
            "shards": {"each": [one.get("stored") for one in shards], **total},
        }

    def shard_stats(self) -> list[dict[str, Any]]:
        """Of every shard; one that is away for the moment says nothing."""
        found: list[dict[str, Any]] = []
        calls = [self.team.call(shard, "stats") for shard in self.team.shards]
        for call in calls:
            try:
                found.append(self._result(call, CALL_S))
            except Gone:
                found.append({})
        return found

    # --- saving ----------------------------------------------------------------------------------

    def export(self) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray]]]:
        """The whole state of every actor and every policy, at one cycle."""
        self._meet()
        actors = self._ask("actor", "export")
        # An actor that came back and has not acted yet is exported as one that begins, so the cut
        # before its rows must be in what the learners and shards export.
        for (role, index), member in sorted(self.members.items()):
            if role == "actor" and member.incarnation and member.begun >= self.cycle:
                self._ask("learner", "cut", index)
        with self._moving():
            found = self._ask("learner", "export", timeout=self._long_s)
        learners = [policy for some in found for policy in some]
        return actors, learners

    @contextlib.contextmanager
    def _moving(self) -> Generator[None]:
        """While shards write out or take in all they hold, they answer nobody."""
        self._servers.moving = True
        try:
            yield
        finally:
            self._servers.moving = False

    def _meet(self) -> None:
        """Actors stop where they are; all go on to where the foremost one stands."""
        if self.settings.crew.lockstep or not self._running:
            return
        self.goal = 0
        cycle = max(self._ask("actor", "pause", _PAUSE_S, timeout=2 * _PAUSE_S))
        actors = [call for call, member in self._running.items() if member.role == "actor"]
        for call in self.team.wait(actors, len(actors), _PAUSE_S):
            self._ended(call)
        self._run_all(cycle)
        self._until_stopped()
        self.goal = 0

    def restore(self, actors: Sequence[Any], learners: Sequence[Any]) -> None:
        """Go on from an exported state."""
        self.cycle = int(learners[0]["cycles"])
        groups = self.settings.groups
        with self._moving():
            given = [([learners[policy] for policy in group],) for group in groups]
            self._ask_each("learner", "restore", lambda i: given[i], timeout=self._long_s)
        whole = self._ask_each("actor", "restore", lambda i: (self.cycle, actors[i]))
        for index, kept in enumerate(whole):
            if not kept:
                self._ask("learner", "cut", index)
        if self.trace:
            self.trace.cut(self.cycle)

    # --- faults ----------------------------------------------------------------------------------

    def _lost(self, member: Member, error: Gone | Failed) -> None:
        """A member is gone: bring an actor back, or say that the run cannot go on."""
        traceback = error.traceback if isinstance(error, Failed) else ""
        self._note("lost", member, why=str(error), traceback=traceback)
        crew = self.settings.crew
        self.restarts += 1
        if self.restarts > crew.restarts:
            raise RunFailed(f"{member.name}: {error}; {crew.restarts} restarts are used up")
        if member.role == "learner":
            if isinstance(error, Gone):
                raise LearnerLost(f"{member.name}: {error}") from error
            raise RunFailed(f"{member.name} failed: {error}\n{traceback}") from error
        self._bring_back(member, error, traceback)

    def _bring_back(self, member: Member, error: Exception, traceback: str) -> None:
        index, crew = member.index, self.settings.crew
        self.team.kill(member.handle)
        cycle, steps = self._stood(index)
        self._failures[index] = 0 if cycle > member.begun else self._failures[index] + 1
        if self._failures[index] >= crew.failures:
            raise RunFailed(
                f"{member.name}: {error}; it failed {self._failures[index]} times without a step "
                f"in between, so another try would not help\n{traceback}"
            ) from error
        incarnation = member.incarnation + 1
        handle = self.team.start_actor(index, incarnation, cycle, steps)
        new = self._join("actor", index, incarnation, cycle, handle)
        if self.goal:
            self._run(new)

    def _stood(self, actor: int) -> tuple[int, np.ndarray]:
        """Up to where an actor's rows are safe: with its shard, or else with the learners."""
        deadline = time.monotonic() + self.settings.crew.start_s
        shard = self.team.shards[actor % len(self.team.shards)]
        while True:
            try:
                found = self._result(self.team.call(shard, "stood", actor), CALL_S)
                break
            except Gone as error:  # it is coming back
                if time.monotonic() > deadline:
                    which = actor % len(self.team.shards)
                    raise RunFailed(f"shard {which}, of actor {actor}, stays away") from error
                time.sleep(0.1)
        learners = self._ask("learner", "stood", actor)
        cycle = min(one for one, _ in learners)
        if found is not None and found[0] >= cycle:
            return int(found[0]), np.asarray(found[1])
        return int(cycle), np.concatenate([steps for _, steps in learners])

    def _look_for_hangs(self) -> None:
        """Kill who works and does not get on; its `run` then ends as lost."""
        crew, now = self.settings.crew, time.monotonic()
        every = min(2.0, crew.hang_s / 4)
        if (away := now - self._looked) > 3 * every:  # evaluating, say: nobody could be heard
            self._seen = {k: one._replace(at=one.at + away) for k, one in self._seen.items()}
            self._servers.skip(away)
            self._looked = now
        self._servers.look(now, self.cycle)
        if self._servers.silent(now):  # who waits for it is not to blame
            self._seen = {k: one._replace(at=now) for k, one in self._seen.items()}
        for call in self.team.wait(list(self._beats), len(self._beats), 0) if self._beats else []:
            member = self._beats.pop(call)
            try:
                beat = self.team.result(call)
            except (Gone, Failed):
                continue  # its `run` says so too
            key, waits = (member.role, member.index), beat["doing"] == "waiting"
            seen = self._seen.get(key)
            same = seen is not None and seen[:2] == (member.incarnation, beat["beats"])
            if not same or waits:
                self._seen[key] = Seen(member.incarnation, beat["beats"], now, beat["starting"])
        if now - self._looked < every:
            return
        self._looked = now
        waiting = {(m.role, m.index) for m in self._beats.values()}
        for key, member in list(self.members.items()):
            if key not in waiting:
                self._beats[self.team.call(member.handle, "beat")] = member
            seen = self._seen.get(key)
            if seen is None or seen.incarnation != member.incarnation:
                continue
            if now - seen.at > (crew.start_s if seen.starting else crew.hang_s):
                self._note("hangs", member, cycle=self.cycle)
                self._seen.pop(key)
                self.team.kill(member.handle)
