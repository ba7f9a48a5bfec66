"""`BatchBlock`: all tensors of a batch in one block of memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from .tensors import each, torch

_ALIGN = 64  # bytes


class BatchBlock:
    """Makes batches like a given one, each in a block of its own.

    A shared block takes one file to pass to another process, instead of one per tensor. With
    `overlap`, `obs` and `next_obs` are views of the same frames[batch, stack + 1].
    `tensors = BatchBlock(batch, overlap=True).make(shared=False)`.
    """

    def __init__(self, like: Any, overlap: bool) -> None:
        self._overlap, self._size = overlap, 0
        if not overlap:
            self._places = each(like, self._place)
            return
        frames = each(like.obs, lambda obs: self._place(obs, 1))
        rest = each(like._replace(obs=None, next_obs=None), self._place)
        self._places = rest._replace(obs=frames)

    def make(self, shared: bool) -> Any:
        """A batch of uninitialised tensors."""
        if shared:  # as PyTorch's own collation does in workers, to avoid a copy
            storage = torch.UntypedStorage._new_shared(self._size)
            block = torch.empty(0, dtype=torch.uint8).set_(storage)
        else:
            block = torch.empty(self._size, dtype=torch.uint8)

        def tensor(place: _Place) -> Any:
            part = block[place.start : place.start + place.nbytes]
            return part.view(place.dtype).view(place.shape)

        made = each(self._places, tensor)
        if not self._overlap:
            return made
        frames = made.obs
        return made._replace(
            obs=each(frames, lambda part: part[:, :-1]),
            next_obs=each(frames, lambda part: part[:, 1:]),
        )

    def _place(self, array: np.ndarray, more: int = 0) -> _Place:
        """The next place in the block, with room for `more` frames per stack."""
        shape = list(array.shape)
        if more:
            shape[1] += more
        dtype = torch.from_numpy(np.empty(0, array.dtype)).dtype
        place = _Place(self._size, tuple(shape), dtype, array.dtype.itemsize)
        self._size += -(-place.nbytes // _ALIGN) * _ALIGN
        return place


class _Place:
    """The position of a tensor in its block."""

    def __init__(self, start: int, shape: tuple[int, ...], dtype: Any, width: int) -> None:
        self.start, self.shape, self.dtype = start, shape, dtype
        self.nbytes = int(np.prod(shape)) * width
