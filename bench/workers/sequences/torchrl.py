"""TorchRL: `SliceSampler` over a `LazyTensorStorage`, which cuts no slice across an end."""

from __future__ import annotations

import warnings

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, ReplayBuffer, SliceSampler

from ..stopwatch import Card, cpu_us
from . import task


def table(block: task.Block) -> TensorDict:
    """A block of steps under TorchRL's names, [env, time] as it expects them."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array.swapaxes(0, 1)))

    done = tensor(block.done)[..., None]
    return TensorDict(
        {
            "observation": tensor(block.obs),
            "action": tensor(block.action),
            "next": {"reward": tensor(block.reward)[..., None], "done": done},
        },
        batch_size=[block.done.shape[1], block.done.shape[0]],
    )


def measure(card: Card, kind: task.Kind) -> None:
    """Slices of 65 rows; every observation is stored once."""
    sampler = SliceSampler(
        slice_len=task.ROWS, end_key=("next", "done"), cache_values=True, strict_length=True
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(kind.capacity, ndim=2),
        sampler=sampler,
        batch_size=task.BATCH * task.ROWS,
    )
    for block in task.play(kind):
        buffer.extend(table(block))
    note = "65 rows within an episode, all fields; shorter episodes are never sampled"
    card.put(f"{kind.name}_host", cpu_us(buffer.sample), note)


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    card = Card("torchrl", "tensordict", "torch", "numpy")
    for kind in task.KINDS:
        with card.section(f"{kind.name}_host"):
            measure(card, kind)
        card.skip("nothing of it runs inside jit", f"{kind.name}_jit")
    card.show()


if __name__ == "__main__":
    main()
