"""Actors and learners as processes: equal to the sequential run, and whole after every fault."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from process_runs import (
    ALONE,
    CREW,
    events,
    evidence,
    hooks,
    living,
    lost,
    nothing_left_behind,
    quiet,
    with_hook,
    workers,
)
from tiny_runs import WORLD, Crash, dqn

from millpond.cli.train import identical_text
from millpond.engine import checkpoint
from millpond.engine.row_audit import LAG_EDGES
from millpond.engine.settings import CrewSettings
from millpond.errors import RunFailed
from millpond.metrics import read_metrics
from millpond.train import Run, train
from millpond.train.check_lockstep import compare
from millpond.train.loop import open_loop
from millpond.train.session import resume_point

__all__ = ["hooks", "nothing_left_behind"]  # fixtures for every test here

# --- equal to the sequential run ----------------------------------------------------------------


TWICE = replace(CREW, world=WORLD)
APART = replace(TWICE, crew=replace(CREW.crew, learners=2))
LAKE = dqn(replace(ALONE, replay="lake"), capacity=8_192)  # two segments, the least
CASES = [
    pytest.param(dqn(CREW, sampler="prioritized"), id="2 actors, prioritised pond"),
    pytest.param(TWICE, id="2 actors, 2 policies", marks=pytest.mark.full),
    pytest.param(APART, id="2 actors, 2 learners", marks=pytest.mark.full),
    pytest.param(replace(TWICE, replay="host"), id="2 host ponds", marks=pytest.mark.full),
    pytest.param(replace(ALONE, replay="host"), id="host pond", marks=pytest.mark.full),
    pytest.param(LAKE, id="lake", marks=pytest.mark.full),
]


@pytest.mark.parametrize("base", CASES)
def test_lockstep_is_the_sequential_run_bit_by_bit(tmp_path, base):
    crew = replace(base.crew, trace=True)
    base = replace(base, crew=crew, steps=320, eval_every=320)
    runs = {}
    for mode in ("sequential", "lockstep"):
        runs[mode] = Run.create(tmp_path / mode, replace(base, mode=mode))
        train(runs[mode])
    found = compare(*(run.path / "trace.jsonl" for run in runs.values()))
    assert found.identical, found.differs
    assert found.cycles > 320 // 8  # 4 envs, 2 turns a cycle; border rows are no steps
    ones, twos = (list(read_metrics(run.metrics)) for run in runs.values())
    for line in twos:
        for learner in line.get("learners", []):
            assert learner.pop("torn") == 0  # what only a channel has
    assert ones == twos


def test_the_first_difference_is_named(tmp_path):
    lines = [{"cycle": i, "actor 0 rows": f"{i}", "learner 0 agent": f"{i}"} for i in range(3)]
    other = [*lines[:2], {**lines[2], "learner 0 agent": "9"}]
    for name, some in (("a", lines), ("b", other)):
        (tmp_path / name).write_text("".join(json.dumps(line) + "\n" for line in some))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert (found.cycles, found.identical) == (2, False)
    assert found.differs.startswith("cycle 2: learner 0 agent")


def test_the_hash_is_of_every_part_and_no_updates_are_told(tmp_path):
    def same(rows):
        line = {"cycle": 1, "actor 0 rows": rows, "learner 0 agent": "1"}
        (tmp_path / rows).write_text(json.dumps(line) + "\n")
        return compare(tmp_path / rows, tmp_path / rows)

    one, two = same("1"), same("2")
    assert one.digest != two.digest
    assert identical_text(one, 22).startswith("identical: 1 cycles, 22 updates, in lockstep and")
    assert identical_text(one, 22).endswith(f"hash of all rows, draws and agents {one.digest}")
    assert "no learning was compared yet; use more --steps" in identical_text(one, 0)


@pytest.mark.parametrize("mode", ["sequential", pytest.param("lockstep", marks=pytest.mark.full)])
def test_a_crew_resumes_exactly(tmp_path, mode):
    base = replace(ALONE, mode=mode, resume_every=160, steps=480)
    whole, broken = (Run.create(tmp_path / name, base) for name in ("whole", "broken"))
    train(whole)

    def crash(line):
        if line["kind"] == "train" and line["steps"] >= 300:
            raise Crash

    with pytest.raises(Crash):
        train(broken, crash)
    train(broken)
    for name in ("metrics.jsonl", "resume.safetensors"):
        assert (whole.path / name).read_bytes() == (broken.path / name).read_bytes()


# --- faults -------------------------------------------------------------------------------------


def test_every_process_is_killed_in_turn(tmp_path):
    """Actors come back as new incarnations; a learner takes the run back to its resume state."""
    base = replace(CREW, steps=2_000, resume_every=400, log_every=80)
    base = replace(base, crew=CrewSettings(hang_s=20.0, start_s=60.0))
    run = Run.create(tmp_path / "run", base)
    victims = [("actor", 0), ("actor", 1), ("learner", 0)]
    killed = []

    def told(line):
        if line["kind"] == "train" and run.resume_state.exists() and victims:
            killed.append(victims.pop(0))
            os.kill(living(run)[killed[-1]], signal.SIGKILL)

    train(run, told)
    assert len(killed) == 3
    assert lost(run) == killed
    assert run.status()["state"] == "finished"
    assert quiet(run)
    steps = [line["steps"] for line in read_metrics(run.metrics, "train")]
    assert steps == sorted(steps)
    assert steps[-1] >= 2_000


@pytest.mark.full
def test_a_hundred_kills_in_one_run(tmp_path):
    base = replace(CREW, steps=400_000, log_every=400, resume_every=100_000)
    run = Run.create(tmp_path / "run", base)
    random = np.random.default_rng(0)
    kills = []

    def told(line):
        back = [e for e in events(run) if e["event"] == "back"]
        if line["kind"] == "train" and len(kills) < 100 and len(back) == len(kills):
            victim = ("actor", int(random.integers(2)))
            kills.append(victim)
            os.kill(living(run)[victim], signal.SIGKILL)

    train(run, told)
    assert len(kills) == 100
    assert lost(run) == kills
    assert quiet(run)


@pytest.mark.full
def test_an_actor_goes_through_every_fault(tmp_path):
    """Each incarnation meets another one; the run ends well, and says what happened."""
    crew = replace(APART.crew, hang_s=3.0)
    base = replace(APART, actors=1, crew=crew, steps=1_600, resume_every=1_600)
    run = Run.create(tmp_path / "run", base)
    train(run, opener=with_hook(actor="gauntlet"))
    why = [e["why"] for e in events(run) if e["event"] == "lost"]
    assert len(why) == 4
    assert "the env broke its leg" in why[0]
    assert "hung" in why[1]
    assert "SIGKILL" in why[2]  # between two pushes of one cycle
    assert [e["event"] for e in events(run)].count("broken channel") == 1
    assert max(evidence(run, "torn")) == 1
    for name in ("border_breaks", "stack_mismatches", "returns_wrong"):
        assert not any(evidence(run, name))
    rows = [sum(evidence(run, "rows")[policy::2]) for policy in range(2)]
    assert rows[0] == rows[1]  # no policy lost any
    assert run.status()["state"] == "finished"


@pytest.mark.full
def test_rows_for_two_learners_are_damaged_at_once(tmp_path):
    """Each learner may be the first to find it; the actor is replaced once, and no row is lost."""
    run = Run.create(tmp_path / "run", replace(APART, actors=1))
    train(run, opener=with_hook(actor="damage_two"))
    assert [e["event"] for e in events(run)].count("broken channel") == 2
    assert lost(run) == [("actor", 0)]
    assert [max(evidence(run, "torn")[policy::2]) for policy in range(2)] == [1, 1]
    rows = [sum(evidence(run, "rows")[policy::2]) for policy in range(2)]
    assert rows[0] == rows[1]
    assert run.status()["state"] == "finished"


@pytest.mark.full
def test_policies_of_one_learner_learn_as_they_would_apart(tmp_path):
    """One program for two policies draws what two draw, and learns the same but for rounding."""
    params = []
    for name, base in (("together", TWICE), ("apart", APART)):
        run = Run.create(tmp_path / name, replace(base, mode="sequential", actors=1, steps=160))
        with open_loop(run.settings, run.path) as loop:
            state, _ = loop.round(loop.init(), 12)
        params.append(state.agent)
    assert (params[0].updates == params[1].updates).all()
    assert params[0].updates.min() > 0
    for one, two in zip(*(jax.tree.leaves(p.params) for p in params), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("hook", "words"),
    [
        pytest.param(
            {"actor": "raise_always"},
            ("actor 0", "broke its leg", "Traceback", "3 times"),
            marks=pytest.mark.full,
        ),
        ({"actor": "nan_reward"}, ("actor 0", "reward", "nan", "finite")),
        pytest.param(
            {"learner": "learner_raises"},
            ("learner 0", "lost its mind", "Traceback"),
            marks=pytest.mark.full,
        ),
    ],
)
def test_what_cannot_go_on_stops_with_its_traceback(tmp_path, hook, words):
    run = Run.create(tmp_path / "run", ALONE)
    with pytest.raises(RunFailed) as error:
        train(run, opener=with_hook(**hook))
    for word in words:
        assert word in str(error.value)


@pytest.mark.full
@pytest.mark.parametrize("side", ["actor", "learner"])
def test_one_side_a_hundred_times_slower(tmp_path, side):
    run = Run.create(tmp_path / "run", ALONE)
    train(run, opener=with_hook(**{side: f"slow_{side}"}))
    dqn_, ahead = run.settings.learning, run.settings.crew.credits
    lag = np.sum(evidence(run, "lag"), 0)
    # In updates: what waits in the channel, what is acted and what is taken just now.
    most = (ahead + 2) * dqn_.updates
    assert lag[np.searchsorted(LAG_EDGES, most, "right") + 1 :].sum() == 0
    # The learner takes what its rows call for, however fast it could be.
    cycles = sum(evidence(run, "rows")) // (run.settings.envs * dqn_.update_every)
    updates = list(read_metrics(run.metrics, "train"))[-1]["updates"]
    assert updates == (cycles - dqn_.min_fill // 8 + 1) * dqn_.updates


@pytest.mark.full
def test_a_full_disk_at_a_checkpoint_stops_the_run_and_loses_nothing(tmp_path, monkeypatch):
    run = Run.create(tmp_path / "run", replace(ALONE, resume_every=160))
    real = checkpoint.os.replace

    def full(draft, path):
        if "checkpoints" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(draft, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.os, "replace", full)
        with pytest.raises(RunFailed, match="No space left"):
            train(run)
    assert train(run)
    assert run.status()["state"] == "finished"


# --- from outside -------------------------------------------------------------------------------


def started(path: Path, *options: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "millpond", "train", "treasurehunt-small", "--run", str(path)]
    small = ["--mode", "processes", "--world.agents", "1", "--envs", "8", "--steps", "1M"]
    small += ["--dqn.capacity", "800", "--dqn.min-fill", "80", "--eval-episodes", "1"]
    small += ["--log-every", "400", "--resume-every", "400", "--eval-every", "1M"]
    pipes = dict(stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process = subprocess.Popen([*command, *small, *options], start_new_session=True, **pipes)
    deadline = time.monotonic() + 120
    while not (path / "resume.safetensors").exists():
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.05)  # looking, not waiting for a moment to pass
    return process


def gone(parent: int) -> None:
    deadline = time.monotonic() + 30
    while workers(parent):
        assert time.monotonic() < deadline, "processes outlive their parent"
        time.sleep(0.02)


def test_nothing_outlives_a_killed_parent(tmp_path):
    process = started(tmp_path / "run", "--crew.pin")
    cores = [os.sched_getaffinity(pid) for pid in workers(process.pid)]
    assert [len(some) for some in cores] == [1, 1]
    assert cores[0] != cores[1] or len(os.sched_getaffinity(0)) == 1
    process.kill()
    process.communicate(timeout=30)
    gone(process.pid)
    assert Run.open(tmp_path / "run").status()["state"] == "killed"


def test_ctrl_c_saves_and_ends_everything(tmp_path):
    process = started(tmp_path / "run")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "millpond resume" in err
    gone(process.pid)
    run = Run.open(tmp_path / "run")
    assert run.status()["state"] == "stopped"
    assert resume_point(run) >= 400
