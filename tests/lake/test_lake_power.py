"""Simulated power loss: what was committed with sync is there, and every readable row is right."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from lake_power import Disk, Image, Killed
from lake_world import SLOTS, SPEC, append, check_all

from millpond import LakeFailed
from millpond.lake import Lake, Writer, mark

STREAMS = 16  # so 256 rows of one stream fill a segment
CAPACITY = 2 * SLOTS + 1200


def play(base: Path, seed: int, steps: int = 40) -> Disk:
    """A random story of several lives: some end in a kill, and sometimes a sync fails."""
    chance, disk = random.Random(seed), Disk(base)
    path = base / "deep" / "lake"
    capacity = chance.choice([2 * SLOTS, CAPACITY])
    Lake.create(path, SPEC, capacity, segment_rows=SLOTS, files=disk)
    disk.note("created")
    disk.fail_at = chance.choice([-1, *[6 + chance.randrange(30)] * 3])
    writer = None
    for _ in range(steps):
        try:
            if writer is None:
                writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
            writer = move(disk, writer, chance)
        except LakeFailed:
            if writer is not None:
                writer.close(commit=False)
            writer = None
    if writer is not None:
        kill(disk, writer)
    return disk


def move(disk: Disk, writer: Writer, chance: random.Random) -> Writer | None:
    what = chance.random()
    if what < 0.04:
        writer.close()
        disk.note("synced", writer.next_row)
        return None
    if what < 0.08:
        kill(disk, writer)
        return None
    if what < 0.55:
        env = None if chance.random() < 0.3 else chance.randrange(STREAMS)
        number = 1 + chance.randrange(3) if env is None else chance.choice([1, 9, 200, 256, 300])
        intent = writer.next_row.copy()
        intent[slice(None) if env is None else env] += number
        disk.note("appended", intent)
        append(writer, number, env)
    else:
        sync = chance.random() < 0.5
        rows = writer.next_row.copy()
        writer.commit(sync)
        if sync:
            disk.note("synced", rows)
    return writer


def kill(disk: Disk, writer: Writer) -> None:
    """SIGKILL: nothing more is done, what was written stays in the kernel's memory."""
    disk.dead = True
    with suppress(Killed):
        writer._sealer.stop()
    writer._lock.release()
    disk.close_all()
    disk.dead = False


def check_image(disk: Disk, at: int, chance: random.Random, to: Path) -> None:
    """Lose power after `at` operations; read, recover, go on writing, read again."""
    log = disk.log[:at]
    said = {"created": None, "synced": np.zeros(STREAMS, np.int64)}
    said |= {"appended": said["synced"], "evict": said["synced"]}
    for kind, *rest in log:
        if kind in ("synced", "appended"):
            said[kind] = rest[0]
        elif kind == "evict":
            said[kind] = np.maximum(said[kind], rest[0])
        elif kind == "created":
            said[kind] = True
    Image(log, disk.base, chance).build(to)
    path = to / "deep" / "lake"
    with patch.object(mark, "this_boot", lambda: b"after power loss"):
        check_recovery(path, said)


def check_recovery(path: Path, said: dict) -> None:
    if not (path / "lake.json").exists():
        assert not said["created"], "the Lake is gone"
        Lake.create(path, SPEC, CAPACITY, segment_rows=SLOTS)
    seen = check_all(Lake.open(path))
    writer = Lake.open(path, "a").writer("g", STREAMS)
    found = writer.next_row
    assert (found >= said["synced"]).all(), "a synced row is lost"
    assert (found <= said["appended"]).all(), "a row nobody appended"
    if len(seen.stop):
        np.testing.assert_array_equal(seen.stop, np.where(seen.stop > seen.first, found, 0))
        # A first segment that was never synced may be lost whole: as if it were evicted.
        gone = (seen.first > said["evict"]) & (said["synced"] > said["evict"])
        assert not gone.any(), "a synced row is gone that was not evicted"
    append(writer, 1)
    writer.close()
    held = check_all(Lake.open(path))
    np.testing.assert_array_equal(held.stop, found + 1)


def lose_power(folder: Path, stories: int, images: int, seed: int) -> int:
    """So many random moments of so many stories."""
    chance = random.Random(seed)
    for story in range(stories):
        base = folder / str(story)
        base.mkdir()
        disk = play(base, chance.randrange(2**32))
        # Most operations write rows; most moments that matter are about the others.
        rare = [at for at, entry in enumerate(disk.log) if entry[0] != "pwrite"]
        for number in range(images):
            at = chance.choice([chance.randrange(len(disk.log)), *[chance.choice(rare)] * 3])
            at, luck = at + chance.randrange(3), chance.randrange(2**32)
            to = folder / f"{story}-{number}"
            try:
                check_image(disk, at, random.Random(luck), to)
            except BaseException as error:
                error.add_note(f"story {story} of seed {seed}, power lost at {at}, luck {luck}")
                raise
            shutil.rmtree(to)
        shutil.rmtree(base)
    return stories * images


def test_power_loss(tmp_path):
    assert lose_power(tmp_path, 10, 16, seed=1) == 160


def add(disk: Disk, writer: Writer, number: int, env: int | None, sync: bool) -> None:
    """Append and commit."""
    intent = writer.next_row.copy()
    intent[slice(None) if env is None else env] += number
    disk.note("appended", intent)
    append(writer, number, env)
    writer.commit(sync)
    if sync:
        disk.note("synced", intent)


def after_a_failed_sync(disk: Disk, path: Path) -> None:
    """The kernel takes pages it failed to write for clean: they must be written again."""
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    add(disk, writer, 2, None, sync=False)
    disk.fail_at = disk.syncs + 1
    with pytest.raises(LakeFailed):
        writer.commit(sync=True)
    writer.close(commit=False)
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    add(disk, writer, 1, 3, sync=True)
    kill(disk, writer)


def over_two_segments(disk: Disk, path: Path) -> None:
    """The rows of the second may survive those of the first, and must not be read then."""
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    add(disk, writer, 1, None, sync=True)
    add(disk, writer, 260, 0, sync=False)
    kill(disk, writer)


def after_everything_sealed_is_evicted(disk: Disk, path: Path) -> None:
    """Somebody must know which ids were given, though nothing newer was synced."""
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    for sync in (True, False, False):
        add(disk, writer, 256, 0, sync)
        writer._sealer.finish()
    kill(disk, writer)


def test_what_a_failed_sync_may_have_lost_is_not_sealed(tmp_path, monkeypatch):
    """The writer's sync of a full segment fails before the sealer comes to it, or meanwhile."""
    base = tmp_path / "base"
    base.mkdir()
    disk, path = Disk(base), base / "deep" / "lake"
    Lake.create(path, SPEC, 4 * SLOTS, segment_rows=SLOTS, files=disk)
    disk.note("created")
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    monkeypatch.setattr(writer._sealer, "_run", lambda: None)
    for number in (256, 1):
        add(disk, writer, number, 5, sync=False)  # noise: it is not compressed
    (segment,) = writer._sealer.waiting()
    disk.fail_at = disk.syncs + 1
    with pytest.raises(LakeFailed, match="syncing a segment"):
        writer.commit(sync=True)
    with pytest.raises(LakeFailed, match="open the writer again"):
        writer._sealer.seal_one(segment)
    monkeypatch.setattr(
        segment, "check_no_failed_sync", check_from_second_call(segment.check_no_failed_sync)
    )
    with pytest.raises(LakeFailed, match="open the writer again"):
        writer._sealer.seal_one(segment)
    assert segment.path.exists()
    assert not list(path.rglob("*.seg"))
    kill(disk, writer)
    writer = Lake.open(path, "a", files=disk).writer("g", STREAMS)
    writer.close()
    disk.note("synced", writer.next_row)
    assert list(path.rglob("*.seg"))
    for number in range(20):
        check_image(disk, len(disk.log), random.Random(number), tmp_path / str(number))


def check_from_second_call(check: Callable[[], None]) -> Callable[[], None]:
    """As if the failure came after the first look."""
    calls: list[int] = []
    return lambda: check() if calls else calls.append(1)


SCENES = [after_a_failed_sync, over_two_segments, after_everything_sealed_is_evicted]


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
def test_power_loss_after(tmp_path, scene):
    base = tmp_path / "base"
    base.mkdir()
    disk, chance = Disk(base), random.Random(scene.__name__)
    path = base / "deep" / "lake"
    Lake.create(path, SPEC, 2 * SLOTS, segment_rows=SLOTS, files=disk)
    disk.note("created")
    scene(disk, path)
    evicted = [at + 2 for at, entry in enumerate(disk.log) if entry[0] == "evict"]
    for number in range(60):
        at = chance.choice([len(disk.log), *evicted])
        check_image(disk, at, chance, tmp_path / str(number))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(4))
def test_power_loss_thousands_of_times(tmp_path, seed, capsys):
    images = lose_power(tmp_path, 50, 40, 100 + seed)
    with capsys.disabled():
        print(f"\n{images} power losses: 0 synced rows lost, 0 wrong rows")
