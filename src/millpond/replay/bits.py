"""32-bit words on a device, where JAX has no 64-bit integers: ids, random numbers, data threads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array

WIDE = 1024  # bytes: from there on a value counts as a frame, and CPUs treat it otherwise


def plus(words: Array, amount: Array) -> Array:
    """uint32[..., 2] (high, low) plus uint32[...], with carry."""
    low = words[..., 1] + amount
    return jnp.stack([words[..., 0] + (low < amount), low], axis=-1)


def minus(words: Array, amount: Array) -> Array:
    """uint32[..., 2] (high, low) minus uint32[...], with borrow."""
    low = words[..., 1] - amount
    return jnp.stack([words[..., 0] - (words[..., 1] < amount), low], axis=-1)


def remainder(words: Array, by: int) -> Array:
    """uint32[...]: uint32[..., 2] (high, low) modulo `by`, which is below 2^16."""
    divisor, carry = np.uint32(by), np.uint32((1 << 32) % by)
    return ((words[..., 0] % divisor) * carry % divisor + words[..., 1] % divisor) % divisor


def words(number: int) -> np.ndarray:
    """A Python integer as uint32[2]: high, low."""
    return np.array([number >> 32, number & 0xFFFFFFFF], np.uint32)


class KeyRandom:
    """Random numbers from one key, for samplers inside jit."""

    xp: Any = jnp
    real: Any = np.float32
    whole: Any = np.int32

    def __init__(self, key: Array, most: int = 0) -> None:
        """`most` is the largest number that will be drawn below."""
        self._key, self._used = key, 0
        # One word gives 2^32 / most values per number: with few, some get one more than others.
        self._fine = most > 1 << 22

    def _next(self) -> Array:
        """The key itself at first: most samplers ask once, and a split costs a GPU a kernel."""
        key = jax.random.fold_in(self._key, self._used) if self._used else self._key
        self._used += 1
        return key

    def integers(self, shape: tuple[int, ...], *below: Array) -> tuple[Array, ...]:
        """int32[tries, ...] in [0, below), for each of `below`: the high half of a product.

        No number is likelier than another by more than 2^-10. Only the first try draws new words;
        later ones, which few samples need, hash them again, for a tenth of the time.
        """
        words = jax.random.bits(self._next(), (len(below), *shape[1:]), np.uint32)
        turns = np.arange(shape[0], dtype=np.uint32).reshape(-1, *(1,) * (len(shape) - 1))
        words = [_hash(word, turns) for word in words]
        return tuple(self._scaled(word, limit) for word, limit in zip(words, below, strict=True))

    def _scaled(self, word: Array, below: Array) -> Array:
        """int32 in [0, below): word / 2^32 of it."""
        if not self._fine:
            return _high_half(word, below)
        fine = jax.random.bits(self._next(), word.shape, np.uint32)
        low = word * jnp.asarray(below).astype(np.uint32)
        carried = low + _high_half(fine, below).astype(np.uint32) < low
        return _high_half(word, below) + carried

    def stratum(self, stratum: Array, length: Array) -> Array:
        """int32[batch] in [0, length), each in its own one of `batch` equal parts of that span."""
        batch = stratum.shape[0]
        edges = -(np.arange(batch + 1, dtype=np.int64) * -(1 << 32) // batch)  # rounded up
        width = (edges[1:] - edges[:-1]).astype(np.uint32)  # 0 is 2^32: a batch of one
        begin = jnp.asarray(edges[:-1].astype(np.uint32))[stratum]
        bits = jax.random.bits(self._next(), (batch,), np.uint32)
        within = bits if batch == 1 else _high_half(bits, jnp.asarray(width)[stratum])
        word = begin + within.astype(np.uint32)
        if isinstance(length, int):  # few streams: a part must not reach into the next one's
            return _high_half(word, length)
        return self._scaled(word, length)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """float32 in [0, 1)."""
        return jax.random.uniform(self._next(), shape)

    def search(self, ends: Array, values: Array) -> Array:
        """int32: how many of the sorted `ends` each value has reached."""

        def unrolled(ends: Array, values: Array) -> Array:  # one kernel, not a loop of them
            return jnp.searchsorted(ends, values, side="right", method="scan_unrolled")

        def loop(ends: Array, values: Array) -> Array:
            return jnp.searchsorted(ends, values, side="right")

        found = jax.lax.platform_dependent(ends, values, cpu=loop, default=unrolled)
        return found.astype(np.int32)

    def permutation(self, number: int) -> Array:
        """0 ... number - 1 in random order."""
        return jax.random.permutation(self._next(), number)


def _high_half(bits: Array, below: Array) -> Array:
    below = jnp.asarray(below).astype(np.uint32)
    low = (bits & 0xFFFF) * (below & 0xFFFF)
    mid = (bits >> 16) * (below & 0xFFFF) + (low >> 16)
    carry = (bits & 0xFFFF) * (below >> 16) + (mid & 0xFFFF)
    high = (bits >> 16) * (below >> 16) + (mid >> 16) + (carry >> 16)
    return high.astype(np.int32)


def _hash(words: Array, turn: Array) -> Array:
    """Words of their own for every turn: a bijection of uint32 (murmur3's finalizer)."""
    mixed = words + np.uint32(0x9E3779B9) * turn
    mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    return jnp.where(turn == 0, words, mixed ^ (mixed >> 16))


def around(position: Array, length: int) -> Array:
    """position in [-length, 2 * length) brought into [0, length): cheaper than a remainder."""
    position = jnp.where(position < 0, position + length, position)
    return jnp.where(position >= length, position - length, position)


def finished(tree: Any, zero: Array) -> tuple[Any, Array]:
    """The tree and `zero`, unchanged; `zero` is computed from all of its arrays [batch, ...].

    Only on CPU, where XLA would copy a ring that is read before it is written; a GPU does not.
    Continue with the tree that is returned. Narrow arrays are read once more, element by element,
    which would be slow for frames: those come out of a loop, and one element stands for all.
    """

    def seen(tree: Any, zero: Array) -> tuple[Any, Array]:
        leaves, structure = jax.tree.flatten(tree)
        wide = [leaf for leaf in leaves if _wide(leaf)]
        narrow = [leaf for leaf in leaves if not _wide(leaf)]
        wide = _behind(wide, zero)
        zero = zero & _fold([*narrow, *(leaf[(slice(1),) * leaf.ndim] for leaf in wide)])
        rest = iter(wide)
        return structure.unflatten([next(rest) if _wide(leaf) else leaf for leaf in leaves]), zero

    return jax.lax.platform_dependent(tree, zero, cpu=seen, default=lambda tree, zero: (tree, zero))


def _wide(leaf: Array) -> bool:
    return leaf.size * leaf.dtype.itemsize >= WIDE * max(1, leaf.shape[0])


def _fold(leaves: list[Array]) -> Array:
    """First over the batch, which vectorises, then over the rest by another operation, or the
    compiler would make one slow reduction of the two."""
    seen = jnp.uint32(0)
    for leaf in leaves:
        if not leaf.size:
            continue
        if leaf.dtype == bool:
            leaf = leaf.astype(np.uint8)
        bits = jax.lax.bitcast_convert_type(leaf, f"uint{leaf.dtype.itemsize * 8}")
        rest = jax.lax.reduce(bits, bits.dtype.type(0), jax.lax.bitwise_or, (0,))
        seen = seen | rest.max().astype(np.uint32)
    return seen


def _behind(tree: Any, zero: Array) -> Any:
    """The tree, unchanged, as what comes out of a loop that never turns.

    The compiler does not know, so all of every array is computed before anything that uses it, and
    computed once.
    """

    def turn(number: Array, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: mix(leaf, number.astype(np.uint32)), tree)

    return jax.lax.fori_loop(0, zero.astype(np.int32), turn, tree)


def mix(block: Array, zero: Array) -> Array:
    """The block, unchanged, but computed from `zero`, which is always 0."""
    if block.dtype == bool:
        return block | (zero != 0)
    word = f"uint{block.dtype.itemsize * 8}"
    bits = jax.lax.bitcast_convert_type(block, word) | zero.astype(word)
    return jax.lax.bitcast_convert_type(bits, block.dtype)


def settle(tree: Any, zero: Array) -> Any:
    """The tree, unchanged, but computed once, before anything that uses it.

    XLA on CPU computes an index again for every element it gathers, with all that led to it; not
    across a loop. A GPU is not slower without.
    """
    return jax.lax.platform_dependent(tree, zero, cpu=_behind, default=lambda tree, _: tree)


def together(tree: Any) -> Any:
    """The tree, unchanged, but computed before anything that uses it; not on CPU.

    A GPU's XLA would let every gather choose its rows again among all candidates, for each element.
    """
    return jax.lax.platform_dependent(
        tree, cpu=lambda tree: tree, default=jax.lax.optimization_barrier
    )
