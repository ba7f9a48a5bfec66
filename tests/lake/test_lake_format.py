"""docs/lake-format.md is enough to read a Lake: a reader made from it alone gives the same rows."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import numpy as np
import plain_lake
from plain_lake import PlainLake
from scenarios import PATTERNS, Stream, pick
from test_lake import WIDE, to_rows

from millpond import Lake

FIRST, BORDER, CONTEXT, CUT, TERMINATED, TRUNCATED, LIFE_LOST, LOST = (1 << k for k in range(8))
DOCUMENT = Path(__file__).parents[2] / "docs" / "lake-format.md"


def write(path: Path, streams: int, steps: list[int]) -> Lake:
    """Two groups: one in lockstep with cuts and reopening, one ragged."""
    chance = random.Random(3)
    lake = Lake.create(path, WIDE, 10**6, groups=2, segment_rows=4096)
    sources = [Stream(env, PATTERNS["everything"], chance) for env in range(streams)]
    for number in steps:
        with lake.writer("all", streams) as writer:
            writer.append(to_rows([[s.next() for s in sources] for _ in range(number)], WIDE))
        for source in sources:
            source.cut()
    with lake.writer("some", 300) as writer:
        for env, number in [(7, 30), (299, 5), (7, 3)]:
            source = Stream(env, PATTERNS["short"], chance)
            source.mode = "anything"
            writer.cut(env)
            rows = to_rows([[source.next()] for _ in range(number)], WIDE)
            writer.append(pick(rows, (slice(None), 0)), env=env)
            writer.commit()
    lake.refresh()
    return lake


def test_a_reader_made_from_the_document_reads_the_same_rows(tmp_path):
    lake = write(tmp_path / "lake", 256, [20, 15, 4])
    plain = PlainLake(tmp_path / "lake")
    kinds = {type(s).__name__ for g in plain.groups for s in plain.segments(g)}
    codecs = {
        stored["codec"]
        for group in plain.groups
        for segment in plain.segments(group)
        for stored in segment.meta["columns"].values()
    }
    assert (kinds, codecs) == ({"Sealed", "Open"}, {"raw", "zstd"})
    found = plain.rows()
    assert sum(len(rows) for rows in found.values()) == len(lake) > 256 * 39
    for stream in lake.streams:
        mine = found[stream.number]
        assert list(mine) == list(range(stream.first, stream.stop))
        if stream.number % 16 and stream.number < 256:
            continue  # decoding each row for itself is slow
        if not mine:
            continue
        rows = lake.read(stream.number, stream.first, stream.stop)
        flags = np.array([row.record[0] for row in mine.values()])
        cut = np.append((flags[1:] & LOST) != 0, False) | ((flags & CUT) != 0)
        np.testing.assert_array_equal(rows.flags & 7, flags & 7)
        np.testing.assert_array_equal((rows.flags & CUT) != 0, cut)
        np.testing.assert_array_equal(rows.terminated, (flags & TERMINATED) != 0)
        np.testing.assert_array_equal(rows.truncated, (flags & TRUNCATED) != 0)
        np.testing.assert_array_equal(rows.extras["life_lost"], (flags & LIFE_LOST) != 0)
        for path, values in {
            "action": rows.action,
            "reward": rows.reward,
            "extras/tag": rows.extras["tag"],
            "obs/image": rows.obs["image"],
            "obs/inner/bits": rows.obs["inner"]["bits"],
            "obs/inner/number": rows.obs["inner"]["number"],
            "obs/wide": rows.obs["wide"],
        }.items():
            got = np.array([plain.field(row, path) for row in mine.values()])
            np.testing.assert_array_equal(got, values)


def test_the_reader_is_made_from_the_document_alone():
    for path in (Path(plain_lake.__file__),):
        names = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                names |= {name.name for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                names.add(node.module)
        assert not any(name.startswith("millpond") for name in names)


def test_the_document_names_what_the_files_hold(tmp_path):
    """Every key of every JSON, every struct and every file name stands in the document."""
    lake = write(tmp_path / "lake", 256, [20])
    text = DOCUMENT.read_text()
    plain = PlainLake(tmp_path / "lake")
    segment = plain.segments(plain.groups[0])[0]
    keys = [*plain.info, *plain.groups[0], *segment.meta, *segment.meta["columns"]["obs/wide"]]
    for key in keys:
        assert f"`{key}`" in text, key
    for packed in re.findall(r'unpack_from\("(<\w+)"', Path(plain_lake.__file__).read_text()):
        assert f"`{packed}`" in text, packed
    for path in (tmp_path / "lake").rglob("*"):
        name = path.suffix if re.match(r"\d{16}", path.name) else path.name
        assert name in text or path.parent.name == "groups", path
    assert lake.stats().sealed >= 1
