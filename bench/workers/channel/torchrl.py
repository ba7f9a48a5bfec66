"""TorchRL: a replay buffer with `shared=True`, one lock and a storage in shared memory."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, TensorDictReplayBuffer

from ..stopwatch import Card
from . import task


def block(number: int) -> TensorDict:
    """A push under TorchRL's names."""
    key = task.ids(number)
    following = {
        "observation": torch.from_numpy(task.wide(task.follower(key), task.OBS)),
        "reward": torch.from_numpy(key)[:, None],
        "done": torch.zeros(task.ENVS, 1, dtype=torch.bool),
    }
    return TensorDict(
        {
            "observation": torch.from_numpy(task.wide(key, task.OBS)),
            "action": torch.from_numpy(task.wide(key, task.ACTION)),
            "next": following,
        },
        batch_size=[task.ENVS],
    )


def write(pipe: Any, buffer: TensorDictReplayBuffer) -> None:
    """The writer's process."""
    warnings.simplefilter("ignore")
    task.unpin()
    torch.set_num_threads(1)
    blocks = [block(number) for number in range(task.BLOCKS)]
    task.drive(pipe, lambda number: buffer.extend(blocks[number % task.BLOCKS]))


def main() -> None:
    warnings.simplefilter("ignore")
    task.unpin()
    torch.set_num_threads(1)
    card = Card("torchrl", "tensordict", "torch", "numpy")
    buffer = TensorDictReplayBuffer(
        storage=LazyMemmapStorage(task.CAPACITY), batch_size=task.BATCH, shared=True
    )
    buffer.extend(block(0))  # a lazy storage must exist before it is shared

    def turn(audit: task.Audit | None) -> task.Turn:
        batch = buffer.sample()
        if audit:
            arrays = batch["next", "reward"], batch["next", "observation"]
            same = batch["observation"], batch["action"]
            audit.judge(*(value.numpy() for value in (*arrays, *same)))
        return task.Turn(task.BATCH)

    task.compare(card, "torchrl", write, (buffer,), turn)
    card.show()


if __name__ == "__main__":
    main()
