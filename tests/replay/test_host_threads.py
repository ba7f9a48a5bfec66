"""One thread adds, others sample, take, rank and export: every transition is exactly right."""

from __future__ import annotations

import multiprocessing
import sys
import threading

import numpy as np
import pytest

from millpond import Field, HostPond, Rows, Spec, Window, prioritized, stratified

SPEC = Spec(obs=Field("int64", (64,)), action=Field("int64"))
ENVS, LENGTH = 4, 16
LAYOUTS = ("stream", "per_env", "shared")


def content(stream: np.ndarray, row: np.ndarray) -> np.ndarray:
    """What the row with this id holds, everywhere in it."""
    return np.asarray(stream, np.int64) * 1_000_000_007 + np.asarray(row)


def step(row: int) -> tuple[Rows, np.ndarray]:
    """Row `row` of every env, and the next observations."""
    number = content(np.arange(ENVS), row)
    spread = np.ones(64, np.int64)
    flags = np.full(ENVS, row == 0, np.uint8)
    quiet = np.zeros(ENVS, bool)
    rows = Rows(number[:, None] * spread, number, number.astype(np.float32), quiet, quiet, flags)
    return rows, (number + 1)[:, None] * spread


def wrong(batch, shared: bool, n_step: int = 1) -> int:
    """How many transitions are not what was added, told by their action."""
    action = batch.action[batch.mask]
    ids = batch.draw.ids()[batch.mask]
    stream = ids % ENVS if shared else batch.draw.stream[batch.mask]
    expected = content(stream, ids // ENVS if shared else ids)
    obs, following = batch.obs[batch.mask, -1], batch.next_obs[batch.mask, -1]
    bad = action != expected
    bad |= (obs != expected[:, None]).any(axis=1)
    bad |= (following != expected[:, None] + n_step).any(axis=1)
    return int(bad.sum())


def race(pond: HostPond, adds: int, look) -> list:
    """Add in one thread, `look` in two others until it is done; what they found."""
    shared, done, found = pond.layout.whole, threading.Event(), []

    def add() -> None:
        try:
            for row in range(2 * LENGTH, 2 * LENGTH + adds):
                rows, following = step(row)
                pond.add(rows, following if shared else None)
        except BaseException as error:
            found.append(error)
        finally:
            done.set()

    def watch() -> None:
        try:
            while not done.is_set():
                found.append(look())
        except BaseException as error:
            found.append(error)

    for row in range(2 * LENGTH):
        rows, following = step(row)
        pond.add(rows, following if shared else None)
    threads = [threading.Thread(target=work, daemon=True) for work in (add, watch, watch)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "a thread hangs"
    finally:
        sys.setswitchinterval(before)
    errors = [one for one in found if isinstance(one, BaseException)]
    assert not errors, errors
    return found


def make(layout: str, sampler=None, window: Window | None = None) -> HostPond:
    return HostPond(SPEC, ENVS * LENGTH, ENVS, window, sampler, layout, seed=1)


@pytest.mark.parametrize("sampler", [None, stratified(), prioritized()], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_sampler_beside_an_adder_never_sees_a_wrong_transition(layout, sampler):
    n_step = 1 if layout == "shared" else 3
    pond = make(layout, sampler, Window(n_step=n_step, stack=1 if n_step == 1 else 2))
    found = race(pond, 300, lambda: wrong(pond.sample(64), layout == "shared", n_step))
    assert sum(found) == 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_take_read_export_and_priorities_beside_an_adder(layout):
    pond = make(layout, prioritized())
    shared = layout == "shared"

    def look() -> int:
        batch = pond.sample(32)
        pond.update_priorities(batch.draw, np.random.random(32))
        bad = wrong(pond.take(batch.draw.stream, batch.draw.row), shared)
        arrays = pond.export()
        held, added = arrays["columns/action"], arrays["added"]
        newest = (added - 1) % pond.length
        stream = np.arange(pond.streams)
        where = (stream, newest) if layout == "per_env" else (newest, stream)
        row = added - 1
        expected = content(row % ENVS, row // ENVS) if shared else content(stream, row)
        return bad + int((held[where] != expected).sum())

    assert sum(race(pond, 60, look)) == 0
    pond.check()


def test_one_row_at_a_time_beside_a_sampler():
    spec = Spec(obs=Field("int64", (3,)), action=Field("int64", (), 0, 10**9))
    pond = HostPond(spec, 12, 1, seed=1)
    done, found = threading.Event(), []

    def add() -> None:
        for row in range(3_000):
            pond.add(Rows(np.full(3, row), row, float(row), False, False, int(row == 0)))
        done.set()

    def watch() -> None:
        while not done.is_set():
            if pond.can_sample():
                batch = pond.sample(256)
                ids = batch.draw.row
                good = (batch.obs[:, 0] == ids[:, None]).all()
                good &= (batch.next_obs[:, 0] == ids[:, None] + 1).all()
                found.append(good & (batch.reward == ids).all())

    threads = [threading.Thread(target=work, daemon=True) for work in (add, watch)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    finally:
        sys.setswitchinterval(before)
    assert all(found)


def _child(pond: HostPond, answers) -> None:
    pond.check()
    answers.put(wrong(pond.sample(64), False))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::RuntimeWarning")
def test_a_child_forked_beside_an_adder_finds_the_pond_free_and_whole():
    pond, context = make("stream"), multiprocessing.get_context("fork")
    answers = context.Queue()

    def fork() -> int:
        child = context.Process(target=_child, args=(pond, answers), daemon=True)
        child.start()
        bad = answers.get(timeout=30)
        child.join(30)
        return bad

    stop, rows = threading.Event(), 2 * LENGTH
    for row in range(rows):
        pond.add(step(row)[0])

    def add() -> None:
        row = rows
        while not stop.is_set():
            pond.add(step(row)[0])
            row += 1

    thread = threading.Thread(target=add, daemon=True)
    thread.start()
    try:
        assert [fork() for _ in range(5)] == [0] * 5
    finally:
        stop.set()
        thread.join(30)
    assert not thread.is_alive()
