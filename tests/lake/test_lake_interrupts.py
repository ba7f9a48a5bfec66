"""Exceptions from signal handlers anywhere in a writer's calls, and reads no memory could hold."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all

from millpond import RowsGone
from millpond.lake import Lake, sealer
from millpond.lake.files import Files

STREAMS = 16
FULL = SLOTS // STREAMS
MODULES = ("writer", "open_segment", "sealer", "lake", "gather")
WHERE = {"threading", *(f"millpond.lake.{name}" for name in MODULES)}


class Interrupt(BaseException):
    """What the signal handler raises."""


class Quick(Files):
    """A disk that never loses power."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


class Signal:
    """A signal at the `at`-th place where CPython lets handlers run: functions' begins, C calls'
    ends."""

    def __init__(self, at: int) -> None:
        self.at = at

    def __enter__(self) -> None:
        sys.setprofile(self._event)

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)

    def _event(self, frame, event: str, what) -> None:
        if event not in ("call", "c_return") or frame.f_globals["__name__"] not in WHERE:
            return
        self.at -= 1
        if self.at == -1:
            raise Interrupt


def insist(writer, act, at: list[int]) -> None:
    """Do it, interrupted once; then again, unless it was done."""
    before = writer.next_row
    signal = Signal(at[0])
    try:
        with signal:
            act()
    except Interrupt:
        after = writer.next_row
        if act.__name__ != "put" or (after == before).all():
            act()
        else:
            assert (after == before + after[0] - before[0]).all(), "a part was appended"
    at[0] = signal.at


def life(path: Path, at: int) -> int:
    """Append over the end of two segments, interrupted at one place; how many there were after."""
    lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS, files=Quick())
    left = [at]
    writer = lake.writer("g", STREAMS)
    total = 0
    for steps in (1, FULL - 3, 5, 2 * FULL, 7):
        before = writer.next_row

        def put(steps=steps) -> None:
            append(writer, steps)

        insist(writer, put, left)
        insist(writer, writer.commit, left)
        total += steps
        assert (writer.next_row == before + steps).all()
    signal = Signal(left[0])
    try:
        with signal:
            writer.commit(sync=True)
    except Interrupt:
        pass
    writer.close()
    held = check_all(Lake.open(path))
    assert (held.first == 0).all()
    assert (held.stop == total).all()
    return signal.at


@pytest.mark.parametrize("every", [58, pytest.param(1, marks=pytest.mark.full)])
def test_a_signal_anywhere_loses_and_repeats_nothing(tmp_path, monkeypatch, every):
    monkeypatch.setattr(sealer, "_PATIENCE", 20.0)
    places = 10**6 - life(tmp_path / "lake", 10**6)
    assert places > 200
    for at in range(every // 2, places, every):
        try:
            life(tmp_path / str(at), at)
        except BaseException as error:
            error.add_note(f"interrupted at place {at} of {places}")
            raise


def test_a_signal_between_a_segments_writing_and_its_sealing(tmp_path, monkeypatch):
    """Where the sealer's lock stayed taken, close() hung for ten minutes."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    writer = lake.writer("g", STREAMS)
    append(writer, FULL)
    with monkeypatch.context() as patch:

        def interrupted(self) -> None:
            raise Interrupt

        patch.setattr(sealer.Sealer, "_wake", interrupted)
        with pytest.raises(Interrupt):
            writer.commit()
    monkeypatch.setattr(sealer, "_PATIENCE", 20.0)
    append(writer, 1)
    writer.close()
    assert (check_all(lake).stop == FULL + 1).all()
    assert lake.stats().sealed == 1


def test_a_signal_in_gather_does_not_stop_refresh(tmp_path, monkeypatch):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", STREAMS) as writer:
        append(writer, 9)
    monkeypatch.setattr("millpond.lake.lake._PATIENCE", 1.0)
    stream = np.arange(STREAMS)
    lake.gather(stream, stream * 0, 9)
    counter = Signal(10**6)
    with counter:
        lake.gather(stream, stream * 0, 9)
    for at in range(10**6 - counter.at):
        with pytest.raises(Interrupt), Signal(at):
            lake.gather(stream, stream * 0, 9)
        assert lake._moving == 0
    lake.refresh()


@pytest.mark.parametrize("span", [(0, 10**9), (0, 10**15), (5, 10), (10**12, 10**12 + 1)])
def test_what_is_not_stored_is_refused_before_memory_is_taken(tmp_path, span):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", STREAMS) as writer:
        append(writer, 9)
    with pytest.raises(RowsGone, match="it holds 0 to 8"):
        lake.read(0, *span)
    assert lake.read(0, 4, 4).reward.shape == (0,)
    assert lake.read(0, 0, 9).reward.shape == (9,)
