"""Lakes as PyTorch datasets, and a loader that resumes exactly."""

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
_AHEAD = 16  # batches whose starts are computed together


class LakeWindows(data.Dataset):
    """A map-style dataset of the valid starts in a Lake at the time it is made.

        windows = LakeWindows("runs/lake", Window(n_step=3))
        one = windows[5]                     # a transition: tensors without a batch axis
        many = windows[np.arange(256)]       # a Batch of tensors

    `draw.probability` is 1 / len. PyTorch's own samplers and collation work too, but slowly, start
    by start. Rows committed later are not included; a row that was evicted meanwhile raises
    RowsGone. Worker processes open the Lake themselves and share the list of starts.

    With `overlap`, for windows of one step, `obs` and `next_obs` of a batch are views of the same
    frames, each written once; do not change them in place.
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
                f"LakeWindows: overlap needs a window with n_step=1, got {self.window}; omit it"
            )
        self._blocks: dict[int, BatchBlock] = {}  # by batch size
        stream, row = self.lake.starts(self.window)
        if not len(row):
            raise NotEnoughData(
                f"LakeWindows: {self.lake.path} holds no valid start for {self.window}; first "
                "commit rows and refresh(), or choose a shorter window"
            )
        # In shared memory, so that all workers use the same list.
        self._stream = torch.from_numpy(stream).share_memory_()
        self._row = torch.from_numpy(row).share_memory_()

    def __len__(self) -> int:
        return len(self._row)

    def __getitem__(self, index: Any) -> Any:
        """The sample at one start, or a batch for a list or array of start numbers."""
        number = np.asarray(index)
        if number.ndim > 1 or number.dtype.kind not in "iu":
            raise BadConfig(
                f"LakeWindows: expected a whole number or a list of them, got "
                f"{number.dtype} {number.shape}"
            )
        wrong = (number < -len(self)) | (number >= len(self))
        if wrong.any():
            got = np.atleast_1d(number)[np.atleast_1d(wrong)][0]
            raise IndexError(f"LakeWindows: there is no start {got}, only 0 to {len(self) - 1}")
        number = number.astype(np.int64) % len(self)
        batch = self._take(np.atleast_1d(number))
        return batch if number.ndim else each(batch, lambda part: part[0])

    def _take(self, number: np.ndarray) -> Any:
        """A batch of tensors; in a worker they are in shared memory."""
        made = self._block(len(number)).make(shared=data.get_worker_info() is not None)
        stream, row = self._stream.numpy()[number], self._row.numpy()[number]
        out = each(made, lambda part: part.numpy())
        out = out._replace(draw=out.draw._replace(probability=None))
        batch: Any = self.lake.take(stream, row, self.window, out)
        # A sequence may have masked rows; if it was evicted, all of them are.
        there = batch.mask.any(1) if isinstance(batch, SequenceBatch) else batch.mask
        if not there.all():
            gone = int(np.argmin(there))
            raise RowsGone(
                f"LakeWindows: row {row[gone]} of stream {stream[gone]} was evicted after this "
                "dataset was made; make it again, or raise the Lake's capacity"
            )
        # Filled in, because PyTorch's own collation does not accept None.
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
        """16 hex digits that identify the list of starts."""
        digest = xxhash.xxh3_64(repr(self.window).encode())
        digest.update(self.lake.spec.fingerprint().encode())
        digest.update(self._stream.numpy())
        digest.update(self._row.numpy())
        return digest.hexdigest()


class LakeBatches(data.IterableDataset):
    """An iterable dataset of batches with every start once, in an order given by seed and epoch.

        loader = DataLoader(LakeBatches(windows, 256, seed=1), batch_size=None, num_workers=2)

    Workers take turns, so the order of batches does not depend on their number. It begins with
    batch number `begin`; the last batch of an epoch may be smaller.
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
        """The number of batches left."""
        return max(0, self.end - self.begin)

    def __iter__(self) -> Iterator[Any]:
        worker = data.get_worker_info()
        first, step = (worker.id, worker.num_workers) if worker else (0, 1)
        mine = range(self.begin + first, self.end, step)
        for at in range(0, len(mine), _AHEAD):
            for numbers in self.numbers(mine[at : at + _AHEAD]):
                yield self.windows[numbers]

    def numbers(self, batches: Sequence[int]) -> list[np.ndarray]:
        """The start numbers of these batches; many at once take hardly longer than one."""
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
    """Batches of tensors from a Lake, epoch after epoch, with exact resume.

        loader = LakeLoader("runs/lake", 256, Window(n_step=3), seed=1, workers=2)
        for batch in loader:                  # the rest of this epoch; loop again for the next
            learn(batch)
            torch.save(loader.state_dict(), "loader.pt")

    After `load_state_dict`, a loader over the same starts continues with the batch after the last
    one that was yielded, whatever workers had prefetched. `start` is how workers start; "fork" is
    faster but not safe with JAX's threads. `pin` puts batches into pinned memory if there is CUDA.
    `overlap` is as in `LakeWindows`.
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
            raise BadConfig(f"LakeLoader: the dataset has {lake.window}, got {window}; omit window")
        _at_least("LakeLoader: batch", batch, 1)
        _at_least("LakeLoader: workers", workers, 0)
        _at_least("LakeLoader: seed", seed, 0)
        self.windows = lake if isinstance(lake, LakeWindows) else LakeWindows(lake, window, overlap)
        self.batch, self.shuffle, self.seed = batch, shuffle, seed
        self.epoch, self.begin = 0, 0  # the epoch, and batches of it that were yielded
        self._workers: dict[str, Any] = {"num_workers": workers, "pin_memory": pin and _cuda()}
        if workers:
            self._workers["multiprocessing_context"] = start
        self._running: object = None

    def __len__(self) -> int:
        """The number of batches left in this epoch."""
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
                    "LakeLoader: its position was changed by another iterator or by "
                    "load_state_dict(); use one iterator at a time, or several loaders"
                )
            self.begin += 1  # before the yield, after which the caller may save the state
            yield batch
        if self._running is mine:
            self.epoch, self.begin = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """The position as plain values: `loader.load_state_dict(state)`."""
        return {**self._same(), "epoch": self.epoch, "begin": self.begin}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a saved position; BadState if it belongs to another order of batches."""
        for name, mine in self._same().items():
            if name not in state or state[name] != mine:
                raise BadState(
                    f"LakeLoader: the state has {name} {state.get(name)!r}, but this loader has "
                    f"{mine!r}; use the settings and the Lake that the state was saved with"
                )
        for name in ("epoch", "begin"):
            _at_least(f"LakeLoader: the state's {name}", state.get(name), 0)
        self.epoch, self.begin, self._running = state["epoch"], state["begin"], None

    def _same(self) -> dict[str, Any]:
        """Everything that determines the order of batches."""
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
        raise BadConfig(f"{what} must be a whole number of at least {least}, got {number!r}")


def _cuda() -> bool:
    return bool(torch.cuda.is_available())
