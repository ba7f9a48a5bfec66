"""A Lake as PyTorch's datasets, and a loader whose order continues exactly where it stopped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import xxhash

from ..errors import BadConfig, BadState, NotEnoughData, RowsGone
from ..lake import Lake, Shuffle
from ..sequence import AnyWindow, SequenceBatch, blank_batch
from ..window import Window
from .batch_block import BatchBlock
from .need import need
from .tensors import each, torch

data = need("torch.utils.data", "torch")
_AHEAD = 16  # batches whose starts are shuffled at once


class LakeWindows(data.Dataset):
    """The valid starts of a Lake when this was made, numbered: a map-style dataset.

        windows = LakeWindows("runs/lake", Window(n_step=3))
        one = windows[5]                     # a transition: tensors without a batch axis
        many = windows[np.arange(256)]       # a Batch of tensors

    `draw.probability` is 1 / len: PyTorch's own samplers and collation work too, start by start and
    slowly. What is committed later is not in it. A row that was evicted meanwhile raises RowsGone.
    Worker processes open the Lake by themselves, and share the list of starts.

    `overlap`, for windows of one step: `obs` and `next_obs` of a batch are views of the same
    frames, each written once. Do not change either in place then.
    """

    def __init__(
        self,
        lake: Lake | str | Path,
        window: AnyWindow | None = None,
        overlap: bool = False,
    ) -> None:
        self.lake = lake if isinstance(lake, Lake) else Lake.open(lake)
        self.window, self.overlap = window or Window(), overlap
        if overlap and not (isinstance(self.window, Window) and self.window.n_step == 1):
            raise BadConfig(
                f"LakeWindows: overlap is for windows of one step, got {self.window}; leave it out"
            )
        self._blocks: dict[int, BatchBlock] = {}  # by size of a batch
        stream, row = self.lake.starts(self.window)
        if not len(row):
            raise NotEnoughData(
                f"LakeWindows: {self.lake.path} holds no valid start for {self.window}; "
                "commit rows and refresh() first, or choose a shorter window"
            )
        # In shared memory: however many workers there are, they have one list.
        self._stream = torch.from_numpy(stream).share_memory_()
        self._row = torch.from_numpy(row).share_memory_()

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: Any) -> Any:
        """One start by number, or a batch of starts by a list or array of numbers."""
        number = np.asarray(index)
        if number.ndim > 1 or number.dtype.kind not in "iu":
            raise BadConfig(
                f"LakeWindows: expected a whole number or a list of them, got "
                f"{number.dtype} {number.shape}"
            )
        wrong = (number < -len(self)) | (number >= len(self))
        if wrong.any():
            got = np.atleast_1d(number)[np.atleast_1d(wrong)][0]
            raise IndexError(f"LakeWindows: start {got} of {len(self)}; numbers begin at 0")
        number = number.astype(np.int64) % len(self)
        batch = self._take(np.atleast_1d(number))
        return batch if number.ndim else each(batch, lambda part: part[0])

    def _take(self, number: np.ndarray) -> Any:
        """A batch of tensors; a worker's lie in memory that it shares."""
        made = self._block(len(number)).make(shared=data.get_worker_info() is not None)
        stream, row = self._stream.numpy()[number], self._row.numpy()[number]
        out = each(made, lambda part: part.numpy())
        out = out._replace(draw=out.draw._replace(probability=None))
        batch: Any = self.lake.take(stream, row, self.window, out)
        # Of a sequence some rows may be masked; of one that is no longer there all are.
        there = batch.mask.any(1) if isinstance(batch, SequenceBatch) else batch.mask
        if not there.all():
            gone = int(np.argmin(there))
            raise RowsGone(
                f"LakeWindows: row {row[gone]} of stream {stream[gone]} was evicted since this "
                "dataset was made; make it again, or raise the Lake's capacity"
            )
        # What draws evenly has it; and PyTorch's own collation takes no None.
        made.draw.probability.fill_(1 / len(self))
        return made

    def _block(self, number: int) -> BatchBlock:
        if number not in self._blocks:
            like = blank_batch(self.lake.spec, self.window, number, ranked=True)
            self._blocks = {
                **dict(list(self._blocks.items())[-1:]),
                number: BatchBlock(like, self.overlap),
            }
        return self._blocks[number]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_blocks": {}}

    @property
    def identity(self) -> str:
        """16 hex digits that are equal where the numbered starts are."""
        digest = xxhash.xxh3_64(repr(self.window).encode())
        digest.update(self.lake.spec.fingerprint().encode())
        digest.update(self._stream.numpy())
        digest.update(self._row.numpy())
        return digest.hexdigest()


class LakeBatches(data.IterableDataset):
    """Batches of every start once, in a new order per seed and epoch: an iterable dataset.

        loader = DataLoader(LakeBatches(windows, 256, seed=1), batch_size=None, num_workers=2)

    Workers take turns, so that batches come in the same order however many there are. It begins
    with batch number `begin`; the last batch of an epoch is smaller.
    """

    def __init__(
        self,
        windows: LakeWindows,
        batch: int,
        shuffle: bool = True,
        seed: int = 0,
        epoch: int = 0,
        begin: int = 0,
    ) -> None:
        for name, number, least in (("batch", batch, 1), ("epoch", epoch, 0), ("begin", begin, 0)):
            _at_least(f"LakeBatches: {name}", number, least)
        self.windows, self.batch = windows, int(batch)
        self.order = Shuffle(len(windows), seed, epoch) if shuffle else None
        self.begin, self.end = int(begin), -(-len(windows) // int(batch))

    def __len__(self) -> int:
        """Batches that are left."""
        return max(0, self.end - self.begin)

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = range(self.begin + first, self.end, step)
        for at in range(0, len(mine), _AHEAD):
            for numbers in self.numbers(mine[at : at + _AHEAD]):
                yield self.windows[numbers]

    def numbers(self, batches: Sequence[int]) -> list[np.ndarray]:
        """The starts of these batches, by number. For a few at once it takes hardly longer."""
        whole = len(self.windows)
        parts = [
            np.arange(n * self.batch, min((n + 1) * self.batch, whole), dtype=np.int64)
            for n in batches
        ]
        if self.order is None:
            return parts
        ends = np.cumsum([len(part) for part in parts])
        return np.split(self.order(np.concatenate(parts)), ends[:-1])


class LakeLoader:
    """Batches of tensors from a Lake, epoch after epoch, that resume exactly.

        loader = LakeLoader("runs/lake", 256, Window(n_step=3), seed=1, workers=2)
        for batch in loader:                  # the rest of this epoch; then comes the next one
            learn(batch)
            torch.save(loader.state_dict(), "loader.pt")

    `load_state_dict` of a loader over the same starts continues after the last batch that was given
    out, whatever workers had read ahead. `start`: how workers start; "fork" is faster and not safe
    beside JAX's threads. `pin` gives batches in pinned memory where there is CUDA. `overlap`: as in
    `LakeWindows`.
    """

    def __init__(
        self,
        lake: Lake | LakeWindows | str | Path,
        batch: int,
        window: AnyWindow | None = None,
        shuffle: bool = True,
        seed: int = 0,
        workers: int = 0,
        start: Literal["spawn", "fork", "forkserver"] = "spawn",
        pin: bool = False,
        overlap: bool = False,
    ) -> None:
        if isinstance(lake, LakeWindows) and window not in (None, lake.window):
            raise BadConfig(
                f"LakeLoader: the dataset has {lake.window}, got {window}; leave window out"
            )
        _at_least("LakeLoader: batch", batch, 1)
        _at_least("LakeLoader: workers", workers, 0)
        _at_least("LakeLoader: seed", seed, 0)
        self.windows = lake if isinstance(lake, LakeWindows) else LakeWindows(lake, window, overlap)
        self.batch, self.shuffle, self.seed = batch, shuffle, seed
        self.epoch, self.begin = 0, 0  # batches of this epoch that were given out
        self._workers: dict[str, Any] = {"num_workers": workers, "pin_memory": pin and _cuda()}
        if workers:
            self._workers["multiprocessing_context"] = start
        self._running: object = None

    def __len__(self) -> int:
        """Batches that are left of this epoch."""
        return len(self._batches())

    def _batches(self) -> LakeBatches:
        return LakeBatches(
            self.windows, self.batch, self.shuffle, self.seed, self.epoch, self.begin
        )

    def __iter__(self) -> Iterator[Any]:
        mine = self._running = object()
        for batch in data.DataLoader(self._batches(), batch_size=None, **self._workers):
            if self._running is not mine:
                raise BadState(
                    "LakeLoader: another iteration or load_state_dict() has moved it meanwhile; "
                    "use one iterator at a time, or a loader each"
                )
            self.begin += 1  # before it is given out: whoever has it may save the state
            yield batch
        if self._running is mine:
            self.epoch, self.begin = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Where it stands, in plain values: `loader.load_state_dict(state)`."""
        return {**self._same(), "epoch": self.epoch, "begin": self.begin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where `state_dict` was called; BadState, and no change, for another order."""
        for name, mine in self._same().items():
            if name not in state or state[name] != mine:
                raise BadState(
                    f"LakeLoader: the state has {name} {state.get(name)!r}, this loader {mine!r}; "
                    "give it the settings and the Lake's rows that the state was saved with"
                )
        for name in ("epoch", "begin"):
            _at_least(f"LakeLoader: the state's {name}", state.get(name), 0)
        self.epoch, self.begin, self._running = state["epoch"], state["begin"], None

    def _same(self) -> dict[str, Any]:
        """What makes an order, which a state must agree with."""
        return {
            "batch": self.batch,
            "shuffle": self.shuffle,
            "seed": self.seed,
            "starts": len(self.windows),
            "identity": self.windows.identity,
        }


def _at_least(what: str, number: Any, least: int) -> None:
    whole = isinstance(number, (int, np.integer)) and not isinstance(number, bool)
    if not whole or number < least:
        raise BadConfig(f"{what} must be a whole number >= {least}, got {number!r}")


def _cuda() -> bool:
    return bool(torch.cuda.is_available())
