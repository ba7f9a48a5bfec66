"""Sorrel's memory and env over ours, against the real package; it needs Python 3.12."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

pytest.importorskip("sorrel", reason="Sorrel needs Python 3.12 and is not installed here")

from sorrel.buffers import Buffer
from sorrel.models.pytorch import PyTorchIQN

from millpond import BadConfig, HostPond, SpecMismatch
from millpond.compat.sorrel import SorrelBuffer
from millpond.envs import SorrelEnv, checked_vector, make_env, spec_of
from millpond.rows import BORDER

FRAMES = 3


def filled(buffer, epochs: int = 30, seed: int = 0, done: float = 0.0) -> list[list[tuple]]:
    """Play numbered steps as Sorrel's loop does; every epoch's (number, action, reward, done)."""
    rng, number, lists = np.random.default_rng(seed), 0, []
    for _ in range(epochs):
        buffer.add_empty()
        frames = deque([np.zeros((1, 2))] * (FRAMES - 1), FRAMES - 1)
        lists.append([])
        for _ in range(int(rng.integers(1, 12))):
            if isinstance(buffer, SorrelBuffer):
                np.testing.assert_array_equal(buffer.current_state(), np.concatenate(frames))
            number += 1
            step = (number, int(rng.integers(4)), float(rng.integers(-9, 9)), rng.random() < done)
            buffer.add(np.array([[number, -number]]), *step[1:])
            lists[-1].append(step)
            frames.append(np.array([[number, -number]]))
            if step[3]:
                break
    return lists


def true_samples(lists: list[list[tuple]]) -> dict[int, tuple]:
    found = {}
    for steps in lists:
        seen = [0] * FRAMES + [number for number, *_ in steps]
        for at, (number, action, reward, done) in enumerate(steps):
            after = seen[at + 2 : at + 2 + FRAMES] if at + 1 < len(steps) else None
            if after or done:
                found[number] = seen[at + 1 : at + 1 + FRAMES], action, reward, after, done
    return found


@pytest.mark.parametrize("done", [0.0, 0.15])
@pytest.mark.parametrize("capacity", [40, 1024])
def test_every_sample_happened(capacity, done):
    buffer = SorrelBuffer(capacity, (2,), FRAMES, seed=3)
    truth = true_samples(filled(buffer, done=done))
    states, actions, rewards, nexts, dones, valid = buffer.sample(2000)
    assert states.shape == nexts.shape == (2000, FRAMES * 2)
    assert (actions.shape, actions.dtype) == ((2000, 1), np.int64)
    assert valid.all()
    seen = set()
    for b in range(2000):
        frames, action, reward, after, over = truth[int(states[b, -2])]
        seen.add(int(states[b, -2]))
        assert states[b, ::2].tolist() == frames
        assert states[b, 1::2].tolist() == [-n for n in frames]
        assert (actions[b, 0], rewards[b, 0], dones[b, 0]) == (action, reward, over)
        assert over or nexts[b, ::2].tolist() == after
    assert len(seen) > (0.9 * len(truth) if capacity > 500 else 10)


def test_the_judge_finds_what_sorrels_own_memory_gets_wrong():
    """The same truth against the original: the test can fail."""
    np.random.seed(0)
    buffer = Buffer(1024, (2,), FRAMES)
    truth = true_samples(filled(buffer))
    states, *_, valid = buffer.sample(len(buffer) - FRAMES - 1)
    right = [
        int(row[-2]) in truth and row[::2].tolist() == truth[int(row[-2])][0] for row in states
    ]
    assert valid.all()
    assert not all(right)


def test_it_takes_the_place_of_the_original():
    sizes = dict(n_frames=FRAMES, batch_size=8, memory_size=64, n_quantiles=4)
    model = PyTorchIQN((2,), 4, 16, 0.5, "cpu", 1, **sizes)
    model.memory.extra_data["positions"] = np.zeros((64, 2), np.int64)
    model.memory = SorrelBuffer.like(model.memory)
    for epoch in range(8):
        model.start_epoch_action(epoch=epoch)
        for turn in range(10):
            state = np.full((1, 2), turn, np.float64)
            action = model.take_action(
                np.vstack((model.memory.current_state(), state)).reshape(1, -1)
            )
            model.memory.add(state, action, 1.0, False, positions=(3, turn))
        assert np.isfinite(model.train_step())
    assert len(model.memory) == 64
    assert model.memory.last_transition() == (action, 1.0, False)
    assert model.memory.last_transition(100) is None
    assert model.memory.extra_data["positions"][:, 0].tolist() == [3] * 64


def test_it_reads_as_the_original_and_is_saved(tmp_path):
    buffer, other = SorrelBuffer(64, (2,), FRAMES, positions=(2,)), Buffer(64, (2,), FRAMES)
    for turn in range(5):
        buffer.add(np.full(2, turn), turn % 4, turn, turn == 3, positions=(turn, 1))
        other.add(np.full(2, turn), turn % 4, turn, turn == 3)
    for mine, theirs in zip(buffer[:5], other[:5], strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert [len(buffer), buffer.getidx()] == [len(other), other.getidx()]
    buffer.save(tmp_path / "memory.npz")
    again = SorrelBuffer.load(tmp_path / "memory.npz")
    np.testing.assert_array_equal(again.states, buffer.states)
    np.testing.assert_array_equal(again.extra_data["positions"], buffer.extra_data["positions"])
    again.add(np.zeros(2), 0, 0, False, positions=(0, 0))
    assert len(again) == 6
    buffer.clear()
    assert len(buffer) == 0


def test_bad_input_changes_nothing():
    buffer = SorrelBuffer(64, (2,), FRAMES)
    for bad in (np.zeros(3), np.full(2, np.nan)):
        with pytest.raises(SpecMismatch):
            buffer.add(bad, 0, 0.0, False)
    with pytest.raises(SpecMismatch, match="a single number as action"):
        buffer.add(np.zeros(2), (0, 0.5), 0.0, False)
    with pytest.raises(SpecMismatch, match="positions"):
        buffer.add(np.zeros(2), 0, 0.0, False, positions=(0, 0))
    with pytest.raises(SpecMismatch):
        buffer.add(np.zeros(2), 0, np.nan, False)
    with pytest.raises(BadConfig, match="does not say where its epochs begin"):
        buffer.add_from_buffer(Buffer(8, (2,)))
    assert (len(buffer), buffer.getidx(), int(buffer.pond.added[0])) == (0, 0, 0)
    assert not buffer.current_state().any()


ENV = SorrelEnv(size=7, turns=6, spawn=0.3)


def test_the_env_is_played_in_sorrels_order():
    """The same actions in an env of Sorrel's own that begins from the same board."""
    vector, spec = checked_vector(ENV, 2, seed=4), spec_of(ENV)
    pond, rng = HostPond(spec, 200, 2), np.random.default_rng(0)
    assert make_env("sorrel:treasurehunt").observation.shape == (75,)
    for turn in range(40):
        hunt = vector._vector._hunts[0]
        before = {e.location: e.kind for e in hunt._game.world.map[:, :, 1].ravel()}
        places = [agent.location for agent in hunt._game.agents]
        action = rng.integers(0, 4, (2, 2)).astype(np.int32)
        seen = vector.obs.copy()
        rows = vector.step(action)
        np.testing.assert_array_equal(rows.obs, seen)
        pond.add(rows._replace(**{f: getattr(rows, f)[0] for f in rows._fields if f != "extras"}))
        border = turn % 7 == 6
        assert ((rows.flags & BORDER) != 0).all() == border
        assert rows.truncated.all() == (turn % 7 == 5)
        if border:
            assert not rows.reward.any()
            continue
        for agent, (y, x, z) in enumerate(places):
            dy, dx = ((-1, 0), (1, 0), (0, -1), (0, 1))[action[agent, 0]]
            to = (y + dy, x + dx, z)
            kind = before[to]
            worth = {"Gem": 10, "Food": 5, "Bone": -10, "Wall": -1}.get(kind, 0)
            assert rows.reward[agent, 0] == worth
            if kind not in ("Wall", "TreasurehuntAgent"):  # it goes, and leaves its cell empty
                before[to], before[y, x, z] = "TreasurehuntAgent", "EmptyEntity"


def test_chance_is_its_own():
    np.random.seed(3)
    outside = np.random.random(4)
    np.random.seed(3)
    one, same, other = (ENV.vector(2, seed) for seed in (1, 1, 2))
    action = np.zeros((2, 2), np.int32)
    rows = [[vector.step(action).obs for vector in (one, same, other)] for _ in range(12)]
    np.testing.assert_array_equal(np.random.random(4), outside)
    assert all(np.array_equal(a, b) for a, b, _ in rows)
    assert not all(np.array_equal(a, c) for a, _, c in rows)
    assert not np.array_equal(rows[3][0][:, 0], rows[3][0][:, 1])
    assert one.render().shape == (112, 112, 3)


@pytest.mark.parametrize(
    "wrong", [dict(world="cleanup"), dict(agents=0), dict(spawn=2.0), dict(size=2)]
)
def test_settings_that_cannot_work(wrong):
    with pytest.raises(BadConfig, match="sorrel:"):
        SorrelEnv(**wrong)


def test_a_run_plays_it(tmp_path):
    from tiny_runs import settings

    from millpond.train import Run, train

    of = settings(ENV.name, ENV, replay="host", mode="sequential", steps=160, stack=1)
    run = Run.create(tmp_path / "run", of)
    train(run)
    assert run.status()["state"] == "finished"
