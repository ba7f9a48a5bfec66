"""32-bit words on a device, where JAX has no 64-bit integers: ids, random numbers, data threads."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array

WIDE = 1024  # bytes; values at least this wide are frames, which are handled differently on CPUs


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
        """`most` is the largest bound that numbers will be drawn below."""
        self._key, self._used = key, 0
        # A 32-bit word maps about 2^32 / most values to each number; with few, that is uneven.
        self._fine = most > 1 << 22

    def _next(self) -> Array:
        """The key for the next draw. At first the key itself, since a split costs a GPU kernel."""
        key = jax.random.fold_in(self._key, self._used) if self._used else self._key
        self._used += 1
        return key

    def integers(self, shape: tuple[int, ...], *below: Array) -> tuple[Array, ...]:
        """One int32[tries, ...] in [0, b) for each b in `below`: the high half of a product.

        Probabilities differ by at most a factor of 1 + 2^-10. Only the first try draws new words;
        later ones, which few samples need, rehash these in a tenth of the time.
        """
        words = jax.random.bits(self._next(), (len(below), *shape[1:]), np.uint32)
        turns = np.arange(shape[0], dtype=np.uint32).reshape(-1, *(1,) * (len(shape) - 1))
        words = [_hash(word, turns) for word in words]
        return tuple(self._scaled(word, limit) for word, limit in zip(words, below, strict=True))

    def _scaled(self, word: Array, below: Array) -> Array:
        """int32 in [0, below): word * below / 2^32."""
        if not self._fine:
            return _high_half(word, below)
        fine = jax.random.bits(self._next(), word.shape, np.uint32)
        low = word * jnp.asarray(below).astype(np.uint32)
        carried = low + _high_half(fine, below).astype(np.uint32) < low
        return _high_half(word, below) + carried

    def stratum(self, stratum: Array, length: Array) -> Array:
        """int32[batch] in [0, length): number i from part stratum[i] of `batch` equal parts."""
        batch = stratum.shape[0]
        edges = -(np.arange(batch + 1, dtype=np.int64) * -(1 << 32) // batch)  # rounded up
        width = (edges[1:] - edges[:-1]).astype(np.uint32)  # 0 is 2^32: a batch of one
        begin = jnp.asarray(edges[:-1].astype(np.uint32))[stratum]
        bits = jax.random.bits(self._next(), (batch,), np.uint32)
        within = bits if batch == 1 else _high_half(bits, jnp.asarray(width)[stratum])
        word = begin + within.astype(np.uint32)
        if isinstance(length, int):  # streams: the carry of `_scaled` could leave the stratum
            return _high_half(word, length)
        return self._scaled(word, length)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """float32 in [0, 1)."""
        return jax.random.uniform(self._next(), shape)

    def search(self, ends: Array, values: Array) -> Array:
        """int32: for each value, how many of the sorted `ends` are not above it."""

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
    """Different words for every turn, unchanged for turn 0: murmur3's finalizer, a bijection."""
    mixed = words + np.uint32(0x9E3779B9) * turn
    mixed = (mixed ^ (mixed >> 16)) * np.uint32(0x85EBCA6B)
    mixed = (mixed ^ (mixed >> 13)) * np.uint32(0xC2B2AE35)
    return jnp.where(turn == 0, words, mixed ^ (mixed >> 16))


def around(position: Array, length: int) -> Array:
    """Wrap a position in [-length, 2 * length) into [0, length): cheaper than a remainder."""
    position = jnp.where(position < 0, position + length, position)
    return jnp.where(position >= length, position - length, position)


def finished(tree: Any, zero: Array) -> tuple[Any, Array]:
    """The tree and `zero`, unchanged, but with `zero` depending on all arrays [batch, ...] of it.

    So reads of a ring finish before later writes, which mix in `zero`: on CPU, XLA would otherwise
    copy the ring; on GPU nothing is done. Continue with the returned tree. Narrow arrays are read
    once more, element by element; that would be slow for frames, which instead pass through a loop,
    after which one element stands for all.
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
    """Reduce leaves to one word: first over the batch, which vectorises, then over the rest. By a
    different operation, or the compiler would fuse both into one slow reduction."""
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
    """The tree, unchanged, as the result of a loop with no iterations.

    The compiler cannot know that, so every array is computed completely, and once, before its use.
    """

    def turn(number: Array, tree: Any) -> Any:
        return jax.tree.map(lambda leaf: mix(leaf, number.astype(np.uint32)), tree)

    return jax.lax.fori_loop(0, zero.astype(np.int32), turn, tree)


def mix(block: Array, zero: Array) -> Array:
    """The block, unchanged, but dependent on `zero`, which is always 0."""
    if block.dtype == bool:
        return block | (zero != 0)
    word = f"uint{block.dtype.itemsize * 8}"
    bits = jax.lax.bitcast_convert_type(block, word) | zero.astype(word)
    return jax.lax.bitcast_convert_type(bits, block.dtype)


def settle(tree: Any, zero: Array) -> Any:
    """The tree, unchanged, but computed once, before its use.

    XLA on CPU recomputes an index, and everything it depends on, for every gathered element; the
    loop prevents that. A GPU does not need it.
    """
    return jax.lax.platform_dependent(tree, zero, cpu=_behind, default=lambda tree, _: tree)


def together(tree: Any) -> Any:
    """The tree, unchanged, but computed before its use; does nothing on CPU.

    On GPU, XLA would otherwise repeat the choice among all candidates in every gather.
    """
    return jax.lax.platform_dependent(
        tree, cpu=lambda tree: tree, default=jax.lax.optimization_barrier
    )
