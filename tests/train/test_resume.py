"""Exact resume: killed, stopped or crashed anywhere, a run ends as if nothing had happened."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_runs import WORLD, crash_at, dqn, files_of, settings

from millpond import Lake
from millpond.engine.checkpoint import about_file, hash_of, load_tree, save_tree
from millpond.engine.device_loop import DeviceLoop
from millpond.envs import spec_of
from millpond.envs.hosted import HostedVector
from millpond.errors import LearnerLost, RunFailed
from millpond.metrics import read_metrics
from millpond.rows import BORDER, CUT, ENDED, FIRST
from millpond.train import Run, train
from millpond.train.loop import open_loop
from millpond.train.session import resume_point

pytestmark = pytest.mark.usefixtures("compiled_once")

RANKED = dqn(settings(steps=3_600), sampler="prioritized", capacity=256)
RANKED = dataclasses.replace(RANKED, eval_every=1_200, checkpoint_every=1_200)
PQN = settings(agent="pqn")
ALONE = dataclasses.replace(WORLD, agents=1)


def start(run: Path) -> subprocess.Popen:
    command = [sys.executable, "-m", "millpond", "resume", str(run)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(run: Path) -> None:
    process = start(run)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert "parameters " in out


def signal_after_save(run: Path, number: int) -> tuple[int, str]:
    """Send a signal as soon as a resume state later than the present one is there."""
    opened = Run.open(run)
    before = resume_point(opened)
    process = start(run)
    try:
        while resume_point(opened) == before:
            assert process.poll() is None, process.stderr.read()
            try:
                process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
        os.kill(process.pid, number)
        _, err = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=30)
    return process.returncode, err


def cut(loop: DeviceLoop, state):
    """Declare continuity lost after the newest rows of the replay."""
    axes = loop.pond.axes
    all_ponds = jax.jit(jax.vmap(loop.pond.cut, in_axes=(axes,), out_axes=axes))
    return state._replace(replay=all_ponds(state.replay))


def cut_in_mid_episode(run: Run) -> None:
    """Put a cut behind the newest rows of a saved state, which is to be in mid-episode."""
    loop = DeviceLoop(run.settings)
    state, about = load_tree(run.resume_state, loop.like())
    state = jax.device_get(cut(loop, state))
    rows = run.settings.envs * int(state.turn)
    assert rows > run.settings.learning.capacity, "the ring has not wrapped"
    assert not (state.envs.flags & (FIRST | BORDER)).any(), "no env is in mid-episode"
    flags = np.asarray(state.replay.flags)
    cuts = flags[(flags & CUT) != 0]
    assert cuts.size >= run.settings.policies * run.settings.envs
    assert not (cuts & (BORDER | ENDED)).any(), "the cut is not in mid-episode"
    save_tree(run.resume_state, state, about)


def test_killed_and_resumed_equals_uninterrupted(tmp_path):
    """Prioritised replay in a ring that has wrapped, with a cut, saved in mid-episode."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    run = Run.create(whole, RANKED)
    crash_at(run, 600)
    cut_in_mid_episode(run)
    shutil.copytree(whole, killed)
    train(Run.open(whole))

    began = resume_point(Run.open(killed))
    code, _ = signal_after_save(killed, signal.SIGKILL)
    assert code == -signal.SIGKILL
    status = Run.open(killed).status()
    assert status["state"] == "killed"
    assert began < resume_point(Run.open(killed)) < RANKED.steps
    with (killed / "metrics.jsonl").open("ab") as file:
        file.write(b'{"kind": "train", "st')  # as a line looks that was being written
    finish(killed)
    assert files_of(killed) == files_of(whole)
    status = Run.open(killed).status()
    assert status["state"] == "finished"
    assert status["steps"] >= RANKED.steps
    assert len(Run.open(killed).checkpoints()) == 3


@pytest.mark.parametrize(
    ("of", "cycles"),
    [pytest.param(RANKED, 40, id="dqn"), pytest.param(PQN, 12, id="pqn", marks=pytest.mark.full)],
)
def test_every_turn_can_be_saved_and_gone_on_from(of, cycles, tmp_path):
    """A run that goes through a file after every cycle never differs from one that does not."""
    loop, path = DeviceLoop(of), tmp_path / "state"
    like = loop.like()
    one, other = loop.init(), loop.init()
    mid_episode = cuts = 0
    for cycle in range(cycles):
        if cycle % 17 == 16 and loop.pond:
            one, other = cut(loop, one), cut(loop, other)
        save_tree(path, jax.device_get(loop.pack(other)), {})
        other = loop.unpack(load_tree(path, like)[0])
        (one, told), (other, told_again) = loop.round(one, 1), loop.round(other, 1)
        assert hash_of(other) == hash_of(one), f"cycle {cycle}"
        assert hash_of(told_again) == hash_of(told), f"cycle {cycle}"
        mid_episode += not (np.asarray(one.envs.flags) & (FIRST | BORDER)).any()
        full = loop.pond and int(one.turn) * of.envs > of.learning.capacity
        cuts += bool(full and (np.asarray(one.replay.flags) & CUT).any())
    assert mid_episode > cycles / 2
    assert loop.pond is None or cuts >= 5, "no cut in a ring that has wrapped"


@pytest.mark.full
def test_stopped_by_ctrl_c_and_resumed_equals_uninterrupted(tmp_path):
    whole, stopped = Run.create(tmp_path / "whole", RANKED), Run.create(tmp_path / "s", RANKED)
    code, err = signal_after_save(stopped.path, signal.SIGINT)
    assert code == 130
    again = f"millpond resume {stopped.path} continues from step {resume_point(stopped):,}"
    assert f"stopped; {again}\n" in err
    assert "Traceback" not in err
    lines = list(read_metrics(stopped.metrics, "train"))
    reached = {"state": "stopped", "steps": lines[-1]["steps"]}
    assert stopped.status() == reached, "the last round was not saved"
    assert resume_point(stopped) == reached["steps"]
    assert train(stopped) == train(whole)
    assert files_of(stopped.path) == files_of(whole.path)


def test_ctrl_c_saves_the_round_it_came_in(tmp_path):
    """No state is due by itself here, so what is there afterwards was saved for the signal."""
    run = Run.create(tmp_path / "run", dataclasses.replace(PQN, resume_every=10**6))

    def told(line):
        if line["kind"] == "train" and line["steps"] >= 100:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    *_, last = read_metrics(run.metrics, "train")
    assert 100 <= last["steps"] < PQN.steps
    assert run.status() == {"state": "stopped", "steps": last["steps"]}
    assert resume_point(run) == last["steps"]


def test_a_learner_that_dies_at_the_same_place_ends_the_run(tmp_path):
    """Three sittings that get no further; each before it that did get further counts for none."""
    run, places = Run.create(tmp_path / "run", PQN), [200, 320, 320, 320, 320]
    opened = []

    @contextlib.contextmanager
    def opener(of, folder):
        with open_loop(of, folder) as loop:
            place, real = places[len(opened)], loop.round
            opened.append(place)

            def lost(state, cycles):
                if state.steps.min() >= place:
                    raise LearnerLost("learner 0: killed by SIGKILL")
                return real(state, cycles)

            loop.round = lost
            yield loop

    with pytest.raises(RunFailed, match=r"killed by SIGKILL; a learner was lost 3 times") as error:
        train(run, opener=opener)
    assert opened == [200, 320, 320, 320]
    assert "millpond resume" in str(error.value)
    assert run.status()["state"] == "failed"
    train(run)
    assert run.status()["state"] == "finished"


def some_lake(path: Path) -> Path:
    """200 turns of 4 envs with one agent that acts by chance."""
    lake, rng = Lake.create(path, spec_of(ALONE), 10_000), np.random.default_rng(0)
    envs = HostedVector(ALONE, 4, seed=1)
    with lake.writer("play", 4) as writer:
        for _ in range(200):
            rows = envs.step(rng.integers(0, 4, (1, 4)))
            writer.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows))
    return path


def chosen(kind: str, folder: Path):
    if kind == "pqn":
        return PQN
    if kind == "host":
        return dqn(settings(replay="host"), sampler="prioritized")
    return settings(world=ALONE, from_lake=str(some_lake(folder / "from")))


@pytest.mark.parametrize(
    ("kind", "crashes"),
    [("pqn", (240,)), ("host", (10, 240)), pytest.param("offline", (240,), marks=pytest.mark.full)],
)
def test_crashed_and_resumed_equals_uninterrupted(kind, crashes, tmp_path):
    """Also where the first crash comes before anything was saved: then it starts over."""
    of = chosen(kind, tmp_path)
    whole, crashed = Run.create(tmp_path / "whole", of), Run.create(tmp_path / "crashed", of)
    digest = train(whole)
    for steps in crashes:
        assert not crashed.resume_state.exists()
        crash_at(crashed, steps)
    assert crashed.status()["state"] == "failed"
    told = list(read_metrics(crashed.metrics, "train"))
    assert told[-1]["steps"] > resume_point(crashed) > 0, "nothing is to be done again"
    assert train(crashed) == digest
    assert files_of(crashed.path) == files_of(whole.path)
    steps = [line["steps"] for line in read_metrics(crashed.metrics, "train")]
    assert steps == sorted(set(steps)), "a line was written twice"


def test_an_env_that_cannot_be_saved_goes_on_after_a_cut(tmp_path):
    from millpond.envs.gym import GymEnv

    of = dqn(settings("gym:CartPole-v1", GymEnv("CartPole-v1"), replay="host"), capacity=2_000)
    run = Run.create(tmp_path / "run", of)
    crash_at(run, 240)
    resumed = resume_point(run)
    tree = saved(run)
    rows = int(tree["added"][0])
    assert not (tree["flags"][:rows] & CUT).any()
    train(run)
    tree = saved(run)
    assert run.status() == {"state": "finished", "steps": about_file(run.resume_state)["steps"]}
    flags = tree["flags"][: int(tree["added"][0])]  # [row, env]
    assert np.argwhere(flags & CUT).tolist() == [[rows - 1, env] for env in range(4)]
    assert (flags[rows] & FIRST).all(), "the new envs' first rows begin an episode"
    steps = [line["steps"] for line in read_metrics(run.metrics, "train")]
    assert resumed in steps
    assert steps == sorted(set(steps))


def saved(run: Run) -> dict[str, np.ndarray]:
    """The first policy's replay in a resume state, by name."""
    begin = "['learners'][0]['replay/"
    found = load_file(run.resume_state)
    return {k[len(begin) : -2]: array for k, array in found.items() if k.startswith(begin)}


def turns_of(run: Run) -> int:
    """Turns of all envs that the resume state holds."""
    return int(load_file(run.resume_state)["['learners'][0]['witness/turns']"][0])


def test_replay_in_a_lake_goes_on_behind_what_it_finds(tmp_path):
    run = Run.create(tmp_path / "run", dqn(settings(replay="lake"), capacity=10_000))
    crash_at(run, 240)
    before = {policy: lake_of(run, policy) for policy in (0, 1)}
    done_again = turns_of(run)
    train(run)
    assert run.status()["state"] == "finished"
    turns = turns_of(run)
    for policy, (rows, there) in before.items():
        assert there > done_again
        after, total = lake_of(run, policy)
        assert total == there + turns - done_again
        assert np.flatnonzero(after.flags & CUT).tolist() == [there - 1]
        rows.flags[-1] |= CUT
        for old, new in zip(jax.tree.leaves(rows), jax.tree.leaves(after), strict=True):
            np.testing.assert_array_equal(old, new[:there])


def lake_of(run: Run, policy: int):
    """Rows of the first env, and how many."""
    lake = Lake.open(run.path / "lake" / f"policy-{policy}", "r")
    rows = lake.read(0, 0, lake.streams[0].stop)
    return rows, lake.streams[0].stop
