"""The contract of every ring: placement x window x env pattern, against a list in plain Python.

`python -m pytest -q tests -k contract` prints how many examples each cell ran.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_batch
from scenarios import PATTERNS, SUBJECTS, HostSubject, Stream, model_of, pick, to_rows

from millpond import NotEnoughData, Window

WINDOWS = {
    "plain": Window(),
    "n3": Window(n_step=3, gamma=0.9),
    "stack4": Window(stack=4),
    "stack4-n3": Window(stack=4, n_step=3, gamma=0.5),
    "stack2-n5-first": Window(stack=2, n_step=5, gamma=0.7, pad="first"),
    "stack3-n2-lives": Window(stack=3, n_step=2, gamma=0.97, life_loss_ends=True),
}
# Few shapes on a device, because each is compiled; any on the host.
LENGTHS = {"device": [7, 16], "host": list(range(7, 40))}
ENVS = {"device": [1, 3], "host": [1, 2, 3, 5]}
# Block sizes reach past the ring: of more rows than fit, the newest remain.
BLOCKS = {"device": [1, 2, 5, 19], "host": list(range(1, 60))}
EXCLUDED = {
    ("device", "add_one"): "the device ring keeps all streams in lockstep (layout per_env does not)"
}
DRAWS = 2048


@st.composite
def stories(draw, placement: str):
    """Ring shape, then a sequence of operations."""
    ops = st.one_of(
        st.tuples(st.just("add"), st.sampled_from(BLOCKS[placement])),
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("cut"), st.integers(0, 7)),
        st.tuples(st.just("reload"), st.just(0)),
        *([st.tuples(st.just("add_one"), st.integers(0, 7))] if placement == "host" else []),
    )
    return (
        draw(st.sampled_from(LENGTHS[placement])),
        draw(st.sampled_from(ENVS[placement])),
        draw(st.lists(ops, min_size=1, max_size=14)),
        draw(st.integers(0, 2**32)),
    )


def play(subject_class, window: Window, pattern, story, draws: int = DRAWS) -> None:
    """Run a story on a ring and on the list model; everything they say must agree."""
    length, num_envs, ops, seed = story
    chance = random.Random(seed)
    subject = subject_class(window, length, num_envs, seed=seed % 1000)
    model = model_of(window, length, num_envs)
    streams = [Stream(env, pattern, chance) for env in range(num_envs)]

    def record(env: int) -> dict:
        row = streams[env].next()
        model.add(env, dict(row))
        return row

    for op, number in ops:
        if op == "add":
            block = to_rows([[record(e) for e in range(num_envs)] for _ in range(number)])
            subject.add(block if number > 1 else pick(block, 0))
        elif op == "add_one":
            env = number % num_envs
            subject.add_one(pick(to_rows([[record(env)]]), (0, 0)), env)
        elif op == "cut":
            env = number % num_envs
            subject.cut(env)
            model.cut(env)
            streams[env].cut()
        elif op == "reload":
            subject.restore(subject.export())
    compare(subject, model, draws)


def compare(subject, model, draws: int) -> None:
    expected = model.transitions()
    stored = [
        (env, i)
        for env, rows in enumerate(model.streams)
        for i in range(max(0, len(rows) - model.length), len(rows))
    ]
    assert subject.size() == len(stored)
    if stored:
        # A fixed number of starts, so that the device compiles one shape.
        padded = (stored * -(-128 // len(stored)))[: max(128, len(stored))]
        stream, row = (np.array(part, np.int64) for part in zip(*padded, strict=True))
        batch = subject.take(stream, row)
        valid = np.array([start in expected for start in padded])
        np.testing.assert_array_equal(np.asarray(batch.mask), valid)
        check_batch(batch, expected, every_valid=True)
    if expected:
        check_batch(subject.sample(draws), expected, every_valid=draws >= 2048)
    elif subject.name == "host":
        with pytest.raises(NotEnoughData):
            subject.sample(draws)
    else:
        assert not np.asarray(subject.sample(draws).mask).any()


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("placement", SUBJECTS)
def test_contract(placement, window, pattern, record_property, request):
    examples = 0

    @settings(max_examples=request.config.getoption("--examples"))
    @given(stories(placement))
    def run(story):
        nonlocal examples
        examples += 1
        play(SUBJECTS[placement], WINDOWS[window], PATTERNS[pattern], story)

    run()
    record_property("contract", [placement, window, pattern, examples])


def test_contract_lists_what_it_excludes(record_property):
    for (placement, operation), reason in EXCLUDED.items():
        assert not hasattr(SUBJECTS[placement], operation)
        record_property("excluded", f"{placement} x {operation}: {reason}")


def test_contract_of_numpy_and_jax_batches_are_equal_for_equal_draws():
    import jax

    for window in WINDOWS.values():
        chance = random.Random(5)
        streams = [Stream(env, PATTERNS["everything"], chance) for env in range(3)]
        host, device = HostSubject(window, 16, 3), SUBJECTS["device"](window, 16, 3)
        for time in (5, 19, 2, 1):
            block = to_rows([[s.next() for s in streams] for _ in range(time)])
            host.add(block), device.add(block)
        stream = np.repeat(np.arange(3), 16)[:48]
        row = np.tile(np.arange(27 - 16, 27), 3)[:48]
        ours = host.take(stream, row)
        theirs = device.take(stream, row)
        keep = np.asarray(ours.mask)
        assert keep.any()
        np.testing.assert_array_equal(ours.draw.ids(), theirs.draw.ids())
        reward, other = ours.reward[keep], theirs.reward[keep]
        np.testing.assert_allclose(reward, other, rtol=1e-6)  # XLA may fuse multiply and add
        for a, b in zip(
            jax.tree.leaves(ours._replace(reward=0, draw=0)),
            jax.tree.leaves(theirs._replace(reward=0, draw=0)),
            strict=True,
        ):
            assert np.asarray(a).dtype == np.asarray(b).dtype
            if np.ndim(a):
                np.testing.assert_array_equal(np.asarray(a)[keep], np.asarray(b)[keep])
