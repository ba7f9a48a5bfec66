"""A copied pond is a pond of its own: it holds what the other held and sees what it is given."""

from __future__ import annotations

import copy
import random
from multiprocessing.reduction import ForkingPickler

import jax
import numpy as np
import pytest
from scenarios import PATTERNS, SUBJECTS, HostSubject, Stream, model_of, next_obs_of, pick, to_rows
from test_contract import SAMPLERS, compare

from millpond import Window

WAYS = {
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "message": lambda pond: ForkingPickler.loads(ForkingPickler.dumps(pond)),
}
HOSTS = [name for name, kind in SUBJECTS.items() if issubclass(kind, HostSubject)]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("subject", HOSTS)
@pytest.mark.parametrize("way", WAYS)
def test_a_copy_holds_the_same_and_goes_its_own_way(way, subject, sampler):
    window = Window() if subject.endswith("shared") else Window(stack=2, n_step=2)
    chance = random.Random(3)
    first = SUBJECTS[subject](window, 9, 2, 5, SAMPLERS[sampler])
    whole = first.layout == "shared"
    streams = [Stream(env, PATTERNS["everything"], chance) for env in range(2)]
    models = {"first": model_of(window, 9, 2, first.layout)}

    def feed(subject, model, streams, steps: int) -> None:
        block = [[stream.next() for stream in streams] for _ in range(steps)]
        for row in block:
            for env, one in enumerate(row):
                model.add(env, dict(one))
        subject.add(to_rows(block), next_obs_of(block) if whole else None)

    feed(first, models["first"], streams, 6)
    second = copy.copy(first)
    second.pond = WAYS[way](first.pond)
    models["second"], others = copy.deepcopy(models["first"]), copy.deepcopy(streams)
    for ours, theirs in zip(
        jax.tree.leaves(first.pond.sample(64)),
        jax.tree.leaves(second.pond.sample(64)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)
    feed(second, models["second"], others, 7)  # around the ring's end, and only one of them
    compare(second, models["second"], 2048)
    compare(first, models["first"], 2048)
    feed(first, models["first"], streams, 3)
    compare(first, models["first"], 2048)
    compare(second, models["second"], 2048)


@pytest.mark.parametrize("way", WAYS)
def test_a_copy_of_a_pond_that_takes_single_rows(way):
    """They are written through views of their own."""
    subject = HostSubject(Window(), 9, 1)
    subject.add(pick(to_rows([[Stream(0, PATTERNS["long"], random.Random(1)).next()]]), 0))
    twin = WAYS[way](subject.pond)
    rows = to_rows([[{**Stream(0, PATTERNS["long"], random.Random(1)).next(), "first": False}]])
    one = pick(rows, (0, 0))
    twin.add(one), twin.add(one)
    np.testing.assert_array_equal(twin.read(np.zeros(1, int), np.array([2])).action, [one.action])
    assert (twin.size, subject.pond.size) == (3, 1)
