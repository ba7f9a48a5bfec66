"""cpprb: `MPReplayBuffer` in shared memory, which one process fills and another samples."""

from __future__ import annotations

from typing import Any

import numpy as np
from cpprb import MPReplayBuffer

from ..stopwatch import Card
from . import task


def write(pipe: Any, buffer: MPReplayBuffer) -> None:
    """The writer's process."""
    task.unpin()

    def block(number: int) -> dict[str, np.ndarray]:
        key = task.ids(number)
        return dict(
            obs=task.wide(key, task.OBS),
            act=task.wide(key, task.ACTION),
            rew=key,
            next_obs=task.wide(task.follower(key), task.OBS),
            done=np.zeros(task.ENVS, np.float32),
        )

    blocks = [block(number) for number in range(task.BLOCKS)]
    task.drive(pipe, lambda number: buffer.add(**blocks[number % task.BLOCKS]))


def main() -> None:
    task.unpin()
    card = Card("cpprb", "numpy")
    fields = {
        "obs": {"shape": task.OBS},
        "act": {"shape": task.ACTION},
        "rew": {},
        "next_obs": {"shape": task.OBS},
        "done": {},
    }
    buffer = MPReplayBuffer(task.CAPACITY, fields, ctx=task.SPAWN)

    def turn(audit: task.Audit | None) -> task.Turn:
        if not buffer.get_stored_size():
            return task.Turn(0)
        batch = buffer.sample(task.BATCH)
        if audit:
            audit.judge(batch["rew"], batch["next_obs"], batch["obs"], batch["act"])
        return task.Turn(task.BATCH)

    task.compare(card, "cpprb", write, (buffer,), turn)
    card.show()


if __name__ == "__main__":
    main()
