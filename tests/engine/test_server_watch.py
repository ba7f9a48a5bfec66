"""Shards and weights of a cluster that die or hang: each is seen, named, and started again."""

from __future__ import annotations

import signal
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from process_runs import CREW

from millpond.engine.hang_watch import HangWatch
from millpond.engine.stopping import ask_to_stop, stop_asked
from millpond.engine.supervised_crew import SupervisedCrew
from millpond.engine.team import Failed, Gone, Member, Server, StartPoint
from millpond.errors import RunFailed

START = StartPoint([7], np.zeros(1, np.uint32))
TIMES = replace(CREW.crew, hang_s=60.0, start_s=300.0, failures=3)


class Team:
    """Shards that answer, hang, are gone or fail, as a test says; time is the test's too."""

    def __init__(self, number: int = 2) -> None:
        self.shards = [f"shard {i}" for i in range(number)]
        self.weights = "weights"
        self.servers = [Server("shard", i, one) for i, one in enumerate(self.shards)]
        self.servers.append(Server("weights", 0, self.weights))
        self.how = dict.fromkeys([*self.shards, self.weights], "answers")
        self.restarted: list[str] = []
        self.killed: list[str] = []

    def call(self, member, method, *args):
        return member, method

    def wait(self, calls, number, timeout):
        return [call for call in calls if self.how.get(call[0], "answers") != "hangs"]

    def result(self, call, timeout=0.0):
        how = self.how.get(call[0], "answers")
        if how == "gone":
            raise Gone("killed by SIGKILL")
        if how == "fails":
            raise Failed("LakeRefused: no", "Traceback ...")
        return {"beats": 100, "waits": False, "starting": False}

    def about(self, member):
        return {}

    def restart(self, member):
        self.restarted.append(member)
        self.how[member] = "gone"

    def kill(self, member):
        self.killed.append(member)


class World:
    """A watch of two shards, looked at every half second."""

    def __init__(self) -> None:
        self.team, self.now, self.cycle, self.notes = Team(), 0.0, 0, Counter()
        self.team.servers.pop()
        self.watch = HangWatch({}, self.team, TIMES, self.note, lambda: self.now)
        self.run(10)

    def note(self, what, who, **more):
        self.notes[f"{what} {who.role} {who.index}"] += 1

    def run(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            self.watch.look(self.cycle)

    def lose(self, shard: str) -> None:
        """It is killed, and Ray starts it again."""
        for how in ("gone", "answers"):
            self.team.how[shard] = how
            self.run(10)


def test_a_shard_that_hangs_is_ended_and_its_name_is_told():
    world = World()
    world.team.how["shard 1"] = "hangs"
    world.run(50)
    assert world.watch.is_waiting(world.now)
    assert not world.team.restarted
    world.run(20)
    assert world.team.restarted == ["shard 1"]
    world.team.how["shard 1"] = "answers"
    world.run(10)
    assert not world.watch.is_waiting(world.now)
    assert world.watch.restarts == 1
    named = {f"{what} shard 1": 1 for what in ("started", "hangs", "lost", "back")}
    assert world.notes == {"started shard 0": 1, **named}


def test_a_shard_that_writes_out_all_it_holds_has_as_long_as_one_that_starts():
    world = World()
    world.watch.moving = True
    world.team.how["shard 0"] = "hangs"
    world.run(290)
    assert not world.team.restarted
    world.run(20)
    assert world.team.restarted == ["shard 0"]


def test_nothing_hangs_because_nobody_looked():
    world = World()
    world.team.how["shard 0"] = "hangs"
    world.run(40)
    world.now += 500
    world.run(10)
    assert not world.team.restarted


def test_a_shard_that_dies_again_and_again_ends_the_run_and_is_named():
    world = World()
    world.lose("shard 1")
    world.lose("shard 1")
    with pytest.raises(RunFailed, match=r"shard 1 was lost 3 times at cycle 0 \(killed by SIGKI"):
        world.lose("shard 1")


def test_a_shard_that_dies_while_the_run_gets_on_may_come_back_any_number_of_times():
    world = World()
    for cycle in range(20):
        world.cycle = cycle
        world.lose("shard 1")
    assert world.notes["lost shard 1"] == world.notes["back shard 1"] == 20


def test_a_shard_that_stays_away_ends_the_run_and_is_named():
    world = World()
    world.team.how["shard 0"] = "gone"
    with pytest.raises(RunFailed, match=r"shard 0 has been away for 30\d s"):
        world.run(400)


def test_a_shard_that_fails_when_it_comes_back_ends_the_run_with_its_traceback():
    world = World()
    world.team.how["shard 0"] = "fails"
    with pytest.raises(RunFailed, match="shard 0 failed: LakeRefused: no\nTraceback"):
        world.run(10)


def test_a_signal_while_shards_start_ends_the_run(tmp_path):
    """There is nothing to save yet, and a shard may take minutes."""
    crew = SupervisedCrew(replace(CREW, mode="ray", crew=TIMES), tmp_path, Team())
    crew.team.how["shard 0"] = "hangs"
    with stop_asked():
        ask_to_stop(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt), crew:
            pass


def test_an_actor_that_hangs_before_its_first_beat_is_seen(tmp_path):
    now = [0.0]
    of = replace(CREW, mode="ray", crew=TIMES)
    crew = SupervisedCrew(of, tmp_path, Team(), lambda: now[0])
    crew._join("actor", 0, 1, START, "actor 0")
    crew.team.how["actor 0"] = "hangs"
    while now[0] < 290:
        now[0] += 0.5
        crew.watch.look(crew.cycle)
    assert crew.team.killed == []
    while now[0] < 310:
        now[0] += 0.5
        crew.watch.look(crew.cycle)
    assert crew.team.killed == ["actor 0"]


@pytest.mark.parametrize("server", ["shard 1", "weights"])
def test_a_learner_is_not_blamed_for_a_server_that_hangs(tmp_path, server):
    """Its beats stand still at 100: it waits for an answer while it works."""
    now = [0.0]
    of = replace(CREW, mode="ray", crew=TIMES)
    crew = SupervisedCrew(of, tmp_path, Team(), lambda: now[0])
    crew.members["learner", 0] = Member("learner", 0, 0, START, "learner 0")

    def look_until(end: float) -> None:
        while now[0] < end:
            now[0] += 0.5
            crew.watch.look(crew.cycle)

    look_until(5)
    crew.team.how[server] = "hangs"
    look_until(100)
    assert crew.team.restarted == [server]
    assert crew.team.killed == []
    crew.team.how[server] = "answers"
    look_until(200)
    assert crew.team.killed == ["learner 0"]  # now it is its own fault
