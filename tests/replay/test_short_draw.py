"""The short way out of a HostPond draws what the long way does, just as evenly."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scenarios import PATTERNS, SUBJECTS, Stream, model_of, pick, to_rows
from scipy import stats

from millpond import Window, stratified

WINDOWS = {"plain": Window(), "lives": Window(life_loss_ends=True, reward_clip=2.0)}
LENGTH = 60


def filled(layout: str, envs: int, window: Window, steps: list[int], pattern: str, seed: int):
    """A ring and its model: that many rows of every env."""
    chance = random.Random(seed)
    subject = SUBJECTS[f"host-{layout}"](window, LENGTH, envs, seed=seed)
    model = model_of(window, LENGTH, envs)
    streams = [Stream(env, PATTERNS[pattern], chance) for env in range(envs)]
    together = min(steps)
    block = [[stream.next() for stream in streams] for _ in range(together)]
    for step in block:
        for env, row in enumerate(step):
            model.add(env, dict(row))
    if block:
        subject.add(to_rows(block))
    for env, stream in enumerate(streams):
        for _ in range(steps[env] - together):
            row = stream.next()
            model.add(env, dict(row))
            subject.add_one(pick(to_rows([[row]]), (0, 0)), env)
    return subject, model


STEPS = {
    "one": [41],
    "one turned": [60 * 3 + 17],
    "even": [50, 50, 50],
    "even turned": [145, 145, 145],
    "uneven": [31, 55, 44],
    "one is full": [31, 75, 44],
    "uneven turned": [160, 203, 181],
    "one hardly": [2, 40, 40],
    "one never": [0, 40, 40],
}


# Every layout with every filling sees one of the patterns, in turn; with --full both.
CELLS = [
    pytest.param(layout, steps, pattern, marks=[] if here else [pytest.mark.full])
    for one, layout in enumerate(["stream", "per_env"])
    for two, steps in enumerate(STEPS)
    for three, pattern in enumerate(["long", "everything"])
    for here in [(one + two + three) % 2 == 0]
]


@pytest.mark.parametrize(("layout", "steps", "pattern"), CELLS)
def test_small_batches_hold_every_valid_start_alike(layout, steps, pattern):
    for name, window in WINDOWS.items():
        subject, model = filled(layout, len(STEPS[steps]), window, STEPS[steps], pattern, seed=5)
        valid = sorted(model.transitions())
        index = {start: number for number, start in enumerate(valid)}
        assert len(valid) > 10, name
        short, taken = subject.pond._short, []
        fill = short.fill
        short.fill = lambda *given, fill=fill, taken=taken: taken.append(fill(*given)) or taken[-1]
        found, out = np.zeros(len(valid), int), None
        for _ in range(2_000):
            out = subject.pond.sample(3, out=out)
            for start in zip(out.draw.stream.tolist(), out.draw.row.tolist(), strict=True):
                found[index[start]] += 1  # KeyError: no valid start
        assert stats.chisquare(found).pvalue > 1e-4
        uneven = len(set(STEPS[steps])) > 1
        if not (layout == "stream" and uneven):  # one head, and streams that are not in lockstep
            assert sum(taken) > 500, "the long way was compared with itself"
        batch = subject.pond.sample(64)
        same = subject.pond.take(batch.draw.stream, batch.draw.row)
        for mine, taken_one in zip(batch[:-2], same[:-2], strict=True):
            for key in mine if isinstance(mine, dict) else [None]:
                one, two = (mine, taken_one) if key is None else (mine[key], taken_one[key])
                np.testing.assert_equal(one, two)
        for key, extra in batch.extras.items():
            np.testing.assert_array_equal(extra, same.extras[key])


def test_what_it_is_not_made_for_goes_the_long_way():
    for window, sampler in ((Window(stack=2), None), (Window(n_step=2), None)):
        assert SUBJECTS["host-stream"](window, 20, 1, sampler=sampler).pond._short is None
    assert SUBJECTS["host-stream"](Window(), 20, 1, sampler=stratified()).pond._short is None
    assert SUBJECTS["host-shared"](Window(), 20, 1).pond._short is None


@pytest.mark.parametrize("layout", ["stream", "per_env"])
def test_a_restored_ring_goes_on_alike(layout):
    subject, _ = filled(layout, 3, Window(), [145, 145, 145], "short", seed=2)
    twin = SUBJECTS[f"host-{layout}"](Window(), LENGTH, 3)
    twin.restore(subject.export())
    for number in (3, 32, 128, 129, 500):
        for mine, other in zip(subject.sample(number).draw, twin.sample(number).draw, strict=True):
            np.testing.assert_equal(mine, other)
