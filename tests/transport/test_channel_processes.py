"""A channel between real processes, some of which are killed while they write."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from channel_world import (
    NESTED,
    PATIENCE,
    SPAWN,
    WIDE,
    burn,
    push_of,
    same,
    send_wide,
    wrong_rows,
    zygote,
)

from millpond.errors import ChannelClosed
from millpond.transport import Channel

ENVS, TIME = 3, 4


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def kill_often(lives: int, seed: int) -> tuple[int, int]:
    """So many writers, each killed at a moment that is drawn; pushes delivered, kills inside one.

    Every push that was acknowledged is delivered; at most one more is, and it is whole.
    """
    chance = random.Random(seed)
    channels = [Channel.create(NESTED, ENVS, TIME, chance.choice([1, 2, 7])) for _ in range(lives)]
    pipe, there = SPAWN.Pipe()
    mother = SPAWN.Process(target=zygote, args=(there, channels, TIME, ENVS))
    mother.start()
    there.close()
    total = inside = 0
    try:
        for life, channel in enumerate(channels):
            die_at = chance.randrange(40) if life % 2 else None
            pipe.send((life, die_at))
            assert pipe.poll(PATIENCE)
            pid = pipe.recv()
            reader = channel.reader(NESTED, alive=lambda pid=pid: not gone(pid))
            delivered, stop = 0, chance.randrange(60)
            while True:
                if die_at is None and delivered == stop:
                    moment = time.perf_counter() + chance.random() * 2e-3
                    while time.perf_counter() < moment:
                        pass
                    os.kill(pid, signal.SIGKILL)
                try:
                    rows = reader.pop(timeout=PATIENCE)
                except ChannelClosed:
                    break
                assert rows is not None, "neither a push nor an end within the patience"
                assert same(rows, push_of(delivered, TIME, ENVS)), f"push {delivered}"
                delivered += 1
            assert pipe.poll(PATIENCE)
            acknowledged = pipe.recv()
            assert acknowledged <= delivered <= acknowledged + 1
            if die_at is not None:
                assert delivered == acknowledged == die_at, "a push is there that was never ended"
                inside += 1
            counters = channel.counters()
            assert (counters.pushed, counters.popped, counters.torn) == (delivered, delivered, 0)
            total += delivered
        pipe.send(None)
        mother.join(PATIENCE)
        assert mother.exitcode == 0
    finally:
        mother.kill()
        mother.join()
    return total, inside


def test_killed_writers_leave_only_whole_pushes(capsys):
    total, inside = kill_often(30, seed=1)
    assert total > 300
    assert inside == 15
    with capsys.disabled():
        print(f"\n30 writers killed, {inside} inside a push: {total} pushes, 0 lost, 0 invented")


@pytest.mark.full
def test_many_killed_writers():
    for seed in range(10):
        kill_often(100, seed)


def stream(rows: int, envs: int, busy: int) -> Channel:
    """Send so many rows through a channel beside busy loops; check every one of them."""
    pushes = rows // envs
    channel = Channel.create(WIDE, envs, slots=64)
    burners = [SPAWN.Process(target=burn, daemon=True) for _ in range(busy)]
    writer = SPAWN.Process(target=send_wide, args=(channel, envs, pushes), daemon=True)
    for process in (*burners, writer):
        process.start()
    try:
        reader = channel.reader(WIDE, alive=writer.is_alive)
        done = 0
        while done < pushes:
            block = reader.pop_block(32, timeout=PATIENCE)
            assert block is not None
            assert wrong_rows(block, done, envs) == 0
            done += len(block.reward)
        with pytest.raises(ChannelClosed):
            reader.pop(timeout=PATIENCE)
        writer.join(PATIENCE)
        assert writer.exitcode == 0
    finally:
        for process in (*burners, writer):
            process.kill()
            process.join()
    return channel


def test_every_row_arrives_once_and_in_order():
    counters = stream(400_000, 64, busy=1).counters()
    assert counters.rows_pushed == counters.rows_popped == 400_000
    assert counters.torn == 0


@pytest.mark.full
def test_a_hundred_million_rows_beside_busy_loops():
    counters = stream(100_000_000, 64, busy=os.cpu_count() or 1).counters()
    assert counters.rows_pushed == counters.rows_popped == 100_000_000
    assert counters.torn == 0


def holders(identity: tuple[int, int]) -> list[str]:
    """Processes that hold the memory by a descriptor or a mapping."""
    found = []
    for proc in Path("/proc").glob("[0-9]*"):
        try:
            for fd in (proc / "fd").iterdir():
                info = fd.stat()
                if (info.st_dev, info.st_ino) == identity:
                    found.append(f"{proc.name} fd {fd.name}")
            for line in (proc / "maps").read_text().splitlines():
                if "memfd:millpond" in line and int(line.split()[4]) == identity[1]:
                    found.append(f"{proc.name} map")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
    return found


def test_nothing_is_left_when_everybody_is_killed():
    shm = sorted(os.listdir("/dev/shm"))
    here = Path(__file__).parents[1] / "helpers"
    pair = subprocess.Popen(
        [sys.executable, str(here / "channel_pair.py")],
        cwd=here,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert pair.stdout is not None
        child, *identity = (int(word) for word in pair.stdout.readline().split())
        assert len(holders(tuple(identity))) >= 2, "the look-out for holders sees nothing"
    finally:
        os.killpg(pair.pid, signal.SIGKILL)
        pair.wait(PATIENCE)
        pair.stdout.close()
    until(lambda: gone(child))
    until(lambda: not holders(tuple(identity)))
    assert [name for name in sorted(os.listdir("/dev/shm")) if name not in shm] == []


def test_a_writer_ends_when_its_reader_is_killed():
    here = Path(__file__).parents[1] / "helpers"
    pair = subprocess.Popen(
        [sys.executable, str(here / "channel_pair.py")],
        cwd=here,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert pair.stdout is not None
    child, *identity = (int(word) for word in pair.stdout.readline().split())
    pair.kill()
    pair.wait(PATIENCE)
    pair.stdout.close()
    until(lambda: gone(child))
    until(lambda: not holders(tuple(identity)))


def until(true) -> None:
    """Wait for what must become true; the deadline is a failure, not a rendezvous."""
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
