"""Planted damage: verify names it, repair keeps exactly the longest verified prefix per stream.

What must be kept is worked out here with `plain_lake`, which shares no code with the Lake.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from plain_lake import PAGE, Open, PlainLake, Sealed

from millpond import (
    Field,
    Lake,
    LakeDamaged,
    LakeLocked,
    LakeRefused,
    Rows,
    Spec,
    Window,
    Writer,
)
from millpond.lake import mark, repair_lake, verify_lake
from millpond.lake.files import Files
from millpond.lake.mark import Mark, write_mark

STREAMS, LENGTH, SLOTS, GROUP = 512, 8, 4096, "g"
SPEC = Spec(
    {
        "image": Field("uint8", (32, 32)),  # wide, compresses
        "noise": Field("uint8", (1024,)),  # wide, stays raw
        "pose": Field("float32", (3,)),
    },
    Field("int32"),
)


class Quick(Files):
    """No power is lost here, so nothing needs to reach the disk."""

    def sync(self, fd: int) -> None:
        pass

    def sync_folder(self, path: Path) -> None:
        pass


def some_rows(rng, time: int, begin: int = 0, streams: int = STREAMS) -> Rows:
    """[time, stream] rows of episodes of five steps and a border row."""
    at = (begin + np.arange(time)[:, None] + np.arange(streams)) % 6
    image = np.zeros((time, streams, 32, 32), np.uint8)
    image[..., 0, :] = rng.integers(0, 4, (time, streams, 32))
    image[..., 3, :20] = 9
    flags = np.where(at == 0, 1, np.where(at == 5, 2, 0)).astype(np.uint8)
    ended = at == 4
    return Rows(
        {
            "image": image,
            "noise": rng.integers(0, 256, (time, streams, 1024)).astype(np.uint8),
            "pose": rng.random((time, streams, 3), np.float32),
        },
        rng.integers(0, 9, (time, streams)).astype(np.int32),
        np.where(flags == 2, 0, rng.random((time, streams))).astype(np.float32),
        ended & (np.arange(streams) % 2 == 0),
        ended & (np.arange(streams) % 2 == 1),
        flags,
    )


def fill(path: Path, times: list[int], seed: int = 0, files: Files | None = None) -> Path:
    """A Lake of one group; every number is rows per stream and a commit."""
    rng = np.random.default_rng(seed)
    lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS, files=files or Quick())
    done = 0
    with lake.writer(GROUP, STREAMS) as writer:
        for time in times:
            writer.append(some_rows(rng, time, done))
            writer.commit()
            done += time
    return path


@pytest.fixture(scope="session")
def whole(tmp_path_factory) -> Path:
    """Three sealed segments, and an open one with three records, the middle one ragged."""
    path = fill(tmp_path_factory.mktemp("whole") / "lake", [8, 8, 8, 2])
    rng = np.random.default_rng(9)
    with Lake.open(path, "a", files=Quick()).writer(GROUP, STREAMS) as writer:
        writer.cut()
        for env in range(0, 40, 3):
            one = some_rows(rng, 1, 1, 1)
            rows = Rows(*({k: v[0, 0] for k, v in one.obs.items()}, *(x[0, 0] for x in one[1:6])))
            writer.append(rows._replace(flags=np.uint8(1)), env=env)
        writer.commit()
        writer.cut()
        writer.append(some_rows(rng, 2))
        writer.commit()
    return path


@pytest.fixture(scope="session")
def truth(whole):
    return PlainLake(whole).rows()


@pytest.fixture
def lake(whole, tmp_path) -> Path:
    shutil.copytree(whole, tmp_path / "lake")
    return tmp_path / "lake"


def file_of(lake: Path, number: int, suffix: str) -> Path:
    return lake / "groups" / GROUP / f"{number:016d}{suffix}"


def contents(lake: Path) -> dict[str, str]:
    """Every file's bytes but the lock's, which names the process that holds it."""
    return {
        str(p.relative_to(lake)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(lake.rglob("*"))
        if p.is_file() and p.name != "lock"
    }


def sealed_keep(segment: Sealed, changed: set[int]) -> list[int]:
    """Rows of each stream before the first that depends on a page with a changed byte."""

    ordered = np.array(sorted(changed))

    def hit(part: list[int], start: int, stop: int) -> bool:
        first, last = start // PAGE, (stop - 1) // PAGE
        low, high = part[0] + first * PAGE, part[0] + min((last + 1) * PAGE, part[1])
        at = np.searchsorted(ordered, low)
        return bool(at < len(ordered) and ordered[at] < high)

    def lost(slot: int) -> bool:
        for column in segment.lake.columns:
            stored = segment.meta["columns"][column.name]
            start, stop = slot * column.width, (slot + 1) * column.width
            if stored["codec"] == "zstd":
                if hit(stored["offsets"], slot * 8, slot * 8 + 16):
                    return True
                start, stop = segment.frame(column.name, slot)
            if hit(stored["data"], start, stop):
                return True
        return False

    vital = [
        segment.header,
        segment.json,
        [sum(segment.meta["sums"][:1]), sum(segment.meta["sums"][:2])],
    ]
    for stored in segment.meta["columns"].values():
        if stored["dictionary"]:
            vital.append([stored["dictionary"][0], sum(stored["dictionary"][:2])])
    if any(low <= byte < high for byte in changed for low, high in vital):
        return [0] * STREAMS
    keep = []
    for stream in range(STREAMS):
        slots = range(stream * LENGTH, stream * LENGTH + segment.count[stream])
        keep.append(next((k for k, slot in enumerate(slots) if lost(slot)), len(slots)))
    return keep


def expect(truth, segment, keep: list[int]):
    """The rows that are left if a segment keeps so many of each stream."""
    left = {stream: dict(rows) for stream, rows in truth.items()}
    for stream in range(STREAMS):
        first = segment.meta["first"][stream]
        for time in range(keep[stream], segment.count[stream]):
            del left[stream][first + time]
    return left


def check_repaired(lake: Path, left) -> None:
    """Exactly these rows are left; all is clean, and doing it again changes nothing."""
    before = contents(lake)
    plan = repair_lake(lake, dry_run=True)
    assert contents(lake) == before
    done = repair_lake(lake, files=Quick())
    assert [(o.action, o.kept.tolist()) for o in done.segments] == [
        (o.action, o.kept.tolist()) for o in plan.segments
    ]
    assert PlainLake(lake).rows() == left
    assert verify_lake(lake).clean
    after = contents(lake)
    assert repair_lake(lake).segments == ()
    assert contents(lake) == after
    found = Lake.open(lake)
    assert len(found) == sum(len(rows) for rows in left.values())
    batch = found.sample(np.random.default_rng(0), 64, Window(stack=2, n_step=2))
    for env, row in zip(batch.draw.stream, batch.draw.row, strict=True):
        assert int(row) in left[int(env)]
        assert int(row) + 1 in left[int(env)]
    with Lake.open(lake, "a", files=Quick()).writer(GROUP, STREAMS) as writer:
        assert all(writer.next_row[s] > max(rows, default=-1) for s, rows in left.items())
    assert PlainLake(lake).rows() == left  # recovery leaves it alone


def flip(path: Path, offsets: list[int]) -> set[int]:
    with open(path, "r+b") as file:
        for offset in offsets:
            file.seek(offset)
            byte = file.read(1)[0]
            file.seek(offset)
            file.write(bytes([byte ^ (1 << offset % 8)]))
    return set(offsets)


def zero(path: Path, start: int, stop: int) -> set[int]:
    old = path.read_bytes()
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(stop - start))
    return {at for at in range(start, stop) if old[at]}


def named(lake: Path, path: Path, changed: set[int]) -> bool:
    """Whether every reported range holds a changed byte, in this file and no other."""
    damages = verify_lake(lake).damages
    return bool(damages) and all(
        damage.path == path and any(damage.start <= byte < damage.stop for byte in changed)
        for damage in damages
    )


def places(segment: Sealed) -> dict[str, tuple[int, int]]:
    """One stretch of bytes in every part of a sealed segment."""
    columns = segment.meta["columns"]
    parts = {name: stored["data"] for name, stored in columns.items()}
    parts["index"] = columns["obs/image"]["offsets"]
    parts["sums"] = segment.meta["sums"]
    found = {name: (part[0], part[0] + part[1]) for name, part in parts.items()}
    return {**found, "header": segment.header, "json": segment.json}


def test_a_whole_lake_is_clean(whole, truth):
    found = verify_lake(whole)
    assert found.clean
    assert (found.sealed, found.open, found.groups) == (3, 1, 1)
    assert found.rows == sum(len(rows) for rows in truth.values())
    codecs = Sealed(PlainLake(whole), PlainLake(whole).groups[0], file_of(whole, 0, ".seg")).meta
    kinds = {name: stored["codec"] for name, stored in codecs["columns"].items()}
    assert kinds == {"record": "raw", "obs/image": "zstd", "obs/noise": "raw", "obs/pose": "raw"}


@pytest.mark.parametrize(
    "part", ["record", "obs/image", "obs/noise", "obs/pose", "index", "header", "json", "sums"]
)
def test_bits_flipped_in_a_sealed_segment(lake, truth, part):
    path = file_of(lake, 1, ".seg")
    segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], path)
    low, high = places(segment)[part]
    chance = random.Random(part)
    changed = flip(path, chance.sample(range(low, high), 1 if part == "record" else 3))
    keep = sealed_keep(segment, changed)
    assert named(lake, path, changed)
    found = verify_lake(lake)
    lost = sum(segment.count) - sum(keep)
    if part not in ("header", "json"):
        assert found.lost_rows == lost >= found.damaged_rows > 0
        assert max(d.rows for d in found.damages) <= found.damaged_rows
    else:
        assert found.unreadable == 1
    check_repaired(lake, expect(truth, segment, keep))
    assert file_of(lake, 1, ".damaged").exists()


@pytest.mark.parametrize("seed", range(4))
def test_pages_zeroed_in_a_sealed_segment(lake, truth, seed):
    chance = random.Random(seed)
    path = file_of(lake, chance.randrange(3), ".seg")
    segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], path)
    low = segment.meta["columns"]["record"]["data"][0] // PAGE
    page = chance.randrange(low, segment.meta["sums"][0] // PAGE - 3)
    changed = zero(path, page * PAGE, (page + chance.randrange(1, 4)) * PAGE)
    left = expect(truth, segment, sealed_keep(segment, changed))
    assert named(lake, path, changed)
    check_repaired(lake, left)


@pytest.mark.parametrize("part", ["obs/noise", "header"])
def test_an_open_segment_behind_a_gap_is_sealed(lake, truth, part):
    """Recovery takes an open one behind a gap for what a power loss left over."""
    path = file_of(lake, 2, ".seg")
    segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], path)
    changed = flip(path, [places(segment)[part][0]])
    check_repaired(lake, expect(truth, segment, sealed_keep(segment, changed)))
    assert file_of(lake, 3, ".seg").exists()
    assert not file_of(lake, 3, ".journal").exists()


def test_several_damages_in_several_segments_are_all_named(lake):
    changed = {}
    for number in range(3):
        path = file_of(lake, number, ".seg")
        segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], path)
        spots = [low for low, _ in (places(segment)[k] for k in ("record", "obs/noise", "index"))]
        changed[path] = spots
    for path, spots in changed.items():
        flip(path, spots)
    found = verify_lake(lake).damages
    assert sorted((d.path, d.start) for d in found) == sorted(
        (path, spot) for path, spots in changed.items() for spot in spots
    )
    assert all(d.stop == d.start + PAGE for d in found)


def test_a_sealed_segment_cut_short_anywhere(lake, truth):
    """The header lies at the end: a shorter file is nothing."""
    path = file_of(lake, 1, ".seg")
    segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], path)
    data = path.read_bytes()
    for size in [*range(0, len(data), len(data) // 25 + 1), len(data) - 1, len(data)]:
        path.write_bytes(data[:size])
        found = verify_lake(lake)
        assert found.clean == (size == len(data))
        assert {d.path for d in found.damages} <= {path}
    path.write_bytes(data[: len(data) // 2])
    check_repaired(lake, expect(truth, segment, [0] * STREAMS))


def test_bits_flipped_in_the_rows_of_an_open_segment(whole, tmp_path, truth):
    path = file_of(whole, 3, ".open")
    segment = Open(PlainLake(whole), PlainLake(whole).groups[0], path)
    ends = [[0] * STREAMS, *(end for _, end, _, _ in segment.records)]
    assert len(ends) == 4
    for bad in range(3):
        lake = tmp_path / str(bad)
        shutil.copytree(whole, lake)
        column = segment.lake.columns[1 + bad]
        stream = 3 * bad
        assert ends[bad + 1][stream] > ends[bad][stream]
        slot = stream * LENGTH + ends[bad][stream]
        at = segment.meta["columns"][column.name]["data"][0] + slot * column.width
        changed = flip(file_of(lake, 3, ".open"), [at + 5])
        assert named(lake, file_of(lake, 3, ".open"), changed)
        found = verify_lake(lake)
        assert found.damaged_rows == sum(ends[bad + 1]) - sum(ends[bad])
        check_repaired(lake, expect(truth, segment, ends[bad]))


@pytest.mark.parametrize("record", range(3))
def test_bits_flipped_in_a_journal(lake, truth, record):
    path = file_of(lake, 3, ".open")
    segment = Open(PlainLake(lake), PlainLake(lake).groups[0], path)
    starts = [0, *(end for end, _, _, _ in segment.records)]
    ends = [[0] * STREAMS, *(end for _, end, _, _ in segment.records)]
    changed = flip(path.with_suffix(".journal"), [starts[record] + 25])
    assert named(lake, path.with_suffix(".journal"), changed)
    (damage,) = verify_lake(lake).damages
    assert damage.start == starts[record]
    known = None if record == 2 else sum(ends[-1]) - sum(ends[record])
    assert damage.rows == known
    check_repaired(lake, expect(truth, segment, ends[record]))
    assert file_of(lake, 3, ".damaged").exists()
    assert file_of(lake, 3, ".damaged.journal").exists()


def test_a_journal_cut_short_anywhere_is_damage(whole, tmp_path, truth, request):
    """The segment is marked with how much of it was committed."""
    segment = Open(PlainLake(whole), PlainLake(whole).groups[0], file_of(whole, 3, ".open"))
    journal = file_of(whole, 3, ".journal").read_bytes()
    for size in range(0, len(journal), 97 if request.config.getoption("--full") else 997):
        lake = tmp_path / str(size)
        shutil.copytree(whole, lake)
        file_of(lake, 3, ".journal").write_bytes(journal[:size])
        ends = [end for stop, end, _, commit in segment.records if commit and stop <= size]
        assert [d.path for d in verify_lake(lake).damages] == [file_of(lake, 3, ".journal")]
        with pytest.raises(LakeDamaged, match="journal"):
            len(Lake.open(lake))
        check_repaired(lake, expect(truth, segment, ends[-1] if ends else [0] * STREAMS))


def test_a_journal_cut_short_by_a_power_loss_is_an_older_commit(lake, monkeypatch):
    """Of what was never synced the end may be missing, and nothing tells that it ever was."""
    path = file_of(lake, 3, ".open")
    segment = Open(PlainLake(lake), PlainLake(lake).groups[0], path)
    first, second, whole = (stop for stop, _, _, _ in segment.records)
    fd = os.open(path, os.O_RDWR)
    write_mark(Files(), fd, Mark(whole, first, b"before the power"))
    os.close(fd)
    os.truncate(path.with_suffix(".journal"), second + 20)
    found = verify_lake(lake)
    assert found.clean
    assert found.rows == 3 * 4096 + sum(segment.records[1][1]) == len(Lake.open(lake))
    assert repair_lake(lake).segments == ()
    os.truncate(path.with_suffix(".journal"), first - 1)
    assert not verify_lake(lake).clean
    with pytest.raises(LakeDamaged):
        Lake.open(lake, "a").writer(GROUP, STREAMS)


@pytest.mark.parametrize("where", [10, 4100, 120_000])
def test_an_open_segment_that_cannot_be_read_is_set_aside(lake, truth, where):
    """Its header, its description, or all of it behind some byte."""
    path = file_of(lake, 3, ".open")
    segment = Open(PlainLake(lake), PlainLake(lake).groups[0], path)
    if where > 100_000:
        os.truncate(path, where)
    else:
        flip(path, [where])
    found = verify_lake(lake)
    assert [d.path for d in found.damages] == [path]
    check_repaired(lake, expect(truth, segment, [0] * STREAMS))
    assert not path.exists()
    assert file_of(lake, 3, ".damaged").exists()


def test_a_dictionary_is_found_again_in_another_segment(lake, truth):
    plain = PlainLake(lake)
    segments = [Sealed(plain, plain.groups[0], file_of(lake, n, ".seg")) for n in range(3)]
    stored = [segment.meta["columns"]["obs/image"] for segment in segments]
    assert stored[0]["dictionary_sum"] == stored[1]["dictionary_sum"]
    at = stored[1]["dictionary"][0] + 1000
    flip(file_of(lake, 1, ".seg"), [at])
    found = verify_lake(lake)
    assert [(d.start, d.rows) for d in found.damages] == [(stored[1]["dictionary"][0], 0)]
    assert (found.damaged_rows, found.lost_rows) == (0, 0)
    check_repaired(lake, truth)


def test_a_dictionary_that_is_nowhere_else_takes_its_segment_along(tmp_path):
    lake = fill(tmp_path / "lake", [8, 8])
    plain = PlainLake(lake)
    truth = plain.rows()
    segments = [Sealed(plain, plain.groups[0], file_of(lake, n, ".seg")) for n in range(2)]
    for segment in segments:
        flip(segment.path, [segment.meta["columns"]["obs/image"]["dictionary"][0] + 1000])
    assert verify_lake(lake).lost_rows == 2 * 4096
    done = repair_lake(lake)
    assert [one.action for one in done.segments] == ["set aside", "set aside"]
    assert verify_lake(lake).clean
    assert len(Lake.open(lake)) == 0
    assert len(truth) == STREAMS


@pytest.mark.parametrize("row", [3, 8, 17])
def test_flags_that_contradict_the_row_before_are_found(tmp_path, monkeypatch, row):
    """Inside a segment, across two, and in an open one; only a bug could have written them."""
    monkeypatch.setattr(Writer, "_check_episodes", lambda self, flags, which: flags[-1])
    rng, lake = np.random.default_rng(0), tmp_path / "lake"
    rows = some_rows(rng, 18)
    ordinary = (rows.flags[row] == 0) & (rows.flags[row - 1] == 0)
    stream = int(np.argmax(ordinary))
    rows.flags[row, stream] = 1
    with Lake.create(lake, SPEC, 10**6, segment_rows=4096, files=Quick()).writer(GROUP, 512) as w:
        for part in (slice(0, 8), slice(8, 16), slice(16, 18)):
            obs = {name: values[part] for name, values in rows.obs.items()}
            w.append(Rows(obs, *(values[part] for values in rows[1:6])))
            w.commit()
    (damage,) = verify_lake(lake).damages
    assert f"the first being row {row} of stream {stream}" in damage.what
    assert damage.rows == 1
    repair_lake(lake, files=Quick())
    assert verify_lake(lake).clean
    left = PlainLake(lake).rows()[stream]
    # A sealed segment loses the rows behind it, an open one whole commits.
    gone = range(16, 18) if row == 17 else range(row, (row // 8 + 1) * 8)
    assert list(left) == [n for n in range(18) if n not in gone]


def test_segments_from_elsewhere_are_set_aside(lake, truth, tmp_path):
    shutil.copy(file_of(lake, 0, ".seg"), file_of(lake, 7, ".seg"))  # another number
    other = Spec(Field("uint8", (1024,)), Field("int32"))
    with Lake.create(tmp_path / "other", other, 10**6, segment_rows=4096).writer("g", 512) as w:
        rows = some_rows(np.random.default_rng(0), 8)
        w.append(rows._replace(obs=rows.obs["noise"]))
    shutil.copy(file_of(tmp_path / "other", 0, ".seg"), file_of(lake, 8, ".seg"))
    (first, second) = verify_lake(lake).damages
    assert (first.path, second.path) == (file_of(lake, 7, ".seg"), file_of(lake, 8, ".seg"))
    assert "expected sealed segment 7" in first.what
    assert "written with spec" in second.what
    check_repaired(lake, truth)


def test_the_raw_twin_of_a_damaged_segment_is_used(tmp_path):
    """A writer that died between sealing a segment and removing its raw files."""

    class Keeps(Quick):
        def unlink(self, path: Path) -> None:
            if path.suffix not in (".open", ".journal"):
                super().unlink(path)

    lake = fill(tmp_path / "lake", [8, 1], files=Keeps())
    truth = PlainLake(lake).rows()
    segment = Sealed(PlainLake(lake), PlainLake(lake).groups[0], file_of(lake, 0, ".seg"))
    flip(segment.path, [segment.meta["columns"]["obs/noise"]["data"][0]])
    check_repaired(lake, truth)
    assert not file_of(lake, 0, ".open").exists()


@pytest.mark.parametrize("spot", ["header", "obs/noise"])
def test_ids_of_lost_rows_are_not_given_again(tmp_path, spot):
    lake = fill(tmp_path / "lake", [8, 8])  # no open segment: the newest rows are sealed
    plain = PlainLake(lake)
    segment = Sealed(plain, plain.groups[0], file_of(lake, 1, ".seg"))
    flip(segment.path, [places(segment)[spot][0]])
    repair_lake(lake)
    found = Lake.open(lake, "a", files=Quick())
    with found.writer(GROUP, STREAMS, continues=True) as writer:
        # Of a segment that cannot be read, any stream may have had all the rows.
        next_row = 8 + SLOTS if spot == "header" else 16
        assert (writer.next_row == next_row).all()
        writer.append(some_rows(np.random.default_rng(5), 3, 16))
    found.refresh()
    assert all(stream.stop == next_row + 3 for stream in found.streams)
    assert verify_lake(lake).clean
    numbers = [p.name for p in (lake / "groups" / GROUP).iterdir()]
    assert len([name for name in numbers if name.startswith(f"{1:016d}.")]) == 1 + (
        spot != "header"
    )


def test_repair_stopped_anywhere_and_run_again_ends_alike(whole, tmp_path, request):
    class Stopped(BaseException):
        pass

    class Stops(Quick):
        left = 10**9

        def __getattribute__(self, name: str):
            if name in ("create", "pwrite", "truncate", "sync", "sync_folder", "rename", "link"):
                if Stops.left <= 0:
                    raise Stopped
                Stops.left -= 1
            return super().__getattribute__(name)

    def damage(path: Path) -> Path:
        shutil.copytree(whole, path)
        plain = PlainLake(path)
        segment = Sealed(plain, plain.groups[0], file_of(path, 1, ".seg"))
        flip(segment.path, [segment.meta["columns"]["obs/pose"]["data"][0]])
        flip(file_of(path, 2, ".seg"), [3])
        flip(file_of(path, 3, ".open"), [3])
        return path

    wanted = damage(tmp_path / "wanted")
    repair_lake(wanted, files=Stops())
    total = 10**9 - Stops.left
    left_rows = PlainLake(wanted).rows()
    with Lake.open(wanted, "a", files=Quick()).writer(GROUP, STREAMS) as writer:
        ids = writer.next_row.copy()
    assert total > 10
    every = 1 if request.config.getoption("--full") else max(1, total // 7)
    for left in [*range(0, total, every), total - 1]:
        lake = damage(tmp_path / str(left))
        Stops.left = left
        with pytest.raises(Stopped):
            repair_lake(lake, files=Stops())
        Stops.left = 10**9
        repair_lake(lake, files=Quick())
        assert verify_lake(lake).clean
        assert PlainLake(lake).rows() == left_rows
        with Lake.open(lake, "a", files=Quick()).writer(GROUP, STREAMS) as writer:
            assert (writer.next_row == ids).all()
        assert PlainLake(lake).rows() == left_rows
        shutil.rmtree(lake)


def test_a_living_writer_is_never_disturbed(lake):
    before = contents(lake)
    with Lake.open(lake, "a", files=Quick()).writer(GROUP, STREAMS):
        with pytest.raises(LakeLocked, match="writer group 'g' is open in process"):
            repair_lake(lake)
        assert verify_lake(lake).clean
    assert contents(lake).keys() == before.keys()


def test_verify_beside_a_writer_sees_committed_rows_only(tmp_path):
    """Segments are written, sealed and dropped while it looks."""
    path = tmp_path / "lake"
    lake = Lake.create(path, SPEC, 3 * 4096, segment_rows=4096, files=Quick())
    block = some_rows(np.random.default_rng(0), 6)  # as long as an episode: it follows itself
    commits, errors, looked = threading.Semaphore(0), [], threading.Event()

    def write() -> None:
        try:
            with lake.writer(GROUP, STREAMS) as writer:
                while not looked.is_set():
                    writer.append(block)
                    writer.commit()
                    commits.release()
        except BaseException as error:
            errors.append(error)
            commits.release(1000)

    thread = threading.Thread(target=write)
    thread.start()
    found = []
    try:
        for _ in range(12):
            assert commits.acquire(timeout=60)
            assert commits.acquire(timeout=60)
            found.append(verify_lake(path))
    finally:
        looked.set()
        thread.join(60)
    assert not errors
    assert [one.damages for one in found] == [()] * 12
    assert max(one.rows for one in found) > 4096


def test_damaged_manifests_are_named(lake):
    inner = lake / "groups" / GROUP / "group.json"
    for path in (inner, lake / "lake.json"):
        flip(path, [path.stat().st_size // 2])
        found = verify_lake(lake)
        assert [d.path for d in found.damages][-1:] == [path]
        with pytest.raises(LakeRefused, match="damaged"):
            repair_lake(lake)
    with pytest.raises(LakeRefused, match="not a Lake"):
        verify_lake(lake / "groups")


def the_middle_segment(lake: Path) -> int:
    file_of(lake, 1, ".seg").unlink()
    return 1


def the_last_sealed_segment(lake: Path) -> int:
    file_of(lake, 2, ".seg").unlink()
    return 2


@pytest.mark.parametrize("delete", [the_middle_segment, the_last_sealed_segment])
@pytest.mark.parametrize("booted", [False, True])
def test_a_deleted_segment_is_damage(lake, truth, delete, booted, monkeypatch):
    """Rows behind it are kept, by readers, by writers and by repair, and by one after that."""
    if booted:
        monkeypatch.setattr(mark, "this_boot", lambda: b"after power loss")
    gone = delete(lake)
    left = {s: {i: r for i, r in rows.items() if i // 8 != gone} for s, rows in truth.items()}
    (damage,) = verify_lake(lake).damages
    assert damage.rows == 4096
    assert damage.path == file_of(lake, gone + 1, ".seg" if gone == 1 else ".open")
    assert PlainLake(lake).rows() == left
    assert len(Lake.open(lake)) == sum(len(rows) for rows in left.values())
    if gone == 2:
        before = contents(lake)
        with pytest.raises(LakeDamaged, match="rows before"):
            Lake.open(lake, "a").writer(GROUP, STREAMS)
        assert contents(lake) == before
    check_repaired(lake, left)


def test_damaged_files_may_be_deleted_after_repair(lake):
    flip(file_of(lake, 1, ".seg"), [file_of(lake, 1, ".seg").stat().st_size - 20])
    repair_lake(lake)
    for path in (lake / "groups" / GROUP).glob("*.damaged*"):
        path.unlink()
    assert verify_lake(lake).clean


def test_a_deleted_group_manifest_is_damage(lake, tmp_path):
    """Of the only group, and of one of several, with which the others' numbers make no sense."""
    several = Lake.create(tmp_path / "several", SPEC, 10**6, groups=3, segment_rows=4096)
    for name in ("a", "b", "c"):
        with several.writer(name, STREAMS) as writer:
            writer.append(some_rows(np.random.default_rng(0), 1))
    for path in (lake / "groups" / GROUP, tmp_path / "several" / "groups" / "b"):
        (path / "group.json").unlink()
        found = verify_lake(path.parent.parent)
        assert [d.path for d in found.damages] == [path / "group.json"]
        with pytest.raises(LakeRefused, match="holds segments but"):
            len(Lake.open(path.parent.parent))
    shutil.rmtree(tmp_path / "several" / "groups" / "b")
    assert not verify_lake(tmp_path / "several").clean
    with pytest.raises(LakeRefused, match="missing"):
        len(Lake.open(tmp_path / "several"))
