"""Lakes that are copied, sent, forked and opened by many processes at once."""

from __future__ import annotations

import copy
import multiprocessing
import os
import subprocess
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, append, check_all, check_samples

from millpond import BadConfig, Field, LakeLocked, LakeRefused, Spec, Window
from millpond.lake import Lake, groups
from millpond.lake.journal import unpack
from millpond.lake.lock import take_lock
from millpond.transport.channel import Channel

PATIENCE = 60.0
SPAWN = multiprocessing.get_context("spawn")


def sent(thing):
    """What a process that is spawned gets for it."""
    return ForkingPickler.loads(bytes(ForkingPickler.dumps(thing)))


@pytest.fixture
def lake(tmp_path):
    """A Lake of a sealed and an open segment, of which every part was read."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", 16) as writer:
        append(writer, SLOTS // 16)
        writer.commit()
        append(writer, 3)
    check_all(lake)
    return lake


def check_two_rows(lake: Lake) -> None:
    check_all(lake)
    check_samples(lake, np.random.default_rng(0), 64, Window(stack=2, n_step=3))
    streams = np.arange(16)
    assert lake.gather(streams, streams * 0, 5, threads=2).reward.shape == (16, 5)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, sent])
@pytest.mark.parametrize("what", ["lake", "reader"])
def test_a_lake_that_was_read_is_copied_by_opening_it_again(lake, how, what):
    lake.sample(np.random.default_rng(0), 8)
    lake.gather(np.arange(16), np.zeros(16, int), 2, threads=2)
    if what == "reader":
        other = how(lake.reader)
        assert other.index.total == len(lake)
        assert other.pages["obs/wide"].column is not lake.reader.pages["obs/wide"].column
        return
    other = how(lake)
    assert (other.path, other.mode) == (lake.path, "a")
    check_two_rows(other)
    with other.writer("g", 16) as writer:
        append(writer, 2)
    lake.refresh()
    assert check_all(lake).rows == len(other) + 2 * 16


def read_elsewhere(lake: Lake, reader, answers) -> None:
    check_two_rows(lake)
    answers.put((os.getpid(), len(lake), reader.index.total))


def test_a_lake_is_sent_to_a_spawned_process(lake):
    """As a DataLoader does it, which sends its data set to every worker."""
    answers = SPAWN.Queue()
    process = SPAWN.Process(target=read_elsewhere, args=(lake, lake.reader, answers))
    process.start()
    try:
        pid, *rows = answers.get(timeout=PATIENCE)
        process.join(PATIENCE)
    finally:
        process.kill()
    assert pid == process.pid
    assert rows == [len(lake), len(lake)]


def test_a_lake_opened_by_a_relative_path_is_the_same_after_chdir(lake, monkeypatch):
    monkeypatch.chdir(lake.path.parent)
    opened = Lake.open("lake")
    elsewhere = lake.path.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    Lake.create("lake", SPEC, 10**6, segment_rows=SLOTS)
    assert len(copy.deepcopy(opened)) == len(opened) == len(lake)


def test_a_lake_that_was_replaced_meanwhile_is_refused(lake):
    packed = [bytes(ForkingPickler.dumps(thing)) for thing in (lake, lake.reader)]
    os.rename(lake.path, lake.path.with_name("away"))
    Lake.create(lake.path, Spec(Field("float32"), Field("int32")), 10**6)
    for one in packed:
        with pytest.raises(LakeRefused, match="replaced meanwhile"):
            ForkingPickler.loads(one)


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, sent])
def test_what_one_process_alone_may_have_is_not_copied(lake, how):
    channel = Channel.create(SPEC, num_envs=2)
    with lake.writer("g", 16) as writer:
        alone = {
            "another group": writer,
            "the Lake itself": lake.reader.pages["obs/wide"].column,
            "pass the Channel itself": channel,
            r"channel\.reader": channel.reader(SPEC),
            r"channel\.writer": channel.writer(SPEC),
        }
        for remedy, thing in alone.items():
            with pytest.raises(BadConfig, match=remedy):
                how(thing)
        append(writer, 1)  # it still works
    assert check_all(Lake.open(lake.path)).rows == len(lake) + 16


@pytest.mark.parametrize(
    "scene",
    [
        "after_gather",
        "beside_threads",
        "a_call_that_does_not_end",
        "a_killed_writer",
        "a_writer_in_a_child",
        "a_writer_whose_sealer_works_in_a_child",
        "actors_at_once",
    ],
)
def test_processes_that_fork(tmp_path, scene):
    program = Path(__file__).parents[1] / "helpers" / "lake_forks.py"
    done = subprocess.run(
        [sys.executable, str(program), scene, str(tmp_path / "lake")],
        capture_output=True,
        timeout=2 * PATIENCE,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_writer_that_was_deleted_gives_its_group_free(lake):
    writer = lake.writer("g", 16)
    append(writer, 2)
    writer.commit()
    append(writer, 1)
    with pytest.raises(LakeLocked, match=r"this very one; close\(\)"):
        lake.writer("g", 16)
    with pytest.warns(ResourceWarning, match="without close"):
        del writer
    with lake.writer("g", 16) as writer:
        append(writer, 1)
    assert (check_all(Lake.open(lake.path)).stop == SLOTS // 16 + 6).all()


def test_a_deleted_writer_ends_its_sealer_first(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    writer = lake.writer("g", 16)
    append(writer, 3 * SLOTS // 16 + 1)
    writer.commit()
    sealer = writer._sealer
    with pytest.warns(ResourceWarning, match="without close"):
        del writer
    assert not sealer._running.locked()
    lake.writer("g", 16).close()
    assert (check_all(lake).stop == 3 * SLOTS // 16 + 1).all()


def test_a_lock_that_is_held_too_long_is_an_error(lake, monkeypatch):
    monkeypatch.setattr(groups, "PATIENCE", 0.02)
    several = Lake.create(lake.path.with_name("several"), SPEC, 10**6, 2, segment_rows=SLOTS)
    with (
        take_lock(several.path / "lock", "a test"),
        pytest.raises(LakeLocked, match=r"making a group is open in process .* 0\.02 s"),
    ):
        several.writer("g", 16)
    several.writer("g", 16).close()


def test_refresh_costs_what_is_new(tmp_path, monkeypatch):
    """Counted in bytes of the journal, not in time."""
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    looked: list[int] = []

    def counted(journal: bytes, *rest, **named):
        looked.append(len(journal))
        return unpack(journal, *rest, **named)

    monkeypatch.setattr("millpond.lake.open_segment.unpack", counted)
    with lake.writer("g", 4) as writer:
        for turn in range(60):
            append(writer, 1 + turn % 2, env=None if turn % 3 else 2)  # even and ragged records
            if turn % 5 != 4:
                writer.commit()
                lake.refresh()
                assert check_all(lake).rows == writer.next_row.sum()
            if turn == 30:
                late = Lake.open(lake.path)
                check_all(late)
        lake.refresh()
        looked.clear()
        lake.refresh()
        assert looked == [0]
        append(writer, 1)
        writer.commit()
        looked.clear()
        lake.refresh()
        assert looked[0] <= 64
        late.refresh()
        assert check_all(late).rows == check_all(lake).rows == writer.next_row.sum()


def test_a_file_truncated_under_its_reader_is_damage_not_death(tmp_path):
    program = Path(__file__).parents[1] / "helpers" / "lake_truncated.py"
    done = subprocess.run(
        [sys.executable, str(program), str(tmp_path)],
        capture_output=True,
        timeout=PATIENCE,
        text=True,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
