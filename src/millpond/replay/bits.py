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
        """int32[tries, ...] in [0, below): the high half of a 32 x 32 bit product.

        The bias is under below / 2^32. Only the first try draws new words; later ones, which few
        samples need, hash them again, for a tenth of the time.
        """
        words = jax.random.bits(self._next(), shape[1:], np.uint32)
        bits = jnp.stack([_hash(words, round_) for round_ in range(shape[0])])
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


def _hash(words: Array, round_: int) -> Array:
    """Words of their own for every round: a bijection of uint32 (murmur3's finalizer)."""
    if round_ == 0:
        return words
    words = words + np.uint32(0x9E3779B9 * round_ & 0xFFFFFFFF)
    words = (words ^ (words >> 16)) * np.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * np.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def around(position: Array, length: int) -> Array:
    """position in [-length, 2 * length) brought into [0, length): cheaper than a remainder."""
    position = jnp.where(position < 0, position + length, position)
    return jnp.where(position >= length, position - length, position)


def fold(tree: Any) -> Array:
    """A uint32 that depends on every element of every array [batch, ...] of a tree.

    First over the batch, which vectorises, then over the rest by another operation, or the
    compiler would make one slow reduction of the two.
    """
    seen = jnp.uint32(0)
    for leaf in jax.tree.leaves(tree):
        if leaf.dtype == bool:
            leaf = leaf.astype(np.uint8)
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{leaf.dtype.itemsize * 8}")
        rest = jax.lax.reduce(bits, bits.dtype.type(0), jax.lax.bitwise_or, (0,))
        seen = seen | rest.max().astype(np.uint32)
    return seen


def mix(block: Array, zero: Array) -> Array:
    """The block, unchanged, but computed from `zero`, which is always 0."""
    if block.dtype == bool:
        return block | (zero != 0)
    word = f"uint{block.dtype.itemsize * 8}"
    bits = jax.lax.bitcast_convert_type(block, word) | zero.astype(word)
    return jax.lax.bitcast_convert_type(bits, block.dtype)


def settle(tree: Any, zero: Array) -> Any:
    """The tree, unchanged, but computed once, before anything that uses it.

    XLA on CPU computes an index anew for every element it gathers, with all that led to it; not
    across a loop. `zero` is always 0, so the loop turns once, but the compiler does not know. A
    GPU does better without.
    """

    def once(tree: Any) -> Any:
        def turn(number: Array, tree: Any) -> Any:
            return jax.tree.map(lambda leaf: mix(leaf, number.astype(np.uint32)), tree)

        return jax.lax.fori_loop(0, 1 + zero.astype(np.int32), turn, tree)

    return jax.lax.platform_dependent(tree, cpu=once, default=lambda tree: tree)
