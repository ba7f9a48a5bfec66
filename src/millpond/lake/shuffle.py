"""`Shuffle`: a random permutation of 0 ... n - 1 in constant memory."""

from __future__ import annotations

import numpy as np

_ROUNDS = 6


class Shuffle:
    """A permutation of [0, n), different for each seed and turn: `Shuffle(10, 1)(np.arange(10))`.

    A Feistel network over the next power of four, applied again to results that are not below n;
    that ends because the network is a permutation too.
    """

    def __init__(self, number: int, seed: int, turn: int = 0) -> None:
        self.number = number
        self._half = max(1, -(-max(number - 1, 1).bit_length() // 2))
        keys = np.random.Generator(np.random.PCG64([seed, turn]))
        self._keys = keys.integers(0, 2**63, _ROUNDS, np.uint64)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """The numbers int64[...] at these positions of the permutation."""
        found = self._network(np.asarray(positions, np.uint64))
        outside = found >= self.number
        while outside.any():
            found[outside] = self._network(found[outside])
            outside = found >= self.number
        return found.astype(np.int64)

    def _network(self, values: np.ndarray) -> np.ndarray:
        half = np.uint64(self._half)
        mask = np.uint64((1 << self._half) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            mixed = (right + key) * np.uint64(0x9E3779B97F4A7C15)
            mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0xD6E8FEB86659FD93)
            left, right = right, left ^ ((mixed >> np.uint64(29)) & mask)
        return (left << half) | right
