"""Uniform means uniform: chi-squared over every valid start, on both placements."""

from __future__ import annotations

import random

import numpy as np
import pytest
from scenarios import PATTERNS, SUBJECTS, HostSubject, Stream, model_of, pick, to_rows
from scipy import stats

from millpond import Window

WINDOW = Window(stack=2, n_step=2)


def counts(subject, model, draws: int) -> np.ndarray:
    valid = sorted(model.transitions())
    index = {start: i for i, start in enumerate(valid)}
    batch = subject.sample(draws)
    keep = np.asarray(batch.mask)
    starts = zip(np.asarray(batch.draw.stream)[keep], batch.draw.ids()[keep], strict=True)
    found = np.bincount([index[int(e), int(i)] for e, i in starts], minlength=len(valid))
    assert len(valid) > 20
    return found


@pytest.mark.parametrize("pattern", ["long", "short", "everything"])
@pytest.mark.parametrize("placement", ["device-stream", "device-per_env", "host-stream"])
def test_every_valid_start_is_equally_likely(placement, pattern):
    chance = random.Random(3)
    subject, model = SUBJECTS[placement](WINDOW, 16, 3, seed=8), model_of(WINDOW, 16, 3)
    streams = [Stream(env, PATTERNS[pattern], chance) for env in range(3)]
    for _ in range(2):
        steps = [[s.next() for s in streams] for _ in range(19)]
        for step in steps:
            for env, row in enumerate(step):
                model.add(env, row)
        subject.add(to_rows(steps))
    if pattern == "everything" and len(model.transitions()) <= 20:
        pytest.fail("the pattern left too few valid starts for a test")
    found = counts(subject, model, 1 << 16)
    assert stats.chisquare(found).pvalue > 1e-3


def test_streams_of_unequal_length_are_drawn_in_proportion():
    chance = random.Random(4)
    subject, model = HostSubject(WINDOW, 30, 3, seed=9), model_of(WINDOW, 30, 3)
    for env, rows in enumerate((4, 12, 70)):
        stream = Stream(env, PATTERNS["short"], chance)
        for _ in range(rows):
            row = stream.next()
            model.add(env, row)
            subject.add_one(pick(to_rows([[row]]), (0, 0)), env)
    found = counts(subject, model, 1 << 16)
    assert stats.chisquare(found).pvalue > 1e-3


def test_a_ring_with_one_valid_start_among_thousands_still_samples_it():
    subject = HostSubject(Window(), 5000, 1)
    stream = Stream(0, PATTERNS["long"], random.Random(1))
    steps = [[stream.next()] for _ in range(4000)]
    for step in steps[:2000] + steps[2001:]:
        step[0]["context"] = True
    steps[2000][0].update(context=False)
    if steps[2000][0]["border"]:
        pytest.fail("choose another row")
    subject.add(to_rows(steps))
    assert set(subject.sample(32).draw.row) == {2000}
