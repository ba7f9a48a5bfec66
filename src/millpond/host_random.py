"""`HostRandom`: the random numbers of samplers on the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import BadState


class HostRandom:
    """The `Random` of samplers over NumPy: a generator whose state can be saved."""

    xp: Any = np
    real: Any = np.float64
    whole: Any = np.int64

    def __init__(self, seed: int | np.random.Generator) -> None:
        if not isinstance(seed, np.random.Generator):
            seed = np.random.Generator(np.random.PCG64(seed))
        self.generator = seed

    def integers(self, shape: tuple[int, ...], *below: Any) -> tuple[np.ndarray, ...]:
        """Whole numbers in [0, below), for each of `below`."""
        return tuple(self._integers(shape, limit) for limit in below)

    def _integers(self, shape: tuple[int, ...], limit: Any) -> np.ndarray:
        if np.ndim(limit):  # a limit each; 0 where a stream holds nothing, which is judged later
            return self.generator.integers(0, np.maximum(limit, 1), shape)
        if limit == 1:
            return np.zeros(shape, np.int64)
        return self.generator.integers(0, int(limit), shape)

    def stratum(self, stratum: np.ndarray, length: Any) -> np.ndarray:
        """int64[batch] in [0, length): number i from part stratum[i] of `batch` equal parts."""
        part = self.generator.random(len(stratum))
        part += stratum
        part *= length / len(stratum)
        most = np.maximum(length, 1) - 1 if np.ndim(length) else max(length, 1) - 1
        return np.minimum(part.astype(np.int64), most)

    def uniform(self, shape: tuple[int, ...]) -> np.ndarray:
        """float64 in [0, 1)."""
        return self.generator.random(shape)

    def search(self, ends: np.ndarray, values: np.ndarray) -> np.ndarray:
        """For each value, how many of the sorted `ends` are not above it."""
        return np.searchsorted(ends, values, side="right")

    def permutation(self, number: int) -> np.ndarray:
        """0 ... number - 1 in random order."""
        return self.generator.permutation(number)

    def pack(self) -> np.ndarray:
        """The generator's state as uint64[6]."""
        state = self.generator.bit_generator.state
        words = [state["state"]["state"], state["state"]["inc"]]
        halves = [half for word in words for half in (word >> 64, word & (2**64 - 1))]
        return np.array([*halves, state["has_uint32"], state["uinteger"]], np.uint64)

    def unpack(self, packed: np.ndarray) -> None:
        """Restore a packed state; BadState, and no change, if it is damaged."""
        packed = np.asarray(packed)
        if packed.shape != (6,) or packed.dtype != np.uint64 or packed[4] > 1 or packed[5] >> 32:
            raise BadState(
                f"rng: expected the generator's state, uint64 (6,), got {packed.dtype} "
                f"{packed.shape} or words out of range; the state is damaged"
            )
        words = [int(word) for word in packed]
        self.generator.bit_generator.state = {
            "bit_generator": "PCG64",
            "state": {"state": words[0] << 64 | words[1], "inc": words[2] << 64 | words[3]},
            "has_uint32": words[4],
            "uinteger": words[5],
        }
