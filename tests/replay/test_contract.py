"""The contract of every ring: placement x layout x window x pattern, against a plain list.

`python -m pytest -q tests -k contract` prints how many examples each cell ran.
"""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import check_batch
from scenarios import (
    PATTERNS,
    SUBJECTS,
    DeviceSubject,
    HostSubject,
    Stream,
    model_of,
    next_obs_of,
    pick,
    to_rows,
)
from sequence_oracle import SequenceModel, check_sequences, started

from millpond import NotEnoughData, Sequence, Window, prioritized, recent, stratified
from millpond.samplers import Prioritized, Recent

WINDOWS = {
    "plain": Window(),
    "clipped": Window(reward_clip=3.0),
    "n3": Window(n_step=3, gamma=0.9, reward_clip=5.0),
    "stack4": Window(stack=4),
    "stack4-n3": Window(stack=4, n_step=3, gamma=0.5),
    "stack2-n5-first": Window(stack=2, n_step=5, gamma=0.7, pad="first"),
    "stack3-n2-lives": Window(stack=3, n_step=2, gamma=0.97, life_loss_ends=True),
}
SEQUENCES = {
    "cross": Sequence(4, gamma=0.9),
    "cross-burn3-clip": Sequence(3, burn_in=3, reward_clip=5.0),
    "cross-stack3-every2": Sequence(3, stack=3, every=2, life_loss_ends=True),
    "stop": Sequence(6, end="stop"),
    "stop-stack2-burn2-first": Sequence(4, stack=2, burn_in=2, end="stop", pad="first"),
    "stop-stack3-every3-burn5": Sequence(1, stack=3, burn_in=5, every=3, end="stop"),
    "stop-stack2-burn40": Sequence(2, stack=2, burn_in=40, end="stop"),  # more than a ring holds
}
WINDOWS_AND_SEQUENCES = WINDOWS | SEQUENCES
# Few shapes on a device, because each is compiled; any on the host.
SHAPES = {
    "device": [(7, 3), (16, 1)],
    "host": [(length, envs) for length in range(7, 40) for envs in (1, 2, 3, 5)],
}
# Block sizes reach past the ring: of more rows than fit, the newest remain.
BLOCKS = {"device": [1, 5, 19], "host": list(range(1, 60))}
EXTRA_OPS = {
    "host-stream": ["add_one"],
    "host-per_env": ["add_one", "masked"],
    "device-per_env": ["masked"],
}
EXCLUDED = {
    ("device-*", "add_one"): "a device adds whole vectors; one env of many is a mask in per_env",
    ("*-stream, *-shared", "masked"): "one head for all; only per_env adds to some envs",
    ("*-shared", "windows other than plain"): "whole transitions: stack and n_step are 1",
    ("*-shared", "sequences"): "whole transitions in no order: nothing follows a row",
}
SAMPLERS = {
    "uniform": None,
    "stratified": stratified(tries=8),
    "recent": recent(half_life=10),
    "prioritized": prioritized(),
}
DRAWS = 2048


@st.composite
def stories(draw, subject: str, shapes: list[tuple[int, int]] | None = None):
    """Ring shape, then a sequence of operations."""
    placement = subject.split("-")[0]
    ops = [
        st.tuples(st.just("add"), st.sampled_from(BLOCKS[placement])),
        st.tuples(st.just("add"), st.just(1)),
        st.tuples(st.just("cut"), st.integers(0, 7)),
        st.tuples(st.just("reload"), st.just(0)),
    ]
    ops += [st.tuples(st.just(op), st.integers(0, 7)) for op in EXTRA_OPS.get(subject, [])]
    length, envs = draw(st.sampled_from(shapes or SHAPES[placement]))
    return (length, envs, draw(st.lists(st.one_of(ops), min_size=1, max_size=14)), draw(SEEDS))


SEEDS = st.integers(0, 2**32)


def play(subject_class, window: Window, pattern, story, draws: int = DRAWS, sampler=None) -> None:
    """Run a story on a ring and on the list model; everything they say must agree."""
    length, num_envs, ops, seed = story
    chance = random.Random(seed)
    subject = subject_class(window, length, num_envs, seed=seed % 1000, sampler=sampler)
    model = model_of(window, length, num_envs, subject.layout)
    if isinstance(model, SequenceModel):
        model.aged = isinstance(sampler, Prioritized)
    streams = [Stream(env, pattern, chance) for env in range(num_envs)]
    whole = subject.layout == "shared"
    if isinstance(sampler, Recent) and subject.placement == "host":
        draws *= 16  # of 39 rows of five envs the oldest is one draw in a thousand

    def record(env: int) -> dict:
        row = streams[env].next()
        model.add(env, dict(row))
        return row

    for op, number in ops:
        env = number % num_envs
        if op == "add":
            steps = [[record(e) for e in range(num_envs)] for _ in range(number)]
            index = slice(None) if number > 1 else 0
            following = pick(next_obs_of(steps), index) if whole else None
            subject.add(pick(to_rows(steps), index), following)
        elif op == "masked":
            mask = np.array([chance.random() < 0.6 for _ in range(num_envs)])
            filler = Stream(0, pattern, chance).next()
            step = [record(e) if mask[e] else filler for e in range(num_envs)]
            subject.add(pick(to_rows([step]), 0), mask=mask)
        elif op == "add_one":
            subject.add_one(pick(to_rows([[record(env)]]), (0, 0)), env)
        elif op == "cut":
            subject.cut(env)
            model.cut(env)
            streams[env].cut()
        elif op == "reload":
            subject.restore(subject.export())
    compare(subject, model, draws)


def held(batch, model) -> np.ndarray:
    """bool[batch]: which entries are not masked."""
    sequences = isinstance(model, SequenceModel)
    return started(batch, model.window) if sequences else np.asarray(batch.mask)


def check(batch, model, expected: dict, every_valid: bool) -> None:
    if isinstance(model, SequenceModel):
        check_sequences(batch, model.window, expected, every_valid)
    else:
        check_batch(batch, expected, every_valid)


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
        np.testing.assert_array_equal(held(batch, model), valid)
        check(batch, model, expected, every_valid=True)
    if expected:
        check(subject.sample(draws), model, expected, every_valid=draws >= 2048)
    elif subject.placement == "host":
        with pytest.raises(NotEnoughData):
            subject.sample(draws)
    else:
        assert not np.asarray(subject.sample(draws).mask).any()


def cell(subject: str, number: int, window: str):
    """On a device most of the time is compiling: by default every window is seen there in one of
    the two layouts, in turn; with --full in both."""
    turn = {"device-stream": 0, "device-per_env": 1}.get(subject)
    other = turn is not None and number % 2 != turn and window != "plain"
    other |= turn is not None and window in SEQUENCES and not window.startswith("stop-")
    return pytest.param(subject, window, marks=[pytest.mark.full] if other else [])


CELLS = [
    cell(subject, number, window)
    for subject in SUBJECTS
    for number, window in enumerate(WINDOWS_AND_SEQUENCES)
    if window == "plain" or not subject.endswith("shared")
    if window != "clipped" or subject == "host-stream"  # it has a short way of its own
]


def some_shapes(subject: str, window: str, sampler: str) -> list[tuple[int, int]]:
    """And every cell but that of plain windows has one of the two shapes, in turn."""
    if (window, sampler) == ("plain", "uniform"):
        return SHAPES["device"]
    turn = list(WINDOWS_AND_SEQUENCES).index(window) // 2
    if sampler != "uniform":
        turn = list(SAMPLERS).index(sampler) + list(SUBJECTS).index(subject)
    return [SHAPES["device"][turn % 2]]


def run_cell(subject: str, window: str, pattern: str, sampler: str, config) -> int:
    ran, shapes = 0, SHAPES[subject.split("-")[0]]
    if subject.startswith("device") and not config.getoption("--full"):
        shapes = some_shapes(subject, window, sampler)

    @settings(max_examples=config.getoption("--examples"))
    @given(stories(subject, shapes))
    def run(story):
        nonlocal ran
        ran += 1
        cls, drawing = SUBJECTS[subject], SAMPLERS[sampler]
        play(cls, WINDOWS_AND_SEQUENCES[window], PATTERNS[pattern], story, sampler=drawing)

    run()
    return ran


@pytest.mark.parametrize("pattern", PATTERNS)
@pytest.mark.parametrize(("subject", "window"), CELLS)
def test_contract(subject, window, pattern, record_property, request):
    ran = run_cell(subject, window, pattern, "uniform", request.config)
    record_property("contract", [subject, window, pattern, ran])


SAMPLED = [
    pytest.param(subject, sampler, window, marks=marks)
    for subject in SUBJECTS
    if not subject.endswith("shared")
    for sampler in ("stratified", "recent", "prioritized")
    for window in ("cross-stack3-every2", "stop-stack2-burn2-first")
    # On a device most of the time is compiling.
    for once in [(subject, sampler, window[:5]) == ("device-stream", "prioritized", "cross")]
    for marks in [[] if subject.startswith("host") or once else [pytest.mark.full]]
]


@pytest.mark.parametrize("pattern", ["long", "everything"])
@pytest.mark.parametrize(("subject", "sampler", "window"), SAMPLED)
def test_contract_of_samplers_of_sequences(
    subject, sampler, window, pattern, record_property, request
):
    ran = run_cell(subject, window, pattern, sampler, request.config)
    record_property("contract", [f"{subject} {sampler}", window, pattern, ran])


def sampled(subject: str, sampler: str):
    """On a device by default every sampler is seen in one layout, the prioritised one in all."""
    here = {"recent": "device-stream", "stratified": "device-per_env"}.get(sampler, subject)
    other = subject.startswith("device") and subject != here
    return pytest.param(subject, sampler, marks=[pytest.mark.full] if other else [])


WITH_SAMPLERS = [
    sampled(subject, sampler)
    for subject in SUBJECTS
    for sampler in ("stratified", "recent", "prioritized")
]


@pytest.mark.parametrize("pattern", ["long", "everything"])
@pytest.mark.parametrize(("subject", "sampler"), WITH_SAMPLERS)
def test_contract_of_samplers(subject, sampler, pattern, record_property, request):
    window = "plain" if subject.endswith("shared") else "stack3-n2-lives"
    ran = run_cell(subject, window, pattern, sampler, request.config)
    record_property("contract", [f"{subject} {sampler}", window, pattern, ran])


def test_contract_lists_what_it_excludes(record_property):
    assert not hasattr(SUBJECTS["device-stream"], "add_one")
    for (subject, what), reason in EXCLUDED.items():
        record_property("excluded", f"{subject} x {what}: {reason}")


def test_contract_of_numpy_and_jax_batches_are_equal_for_equal_draws():
    import jax

    for window in WINDOWS.values():
        chance = random.Random(5)
        streams = [Stream(env, PATTERNS["everything"], chance) for env in range(3)]
        host, device = HostSubject(window, 16, 3), DeviceSubject(window, 16, 3)
        for time in (5, 19, 5):
            block = to_rows([[s.next() for s in streams] for _ in range(time)])
            host.add(block), device.add(block)
        stream = np.repeat(np.arange(3), 16)[:48]
        row = np.tile(np.arange(29 - 16, 29), 3)[:48]
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
