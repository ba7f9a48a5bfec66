"""What a Lake refuses: foreign folders, nonsense with valid checksums, links, other writers."""

from __future__ import annotations

import json
import os
import random
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lake_world import SLOTS, SPEC, append, check_all, copy_tree, snapshot

from millpond import (
    BadConfig,
    Field,
    LakeFailed,
    LakeLocked,
    LakeRefused,
    MillpondError,
    Spec,
)
from millpond.lake import Lake
from millpond.lake.files import Files
from millpond.lake.journal import digest
from millpond.lake.manifest import read_json, write_json
from millpond.lake.segment import _HEAD, _SUM

STREAMS = 16
GROUP = "groups/g"
SEGMENTS = {"sealed": f"{GROUP}/{0:016d}.seg", "open": f"{GROUP}/{1:016d}.open"}
FILES = {
    **SEGMENTS,
    "journal": f"{GROUP}/{1:016d}.journal",
    "lake.json": "lake.json",
    "group.json": f"{GROUP}/group.json",
}


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A Lake of a sealed and an open segment."""
    path = tmp_path_factory.mktemp("original") / "lake"
    with Lake.create(path, SPEC, 10**6, segment_rows=SLOTS).writer("g", STREAMS) as writer:
        append(writer, SLOTS // STREAMS, 3)
        writer.commit()
        append(writer, 2)
    return path


@pytest.fixture
def lake_path(original, tmp_path):
    copy_tree(original, tmp_path / "lake")
    return tmp_path / "lake"


@pytest.fixture(autouse=True)
def little_memory():
    """Whoever believes a size that makes no sense runs out of memory; maps do not count."""
    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (used + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_DATA, before)


def try_all(path: Path) -> str:
    """Read everything, then write: right, or a clear error; whatever else is raised is a bug."""
    try:
        check_all(Lake.open(path))
        reader = "right"
    except MillpondError as error:
        reader = type(error).__name__
    try:
        with Lake.open(path, "a").writer("g", STREAMS) as writer:
            append(writer, 1)
        check_all(Lake.open(path))
        return reader
    except MillpondError as error:
        return f"{reader}, {type(error).__name__}"


@pytest.mark.parametrize("name", FILES)
def test_random_bytes(original, tmp_path, name, request):
    number = 200 if request.config.getoption("--full") else 12
    chance = random.Random(name)
    for turn in range(number):
        path = tmp_path / str(turn)
        copy_tree(original, path)
        file = path / FILES[name]
        old = file.read_bytes()[: 1 << 18]
        where, size = chance.randrange(len(old)), chance.choice([1, 8, 100, 5000])
        noise = chance.randbytes(size)
        kind = turn % 4
        if kind == 0:
            new = noise
        elif kind == 1:
            new = old[:where] + noise + old[where + size :]
        elif kind == 2:
            new = old[:64][: where % 64] + noise + old[64:]
        else:
            new = old[:where] + old[where + size :]
        file.write_bytes(new)
        try_all(path)


NUMBERS = st.sampled_from([-1, 0, 1, 7, 4095, 4096, 2**31, 2**32, 2**62, 2**63, 2**64, 10**30])
PARSE_ERRORS = st.one_of(
    NUMBERS, st.floats(), st.text(max_size=5), st.none(), st.booleans(), st.just([]), st.just({})
)


def places(node, path=()) -> list[tuple]:
    """Where a value can be replaced in a JSON document."""
    found = [path] if path else []
    items = node.items() if isinstance(node, dict) else enumerate(node)
    for key, value in list(items)[:3] if isinstance(node, list) else items:
        found += places(value, (*path, key)) if isinstance(value, (dict, list)) else [(*path, key)]
    return found


def put(plain, where: tuple, value) -> None:
    for key in where[:-1]:
        plain = plain[key]
    plain[where[-1]] = value


def rewrite_segment(file: Path, where: tuple | None, value, head: tuple | None = None) -> None:
    """Replace a value of a segment's description, or its header, and make the checksums hold."""
    data = bytearray(file.read_bytes())
    magic, version, offset, length, _ = head_of(file)
    plain = json.loads(bytes(data[offset : offset + length]))
    if where is not None:
        put(plain, where, value)
    text = json.dumps(plain).encode()
    packed = _HEAD.pack(*(head or (magic, version, offset, len(text), digest(text))))
    packed += _SUM.pack(digest(packed))
    if file.suffix == ".seg":
        data[offset:] = text + packed
    else:
        data[offset : offset + len(text)] = text
        data[: len(packed)] = packed
    file.write_bytes(data)


def head_of(file: Path) -> tuple:
    """A segment's header: magic, version, then where its description lies."""
    data = file.read_bytes()
    return _HEAD.unpack_from(data, len(data) - 48 if file.suffix == ".seg" else 0)


@pytest.mark.parametrize("name", ["lake.json", "group.json", "sealed", "open"])
def test_nonsense_with_valid_checksums(original, tmp_path, name, request):
    turns = 0

    @settings(max_examples=400 if request.config.getoption("--full") else 30)
    @given(st.data())
    def run(data):
        nonlocal turns
        turns += 1
        path = tmp_path / str(turns)
        copy_tree(original, path)
        file = path / FILES[name]
        if name in SEGMENTS:
            raw = file.read_bytes()
            _, _, offset, length, _ = head_of(file)
            where = data.draw(st.sampled_from(places(json.loads(raw[offset : offset + length]))))
            value = data.draw(PARSE_ERRORS)
            if where[0] in ("first", "count") and where[1:] and value in (0, 1, 7, 4095, 4096):
                value = -1  # another id that could be one is forgery, not nonsense
            rewrite_segment(file, where, value)
        else:
            plain = read_json(file)
            put(plain, data.draw(st.sampled_from(places(plain))), data.draw(PARSE_ERRORS))
            write_json(Files(), file, plain)
        try_all(path)

    run()


@pytest.mark.parametrize("value", [0, 2**32, 2**63, 2**64 - 1])
@pytest.mark.parametrize("field", [1, 2, 3])
def test_nonsense_headers(lake_path, field, value):
    file = lake_path / SEGMENTS["sealed"]
    head = list(head_of(file))
    head[field] = value
    rewrite_segment(file, None, None, tuple(head))
    with pytest.raises(MillpondError):
        check_all(Lake.open(lake_path))


@pytest.mark.parametrize(
    "name", ["../x", "/tmp/x", "a/b", ".", "..", ".x", "-x", "", "a\0", "x" * 65]
)
def test_group_names_cannot_leave_the_folder(lake_path, name):
    before = snapshot(lake_path.parent)
    with pytest.raises(BadConfig, match="name"):
        Lake.open(lake_path, "a").writer(name, STREAMS)
    assert snapshot(lake_path.parent) == before


@pytest.mark.parametrize("what", ["groups", GROUP, *FILES.values()])
def test_links_are_not_followed(lake_path, what):
    away = lake_path.parent / "away"
    os.rename(lake_path / what, away)
    os.symlink(away, lake_path / what)
    before = snapshot(away) if away.is_dir() else away.read_bytes()
    assert try_all(lake_path) == "LakeRefused, LakeRefused"
    assert (snapshot(away) if away.is_dir() else away.read_bytes()) == before


def refused(path: Path, error: type[Exception], match: str, act) -> None:
    """The act is refused with this error, and not a byte of the folder changes."""
    before = snapshot(path)
    with pytest.raises(error, match=match):
        act()
    assert snapshot(path) == before


def test_refusals_change_nothing(lake_path):
    other = Spec({"wide": Field("uint8", (1025,))}, Field("int32"))
    opened = Lake.open(lake_path, "a")
    refused(lake_path, LakeRefused, "field", lambda: Lake.open(lake_path, "a", spec=other))
    refused(lake_path, LakeRefused, "not empty", lambda: Lake.create(lake_path, SPEC, 10**6))
    refused(lake_path, LakeRefused, "16 streams", lambda: opened.writer("g", STREAMS + 1))
    refused(lake_path, BadConfig, "group", lambda: opened.writer("h", STREAMS))
    refused(lake_path, BadConfig, "read-only", lambda: Lake.open(lake_path).writer("g", STREAMS))
    foreign = lake_path / "groups"
    refused(lake_path, LakeRefused, "not a Lake", lambda: Lake.open(foreign, "a"))


def test_another_version_is_refused(lake_path):
    plain = read_json(lake_path / "lake.json")
    write_json(Files(), lake_path / "lake.json", {**plain, "version": 2})
    refused(lake_path, LakeRefused, "version 2", lambda: Lake.open(lake_path, "a"))
    write_json(Files(), lake_path / "lake.json", plain)
    for file in SEGMENTS.values():
        head = head_of(lake_path / file)
        old = (lake_path / file).read_bytes()
        rewrite_segment(lake_path / file, None, None, (head[0], 3, *head[2:]))
        refused(lake_path, LakeRefused, "version 3", lambda: len(Lake.open(lake_path)))
        with pytest.raises(LakeRefused, match="version 3"):
            Lake.open(lake_path, "a").writer("g", STREAMS)
        (lake_path / file).write_bytes(old)


def test_a_second_writer_learns_who_the_first_is(lake_path):
    code = (
        "import sys; from pathlib import Path; from millpond.lake.writer import take_lock;"
        "held = take_lock(Path(sys.argv[1]), 'a group');"
        "print('locked', flush=True); sys.stdin.read()"
    )
    lock = lake_path / GROUP / "lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert holder.stdout.readline() == b"locked\n"
        opened = Lake.open(lake_path, "a")
        match = rf"process {holder.pid}\b"
        refused(lake_path, LakeLocked, match, lambda: opened.writer("g", STREAMS))
    finally:
        holder.kill()
        holder.communicate(timeout=30)
    opened.writer("g", STREAMS).close()  # a dead writer's lock is free


def test_a_writer_that_could_not_open_leaves_the_group_free(lake_path):
    class Broken(Files):
        def open(self, path: Path) -> int:
            raise OSError(5, "planted")

    with pytest.raises(LakeFailed):
        Lake.open(lake_path, "a", files=Broken()).writer("g", STREAMS)
    with Lake.open(lake_path, "a").writer("g", STREAMS) as writer:
        append(writer, 1)
    assert (check_all(Lake.open(lake_path)).stop == np.where(np.arange(STREAMS) == 3, 259, 3)).all()
