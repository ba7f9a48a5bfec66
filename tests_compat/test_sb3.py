"""Replay buffers in the place of Stable-Baselines3's: the same samples, nothing else."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN, SAC, TD3
from stable_baselines3.common import buffers as theirs
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize

from millpond import BadConfig, Lake, NotEnoughData, SpecMismatch, prioritized
from millpond.compat.sb3 import DictReplayBuffer, ReplayBuffer
from millpond.compat.sb3_dqn import PrioritizedDQN

BOX = spaces.Box(-10, 10, (3,), np.float32)


class Walk(gymnasium.Env):
    """Observations of any space that are never twice the same; episodes of random length."""

    def __init__(self, space, action=None, limit=6, seed=0):
        self.observation_space, self._limit = space, limit
        self.action_space = action or spaces.Discrete(3)
        self._rng = np.random.default_rng(seed)

    def _see(self):
        def one(space):
            if isinstance(space, spaces.Discrete):
                return int(self._rng.integers(space.n))
            if np.dtype(space.dtype).kind in "iu":
                return self._rng.integers(
                    1, 2 if space.dtype == np.int8 else 255, space.shape
                ).astype(space.dtype)
            return self._rng.standard_normal(space.shape).astype(space.dtype)

        if isinstance(self.observation_space, spaces.Dict):
            return {key: one(space) for key, space in self.observation_space.spaces.items()}
        return one(self.observation_space)

    def reset(self, *, seed=None, options=None):
        self._t = 0
        return self._see(), {}

    def step(self, action):
        self._t += 1
        ended = self._rng.random() < 0.15
        return self._see(), float(self._rng.random()), ended, self._t >= self._limit, {}


def play(venv, add, steps, reset_at=()):
    """What an off-policy algorithm adds: the final observation of an ended episode among it."""
    venv.action_space.seed(0)
    obs = venv.reset()
    for t in range(steps):
        if t in reset_at:
            obs = venv.reset()  # as learn() does when it is called again
        action = np.array([venv.action_space.sample() for _ in range(venv.num_envs)])
        after, reward, done, infos = venv.step(action)
        copy = {k: v.copy() for k, v in after.items()} if isinstance(after, dict) else after.copy()
        for env in np.flatnonzero(done):
            if isinstance(copy, dict):
                for key in copy:
                    copy[key][env] = infos[env]["terminal_observation"][key]
            else:
                copy[env] = infos[env]["terminal_observation"]
        add(obs, copy, action, reward, done, infos)
        obs = {k: v.copy() for k, v in after.items()} if isinstance(after, dict) else after.copy()


def both(venv, size, steps, ours=ReplayBuffer, other=None, reset_at=(), **kwargs):
    """Our buffer and theirs after the same adds."""
    common = (size, venv.observation_space, venv.action_space, "cpu", venv.num_envs)
    mine = ours(*common, seed=1, **kwargs)
    n_step = {k: kwargs[k] for k in ("n_steps", "gamma") if k in kwargs}
    timeouts = {k: kwargs[k] for k in ("handle_timeout_termination",) if k in kwargs}
    other = other or (theirs.NStepReplayBuffer if n_step else theirs.ReplayBuffer)
    reference = other(*common, **n_step, **timeouts)

    def add(*given):
        mine.add(*given)
        reference.add(*given)

    play(venv, add, steps, reset_at)
    return mine, reference


def all_of(reference, monkeypatch):
    """Every sample that their own code makes of what it stores, keyed by its observation."""
    found = {}
    stored = reference.buffer_size if reference.full else reference.pos
    for env in range(reference.n_envs):
        with monkeypatch.context() as patch:
            patch.setattr(
                np.random, "randint", lambda *a, size, which=env, **k: np.full(size, which)
            )
            samples = reference._get_samples(np.arange(stored))
        for index in range(stored):
            one = entry(samples, index)
            found[key_of(one)] = one
    return found


def entry(samples, index):
    def at(value):
        if value is None:
            return None
        if isinstance(value, dict):
            return {key: part[index] for key, part in value.items()}
        return value[index]

    return type(samples)(*(at(value) for value in samples))


def key_of(one):
    obs = one.observations
    obs = [obs[key] for key in sorted(obs)] if isinstance(obs, dict) else [obs]
    return b"".join(part.numpy().tobytes() for part in obs)


def check_equal(mine, reference, monkeypatch, draws=20):
    """Every sample of ours is one of theirs, element by element; the keys that were drawn."""
    known, seen = all_of(reference, monkeypatch), set()
    for _ in range(draws):
        samples = mine.sample(64)
        for index in range(64):
            one = entry(samples, index)
            want = known[key_of(one)]
            seen.add(key_of(one))
            assert type(one) is type(want)
            for name, got, expected in zip(one._fields, one, want, strict=True):
                pairs = [(got, expected)]
                if isinstance(got, dict):
                    assert got.keys() == expected.keys()
                    pairs = [(got[key], expected[key]) for key in got]
                for a, b in pairs:
                    if b is None:
                        assert a is None
                        continue
                    assert (a.dtype, a.shape) == (b.dtype, b.shape), name
                    torch.testing.assert_close(a, b, rtol=1e-6 if name == "rewards" else 0, atol=0)
    return known, seen


SPACES = {
    "vector": BOX,
    "float64": spaces.Box(-10, 10, (3,), np.float64),
    "image": spaces.Box(0, 255, (1, 40, 40), np.uint8),
    "many": spaces.MultiDiscrete([255] * 9),
}


def vector_env(space, envs, action=None):
    return DummyVecEnv([lambda i=i: Walk(space, action, seed=i) for i in range(envs)])


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("name", SPACES)
def test_samples_are_theirs_element_by_element(name, envs, monkeypatch):
    mine, reference = both(vector_env(SPACES[name], envs), 90 * envs, 60)
    known, seen = check_equal(mine, reference, monkeypatch)
    # All but the newest transitions of episodes that go on, which one more step completes.
    assert len(known) - len(seen) <= envs
    assert any(one.dones for one in known.values())


@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("timeouts", [True, False])
def test_the_same_around_the_rings_end_with_resets_and_either_timeouts(envs, timeouts, monkeypatch):
    mine, reference = both(
        vector_env(BOX, envs),
        40 * envs,
        130,
        reset_at=(100, 101, 117),
        handle_timeout_termination=timeouts,
    )
    known, seen = check_equal(mine, reference, monkeypatch)
    assert len(seen) > 0.6 * len(known)  # final observations take rows of the ring


@pytest.mark.parametrize("envs", [1, 3])
def test_n_steps_are_theirs(envs, monkeypatch):
    mine, reference = both(vector_env(BOX, envs), 200 * envs, 80, n_steps=3, gamma=0.9)
    known, seen = check_equal(mine, reference, monkeypatch)
    assert len(known) - len(seen) <= 3 * envs


def test_continuous_actions_and_normalised_samples(monkeypatch):
    action = spaces.Box(-1, 1, (2,), np.float32)
    venv = VecNormalize(vector_env(BOX, 2, action))
    mine, reference = both(venv.venv, 200, 60)
    venv.obs_rms.mean = np.full(3, 0.5)
    venv.ret_rms.var = np.array(4.0)
    stream, row = np.array([0, 1]), np.array([0, 0])
    ours = mine.tensors(mine.pond.take(stream, row), venv)
    index = np.zeros(2, int)
    with monkeypatch.context() as patch:
        patch.setattr(np.random, "randint", lambda *a, size, **k: stream)
        want = reference._get_samples(index, venv)
    for got, expected in zip(ours, want, strict=True):
        if expected is not None:
            torch.testing.assert_close(got, expected, rtol=0, atol=0)
            assert got.dtype == expected.dtype
    check_equal(mine, reference, monkeypatch, 3)
    several = ReplayBuffer(200, BOX, action, "cpu", 1, n_steps=2)
    with pytest.raises(BadConfig, match="norm_reward=False"):
        several.tensors(mine.pond.take(stream, row), venv)


@pytest.mark.parametrize("shape", [(1, 40, 40), (40, 40, 1), (5,)])
def test_frames_are_stored_once_and_come_back_stacked(shape, monkeypatch):
    dtype = np.uint8 if len(shape) == 3 else np.float32
    space = spaces.Box(0, 255, shape, dtype)
    order = "first" if shape[0] == 1 else None
    venv = VecFrameStack(vector_env(space, 2), 4, channels_order=order)
    mine, reference = both(venv, 200, 60, reset_at=(31,), frame_stack=4)
    known, seen = check_equal(mine, reference, monkeypatch)
    assert len(known) - len(seen) <= 2
    frame = int(np.prod(shape)) * np.dtype(dtype).itemsize
    assert mine.pond.spec.columns["obs"].nbytes == frame
    whole = reference.observations.nbytes + reference.next_observations.nbytes
    assert mine.pond.nbytes < whole / 7 + 30 * 200


def test_stacks_that_are_none_are_refused():
    space = spaces.Box(0, 255, (4, 40, 40), np.uint8)
    with pytest.raises(SpecMismatch, match="not those of obs, shifted by one"):
        both(vector_env(space, 1), 100, 5, frame_stack=4)
    venv = VecFrameStack(vector_env(spaces.Box(0, 255, (1, 40, 40), np.uint8), 1), 4, "first")
    with pytest.raises(SpecMismatch, match="frame_pad='zeros'"):
        both(venv, 100, 5, frame_stack=4, frame_pad="first")
    with pytest.raises(BadConfig, match="cannot be divided"):
        both(vector_env(space, 1), 100, 5, frame_stack=3)


DICT = spaces.Dict(
    {"b": BOX, "a": spaces.Box(0, 255, (1, 36, 36), np.uint8), "c": spaces.Discrete(9)}
)


@pytest.mark.parametrize("envs", [1, 2])
def test_dicts_are_theirs_element_by_element(envs, monkeypatch):
    mine, reference = both(
        vector_env(DICT, envs), 100 * envs, 60, DictReplayBuffer, theirs.DictReplayBuffer, (20,)
    )
    known, seen = check_equal(mine, reference, monkeypatch)
    assert len(known) - len(seen) <= envs
    with pytest.raises(SpecMismatch, match="keys"):
        mine.add({"b": 0}, {"b": 0}, np.zeros(envs), np.zeros(envs), np.zeros(envs), [{}] * envs)


def test_frames_in_dicts_are_stored_once_and_come_back_stacked(monkeypatch):
    space = spaces.Dict({"b": BOX, "a": spaces.Box(0, 255, (36, 36, 3), np.uint8)})
    venv = VecFrameStack(vector_env(space, 2), 3)
    mine, reference = both(
        venv, 200, 60, DictReplayBuffer, theirs.DictReplayBuffer, (31,), frame_stack=3
    )
    known, seen = check_equal(mine, reference, monkeypatch, 10)
    assert len(known) - len(seen) <= 2
    shapes = {path: field.shape for path, field in mine.pond.spec.columns.items()}
    assert (shapes["obs/a"], shapes["obs/b"]) == ((36, 36, 3), (3,))
    wrong = vector_env(venv.observation_space, 1)
    with pytest.raises(SpecMismatch, match="not those of obs, shifted by one"):
        both(wrong, 100, 5, DictReplayBuffer, theirs.DictReplayBuffer, frame_stack=3)


def test_a_sample_is_its_own_memory():
    mine, _ = both(vector_env(BOX, 1), 200, 90, n_steps=3, gamma=0.9)
    drawn = [mine.sample(16) for _ in range(100)]
    kept = [[part.clone() for part in one] for one in drawn]
    parts = [part for one in drawn for part in one]
    assert len({part.data_ptr() for part in parts}) == len(parts)
    for one in drawn[::2]:
        for part in one:
            part.zero_()
    for one, was in zip(drawn[1::2], kept[1::2], strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, was, strict=True))
    assert drawn[1][0]._version == 0  # what is written to another batch is no write to this one


def test_what_is_wrong_is_refused_and_changes_nothing():
    mine, _ = both(vector_env(BOX, 2), 100, 9)
    before = mine.pond.export()
    (obs,) = mine._seen.obs()
    zero, infos = np.zeros(2), [{}, {}]
    for change in (
        dict(reward=np.array([np.nan, 0])),
        dict(reward=np.zeros(3)),
        dict(obs=np.full((2, 3), np.nan, np.float32)),
        dict(action=np.array([0.5, 0])),
        dict(done=np.ones(2), next_obs=np.full((2, 3), np.nan, np.float32)),
    ):
        given = dict(
            obs=obs, next_obs=obs, action=np.zeros(2, int), reward=zero, done=zero, infos=infos
        )
        if "obs" in change:
            mine._seen.forget()  # else the reset that it looks like is noted first
        with pytest.raises(SpecMismatch):
            mine.add(**{**given, **change})
        for name, value in mine.pond.export().items():
            np.testing.assert_array_equal(value, before[name])
    for wrong in (dict(optimize_memory_usage=True), dict(commit_every=0), dict(n_steps=0)):
        with pytest.raises(BadConfig):
            ReplayBuffer(100, BOX, spaces.Discrete(2), **wrong)
    empty = ReplayBuffer(100, BOX, spaces.Discrete(2), n_envs=2)
    with pytest.raises(NotEnoughData, match="raise learning_starts by 2"):
        empty.sample(4)
    with pytest.raises(BadConfig, match="sample first"):
        empty.update_priorities(np.ones(4))
    mine.reset()
    assert (mine.size(), mine.pond.size) == (0, 0)


def test_priorities_are_wanted_back():
    mine, _ = both(vector_env(BOX, 2), 200, 50, sampler=prioritized(alpha=1.0))
    mine.sample(32)
    with pytest.raises(BadConfig, match="priorities of the last batch were not updated"):
        mine.sample(32)
    heavy = mine.last.draw
    mine.update_priorities(torch.full((32, 1), -1e-6))
    mine.sample(32)
    mine.update_priorities(torch.full((32, 1), 1e-6))
    for _ in range(100):
        mine.sample(32)
        first = (mine.last.draw.stream == heavy.stream[0]) & (mine.last.draw.row == heavy.row[0])
        mine.update_priorities(np.where(first, 1e6, 1e-6))
    mine.sample(64)
    drawn = (mine.last.draw.stream == heavy.stream[0]) & (mine.last.draw.row == heavy.row[0])
    assert drawn.mean() > 0.9


CHILD = """
import sys
sys.path.insert(0, {folder!r})
import test_sb3 as t
venv = t.vector_env(t.BOX, 2)
mine = t.ReplayBuffer(400, t.BOX, venv.action_space, "cpu", 2, lake={lake!r}, commit_every=20)
def add(*given):
    mine.add(*given)
    if mine._steps == 0:
        print(mine.pos, flush=True)
t.play(venv, add, 100_000)
"""


def test_replay_survives_a_kill(tmp_path, monkeypatch):
    folder = str(tmp_path / "lake")
    code = CHILD.format(folder=str(Path(__file__).parent), lake=folder)
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE
    ) as child:
        for turn, _ in enumerate(child.stdout):
            if turn == 3:
                child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
    venv = vector_env(BOX, 2)
    mine = ReplayBuffer(400, BOX, venv.action_space, "cpu", 2, lake=folder, commit_every=20)
    lake = Lake.open(folder)
    assert mine.pond.size == min(len(lake), 400)
    assert len(lake) >= 2 * 80
    # The same seeds give the same play: an uninterrupted buffer holds all that came back.
    reference = theirs.ReplayBuffer(100_000, BOX, venv.action_space, "cpu", 2)
    play(venv, reference.add, 1 + int(lake.streams[0].stop))
    check_equal(mine, reference, monkeypatch)
    kept = int(mine.pond.size)
    # And it goes on behind a cut; what is new comes back as well.
    play(venv, mine.add, 30)
    mine.close()
    again = ReplayBuffer(4000, BOX, venv.action_space, "cpu", 2, lake=folder)
    assert again.pond.size >= kept + 60
    assert again.size() > 100
    with pytest.raises(BadConfig, match="close"):
        again.__getstate__()
    with pytest.raises(BadConfig, match="reset"):
        again.reset()
    again.close()
    with pytest.raises(BadConfig, match="no Lake to commit to"):
        again.commit()


def test_a_full_ring_comes_back_from_its_lake_bit_by_bit(tmp_path):
    venv = vector_env(BOX, 2)
    made = [
        ReplayBuffer(64, BOX, venv.action_space, "cpu", 2, seed=3, **kw)
        for kw in ({}, dict(lake=tmp_path / "lake", commit_every=1000))
    ]

    def add(*given):
        for one in made:
            one.add(*given)

    play(venv, add, 200, reset_at=(50,))
    made[1].close()
    back = ReplayBuffer(64, BOX, venv.action_space, "cpu", 2, seed=3, lake=tmp_path / "lake")
    added = made[0].pond.added
    for env in range(2):
        ids = np.arange(added[env] - 32, added[env])
        want = made[0].pond.read(np.full(32, env), ids)
        got = back.pond.read(np.full(32, env), np.arange(32) + back.pond.added[env] - 32)
        for name in ("obs", "action", "reward", "terminated", "truncated"):
            np.testing.assert_array_equal(getattr(got, name), getattr(want, name))
        assert (got.flags[:-1] == want.flags[:-1]).all()
    back.close()


@pytest.mark.parametrize("algorithm", [SAC, TD3])
@pytest.mark.parametrize("kwargs", [{}, dict(n_steps=3)])
def test_sac_and_td3_run_over_several_envs(algorithm, kwargs):
    env = make_vec_env("Pendulum-v1", 2, seed=0)
    model = algorithm(
        "MlpPolicy",
        env,
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs=kwargs,
        buffer_size=600,
        learning_starts=50,
        batch_size=32,
        device="cpu",
    )
    model.learn(500)
    model.learn(100)  # which resets the envs in the middle of their episodes
    assert model.replay_buffer.full


def test_prioritised_dqn_runs_and_a_plain_one_is_stopped():
    env = make_vec_env("CartPole-v1", 2, seed=0)
    model = PrioritizedDQN(
        "MlpPolicy",
        env,
        buffer_size=1000,
        learning_starts=20,
        device="cpu",
        replay_buffer_kwargs=dict(n_steps=3),
    )
    model.learn(300)
    batch = model.replay_buffer.pond.sample(64)
    assert len(np.unique(batch.draw.probability)) > 10
    plain = DQN(
        "MlpPolicy",
        env,
        buffer_size=1000,
        learning_starts=20,
        device="cpu",
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs=dict(sampler=prioritized()),
    )
    with pytest.raises(BadConfig, match="PrioritizedDQN"):
        plain.learn(100)


def test_dqn_on_stacked_images_and_a_saved_buffer(tmp_path):
    venv = VecFrameStack(vector_env(spaces.Box(0, 255, (36, 36, 1), np.uint8), 2), 4)
    model = DQN(
        "CnnPolicy",
        venv,
        buffer_size=300,
        learning_starts=20,
        device="cpu",
        replay_buffer_class=ReplayBuffer,
        replay_buffer_kwargs=dict(frame_stack=4),
    )
    model.learn(60)
    model.save_replay_buffer(tmp_path / "buffer")
    size = model.replay_buffer.pond.size
    model.load_replay_buffer(tmp_path / "buffer")
    assert model.replay_buffer.pond.size == size > 60
    model.learn(60)
    assert model.replay_buffer.pond.spec.obs.shape == (1, 36, 36)
