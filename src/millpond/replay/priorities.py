"""Sum trees over priorities, on the device and on the host.

Every node is recomputed as the sum of its children, in the order in which a draw adds them up:
nothing is ever incremented, so sums do not drift, and a leaf of 0 can never be drawn. Each level of
a draw uses fresh random numbers, so ten million leaves are resolved as finely as ten.
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
    """The priorities, or SpecMismatch unless there is exactly one number per drawn row."""
    if not isinstance(draw, Draw):
        raise mismatch("draw", "a Draw", type(draw).__name__, "pass `batch.draw`")
    wanted, remedy = tuple(np.shape(draw.stream)), "one per drawn row"
    if tuple(priorities.shape) != wanted:
        raise mismatch("priorities", f"shape {wanted}", f"{tuple(priorities.shape)}", remedy)
    if np.dtype(priorities.dtype).kind not in "fiu":
        raise mismatch("priorities", "numbers", f"{priorities.dtype}", remedy)
    return priorities


class Priorities(NamedTuple):
    """Device: the sum tree and the sampler's counters, in few arrays as in `PondState`."""

    tree: Array  # float32: the leaves, then every level above them
    notes: Array  # uint32[3]: the bits of `highest`, `samples`, `refused`

    @staticmethod
    def new(tree: Array, highest: Array = 1, samples: Array = 0, refused: Array = 0) -> Priorities:
        """Priorities from their parts; by default, nothing drawn yet and a highest mass of 1."""
        bits = jax.lax.bitcast_convert_type(jnp.asarray(highest, np.float32), np.uint32)
        counts = (jnp.asarray(count, np.uint32) for count in (samples, refused))
        return Priorities(tree, jnp.stack([bits, *counts]))

    @property
    def highest(self) -> Array:
        """float32: the largest priority^alpha seen; new starts get it."""
        return jax.lax.bitcast_convert_type(self.notes[..., 0], np.float32)

    @property
    def samples(self) -> Array:
        """uint32: the number of batches drawn."""
        return self.notes[..., 1]

    @property
    def refused(self) -> Array:
        """uint32: the number of refused priorities: negative, NaN or too large."""
        return self.notes[..., 2]


def level_sizes(capacity: int, fan: int) -> list[int]:
    """Nodes per level, leaves first, in multiples of `fan` (a family); the last is one family."""
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
    """The sizes of the three levels: leaves, sums of these, and sums of those; whole families."""
    fan = HostTree.fan
    top = -(-capacity // fan**2)
    return top * fan**2, top * fan, top


def descend(family: Array, chance: Array, xp: Any) -> tuple[Array, Array]:
    """Choose a child of each family[batch, fan] by `chance` in [0, 1): its place and its mass.

    The draw is clamped below the family's sum, so a child of mass 0 is never chosen.
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
    """A sum tree as pure functions over one float32 array of all levels.

    One array, because every array adds to the cost of a jitted call.
    """

    def __init__(self, capacity: int, fan: int) -> None:
        self.capacity, self.fan = capacity, fan
        self.sizes = level_sizes(capacity, fan)
        self.starts = [sum(self.sizes[:level]) for level in range(len(self.sizes))]

    def init(self) -> Array:
        """An empty tree: all masses are 0."""
        return jnp.zeros(sum(self.sizes), np.float32)

    def assign(self, tree: Array, slots: Array, mass: Array, run: int = 1) -> Array:
        """Set the mass[n] of distinct slots[n]; slots >= capacity are skipped.

        Slots must come in runs of `run` adjacent ones; a run is skipped as a whole or not at all.
        """
        tree = tree.at[self._outside(slots)].set(mass, mode="drop")
        spread = np.arange((run + self.fan - 2) // self.fan + 1)
        return self._sum_up(tree, (slots[::run, None] // self.fan + spread).reshape(-1))

    def largest(self, tree: Array, slots: Array, mass: Array) -> Array:
        """As `assign`, but slots may repeat; the largest mass counts."""
        where = self._outside(slots)
        tree = tree.at[where].set(0.0, mode="drop").at[where].max(mass, mode="drop")
        return self._sum_up(tree, slots // self.fan)

    def _outside(self, slots: Array) -> Array:
        """Move slots >= capacity past the end of the array, where updates are dropped."""
        return jnp.where(slots < self.capacity, slots, sum(self.sizes))

    def _sum_up(self, tree: Array, node: Array) -> Array:
        """Recompute the sums of the leaf families node[n] and of all levels above them.

        A family may repeat, or be past the last; recomputing one again does no harm.
        """
        for level, below in enumerate(self.starts[:-1]):
            families = self.sizes[level] // self.fan
            if families <= len(node):  # recompute all: cheaper than gathering and scattering
                tree = self._sum_level(tree, level)
            else:
                node = jnp.minimum(node, families - 1)
                total = _sum(self._family(tree, below, node, mode="promise_in_bounds"))
                target = self.starts[level + 1] + node
                tree = tree.at[target].set(total, mode="promise_in_bounds")
                node = node // self.fan
        return tree

    def _sum_level(self, tree: Array, level: int) -> Array:
        """Recompute all sums of the families of a level."""
        below, above = self.starts[level], self.starts[level + 1]
        total = _sum(tree[below : below + self.sizes[level]].reshape(-1, self.fan))
        return tree.at[above : above + len(total)].set(total)

    def _family(self, tree: Array, start: int, node: Array, mode: Any) -> Array:
        """The children, in the level that begins at `start`, of nodes in the level above it."""
        return tree.reshape(-1, self.fan).at[start // self.fan + node].get(mode=mode)

    def rebuild(self, leaves: Array) -> Array:
        """The tree over leaves[capacity]."""
        tree = self.init().at[: self.capacity].set(leaves)
        for level in range(len(self.sizes) - 1):
            tree = self._sum_level(tree, level)
        return tree

    def draw(self, tree: Array, key: Array, batch: int, zero: Array) -> tuple[Array, Array, Array]:
        """Draw slots[batch] in proportion to their masses; also returns these and the total."""
        chances = jax.random.uniform(key, (len(self.sizes), batch))
        node = jnp.zeros(batch, np.int32)
        mass = jnp.zeros(batch, np.float32)
        total = _sum(tree[None, self.starts[-1] :])[0]
        for start, chance in zip(reversed(self.starts), chances, strict=True):
            family = self._family(tree, start, node, mode="promise_in_bounds")
            child, mass = descend(family, chance, jnp)
            # Including the total: read after the tree is updated, it would cost a copy of the tree.
            node, mass, total = settle((node * self.fan + child, mass, total), zero)
        return jnp.minimum(node, self.capacity - 1), mass, total


class HostTree:
    """A sum tree over NumPy in float64, changed in place: leaves, sums of 16, and sums of 256.

    There is no level above: the cumulative sum of the top is one cheap pass per draw.
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
        """Set the mass[n] of slots[n]; if a slot repeats, the largest counts."""
        self.leaves.put(slots, 0)
        np.maximum.at(self.leaves, slots, mass)
        self._sum_up(slots)

    def assign_each(self, slots: np.ndarray, mass: np.ndarray) -> None:
        """As `assign`, for distinct slots."""
        self.leaves.put(slots, mass)
        self._sum_up(slots)

    def _sum_up(self, slots: np.ndarray) -> None:
        """Recompute the sums of these slots' families and of the levels above them."""
        nodes = slots // self.fan
        other = nodes[1:] != nodes[:-1]  # new rows are adjacent: recompute each family once
        nodes = np.concatenate([nodes[:1], nodes[1:][other]])
        for family, above in reversed(self._levels):
            above.put(nodes, _sums(family.take(nodes, axis=0, mode="clip")))
            nodes = nodes // self.fan

    def assign_run(self, start: int, mass: np.ndarray) -> None:
        """Set the mass[n] of slots start, start + 1, ...; takes a third of the time of `assign`."""
        stop = start + len(mass)
        self.leaves[start:stop] = mass
        for family, above in reversed(self._levels):
            start, stop = start // self.fan, -(-stop // self.fan)
            above[start:stop] = _sums(family[start:stop])

    @property
    def nbytes(self) -> int:
        """Bytes of memory used."""
        return self.leaves.nbytes + self._middle.nbytes + self._top.nbytes

    @property
    def total(self) -> float:
        """The sum of all masses, rounded exactly as in `draw`."""
        return float(self._top.cumsum()[-1])

    def rebuild(self, leaves: np.ndarray) -> None:
        """Set all leaves[capacity] and recompute all sums."""
        self.leaves[: self.capacity] = leaves
        for family, above in reversed(self._levels):
            above[:] = _sums(family)

    def draw(self, rng: np.random.Generator, batch: int) -> tuple[np.ndarray, np.ndarray, float]:
        """Draw slots[batch] in proportion to their masses; also returns these and the total."""
        reached = self._top.cumsum()
        total = float(reached[-1])
        chances = iter(rng.random((1 + len(self._levels), batch)))
        chance = np.minimum(next(chances) * total, np.nextafter(total, 0))
        chance.sort()  # sorted, they are found faster, and memory is read in order
        node = reached.searchsorted(chance, "right")
        for (family, _), chance in zip(self._levels, chances, strict=True):
            reached = family.take(node, axis=0, mode="clip").T.copy()
            for before, here in pairwise(reached):  # four times faster than cumsum over short rows
                here += before
            ends = reached[-1]
            chance = np.minimum(chance * ends, np.nextafter(ends, 0))
            passed = (reached <= chance).view(np.int8)  # counted as bytes, 16 at a time
            node = node * self.fan + passed.sum(0, dtype=np.int8)
        node = rng.permutation(node)  # else the batch would be sorted by slot
        return node, self.leaves.take(node, mode="clip"), total


def _sums(family: np.ndarray) -> np.ndarray:
    """The sum of each family; takes a third of the time of `sum` for such short rows."""
    return np.einsum("nc->n", family)
