"""Both ways a vector env may reset itself give the same transitions, true at every end."""

from __future__ import annotations

import contextlib
import random

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from oracle import check_batch, encode
from scenarios import PATTERNS, SUBJECTS, Stream, model_of, next_obs_of, pick, to_rows
from test_contract import SAMPLERS, WINDOWS

from millpond import (
    BadConfig,
    Flag,
    HostPond,
    Lake,
    LakeFull,
    Pond,
    Rows,
    Spec,
    SpecMismatch,
    Window,
    next_flags,
)
from millpond.envs import GymRows

RINGS = ["host-stream", "host-per_env", "host-shared", "device-per_env", "device-shared"]
OTHERS = [("device-per_env", "uniform"), ("device-shared", "prioritized")]


def same_step(stream: Stream, steps: int) -> tuple[list[dict], list[int]]:
    """Rows of one env without their borders, and the frame each border would have held."""
    rows: list[dict] = []
    final: list[int] = []
    following = stream.next()
    while len(rows) < steps:
        row, following = following, stream.next()
        ended = row["terminated"] or row["truncated"]
        rows.append(row)
        final.append(following["frame"] if ended else 12345)  # what is not an end is not read
        if ended:
            following = stream.next()
    return rows, final


# Both samplers on the host; on a device, where most of the time is compiling, one per layout.
CELLS = [
    pytest.param(subject, sampler, marks=[pytest.mark.full] if other else [])
    for subject in RINGS
    for sampler in ("uniform", "prioritized")
    for other in [(subject, sampler) in OTHERS]
]


@pytest.mark.parametrize(("subject", "sampler"), CELLS)
def test_contract_of_same_step_autoreset(subject, sampler):
    window = WINDOWS["plain" if subject.endswith("shared") else "stack3-n2-lives"]
    envs, length = 3, 16
    for seed in range(3):
        ring = SUBJECTS[subject](window, length, envs, seed, SAMPLERS[sampler])
        model = model_of(window, length, envs, ring.layout)
        chance = random.Random(seed)
        pairs = [same_step(Stream(env, PATTERNS["truncations"], chance), 27) for env in range(envs)]
        steps = [[pairs[env][0][t] for env in range(envs)] for t in range(27)]
        final = encode(np.array([[pairs[env][1][t] for env in range(envs)] for t in range(27)]))
        for t, step in enumerate(steps):
            for env, row in enumerate(step):
                ended = row["terminated"] or row["truncated"]
                last = pairs[env][1][t]
                model.add(env, {**row, "next_frame": last if ended else row["next_frame"]})
                if ended and ring.layout != "shared":
                    border = {**row, "frame": last, "reward": 0.0, "first": False, "border": True}
                    model.add(env, {**border, "terminated": False, "truncated": False})
        for some in (slice(0, 5), slice(5, 24), 24, 25, 26):
            whole = ring.layout == "shared"
            following = pick(after_reset(steps), some) if whole else None
            ring_add(ring, pick(to_rows(steps), some), following, pick(final, some))
        check_batch(ring.sample(2048), model.transitions(), every_valid=True)


def after_reset(steps: list[list[dict]]) -> dict:
    """What such an env returns as next observations: where an episode ended, another's first."""
    ended = np.array([[row["terminated"] or row["truncated"] for row in step] for step in steps])
    return jax.tree.map(lambda leaf: leaf * ~ended[..., None], next_obs_of(steps))


def ring_add(ring, rows: Rows, next_obs, final_obs) -> None:
    if ring.placement == "host":
        ring.pond.add(rows, next_obs, final_obs=final_obs)
        return
    ring.state = ring.pond.add(ring.state, rows, next_obs, final_obs=final_obs)
    ring.pond.check(ring.state)


def test_a_device_ring_in_step_says_which_layout_takes_final_observations():
    pond = Pond(Spec.from_env(Counter()), 8, 2)
    with pytest.raises(BadConfig, match="layout 'per_env' or 'shared'"):
        pond.add(pond.init(), _rows(np.zeros((2, 2), np.float32)), final_obs=np.zeros((2, 2)))


@pytest.mark.parametrize("env", [None, 1])
def test_a_lake_takes_final_observations(tmp_path, env):
    envs = vector(AutoresetMode.SAME_STEP)
    lake = Lake.create(tmp_path / "lake", Spec.from_env(envs), capacity=10_000)
    loop = GymRows(envs)
    loop.reset(seed=0)
    with lake.writer("g", 3) as writer:
        for _ in range(60):
            rows, final_obs = loop.step(envs.action_space.sample())
            if env is not None:
                rows = jax.tree.map(lambda leaf: leaf[env], rows)
                final_obs = final_obs[env]
            writer.append(rows, env, final_obs=final_obs)
    lake.refresh()
    batch = lake.sample(np.random.default_rng(0), 512, Window())
    assert batch.truncated.any()
    np.testing.assert_array_equal(batch.next_obs, batch.obs + np.float32([0, 1]))


def test_a_full_disk_neither_loses_nor_repeats_final_observations(tmp_path):
    envs = vector(AutoresetMode.SAME_STEP)
    lake = Lake.create(tmp_path / "lake", Spec.from_env(envs), capacity=10_000)
    loop = GymRows(envs)
    loop.reset(seed=0)
    writer = lake.writer("g", 3)
    take, calls = writer._stage, 0

    def full_at_borders(*given):
        nonlocal calls
        calls += 1
        if calls % 7 == 3:
            raise LakeFull("no space left, for a moment")
        return take(*given)

    writer._stage = full_at_borders
    for _ in range(60):
        rows, final_obs = loop.step(envs.action_space.sample())
        for _ in range(5):  # after LakeFull: free space and call again
            with contextlib.suppress(LakeFull):
                writer.append(rows, final_obs=final_obs)
                break
    writer._stage = take
    writer.close()
    lake.refresh()
    batch = lake.sample(np.random.default_rng(0), 2048, Window())
    np.testing.assert_array_equal(batch.next_obs, batch.obs + np.float32([0, 1]))
    steps = {tuple(seen) for seen in batch.obs[:, 0].tolist()}
    assert len(steps) > 40
    assert len(lake) == 180 + sum(rows_that_ended(60, env) for env in range(3))


def rows_that_ended(steps: int, env: int) -> int:
    """Ends of one Counter in this many steps: episodes of 5, 4, 5, 4, ... steps."""
    ended = 0
    while steps >= (length := 4 + (ended + 1) % 2):
        steps, ended = steps - length, ended + 1
    return ended


class Counter(gymnasium.Env):
    """Observes (episode, step): a step's true next observation is the same episode's next step."""

    observation_space = gymnasium.spaces.Box(0, 1e6, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 4) -> None:
        self.length, self.episode, self.time = length, 0, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episode, self.time = self.episode + 1, 0
        return self._seen(), {}

    def step(self, action):
        self.time += 1
        return self._seen(), 1.0, False, self.time == self.length + self.episode % 2, {}

    def _seen(self):
        return np.array([self.episode, self.time], np.float32)


def vector(mode: AutoresetMode):
    makers = [Counter] * 3
    return gymnasium.vector.SyncVectorEnv(makers, autoreset_mode=mode)


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP])
@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_gymnasium_gives_true_final_observations_either_way(mode, layout):
    envs = vector(mode)
    pond = HostPond(Spec.from_env(envs), 300, 3, Window(), layout=layout)
    loop = GymRows(envs)
    loop.reset(seed=0)
    for _ in range(60):
        rows, final_obs = loop.step(envs.action_space.sample())
        pond.add(rows, final_obs=final_obs)
    batch = pond.sample(2048)
    assert batch.truncated.any()
    np.testing.assert_array_equal(batch.next_obs, batch.obs + np.float32([0, 1]))
    assert (batch.discount > 0).all()


def test_same_step_without_final_observations_is_found_out():
    """0 of 80 truncated transitions had their true final observation, and nothing said so."""
    envs = vector(AutoresetMode.SAME_STEP)
    obs, _ = envs.reset(seed=0)
    spec, flags = Spec.from_env(envs), np.ones(3, np.uint8)
    pond, device = HostPond(spec, 300, 3), Pond(spec, 300, 3)
    state = device.init()
    while not (flags & Flag.BORDER).any():
        rows, obs, flags = taken_for_next_step(envs, obs, flags)
        state = device.add(state, rows)
        pond.add(rows)
    rows, *_ = taken_for_next_step(envs, obs, flags)
    with pytest.raises(SpecMismatch, match=r"border row that is a step.*final_obs"):
        pond.add(rows)
    assert int(device.add(state, rows).faults[0].sum()) > 0  # and a device counts them


def taken_for_next_step(envs, obs, flags) -> tuple[Rows, np.ndarray, np.ndarray]:
    action = envs.action_space.sample()
    seen, reward, terminated, truncated, _ = envs.step(action)
    rows = Rows(obs.copy(), action, reward.astype(np.float32), terminated, truncated, flags)
    return rows, seen, next_flags(flags, terminated, truncated)


def test_a_vector_that_does_not_say_how_it_resets_is_not_guessed_at():
    with pytest.raises(BadConfig, match="autoreset is off"):
        GymRows(vector(AutoresetMode.DISABLED))
    envs = vector(AutoresetMode.SAME_STEP)
    with pytest.raises(BadConfig, match="metadata says"):
        GymRows(envs, same_step=False)
    envs.metadata = {}
    with pytest.raises(BadConfig, match="does not say"):
        GymRows(envs)
    assert GymRows(envs, same_step=True).same_step


def _rows(obs: np.ndarray) -> Rows:
    none = np.zeros(len(obs), bool)
    first = np.ones(len(obs), np.uint8)
    return Rows(obs, none.astype(np.int32), none.astype(np.float32), none, none, first)


@pytest.mark.parametrize("same_step", [False, True])
def test_flags_of_numpy_are_those_of_jax(same_step):
    """NumPy has a short way for steps in which nothing ends; JAX's arrays never take it."""
    chance = np.random.default_rng(5)
    for _ in range(60):
        flags = chance.choice(np.array([0, 0, 0, 1, 2, 4, 8, 10], np.uint8), 3)
        flags *= np.uint8(chance.random() < 0.7)
        ends = chance.random((2, 3)) < chance.choice([0, 0.4])
        mine = next_flags(flags, *ends, same_step=same_step)
        other = next_flags(*map(jnp.asarray, (flags, *ends)), same_step=same_step)
        assert mine.dtype == np.uint8
        np.testing.assert_array_equal(mine, np.asarray(other))
