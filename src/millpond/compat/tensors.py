"""`as_torch`: batches as PyTorch tensors that share memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import jax
import numpy as np

from ..errors import SpecMismatch
from .need import need

torch = need("torch", "torch")
_Tree = TypeVar("_Tree")


def as_torch(batch: _Tree, device: Any = None, non_blocking: bool = False) -> _Tree:
    """The same batch, rows or observation with tensors instead of arrays.

    On the CPU a tensor shares the memory of its array: changes to one change the other, and the
    next `sample(out=batch)` overwrites both. Tensors of JAX arrays must not be written to.
    Read-only arrays are copied. Unsigned integers keep their dtype; `torch.uint32` supports few
    operations. With `device`, tensors are copied there; with `non_blocking`, the call returns at
    once if the arrays are in pinned memory, and they must not change until the copy is done.

        batch = as_torch(pond.sample(256))
        batch = as_torch(pond.sample(256, out=pinned), "cuda")
    """

    def tensor(array: Any, path: str) -> Any:
        found = _tensor(array, path)
        return found if device is None else found.to(device, non_blocking=non_blocking)

    return _map(tensor, batch, "batch")


def pinned_like(batch: _Tree) -> _Tree:
    """A batch with arrays like these in pinned memory, which copies fastest to a CUDA device.

    Without CUDA it is ordinary memory. `out = pinned_like(pond.sample(256))`, then
    `as_torch(pond.sample(256, out=out), "cuda")`.
    """
    pin = torch.cuda.is_available()

    def blank(array: Any, path: str) -> Any:
        like = _tensor(array, path)
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=pin).numpy()

    return _map(blank, batch, "batch")


def _tensor(array: Any, path: str) -> Any:
    if isinstance(array, torch.Tensor):
        return array
    if isinstance(array, jax.Array):
        return torch.from_dlpack(array.block_until_ready())
    array = np.asarray(array)
    try:
        return torch.from_numpy(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError) as error:
        raise SpecMismatch(
            f"as_torch: {path} is {array.dtype} {array.shape}, which PyTorch cannot share "
            f"({error}); declare the field with a dtype that PyTorch has, or convert the array"
        ) from error


def each(tree: _Tree, change: Callable[[Any], Any]) -> _Tree:
    """Apply a function to every leaf except None: `each(batch, lambda part: part[0])`."""
    return _map(lambda leaf, _: change(leaf), tree, "")


def _map(change: Any, tree: Any, path: str) -> Any:
    """Apply `change(array, path)` to every array in nested tuples and dicts."""
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {key: _map(change, value, f"{path}.{key}") for key, value in tree.items()}
    if isinstance(tree, tuple):
        names = getattr(tree, "_fields", range(len(tree)))
        parts = [_map(change, part, f"{path}.{n}") for n, part in zip(names, tree, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return change(tree, path)
