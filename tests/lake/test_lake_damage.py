"""Files cut off at any byte, and any bit flipped: never a wrong row."""

from __future__ import annotations

import json
import os
import random
import struct
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all, copy_tree, made_of, snapshot

from millpond import LakeDamaged, LakeRefused
from millpond.lake import Lake, mark, repair_lake, verify_lake
from millpond.lake.columns import Columns
from millpond.lake.layout import LOG, SHARES
from millpond.lake.manifest import Capacity, LakeInfo
from millpond.lake.mark import MARK_OFFSET, MARK_SIZE
from millpond.lake.open_segment import OpenSegment

STREAMS = 64
GROUP = "groups/g"
FILES = {
    "sealed": f"{GROUP}/{0:016d}.seg",
    "open": f"{GROUP}/{1:016d}.open",
    "journal": f"{GROUP}/{1:016d}.journal",
    "lake.json": "lake.json",
    "group.json": f"{GROUP}/group.json",
}


class Place:
    """A small Lake: one sealed segment, compressed in part, and an open one of three commits."""

    def __init__(self, path: Path, layout: str) -> None:
        self.path = path
        self.info = LakeInfo(SPEC, Capacity(10**6, None), 1, SLOTS)
        lake = Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)
        self.ends: list[np.ndarray] = []  # what a reader may find: the end of any commit
        with made_of(layout), lake.writer("g", STREAMS) as writer:
            append(writer, 3, 0)
            append(writer, SLOTS // STREAMS, 2)
            # A log is full when all its slots are; one this short is enough here.
            with patch.object(OpenSegment, "full", True):
                writer.commit()
            writer._sealer.finish()
            self.ends.append(writer.next_row)
            for steps, env in ((2, 4), (1, 0), (1, 4)):
                append(writer, steps, env)
                writer.commit()
                self.ends.append(writer.next_row)
        assert self.look() == "right"

    def look(self) -> str:
        """What a reader says: right, prefix or refused; anything else is an error."""
        try:
            lake = Lake.open(self.path)
            held = check_all(lake)
        except (LakeDamaged, LakeRefused):
            return "refused"
        assert lake.info == self.info, "another Lake's settings"
        found = [(held.stop == end).all() for end in self.ends]
        assert any(found), f"{held.stop} is not the end of a commit"
        assert not held.first.any(), "the sealed segment is gone"
        return "right" if found[-1] else "prefix"

    def recover(self, copy: Path) -> str:
        """What a writer makes of a copy of it; it may go on where it says, and all is right."""
        copy_tree(self.path, copy)
        try:
            writer = Lake.open(copy, "a").writer("g", STREAMS)
        except (LakeDamaged, LakeRefused):
            return "refused"
        with writer:
            found = [(writer.next_row == end).all() for end in self.ends]
            assert any(found), f"{writer.next_row} is not the end of a commit"
            append(writer, 2, 1)
        try:
            held = check_all(Lake.open(copy))
        except (LakeDamaged, LakeRefused):
            return "refused later"
        wanted = self.ends[found.index(True)] + 2 * (np.arange(STREAMS) == 1)
        np.testing.assert_array_equal(held.stop, wanted)
        return "right" if found[-1] else "prefix"


@pytest.fixture(params=[SHARES, LOG])
def place(tmp_path, request):
    return Place(tmp_path / "lake", request.param)


def flip(place: Place, name: str, bits: Iterable[int], copies: Path | None = None) -> Counter:
    """Flip one bit after the other, and look every time."""
    path = place.path / FILES[name]
    fd = os.open(path, os.O_RDWR)
    outcomes: Counter = Counter()
    try:
        for bit in bits:
            (old,) = os.pread(fd, 1, bit // 8)
            os.pwrite(fd, bytes([old ^ (1 << bit % 8)]), bit // 8)
            try:
                outcomes[place.look()] += 1
                if copies is not None:
                    outcomes[f"writer: {place.recover(copies / str(bit))}"] += 1
            except BaseException as error:
                error.add_note(f"bit {bit % 8} of byte {bit // 8} of {name}")
                raise
            finally:
                os.pwrite(fd, bytes([old]), bit // 8)
    finally:
        os.close(fd)
    assert place.look() == "right"
    return outcomes


def cut(place: Place, name: str, sizes: Iterable[int]) -> Counter:
    """Cut the file shorter and shorter."""
    outcomes: Counter = Counter()
    for size in sizes:
        os.truncate(place.path / FILES[name], size)
        try:
            outcomes[place.look()] += 1
        except BaseException as error:
            error.add_note(f"{name} cut off at {size}")
            raise
    return outcomes


def bits_of(place: Place, name: str) -> list[int]:
    """Every bit of the sectors that hold anything, and one here and there of all others."""
    data = (place.path / FILES[name]).read_bytes()
    chance = random.Random(name)
    bits: list[int] = []
    for start in range(0, len(data), 512):
        sector = data[start : start + 512]
        inside = range(8 * start, 8 * (start + len(sector)))
        bits += inside if any(sector) else [chance.choice(inside)] * (chance.random() < 0.1)
    return bits


def sizes_of(place: Place, name: str, every: int) -> list[int]:
    """Lengths, each `every`-th, and those about every page that holds anything; falling."""
    data = np.frombuffer((place.path / FILES[name]).read_bytes(), np.uint8)
    sizes = set(range(0, len(data), every))
    for page in np.unique(np.flatnonzero(data) // 4096):
        sizes |= {int(page) * 4096 + k for k in (-1, 0, 1, 4095, 4096)}
    return sorted((size for size in sizes if 0 <= size < len(data)), reverse=True)


def some_bits(place: Place, name: str, each: int) -> list[int]:
    """Bits of bytes that are not zero: so many of each page, twenty times of descriptions."""
    data = np.frombuffer((place.path / FILES[name]).read_bytes(), np.uint8)
    chance = random.Random(name)
    bits: list[int] = []
    for page in np.unique(np.flatnonzero(data) // 4096):
        held = data[page * 4096 : (page + 1) * 4096]
        bytes_held = np.flatnonzero(held) + page * 4096
        described = page == 0 or b'"kind"' in held.tobytes()
        number = each * 20 if described else each
        if described and name != "journal":  # other numbers are what could be believed
            digits = bytes_held[np.isin(data[bytes_held], list(b"0123456789"))]
            bytes_held = digits if len(digits) else bytes_held
        bits += [8 * int(chance.choice(bytes_held)) + chance.randrange(8) for _ in range(number)]
    return bits


def some(whole: list[int], number: int) -> list[int]:
    return random.Random(number).sample(whole, min(number, len(whole)))


@pytest.mark.parametrize("name", FILES)
def test_some_flipped_bits(place, name, tmp_path):
    outcomes = flip(place, name, some_bits(place, name, 3))
    assert outcomes["refused"] or outcomes["prefix"], "no flip was noticed"
    assert name in ("open", "journal") or not outcomes["prefix"]
    flip(place, name, some(bits_of(place, name), 10), tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_some_lengths(place, name):
    sizes = sizes_of(place, name, 4099 if name == "open" else 97)
    outcomes = cut(place, name, sorted(some(sizes, 40), reverse=True))
    assert outcomes["refused"] or outcomes["prefix"], "no cut was noticed"
    assert name == "journal" or not outcomes["prefix"]


def test_a_writer_deletes_no_segment_that_it_cannot_describe(place):
    """A bit of a header that flips must not cost the committed rows behind it."""
    file = place.path / FILES["open"]
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    before = snapshot(place.path / GROUP)
    with pytest.raises(LakeDamaged):
        Lake.open(place.path, "a").writer("g", STREAMS)
    assert snapshot(place.path / GROUP) == before
    data[20] ^= 1
    file.write_bytes(data)
    assert place.look() == "right"


def thirty_commits(path: Path) -> Path:
    """A Lake of one open segment with as many synced commits of a row per stream."""
    with Lake.create(path, SPEC, 10**6, segment_rows=SLOTS).writer("g", STREAMS) as writer:
        for _ in range(30):
            append(writer, 1)
            writer.commit(sync=True)
    return path


def flip_one(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def first_row_of(path: Path) -> int:
    """Where the first row of an open segment lies."""
    data = path.read_bytes()
    offset, length = struct.unpack_from("<QQ", data, 16)
    return json.loads(data[offset : offset + length])["columns"]["record"]["data"][0]


def rot_in_a_row(group: Path) -> None:
    path = group / f"{0:016d}.open"
    flip_one(path, first_row_of(path))


def rot_in_a_record(group: Path) -> None:
    path = group / f"{0:016d}.journal"
    flip_one(path, path.stat().st_size // 2)


def rot_in_the_last_record(group: Path) -> None:
    path = group / f"{0:016d}.journal"
    flip_one(path, path.stat().st_size - 1)


def a_journal_emptied(group: Path) -> None:
    os.truncate(group / f"{0:016d}.journal", 0)


def a_journal_deleted(group: Path) -> None:
    os.unlink(group / f"{0:016d}.journal")


def an_older_segment_rotten(group: Path) -> None:
    """As versions before the mark wrote it."""
    path = group / f"{0:016d}.open"
    fd = os.open(path, os.O_RDWR)
    os.pwrite(fd, bytes(MARK_SIZE), MARK_OFFSET)
    os.close(fd)
    rot_in_a_row(group)


ROT = [
    rot_in_a_row,
    rot_in_a_record,
    rot_in_the_last_record,
    a_journal_emptied,
    a_journal_deleted,
    an_older_segment_rotten,
]


@pytest.mark.parametrize("rot", ROT, ids=lambda rot: rot.__name__)
@pytest.mark.parametrize("booted", ["since", "never"])
def test_rows_that_were_synced_and_cannot_be_read_are_damage(tmp_path, monkeypatch, rot, booted):
    """Never an unfinished tail: nothing is served in silence, deleted, or numbered again."""
    path = thirty_commits(tmp_path / "lake")
    rot(path / GROUP)
    if booted == "since":
        monkeypatch.setattr(mark, "this_boot", lambda: b"after power loss")
    before = snapshot(path / GROUP)
    with pytest.raises(LakeDamaged):
        len(Lake.open(path))
    with pytest.raises(LakeDamaged):
        Lake.open(path, "a").writer("g", STREAMS)
    assert not verify_lake(path).clean
    assert snapshot(path / GROUP) == before
    repair_lake(path)
    assert verify_lake(path).clean
    with Lake.open(path, "a").writer("g", STREAMS) as writer:
        assert (writer.next_row >= 30).all(), "ids are given again"
    assert len(list((path / GROUP).glob("*.damaged*"))) == 1 + (rot is not a_journal_deleted)


def test_rot_under_a_living_reader_is_damage(tmp_path):
    path = tmp_path / "lake"
    with Lake.create(path, SPEC, 10**6, segment_rows=SLOTS).writer("g", STREAMS) as writer:
        append(writer, 1)
        writer.commit()
        lake = Lake.open(path)
        assert len(lake) == STREAMS
        append(writer, 1)
        writer.commit()
        file = path / GROUP / f"{0:016d}.open"
        fd = os.open(file, os.O_RDWR)
        at = first_row_of(file) + Columns(SPEC).record.itemsize
        os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)
        os.close(fd)
        with pytest.raises(LakeDamaged):
            lake.refresh()
        writer.close(commit=False)


@pytest.mark.full
@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("name", FILES)
def test_every_bit(place, name, bit, tmp_path, capsys):
    bits = [one for one in bits_of(place, name) if one % 8 == bit]
    outcomes = flip(place, name, bits)
    outcomes += flip(place, name, some(bits, 200), tmp_path)
    with capsys.disabled():
        print(f"\nbit {bit} of each byte of {name}: {dict(outcomes)}, 0 wrong rows")


@pytest.mark.full
@pytest.mark.parametrize("name", FILES)
def test_every_length(place, name, capsys):
    outcomes = cut(place, name, sizes_of(place, name, 61 if name == "open" else 1))
    with capsys.disabled():
        print(f"\nlengths of {name}: {dict(outcomes)}, 0 wrong rows")
