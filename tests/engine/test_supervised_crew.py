"""Who is replaced, who ends the run and what is said of it: the same for every kind of team."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from process_runs import CREW

from millpond.engine.events import Events
from millpond.engine.supervised_crew import SupervisedCrew
from millpond.engine.team import Failed, Gone, Member, StartPoint
from millpond.errors import LearnerLost, RunFailed

OF = replace(CREW, mode="lockstep", crew=replace(CREW.crew, restarts=6, failures=3))
GONE, RAISED = Gone("killed by SIGKILL"), Failed("ValueError: no", "Traceback ...")


@dataclass(eq=False)
class Puppet:
    """An actor or a learner that is at once where it should be, until its fault."""

    role: str
    index: int
    incarnation: int
    cycle: int = 0
    end: Gone | Failed | None = None


@dataclass(eq=False)
class Call:
    """What it returns or raises, at once unless its member is under way."""

    answer: Any
    under_way: Puppet | None = None


@dataclass
class Team:
    """`faults[role, index, incarnation]`: the method that ends a member, and how."""

    faults: dict[tuple[str, int, int], tuple[str, Gone | Failed]] = field(default_factory=dict)
    gets_on: bool = True  # whether actors that are lost have pushed a cycle before
    servers: tuple = ()

    def start_actor(self, index: int, incarnation: int, start: StartPoint) -> Puppet:
        return Puppet("actor", index, incarnation, min(start.cycles))

    def start_learner(self, index: int) -> Puppet:
        return Puppet("learner", index, 0)

    def about(self, member: Puppet) -> dict[str, Any]:
        return {}

    def call(self, member: Puppet, method: str, *args: Any) -> Call:
        at, how = self.faults.get((member.role, member.index, member.incarnation), ("", GONE))
        if member.end or method == at:
            member.end = member.end or how
            return Call(member.end)
        if method == "run":
            member.cycle = args[0]
            return Call((args[0], None))
        beat = {"beats": 1, "waits": True, "starting": False}
        return Call({"beat": beat, "reach": (member.cycle, False), "pause": member.cycle}[method])

    def wait(self, calls: Any, number: int, timeout: float) -> list:
        return list(calls)

    def result(self, call: Call) -> Any:
        if isinstance(call.answer, Exception):
            raise call.answer
        return call.answer

    def kill(self, member: Puppet) -> None:
        member.end = member.end or GONE

    def progress(self, actor: Member, crew: Any) -> StartPoint:
        return actor.start._replace(cycles=[one + self.gets_on for one in actor.start.cycles])


class Entangled(Team):
    """Actors are under way until actor 1 acts as its own successor: rows wait for its rows."""

    freed = False

    def call(self, member: Puppet, method: str, *args: Any) -> Call:
        who = (member.role, member.index, member.incarnation)
        self.freed = self.freed or (method == "run" and who == ("actor", 1, 1))
        found = super().call(member, method, *args)
        if method == "run" and member.role == "actor":
            found.under_way = member
        return found

    def wait(self, calls: Any, number: int, timeout: float) -> list:
        return [c for c in calls if self.freed or not c.under_way or c.under_way.end]

    def result(self, call: Call) -> Any:
        if call.under_way and call.under_way.end:
            raise call.under_way.end
        return super().result(call)


def run(folder, team: Team, of=OF, cycles: int = 20) -> SupervisedCrew:
    with SupervisedCrew(of, folder, team) as crew:
        crew.run(cycles)
        crew.check()
        crew.watch.look(crew.cycle)
    return crew


def events(folder) -> list[str]:
    lines = Events(folder).read()
    return [f"{e['event']} {e['process']} {e['index']}.{e['incarnation']}" for e in lines]


@pytest.mark.parametrize("mode", ["lockstep", "processes"])
@pytest.mark.parametrize("how", [GONE, RAISED])
def test_a_lost_actor_is_replaced_and_the_run_goes_on(tmp_path, mode, how):
    crew = run(tmp_path, Team({("actor", 1, 0): ("run", how)}), replace(OF, mode=mode))
    assert crew.cycle >= 20
    assert crew.restarts == 1
    assert crew.members["actor", 1].start.cycles == [1]
    assert crew.members["actor", 1].handle.cycle >= 20  # it was asked to run at once
    begin = [f"started {who}.0" for who in ("learner 0", "actor 0", "actor 1")]
    assert events(tmp_path) == [*begin, "lost actor 1.0", "started actor 1.1", "back actor 1.1"]


def test_an_actor_that_never_gets_a_step_further_ends_the_run(tmp_path):
    faults = {("actor", 0, i): ("run", RAISED) for i in range(9)}
    with pytest.raises(RunFailed, match=r"incarnation 2.*failed 3 times without a step.*\nTrace"):
        run(tmp_path, Team(faults, gets_on=False))


def test_one_that_gets_on_is_replaced_until_all_restarts_are_used_up(tmp_path):
    faults = {("actor", 0, i): ("run", GONE) for i in range(9)}
    with pytest.raises(RunFailed, match=r"incarnation 6.*SIGKILL; 6 restarts are used up"):
        run(tmp_path, Team(faults))


def test_a_learner_that_was_killed_may_come_back_and_one_that_raised_may_not(tmp_path):
    with pytest.raises(LearnerLost, match="learner 0: killed by SIGKILL"):
        run(tmp_path, Team({("learner", 0, 0): ("run", GONE)}))
    with pytest.raises(RunFailed, match="learner 0 failed: ValueError: no\nTraceback"):
        run(tmp_path, Team({("learner", 0, 0): ("run", RAISED)}))


def test_a_learner_that_raised_is_not_said_to_have_used_up_restarts(tmp_path):
    of = replace(OF, crew=replace(OF.crew, restarts=0))
    with pytest.raises(RunFailed, match="learner 0 failed: ValueError: no\nTraceback"):
        run(tmp_path, Team({("learner", 0, 0): ("run", RAISED)}), of)


def test_an_actor_that_cannot_start_ends_the_run_unless_it_was_killed(tmp_path):
    with pytest.raises(RunFailed, match="actor 1 failed: ValueError: no\nTraceback"):
        run(tmp_path, Team({("actor", 1, 0): ("beat", RAISED)}))
    crew = run(tmp_path, Team({("actor", 1, 0): ("beat", GONE)}))
    assert crew.members["actor", 1].incarnation == 1


def test_who_was_killed_because_it_hung_is_said_to_have_hung(tmp_path):
    with SupervisedCrew(OF, tmp_path, team := Team()) as crew:
        member = crew.members["actor", 0]
        member.hung = "hung for 20 s at cycle 3"
        team.kill(member.handle)
        crew.check()
    lost = [e for e in Events(tmp_path).read() if e["event"] == "lost"]
    assert [e["why"] for e in lost] == ["hung for 20 s at cycle 3"]


def test_an_actor_lost_before_it_pauses_goes_on_before_the_others_are_waited_for(tmp_path):
    times = replace(OF.crew, start_s=0.5, hang_s=0.5)  # "nothing has happened" comes soon
    team = Entangled({("actor", 1, 0): ("pause", GONE)})
    with SupervisedCrew(replace(OF, mode="processes", crew=times), tmp_path, team) as crew:
        crew.run(5)
        crew.meet()
    assert team.freed
    assert crew.members["actor", 1].incarnation == 1
