"""Actors that are replaced at the worst moment: what is saved then can be gone on from."""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import replace

import pytest
from process_runs import ALONE, CREW, hooks, kill_actor, nothing_left_behind, with_hook
from tiny_runs import WORLD

from millpond.process import team
from millpond.process.heartbeat import WAITING
from millpond.process.team import ProcessTeam
from millpond.transport.memory import PLACES

__all__ = ["hooks", "nothing_left_behind"]


@pytest.mark.parametrize("mode", ["lockstep", pytest.param("processes", marks=pytest.mark.full)])
def test_a_state_saved_where_a_new_incarnation_begins_can_be_gone_on_from(tmp_path, mode):
    """The replay in it ends with a cut, so the actor's first row may follow.

    Epsilon is by env steps: a successor of a successor, lost before its first cycle, must not
    begin at 1 again.
    """
    of = replace(ALONE, mode=mode, replay="host")
    with team.open_loop(of, tmp_path) as loop:
        state, _ = loop.round(loop.init(), 7)  # mid-episode: one is 11 turns, a cycle is 2
        loop.crew.meet()
        before = loop.crew.team.board.line(0).steps
        assert before > 0
        kill_actor(loop)
        kill_actor(loop)
        state = loop.init()
        tree, cycle = loop.pack(state), state.cycle
        loop.round(state, 1)
        assert loop.crew.team.board.line(0).steps > before
    with team.open_loop(of, tmp_path) as loop:
        state = loop.unpack(tree)
        assert state.cycle == cycle
        state, _ = loop.round(state, 8)
        assert state.cycle >= cycle + 8
        assert not any(one["border_breaks"] for one in loop.evidence)


@pytest.mark.full
def test_an_actor_stopped_while_it_waits_is_replaced(tmp_path):
    of = replace(ALONE, mode="lockstep", crew=replace(ALONE.crew, hang_s=2.0, start_s=60.0))
    with team.open_loop(of, tmp_path) as loop:
        state, _ = loop.round(loop.init(), 7)
        crew = loop.crew
        crew.until(lambda: crew.team.board.line(0).state == WAITING)
        os.kill(crew.team.children["actor", 0].process.pid, signal.SIGSTOP)
        state, _ = loop.round(state, 2)
        assert crew.members["actor", 0].incarnation == 1
        assert state.cycle == 9


@pytest.mark.full
def test_a_successor_killed_while_it_starts_is_replaced(tmp_path, monkeypatch):
    births = []

    class Frail(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            births.append(self)
            if len(births) == 3:  # after a learner and an actor: the first successor
                self.kill()

    monkeypatch.setattr(subprocess, "Popen", Frail)
    with team.open_loop(replace(ALONE, mode="lockstep"), tmp_path) as loop:
        state, _ = loop.round(loop.init(), 3)
        kill_actor(loop)
        assert loop.crew.members["actor", 0].incarnation == 2
        state, _ = loop.round(state, 2)
        assert state.cycle == 5


def test_a_successor_killed_as_it_says_that_it_is_ready_is_replaced(tmp_path, monkeypatch):
    """The goal that it is sent then finds nobody."""
    confirm, frail, words = ProcessTeam._confirm, [], set()

    def confirmed(self, child, message):
        confirm(self, child, message)
        words.add((child.role, message.values["canaries"][-1][0]))
        if child.incarnation == 1:
            frail.append(child)
            child.kill()

    monkeypatch.setattr(ProcessTeam, "_confirm", confirmed)
    with team.open_loop(ALONE, tmp_path) as loop:
        state, _ = loop.round(loop.init(), 3)
        os.kill(loop.crew.team.children["actor", 0].process.pid, signal.SIGKILL)
        state, _ = loop.round(state, 20)
        assert state.cycle >= 23
        assert len(frail) == 1
        assert words == {("learner", 1), ("actor", PLACES[0])}  # drawn, two actors could meet
        assert loop.crew.team.children["actor", 0].incarnation == 2


@pytest.mark.full
def test_actors_lost_between_two_pushes_while_a_state_is_saved(tmp_path):
    """One learner has rows of a cycle that the other has not: all meet after it, none is lost."""
    crew = replace(CREW.crew, learners=2, start_s=60.0)
    of = replace(CREW, world=WORLD, crew=crew, replay="host")
    with with_hook(actor="stop_between_pushes")(of, tmp_path) as loop:
        state, team = loop.init(), loop.crew.team
        loop.crew.run(5)  # the actors answer no more, so nobody is asked for a report
        pushed = [[6, 5], [5, 5]]
        loop.crew.until(lambda: [[c.whole() for c in row] for row in team.channels] == pushed)
        for index in range(2):
            os.kill(team.children["actor", index].process.pid, signal.SIGKILL)
        tree = loop.pack(state)
        assert [int(one["cycles"]) for one in tree["learners"]] == [6, 6]
        state, _ = loop.round(loop.init(), 8)
        assert state.cycle >= 14
        assert not any(one["border_breaks"] for one in loop.evidence)
