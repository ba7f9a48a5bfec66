"""Streams of a group that advance unevenly share segments; Lakes of many segments are readable."""

from __future__ import annotations

import os
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all, check_samples, made_of
from plain_lake import PlainLake, Sealed

from millpond import LakeDamaged, LakeFailed, Window
from millpond.lake import Lake, maps, repair_lake, verify_lake
from millpond.lake.files import Files
from millpond.lake.layout import LOG, PACKED, SHARES, layout_after

GROUP = "groups/g"


class Quick(Files):
    """No power is lost here, so nothing needs to reach the disk."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


def by_episodes(path: Path, streams: int, length: int, rows: int, seed: int = 0) -> Lake:
    """One stream after the other gets an episode of about this length, and a commit."""
    chance = random.Random(seed)
    Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)
    lake = Lake.open(path, "a", files=Quick())
    with lake.writer("g", streams) as writer:
        while writer.next_row.sum() < rows:
            append(writer, chance.randint(length // 2, length * 3 // 2), chance.randrange(streams))
            writer.commit()
    return lake


def segments(lake: Lake) -> list[tuple[str, int]]:
    """Layout and rows of every segment, the oldest first."""
    seated = sorted(lake.reader.seated.items())
    return [(segment.meta.layout, int(segment.meta.count.sum())) for _, segment in seated]


def check_full(lake: Lake) -> None:
    """But for the first, which could not know, and the newest, all are as full as can be."""
    first, *rest, newest = segments(lake)
    assert first[0] == SHARES
    assert rest
    assert rest == [(PACKED, SLOTS)] * len(rest)
    assert newest[0] in (LOG, PACKED)
    stats = lake.stats()
    assert stats.bytes_on_disk < 1.5 * stats.bytes_raw + (1 << 20)
    held = check_all(lake)
    assert held.rows == stats.rows
    check_samples(lake, np.random.default_rng(0), 256, Window(stack=3, n_step=4))


@pytest.mark.parametrize(("streams", "length"), [(256, 17), (1024, 70)])
def test_streams_that_advance_unevenly_fill_segments(tmp_path, streams, length):
    lake = by_episodes(tmp_path / "lake", streams, length, 2 * SLOTS + 500)
    check_full(lake)
    assert verify_lake(lake.path).clean


@pytest.mark.full
@pytest.mark.parametrize(("streams", "length"), [(256, 17), (1024, 70)])
def test_72000_rows_episode_by_episode(tmp_path, streams, length):
    lake = by_episodes(tmp_path / "lake", streams, length, 72_000)
    check_full(lake)
    assert verify_lake(lake.path).clean
    assert lake.stats().segments == 2 + 72_000 // SLOTS


def test_streams_in_lockstep_are_written_as_before(tmp_path):
    """In shares, in files that millpond 0.1 reads too."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", 16) as writer:
        for _ in range(3):
            append(writer, 200)
            append(writer, 3, 5)  # a little ahead of the others
            writer.commit()
    lake.refresh()
    assert [layout for layout, _ in segments(lake)] == [SHARES] * 3
    for path in (lake.path / GROUP).glob("*.seg"):
        data = path.read_bytes()
        assert struct.unpack_from("<8sQ", data, len(data) - 48)[1] == 1
        assert b'"layout"' not in data
    check_all(lake)


def test_layouts_follow_the_streams(tmp_path):
    """A full log in which all streams advanced alike is followed by shares."""
    lake = by_episodes(tmp_path / "lake", 64, 100, SLOTS // 2)
    for _ in range(4):  # the layout is found again by every writer that opens the group
        with lake.writer("g", 64) as writer:
            append(writer, 63)
    lake.refresh()
    assert [layout for layout, _ in segments(lake)][-2:] == [SHARES, SHARES]
    assert LOG not in dict(segments(lake))
    check_all(lake)


def test_what_even_means():
    assert layout_after(np.array([8, 8, 8, 8])) == SHARES
    assert layout_after(np.array([8, 7, 7, 7])) == SHARES
    assert layout_after(np.array([8, 6, 6, 6])) == LOG
    assert layout_after(np.array([70] + [0] * 1023)) == LOG


def test_an_append_of_all_streams_to_a_log(tmp_path):
    """Which has no room left for a row of every stream, while it has some."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with made_of(LOG), lake.writer("g", 100) as writer:
        append(writer, SLOTS - 250, 7)
        append(writer, 5)
        writer.commit()
        append(writer, 90)
        append(writer, 3, 99)
    lake.refresh()
    assert segments(lake)[0] == (PACKED, SLOTS - 50)
    held = check_all(lake)
    assert held.stop[99] == 98
    assert held.stop[7] == SLOTS - 250 + 95


@pytest.mark.parametrize("sessions", [1, 5])
def test_a_log_is_read_while_it_is_written(tmp_path, sessions):
    """By readers that look after every commit, of writers that find it and go on."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    lake = Lake.open(lake.path, "a", files=Quick())
    reader, chance = Lake.open(lake.path), random.Random(3)
    rows = 0
    for _ in range(sessions):
        with made_of(LOG), lake.writer("g", 40, continues=True) as writer:
            for _ in range(60 // sessions):
                number, env = chance.choice([(1, None), (2, 5), (90, 6), (1, 39)])
                append(writer, number, env)
                writer.commit()
                rows += number * (40 if env is None else 1)
                reader.refresh()
                assert len(reader) == rows
                check_samples(reader, np.random.default_rng(rows), 32, Window(n_step=1))
    held = check_all(reader)
    assert held.rows == rows
    assert verify_lake(lake.path).clean
    plain = PlainLake(lake.path).rows()
    assert [len(plain[env]) for env in range(40)] == held.stop.tolist()
    window = Window(stack=2, n_step=3)
    check_samples(reader, np.random.default_rng(0), 512, window)
    starts = np.zeros(40, np.int64)
    found = reader.gather(np.arange(40), starts, 10, threads=2)
    np.testing.assert_array_equal(found.extras["born"], np.tile(np.arange(10), (40, 1)))


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def check_mended(path: Path, truth: dict, lost: dict[int, int]) -> None:
    """Of every stream all rows are left but those of `lost`, from an id on; then it goes on."""
    assert not verify_lake(path).clean
    with pytest.raises(LakeDamaged):
        check_all(Lake.open(path))
    repair_lake(path)
    assert verify_lake(path).clean
    left = PlainLake(path).rows()
    for stream, rows in truth.items():
        kept = {row: value for row, value in rows.items() if row not in lost.get(stream, ())}
        assert left[stream] == kept, stream
    with Lake.open(path, "a").writer("g", len(truth)) as writer:
        for stream, rows in truth.items():
            assert writer.next_row[stream] >= len(rows), "ids are given again"
        append(writer, 1)
    assert len(Lake.open(path)) == sum(map(len, left.values())) + len(truth)


def test_repair_keeps_the_prefix_of_every_stream_of_a_packed_segment(tmp_path):
    lake = by_episodes(tmp_path / "lake", 64, 40, 2 * SLOTS)
    plain = PlainLake(lake.path)
    truth = plain.rows()
    segment = Sealed(plain, plain.groups[0], lake.path / GROUP / f"{1:016d}.seg")
    region = segment.meta["columns"]["record"]["data"]
    width = plain.columns[0].width
    page = 8
    flip(segment.path, region[0] + page * 4096 + 100)
    lost, slot = {}, 0
    for stream, (first, count) in enumerate(zip(segment.meta["first"], segment.count, strict=True)):
        for time in range(count):
            start, stop = (slot + time) * width, (slot + time + 1) * width
            if start < (page + 1) * 4096 and stop > page * 4096:
                lost[stream] = range(first + time, first + count)
                break
        slot += count
    assert lost
    check_mended(lake.path, truth, lost)


def test_repair_keeps_the_verified_records_of_a_log(tmp_path):
    path = tmp_path / "lake"
    lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)
    with made_of(LOG), lake.writer("g", 8) as writer:
        for env, number in [(3, 20), (5, 7), (3, 4), (1, 9)]:
            append(writer, number, env)
            writer.commit()
    plain = PlainLake(path)
    truth = plain.rows()
    (segment,) = plain.segments(plain.groups[0])
    at = segment.meta["columns"]["record"]["data"][0] + 28 * plain.columns[0].width
    flip(segment.path, at)  # of the third record: the rows of the fourth are not provable
    (damage,) = verify_lake(path).damages
    assert (damage.path, damage.rows) == (segment.path, 4)
    assert damage.start <= at < damage.stop
    check_mended(path, truth, {3: range(20, 24), 1: range(9)})


@pytest.fixture
def short_segments(tmp_path) -> Lake:
    """As 0.1 made them: forty of a few rows, compressed in part and not."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    lake = Lake.open(lake.path, "a", files=Quick())
    with made_of(SHARES), lake.writer("g", 512) as writer:
        for env in range(40):
            append(writer, 8, env)
            append(writer, 1, env + 100)
            writer.commit()
    return lake


@pytest.mark.parametrize("spare", [0, 60, 100])
def test_more_segments_than_maps_are_readable(short_segments, monkeypatch, spare):
    """Whatever vm.max_map_count is: those that cannot be mapped are read."""
    monkeypatch.setattr(maps, "_limit", lambda: maps._used() + 2 * spare)
    lake = Lake.open(short_segments.path)
    reader = lake.reader
    held = [segment for segment in reader.seated.values() if segment.held]
    assert len(reader.seated) == 40
    assert len(held) >= 40 - spare // 4
    assert reader.maps.used <= spare
    assert check_all(lake).rows == 360
    check_samples(lake, np.random.default_rng(0), 256, Window(stack=2, n_step=3))
    with Lake.open(lake.path, "a").writer("g", 512, continues=True) as writer:
        append(writer, 8, 50)  # another segment; what was mapped or held stays
        append(writer, 1, 51)
    lake.refresh()
    assert check_all(lake).rows == 369
    assert lake.reader.maps.used <= spare + 4  # open ones change, so they are always mapped


def test_memory_of_many_segments_is_few_maps(short_segments, monkeypatch):
    lake = Lake.open(short_segments.path)
    len(lake)
    mapped = maps._used()
    del lake
    monkeypatch.setattr(maps, "_limit", lambda: 0)
    before = maps._used()
    lake = Lake.open(short_segments.path)
    check_all(lake)
    assert maps._used() - before < (mapped - before) / 2


def test_damage_in_segments_that_are_read_is_found(short_segments, monkeypatch):
    monkeypatch.setattr(maps, "_limit", lambda: 0)
    path = short_segments.path / GROUP / f"{7:016d}.seg"
    plain = PlainLake(short_segments.path)
    segment = Sealed(plain, plain.groups[0], path)
    row = 7 * segment.length * plain.columns[0].width
    flip(path, segment.meta["columns"]["record"]["data"][0] + row + 2)
    with pytest.raises(LakeDamaged, match=path.name):
        check_all(Lake.open(short_segments.path))


def test_more_segments_than_maps_and_memory_are_refused_with_the_remedy(
    short_segments, monkeypatch
):
    monkeypatch.setattr(maps, "_limit", lambda: 0)
    monkeypatch.setattr(maps, "_memory", lambda: 10_000)
    with pytest.raises(LakeFailed, match=r"raise vm\.max_map_count"):
        len(Lake.open(short_segments.path))


def test_a_reader_gives_back_what_it_held(short_segments, monkeypatch):
    monkeypatch.setattr(maps, "_limit", lambda: 0)
    lake = Lake.open(short_segments.path)
    held = lake.reader.maps.held
    assert held > 0
    oldest = sorted((lake.path / GROUP).glob("*.seg"))[:10]
    for path in oldest:
        os.unlink(path)  # as eviction does
    lake.refresh()
    assert 0 < lake.reader.maps.held < held
    assert len(lake) == 360 - 10 * 9
