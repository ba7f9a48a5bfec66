"""32-bit words on a device, where JAX has no 64-bit integers: ids, random numbers, data threads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array


def plus(words: Array, amount: Array) -> Array:
    """uint32[..., 2] (high, low) plus uint32[...], with carry."""
    low = words[..., 1] + amount
    return jnp.stack([words[..., 0] + (low < amount), low], axis=-1)


def minus(words: Array, amount: Array) -> Array:
    """uint32[..., 2] (high, low) minus uint32[...], with borrow."""
    low = words[..., 1] - amount
    return jnp.stack([words[..., 0] - (words[..., 1] < amount), low], axis=-1)


def words(number: int) -> np.ndarray:
    """A Python integer as uint32[2]: high, low."""
    return np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)


class KeyRandom:
    """Random numbers from one key, for samplers inside jit."""

    xp: Any = jnp

    def __init__(self, key: Array) -> None:
        self._key = key

    def _next(self) -> Array:
        self._key, key = jax.random.split(self._key)
        return key

    def integers(self, shape: tuple[int, ...], below: Array) -> Array:
        """int32 in [0, below): the high half of a 32 x 32 bit product, bias under below / 2^32."""
        bits = jax.random.bits(self._next(), shape, np.uint32)
        below = jnp.asarray(below).astype(np.uint32)
        low = (bits & 0xFFFF) * (below & 0xFFFF)
        mid = (bits >> 16) * (below & 0xFFFF) + (low >> 16)
        carry = (bits & 0xFFFF) * (below >> 16) + (mid & 0xFFFF)
        high = (bits >> 16) * (below >> 16) + (mid >> 16) + (carry >> 16)
        return high.astype(np.int32)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """float32 in [0, 1)."""
        return jax.random.uniform(self._next(), shape)

    def permutation(self, number: int) -> Array:
        """0 ... number - 1 in random order."""
        return jax.random.permutation(self._next(), number)


def fold(tree: Any) -> Array:
    """Every bit of every array of a tree, ored into one uint32."""
    seen = jnp.uint32(0)
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype == bool:
            leaf = leaf.astype(np.uint8)
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{leaf.dtype.itemsize * 8}")
        whole = jax.lax.reduce(bits, bits.dtype.type(0), jax.lax.bitwise_or, range(bits.ndim))
        seen = seen | whole.astype(np.uint32)
    return seen


def mix(block: Array, zero: Array) -> Array:
    """The block, unchanged, but computed from `zero`, which is always 0."""
    if block.dtype == bool:
        return block | (zero != 0)
    word = f"uint{block.dtype.itemsize * 8}"
    bits = jax.lax.bitcast_convert_type(block, word) | zero.astype(word)
    return jax.lax.bitcast_convert_type(bits, block.dtype)
