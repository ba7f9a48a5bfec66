"""How few writes an append takes, and that fewer of them keep the same promises."""

from __future__ import annotations

import errno
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lake_world import SLOTS, SPEC, Watched, append, check_all

from millpond.errors import LakeFull
from millpond.lake import Lake, codec
from millpond.lake.open_segment import _runs

STREAMS = 64
LENGTH = SLOTS // STREAMS
COLUMNS = 3  # record, tiny and wide


class Counted(Watched):
    """Notes the size of every write; the `full_at`-th fails like a disk that a third fits on."""

    def __init__(self, full_at: int = -1) -> None:
        self.sizes: list[int] = []
        self.full_at = full_at

    def before(self, name: str, *arguments: object) -> None:
        if name != "pwrite":
            return
        fd, data, offset = arguments
        assert isinstance(fd, int)
        assert isinstance(data, memoryview)
        assert isinstance(offset, int)
        self.sizes.append(data.nbytes)
        if len(self.sizes) - 1 == self.full_at:
            os.pwrite(fd, data[: data.nbytes // 3], offset)
            raise OSError(errno.ENOSPC, "no space")


def lake_of(path, files: Watched) -> Lake:
    Lake.create(path, SPEC, 4 * SLOTS, segment_rows=SLOTS)
    return Lake.open(path, "a", files=files)


@given(st.data())
def test_runs_are_every_row_once_and_as_few_as_can_be(data):
    streams, steps = data.draw(st.integers(1, 9)), data.draw(st.integers(1, 5))
    length = steps + data.draw(st.integers(0, 3))
    some = data.draw(st.lists(st.integers(0, steps), min_size=streams, max_size=streams))
    begin = [data.draw(st.sampled_from([0, length - n])) for n in some]
    which = np.flatnonzero(some)
    slot = which * length + np.array(begin)[which]
    runs = _runs(which * steps, np.array(some)[which], slot)
    moved = [(place + k, slot + k) for place, rows, slot in runs for k in range(rows)]
    wanted = [
        (stream * steps + k, stream * length + begin[stream] + k)
        for stream in range(streams)
        for k in range(some[stream])
    ]
    assert moved == wanted
    for (place, rows, slot), (after, _, next_slot) in zip(runs, runs[1:], strict=False):
        assert (place + rows, slot + rows) != (after, next_slot)


def test_streams_that_fill_a_segment_together_are_one_write_per_column(tmp_path):
    files = Counted()
    with lake_of(tmp_path / "lake", files).writer("g", STREAMS) as writer:
        append(writer, 1)
        writer.commit()
        files.sizes.clear()
        append(writer, LENGTH - 1)
        writer.commit()
        assert sum(size > 64 for size in files.sizes) >= COLUMNS * STREAMS  # one per stream
    files.sizes.clear()
    with Lake.open(tmp_path / "lake", "a", files=files).writer("g", STREAMS) as writer:
        append(writer, LENGTH)
        files.sizes.clear()
        writer._flush()
        rows = [size for size in files.sizes if size >= SLOTS]
        assert len(rows) == COLUMNS
        assert sum(rows) == SLOTS * writer._columns.row_bytes
    assert check_all(Lake.open(tmp_path / "lake")).rows == 2 * SLOTS


@pytest.mark.parametrize("column", range(COLUMNS))
@pytest.mark.parametrize("killed", [False, True])
def test_a_whole_segment_that_does_not_fit_is_lost_or_written_later(tmp_path, column, killed):
    path, files = tmp_path / "lake", Counted()
    writer = lake_of(path, files).writer("g", STREAMS)
    append(writer, LENGTH)
    files.full_at = len(files.sizes) + 3 + column  # behind description, header and mark
    with pytest.raises(LakeFull):
        writer.commit()
    assert files.sizes[-1] >= SLOTS, "the fault was meant for the rows"
    if killed:  # as if: nothing is committed, and what was written must not be seen
        writer.close(commit=False)
        assert check_all(Lake.open(path)).rows == 0
        writer = Lake.open(path, "a").writer("g", STREAMS)
        append(writer, LENGTH)
    writer.commit()
    writer.close()
    assert check_all(Lake.open(path)).rows == SLOTS


def test_noise_is_left_raw_without_training_and_pictures_are_not(monkeypatch):
    trained: list[int] = []
    train = codec.train
    monkeypatch.setattr(codec, "train", lambda *some: trained.append(1) or train(*some))
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 255, (512, 2048), np.uint8)
    # Noise that is always the same: no frame compresses alone, all do beside another.
    still = noise[0] ^ (rng.random((512, 2048)) < 0.01).astype(np.uint8)

    def sample(frames: np.ndarray):
        return lambda number: frames[:number]

    assert codec.Codecs(2048).choose(sample(noise)) is None
    assert not trained
    found = codec.Codecs(2048).choose(sample(still))
    assert found is not None
    assert found.usual > 4
    assert trained
