"""Readers beside a writer that evicts; and bugs of peers, on disk."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from lake_lives import PATIENCE, STREAMS, Zygote
from lake_world import SLOTS, SPEC, append, check_all, check_samples, made_of, snapshot

from millpond import Field, Rows, Spec, Window
from millpond.lake import Lake, reader
from millpond.lake.layout import SHARES

READERS = 2


def read_beside_a_writer(path: Path, rows: int, patience: float) -> tuple[int, int]:
    """Rows read in all, and rows written per stream meanwhile."""
    Lake.create(path, SPEC, 4 * SLOTS, segment_rows=SLOTS).writer("g", STREAMS).close()
    with ExitStack() as ends:
        zygotes = [Zygote() for _ in range(1 + READERS)]
        for zygote in zygotes:
            ends.callback(zygote.end)
        pid = zygotes[0].begin("pour", 0, path)
        ends.callback(os.kill, pid, signal.SIGKILL)
        for zygote in zygotes[1:]:
            zygote.begin("peruse", rows // READERS, path)
        reports = [zygote.line(patience) for zygote in zygotes[1:]]
        assert zygotes[0].line(0) is None, "the writer ended by itself"
    assert all(report and report[0] == "R" for report in reports), reports
    return sum(int(r[1]) for r in reports), max(int(r[2]) for r in reports)


def test_readers_beside_a_writer_that_evicts(tmp_path):
    read, written = read_beside_a_writer(tmp_path / "lake", 300_000, PATIENCE * 2)
    assert read >= 300_000
    assert written > 4 * SLOTS // STREAMS, "nothing was evicted meanwhile"


@pytest.mark.full
def test_ten_million_rows_beside_a_writer(tmp_path, capsys):
    read, written = read_beside_a_writer(tmp_path / "lake", 10_000_000, 3600)
    with capsys.disabled():
        print(f"\n{read} rows read beside a writer of {written} x {STREAMS}: 0 wrong")


def test_evicted_rows_stay_readable_until_refresh(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 2 * SLOTS, segment_rows=SLOTS)
    with lake.writer("g", 16) as writer:
        append(writer, 300)
        writer.commit()
        lake.refresh()
        before = check_all(lake)
        append(writer, 1200)
    held = check_all(lake)
    np.testing.assert_array_equal(held.stop, before.stop)
    check_samples(lake, np.random.default_rng(0), 512, Window(stack=2, n_step=3))
    lake.refresh()
    assert (check_all(lake).first >= before.stop).all()


def test_opening_again_neither_appends_again_nor_loses(tmp_path):
    """Vault: a reopened file began behind rows it had already written, or over them."""
    path = tmp_path / "lake"
    lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)
    total = 0
    for turn in range(6):
        with lake.writer("g", 16, continues=turn % 2 == 0) as writer:
            assert (writer.next_row == total).all()
            append(writer, 1 + 60 * turn)
            total += 1 + 60 * turn
        held = check_all(Lake.open(path))
        assert (held.first == 0).all()
        assert (held.stop == total).all()
        lake = Lake.open(path, "a")


def test_opening_changes_no_byte_of_an_existing_lake(tmp_path):
    """TorchRL: opening storage that exists set its length to nothing."""
    path = tmp_path / "lake"
    with Lake.create(path, SPEC, 10**6, segment_rows=SLOTS).writer("g", 16) as writer:
        append(writer, 300)
    before = snapshot(path)
    check_all(Lake.open(path))
    Lake.open(path, "a")
    assert snapshot(path) == before
    Lake.open(path, "a").writer("g", 16).close(commit=False)
    assert snapshot(path) == before


def test_the_head_survives_a_kill_without_a_dump(tmp_path):
    """TorchRL, cpprb: cursor and length lived in the process until it was saved by hand."""
    path = tmp_path / "lake"
    Lake.create(path, SPEC, 4 * SLOTS, segment_rows=SLOTS)
    zygote = Zygote()
    try:
        pid = zygote.begin("live", 7, path)
        committed = 0
        while committed < 5:
            line = zygote.line(PATIENCE)
            assert line, "nothing was committed"
            committed += line[0] == "C"
        os.kill(pid, signal.SIGKILL)
        while zygote.line(PATIENCE)[0] != "D":
            pass
    finally:
        zygote.end()
    held = check_all(Lake.open(path))
    with Lake.open(path, "a").writer("g", STREAMS) as writer:
        np.testing.assert_array_equal(writer.next_row, held.stop)
        assert held.rows >= 5


@pytest.mark.parametrize("steps", [512, 511, 513])
def test_a_first_write_of_a_whole_capacity_writes_everything(tmp_path, steps):
    """Vault: a first write as large as the store was taken for an empty one."""
    path = tmp_path / "lake"
    with Lake.create(path, SPEC, 4 * SLOTS, segment_rows=SLOTS).writer("g", 16) as writer:
        append(writer, steps)
    held = check_all(Lake.open(path))
    assert (held.first == 0).all()
    assert (held.stop == steps).all()


def test_more_segments_than_were_expected_are_readable(tmp_path, monkeypatch):
    """Lakes of version 0.1: streams that advanced one after the other made many short segments."""
    monkeypatch.setattr(reader, "_SEATS", 1)
    lake = Lake.create(tmp_path / "lake", SPEC, 2 * SLOTS, segment_rows=SLOTS)
    with made_of(SHARES), lake.writer("g", 1024) as writer:
        append(writer, 80, 3)
    assert lake.stats().segments == 20
    assert check_all(lake).rows == 80


def test_many_very_wide_columns_are_readable(tmp_path):
    """What can be written can be read: columns share the address space of a process."""
    camera = Field("uint8", (128, 128, 12))
    spec = Spec({f"camera{i}": camera for i in range(24)}, Field("int32", (), 0, 3))
    lake = Lake.create(tmp_path / "lake", spec, 10**6, segment_rows=SLOTS)
    rng = np.random.default_rng(0)
    obs = {name: rng.integers(0, 256, camera.shape, np.uint8) for name in spec.obs}
    with lake.writer("g", 1) as writer:
        writer.append(Rows(obs, np.int32(1), np.float32(2), False, False, np.uint8(1)))
    again = Lake.open(tmp_path / "lake")  # a second one in the same process
    for one in (lake, again):
        found = one.read(0, 0, 1)
        for name, frame in obs.items():
            np.testing.assert_array_equal(found.obs[name][0], frame)
