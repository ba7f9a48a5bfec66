"""A row that a device refuses reaches no sample, in any role: start, sum, stack or bootstrap."""

from __future__ import annotations

import random

import jax
import numpy as np
import pytest
from oracle import ListModel, check_batch
from scenarios import PATTERNS, DeviceSubject, Stream, to_rows
from test_contract import SAMPLERS, WINDOWS

from millpond import FaultsFound, Field, Pond, Rows, Spec, Window


def play(subject: DeviceSubject, window: Window, seed: int, length: int, envs: int) -> ListModel:
    """Rows of which some have an action outside its bounds; the model cuts them off."""
    chance = random.Random(seed)
    model = ListModel(envs, length, window.stack, window.n_step, window.gamma, False, window.pad)
    model.life_loss_ends, model.reward_clip = window.life_loss_ends, window.reward_clip
    streams = [Stream(env, PATTERNS["everything"], chance) for env in range(envs)]
    for time in (5, 1, 19, 1, 1, 5):
        steps = [[stream.next() for stream in streams] for _ in range(time)]
        for env, row in ((env, row) for step in steps for env, row in enumerate(step)):
            bad = chance.random() < 0.15
            if bad:
                model.cut(env)
                row["action"] = 99
            model.add(env, {**row, "cut": row["cut"] or bad})
        rows = to_rows(steps)
        subject.add(rows if time > 1 else jax.tree.map(lambda leaf: leaf[0], rows))
    return model


# Most of the time is compiling: by default every pair of two of these is seen, else all three.
CELLS = [
    pytest.param(window, layout, sampler, marks=[] if pair else [pytest.mark.full])
    for one, window in enumerate(["plain", "stack3-n2-lives"])
    for two, layout in enumerate(["stream", "per_env"])
    for three, sampler in enumerate(["uniform", "prioritized"])
    for pair in [(one + two + three) % 2 == 0]
]


@pytest.mark.parametrize(("window", "layout", "sampler"), CELLS)
def test_contract_of_refused_rows(window, layout, sampler):
    kind = type("Subject", (DeviceSubject,), {"layout": layout})
    for seed in range(4):
        subject = kind(WINDOWS[window], 16, 3, seed, SAMPLERS[sampler])
        model = play(subject, WINDOWS[window], seed, 16, 3)
        with pytest.raises(FaultsFound, match="outside its bounds"):
            subject.size()
        expected = model.transitions()
        assert not any(found["action"] == 99 for found in expected.values())
        check_batch(subject.sample(2048), expected, every_valid=True)


@pytest.mark.parametrize("n_step", [1, 3])
def test_nan_never_arrives_as_a_next_observation(n_step):
    spec = Spec(Field("float32", (1,), -1000, 1000), Field("int32", (), 0, 1))
    pond = Pond(spec, 16, window=Window(n_step=n_step))
    obs = np.array([[0], [1], [2], [np.nan], [4], [5], [6], [7], [8]], np.float32)
    none = np.zeros((9, 1), bool)
    flags = np.zeros((9, 1), np.uint8)
    flags[0] = 1
    rows = Rows(obs[:, None], none.astype(np.int32), none.astype(np.float32), none, none, flags)
    _, batch = pond.sample(pond.add(pond.init(), rows), jax.random.key(0), 256)
    keep = np.asarray(batch.mask)
    assert keep.any()
    assert np.isfinite(np.asarray(batch.obs)[keep]).all()
    assert np.isfinite(np.asarray(batch.next_obs)[keep]).all()
