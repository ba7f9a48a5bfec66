"""`TreeLayout`: how a tree of arrays, given by a template, lies in one flat buffer."""

from __future__ import annotations

import hashlib
import json
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import BadConfig, SpecMismatch

_LINE = 64  # arrays begin on cache lines, as JAX uses aligned arrays without a copy
Tree = Any


class Leaf(NamedTuple):
    """One array of the tree: its path, shape, dtype, and its bytes in the buffer."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype
    start: int
    stop: int


class TreeLayout:
    """The leaves of `template` in order: `layout.write(tree, out)`, `layout.read(buffer)`."""

    def __init__(self, template: Tree) -> None:
        paths, self._structure = jax.tree_util.tree_flatten_with_path(template)
        if not paths:
            raise BadConfig("Weights: the template holds no array; give a tree of parameters")
        self.leaves: list[Leaf] = []
        end = 0
        for path, value in paths:
            shape, dtype = np.shape(value), _dtype(value)
            size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
            self.leaves.append(Leaf(jax.tree_util.keystr(path), shape, dtype, end, end + size))
            end += -(-size // _LINE) * _LINE
        self.nbytes = end

    def describe(self) -> list[str]:
        """Every leaf as text: `['params']['bias'] float32 (64,)`."""
        return [f"{leaf.name} {leaf.dtype} {leaf.shape}" for leaf in self.leaves]

    def fingerprint(self) -> int:
        """64 bits that are equal for equal names, shapes and dtypes in the same order."""
        text = json.dumps(self.describe())
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")

    def compare(self, expected: list[str]) -> None:
        """Raise SpecMismatch for the first leaf that is not the expected one."""
        own = self.describe()
        for here, there in zip(own, expected, strict=False):
            if here != there:
                raise _mismatch(there, here)
        if len(own) != len(expected):
            raise _mismatch(f"{len(expected)} arrays", f"{len(own)}")

    def write(self, tree: Tree, out: np.ndarray) -> None:
        """Copy every array of the tree to its place in out: uint8[nbytes]."""
        values, structure = jax.tree_util.tree_flatten(tree)
        if structure != self._structure:
            raise _mismatch(f"a tree like {self._structure}", f"{structure}")
        arrays = [np.asarray(value) for value in values]
        for leaf, array in zip(self.leaves, arrays, strict=True):  # check all before any is written
            if array.shape != leaf.shape or array.dtype != leaf.dtype:
                wanted = f"{leaf.name} {leaf.dtype} {leaf.shape}"
                raise _mismatch(wanted, f"{array.dtype} {array.shape}")
        for leaf, array in zip(self.leaves, arrays, strict=True):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            out[leaf.start : leaf.stop] = flat

    def read(self, buffer: np.ndarray) -> Tree:
        """The tree whose arrays are views of buffer: uint8[nbytes]."""
        values = [
            buffer[leaf.start : leaf.stop].view(leaf.dtype).reshape(leaf.shape)
            for leaf in self.leaves
        ]
        return jax.tree_util.tree_unflatten(self._structure, values)


def aligned(size: int) -> np.ndarray:
    """uint8[size], uninitialised, that begins on a cache line."""
    whole = np.empty(size + _LINE, np.uint8)
    start = -whole.ctypes.data % _LINE
    return whole[start : start + size]


def _dtype(value: Any) -> np.dtype:
    dtype = getattr(value, "dtype", None)
    return np.asarray(value).dtype if dtype is None else np.dtype(dtype)


def _mismatch(expected: str, got: str) -> SpecMismatch:
    return SpecMismatch(
        f"weights: expected {expected}, got {got}; build every process's network from one config"
    )
