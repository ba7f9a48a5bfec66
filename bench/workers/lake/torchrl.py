"""TorchRL: `LazyMemmapStorage` over [time, env], read by index and through `SliceSampler`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from torchrl.data import LazyMemmapStorage, ReplayBuffer, SliceSampler

from ..stopwatch import Card
from . import frames as work
from . import task


def table(block: work.Play) -> TensorDict:
    """A block of steps under TorchRL's names, [env, time] as it expects them."""

    def tensor(array: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).transpose(0, 1)

    small = {name: tensor(block.small[name]) for name in work.SMALL.names}
    ended = small["terminated"] | small["truncated"]
    following = {
        "reward": small["reward"][..., None],
        "done": ended[..., None],
        "terminated": small["terminated"][..., None],
        "truncated": small["truncated"][..., None],
    }
    return TensorDict(
        {"pixels": tensor(block.frames), "action": small["action"], "next": following},
        batch_size=[work.STREAMS, len(block.small)],
    )


class Storage:
    """Frames stored once, [time, env]."""

    def append(self, play: work.Play, folder: Path, steps: int) -> Iterator[None]:
        storage = LazyMemmapStorage(work.TIME * work.STREAMS, ndim=2, scratch_dir=folder / "rb")
        buffer = ReplayBuffer(storage=storage, batch_size=work.BATCH)
        blocks = [table(block) for block in play.blocks(steps)]
        yield
        for block in blocks:
            buffer.extend(block)
        storage.dumps(folder / "rb")

    def open(self, folder: Path) -> LazyMemmapStorage:
        storage = LazyMemmapStorage(work.TIME * work.STREAMS, ndim=2, scratch_dir=folder / "rb")
        storage.loads(folder / "rb")
        return storage

    def sampler(self, folder: Path) -> Callable[[], Any]:
        """All fields of five consecutive rows, by index."""
        storage = self.open(folder)
        rng = np.random.default_rng(0)
        reach = np.arange(work.WINDOW)

        def sample() -> TensorDict:
            stream, begin = work.draw(rng)
            at = torch.from_numpy(begin[:, None] + reach)
            return storage[at, torch.from_numpy(stream)[:, None].expand(at.shape)]

        return sample

    def newest(self, batch: TensorDict) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return *work.first_drawn(), batch["pixels"][:, -1].numpy()


class Buffer(Storage):
    """Its own sampler of slices that cross no episode's end."""

    def sampler(self, folder: Path) -> Callable[[], Any]:
        buffer = ReplayBuffer(
            storage=self.open(folder),
            sampler=SliceSampler(
                slice_len=work.WINDOW,
                end_key=("next", "done"),
                cache_values=True,
                strict_length=True,
            ),
            batch_size=work.BATCH * work.WINDOW,
        )
        return buffer.sample


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    _, recording, folder = task.arguments()
    card = Card("torchrl", "tensordict", "torch", "numpy")
    note = "five rows with all fields by index; no borders, no masks"

    def with_sampler(card: Card, key: str, store: Any, home: Path) -> None:
        kind = "slices within episodes with all fields; no stacks, no masks"
        with card.section("sampler_warm", "sampler_cold"):
            task.reads(card, "sampler", Buffer(), home, kind)

    task.measure(card, "storage", Storage(), recording, folder, note, with_sampler)
    card.show()


if __name__ == "__main__":
    main()
