"""Trees of exact sums over priorities, on a device and on the host.

Every node is the sum of its children, computed again from them, in the order a draw adds them up:
nothing is ever incremented, so nothing drifts, and a leaf of 0 can never be drawn. Each level of a
draw uses fresh random numbers, so ten million leaves are distinguished as finely as ten.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array, Draw
from ..spec import mismatch
from .bits import settle

# The largest priority: the sum of 2^31 of them is still a finite float32.
LARGEST = 1e25


def one_per_draw(draw: Draw, priorities: Array) -> Array:
    """The priorities, if there is exactly one number for each drawn row; nothing is broadcast."""
    if not isinstance(draw, Draw):
        raise mismatch("draw", "a Draw", type(draw).__name__, "pass `batch.draw`")
    wanted, remedy = tuple(np.shape(draw.stream)), "one per drawn row"
    if tuple(priorities.shape) != wanted:
        raise mismatch("priorities", f"shape {wanted}", f"{tuple(priorities.shape)}", remedy)
    if np.dtype(priorities.dtype).kind not in "fiu":
        raise mismatch("priorities", "numbers", f"{priorities.dtype}", remedy)
    return priorities


class Priorities(NamedTuple):
    """Device: the tree's sums and what the sampler remembers, in few arrays as the ring."""

    tree: Array  # float32: the leaves, then every level above them
    notes: Array  # uint32[3]: the bits of `highest`, `samples`, `refused`

    @staticmethod
    def new(tree: Array, highest: Array = 1, samples: Array = 0, refused: Array = 0) -> Priorities:
        """Nothing drawn yet; the first starts get 1."""
        bits = jax.lax.bitcast_convert_type(jnp.asarray(highest, np.float32), np.uint32)
        counts = (jnp.asarray(count, np.uint32) for count in (samples, refused))
        return Priorities(tree, jnp.stack([bits, *counts]))

    @property
    def highest(self) -> Array:
        """float32: the largest priority^alpha seen; new starts get it."""
        return jax.lax.bitcast_convert_type(self.notes[..., 0], np.float32)

    @property
    def samples(self) -> Array:
        """uint32: how many batches were drawn."""
        return self.notes[..., 1]

    @property
    def refused(self) -> Array:
        """uint32: priorities that were negative or no number."""
        return self.notes[..., 2]


def level_sizes(capacity: int, fan: int) -> list[int]:
    """Nodes per level, leaves first, each a whole number of families; the last is one family."""
    sizes = [-(-capacity // fan) * fan]
    while sizes[-1] > fan:
        sizes.append(-(-(sizes[-1] // fan) // fan) * fan)
    return sizes


def device_tree_bytes(capacity: int, fan: int) -> int:
    """Bytes of a device tree and its notes."""
    return 4 * (sum(level_sizes(capacity, fan)) + 3)


def host_tree_bytes(capacity: int) -> int:
    """Bytes of a host tree."""
    return 8 * sum(_host_sizes(capacity))


def _host_sizes(capacity: int) -> tuple[int, int, int]:
    """Leaves, sums of them and sums of those sums: whole families each."""
    fan = HostTree.fan
    top = -(-capacity // fan**2)
    return top * fan**2, top * fan, top


def descend(family: Array, chance: Array, xp: Any) -> tuple[Array, Array]:
    """Pick a child of each family[batch, fan] by chance in [0, 1): its place and its mass.

    The draw is clamped below the family's sum, so a child without mass is never picked.
    """
    total = _sum(family)
    draw = xp.minimum(chance * total, xp.nextafter(total, total * 0))
    reached = family[:, 0]
    child = (reached <= draw).astype(np.int32)
    for place in range(1, family.shape[1]):
        reached = reached + family[:, place]
        child = child + (reached <= draw)
    child = xp.minimum(child, family.shape[1] - 1)  # only where the whole family has no mass
    return child, xp.take_along_axis(family, child[:, None], axis=1)[:, 0]


def _sum(family: Array) -> Array:
    total = family[:, 0]
    for place in range(1, family.shape[1]):
        total = total + family[:, place]
    return total


class DeviceTree:
    """Pure functions over one float32 array that holds all levels, one after the other.

    One array, because every call of a jitted function pays for each array it passes.
    """

    def __init__(self, capacity: int, fan: int) -> None:
        self.capacity, self.fan = capacity, fan
        self.sizes = level_sizes(capacity, fan)
        self.starts = [sum(self.sizes[:level]) for level in range(len(self.sizes))]

    def init(self) -> Array:
        """No start has any mass."""
        return jnp.zeros(sum(self.sizes), np.float32)

    def assign(self, tree: Array, slots: Array, mass: Array, run: int = 1) -> Array:
        """Give slots[n] their mass[n]; a slot >= capacity is passed over. No slot twice.

        Slots come in runs of `run` side by side; each run is passed over as a whole or not at all.
        """
        tree = tree.at[self._outside(slots)].set(mass, mode="drop")
        spread = np.arange((run + self.fan - 2) // self.fan + 1)
        return self._sum_up(tree, (slots[::run, None] // self.fan + spread).reshape(-1))

    def largest(self, tree: Array, slots: Array, mass: Array) -> Array:
        """As `assign`, but slots may repeat: the largest mass counts."""
        where = self._outside(slots)
        tree = tree.at[where].set(0.0, mode="drop").at[where].max(mass, mode="drop")
        return self._sum_up(tree, slots // self.fan)

    def _outside(self, slots: Array) -> Array:
        """Slots >= capacity moved beyond the whole tree, where updates are dropped."""
        return jnp.where(slots < self.capacity, slots, sum(self.sizes))

    def _sum_up(self, tree: Array, node: Array) -> Array:
        """Sum up the leaves' families node[n] and all above them.

        A family may repeat or lie beyond the last: summed up once more, it stays what it is.
        """
        for level, below in enumerate(self.starts[:-1]):
            families = self.sizes[level] // self.fan
            if families <= len(node):  # all in one pass: cheaper than to gather and scatter
                tree = self._sum_level(tree, level)
            else:
                node = jnp.minimum(node, families - 1)
                total = _sum(self._family(tree, below, node, mode="promise_in_bounds"))
                target = self.starts[level + 1] + node
                tree = tree.at[target].set(total, mode="promise_in_bounds")
                node = node // self.fan
        return tree

    def _sum_level(self, tree: Array, level: int) -> Array:
        """Sum up all families of a level."""
        below, above = self.starts[level], self.starts[level + 1]
        total = _sum(tree[below : below + self.sizes[level]].reshape(-1, self.fan))
        return tree.at[above : above + len(total)].set(total)

    def _family(self, tree: Array, start: int, node: Array, mode: Any) -> Array:
        """The children of nodes of the level above the one that begins at `start`."""
        return tree.reshape(-1, self.fan).at[start // self.fan + node].get(mode=mode)

    def rebuild(self, leaves: Array) -> Array:
        """The tree over leaves[capacity]."""
        tree = self.init().at[: self.capacity].set(leaves)
        for level in range(len(self.sizes) - 1):
            tree = self._sum_level(tree, level)
        return tree

    def draw(self, tree: Array, key: Array, batch: int, zero: Array) -> tuple[Array, Array, Array]:
        """slots[batch], their masses, and the sum of all: each slot in proportion to its mass."""
        chances = jax.random.uniform(key, (len(self.sizes), batch))
        node = jnp.zeros(batch, np.int32)
        mass = jnp.zeros(batch, np.float32)
        total = _sum(tree[None, self.starts[-1] :])[0]
        for start, chance in zip(reversed(self.starts), chances, strict=True):
            family = self._family(tree, start, node, mode="promise_in_bounds")
            child, mass = descend(family, chance, jnp)
            # The sum too: read later, when the tree has changed, it would cost a copy of the tree.
            node, mass, total = settle((node * self.fan + child, mass, total), zero)
        return jnp.minimum(node, self.capacity - 1), mass, total


class HostTree:
    """The same over NumPy in float64, changed in place: leaves, sums of 16, and sums of 256.

    The top is not built further: its cumulative sum is one cheap pass per draw.
    """

    fan = 16

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        sizes = _host_sizes(capacity)
        self.leaves, self._middle, self._top = (np.zeros(size) for size in sizes)
        self._levels = (
            (self._middle.reshape(-1, self.fan), self._top),
            (self.leaves.reshape(-1, self.fan), self._middle),
        )

    def assign(self, slots: np.ndarray, mass: np.ndarray) -> None:
        """Give slots[n] their mass[n]; of a slot that repeats, the largest counts."""
        self.leaves.put(slots, 0)
        np.maximum.at(self.leaves, slots, mass)
        self._sum_up(slots)

    def assign_each(self, slots: np.ndarray, mass: np.ndarray) -> None:
        """As `assign`, where no slot comes twice."""
        self.leaves.put(slots, mass)
        self._sum_up(slots)

    def _sum_up(self, slots: np.ndarray) -> None:
        """Sum up the families of these slots and all above them."""
        nodes = slots // self.fan
        other = nodes[1:] != nodes[:-1]  # new rows lie side by side: sum up a family once
        nodes = np.concatenate([nodes[:1], nodes[1:][other]])
        for family, above in reversed(self._levels):
            above.put(nodes, _sums(family.take(nodes, axis=0, mode="clip")))
            nodes = nodes // self.fan

    def assign_run(self, start: int, mass: np.ndarray) -> None:
        """Give the slots start, start + 1, ... their mass[n]: a third of the time of `assign`."""
        stop = start + len(mass)
        self.leaves[start:stop] = mass
        for family, above in reversed(self._levels):
            start, stop = start // self.fan, -(-stop // self.fan)
            above[start:stop] = _sums(family[start:stop])

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.leaves.nbytes + self._middle.nbytes + self._top.nbytes

    @property
    def total(self) -> float:
        """The sum of all masses, as `draw` sees it."""
        return float(self._top.cumsum()[-1])

    def rebuild(self, leaves: np.ndarray) -> None:
        """All sums from leaves[capacity]."""
        self.leaves[: self.capacity] = leaves
        for family, above in reversed(self._levels):
            above[:] = _sums(family)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray, float]:
        """slots[batch] in proportion to their masses, the masses, and the sum of all."""
        reached = self._top.cumsum()
        total = float(reached[-1])
        chances = iter(rng.random((1 + len(self._levels), batch)))
        chance = np.minimum(next(chances) * total, np.nextafter(total, 0))
        chance.sort()  # in order they are found faster, and memory is walked through
        node = reached.searchsorted(chance, "right")
        for (family, _), chance in zip(self._levels, chances, strict=True):
            reached = family.take(node, axis=0, mode="clip").T.copy()
            for before, here in pairwise(reached):  # four times faster than cumsum along short rows
                here += before
            ends = reached[-1]
            chance = np.minimum(chance * ends, np.nextafter(ends, 0))
            passed = (reached <= chance).view(np.int8)  # counted as bytes, 16 at a time
            node = node * self.fan + passed.sum(0, dtype=np.int8)
        node = rng.permutation(node)  # or a batch would come sorted by slot
        return node, self.leaves.take(node, mode="clip"), total


def _sums(family: np.ndarray) -> np.ndarray:
    """Of rows that are short: a third of the time of `sum`."""
    return np.einsum("nc->n", family)
