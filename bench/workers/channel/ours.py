"""millpond: the writer pushes into a Channel, the reader adds to its HostPond and samples it."""

from __future__ import annotations

from typing import Any

import numpy as np

from millpond import Field, HostPond, Rows, Spec
from millpond.transport import Channel

from ..stopwatch import Card
from . import task

SLOTS, BLOCK = 64, 32  # pushes in the ring, and at most so many in one block


def spec(obs: int) -> Spec:
    """Rows of 264 B and a flags byte with 56 observed values, of 149 B with 28."""
    extras = {"id": Field("int32")} if obs == 2 * task.OBS else {}
    return Spec(Field("float32", (obs,)), Field("float32", (task.ACTION,)), extras)


def write(pipe: Any, channel: Channel, obs: int) -> None:
    """The writer's process."""
    task.unpin()
    writer = channel.writer(spec(obs))
    never = np.zeros(task.ENVS, bool)
    flags = [np.full(task.ENVS, first, np.uint8) for first in (0, 1)]

    def rows(block: int) -> Rows:
        key = task.ids(block)
        extras = {"id": key.astype(np.int32)} if "id" in channel.spec.extras else {}
        values = task.wide(key, obs), task.wide(key, task.ACTION), key
        return Rows(*values, never, never, flags[0], extras)

    blocks = [rows(block) for block in range(task.BLOCKS)]

    def push(number: int) -> None:
        one = blocks[number % task.BLOCKS]
        writer.push(one if number else one._replace(flags=flags[1]), timeout=task.LIMIT_S)

    task.drive(pipe, push)


def both(card: Card, key: str, obs: int, note: str) -> None:
    """One channel with its writer, and this process as its reader."""
    channel = Channel.create(spec(obs), task.ENVS, slots=SLOTS)
    reader = channel.reader(spec(obs))
    pond = HostPond(spec(obs), task.CAPACITY, task.ENVS)
    state: dict[str, Any] = {"out": None, "owed": 0}

    def turn(audit: task.Audit | None) -> task.Turn:
        """Add what has come, then sample as many rows as were added."""
        block = reader.pop_block(BLOCK, timeout=0.02)
        if block is None:
            return task.Turn(0, 0)
        pond.add(block)
        state["owed"] += block.reward.size
        sampled = 0
        while state["owed"] >= task.BATCH and pond.size > 2 * task.ENVS:
            state["out"] = batch = pond.sample(task.BATCH, state["out"])
            state["owed"] -= task.BATCH
            sampled += task.BATCH
            if audit:
                same = [batch.obs[:, 0], batch.action]
                same += [value[:, None] for value in batch.extras.values()]
                audit.judge(batch.reward, batch.next_obs[:, 0], *same)
        return task.Turn(sampled, block.reward.size)

    task.compare(card, key, write, (channel, obs), turn, note)
    torn = channel.counters().torn
    if torn:
        card.put(f"{key}_torn", card.rows[f"{key}_torn"]["value"] + torn, "found by the channel")


def main() -> None:
    task.unpin()
    card = Card("millpond", "numpy", "xxhash")
    both(card, "ours", 2 * task.OBS, "265 B per row; obs and next_obs of 56 values are sampled")
    both(card, "ours_once", task.OBS, "149 B per row: the next observation is the next row's")
    card.show()


if __name__ == "__main__":
    main()
