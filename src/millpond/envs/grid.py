"""What grid worlds share: a walled board, moves, views, random numbers and pictures.

A board is uint8[size * size], row by row, with the kind of each cell; a place is an index into it.
The outermost cells are wall, so a step never leaves the board.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array

EMPTY, WALL, AGENT = 0, 1, 2  # kinds that every world has
UP, DOWN, LEFT, RIGHT = 0, 1, 2, 3
NOWHERE = -1  # the place of things that are not on the board

_CELL = 16  # pixels
_AGENTS = ((66, 135, 245), (245, 130, 48), (70, 200, 120), (190, 90, 220), (60, 200, 210))
_GROUND, _LINE = (32, 34, 40), (44, 47, 54)
_WALL, _MORTAR = (120, 124, 132), (96, 100, 108)


def walled(size: int) -> np.ndarray:
    """A board that is empty except for its outer wall: uint8[size * size]."""
    board = np.full((size, size), WALL, np.uint8)
    board[1:-1, 1:-1] = EMPTY
    return board.ravel()


def steps(size: int) -> np.ndarray:
    """The change of place by a step up, down, left and right: int32[4]."""
    return np.array([-size, size, -1, 1], np.int32)


def paint(board: Array, places: Array, kind: int) -> Array:
    """The board with `kind` at the places; NOWHERE is skipped."""
    # Comparing every cell is no slower than a scatter, and NOWHERE needs no special case.
    cells = jnp.arange(board.size, dtype=np.int32)
    return jnp.where((cells[:, None] == places).any(1), np.uint8(kind), board)


def move(places: Array, targets: Array, free: Array) -> Array:
    """Move agents one after another, in list order; returns their places, int32[agents].

    Agent i moves to `targets[i]` if nothing but an agent could block it there (`free[i]`) and no
    agent stands there when its turn comes. It can enter a cell that an earlier agent has left.
    """
    number = len(places)
    order = jnp.arange(number)

    def one(agent: Array, places: Array) -> Array:
        target = targets[agent]
        goes = free[agent] & ~(places == target).any()
        return jnp.where((order == agent) & goes, target, places)

    return jax.lax.fori_loop(0, number, one, places, unroll=min(number, 8))


def views(board: Array, places: Array, radius: int, kinds: int) -> Array:
    """The cells around each place: bool[agents, 2 * radius + 1, 2 * radius + 1, kinds].

    Each cell is one-hot. Everything beyond the board is wall.
    """
    size = math.isqrt(board.size)
    reach = np.arange(-radius, radius + 1)
    # Clipping maps every cell beyond the board to its outer wall.
    rows = jnp.clip(places[:, None] // size + reach, 0, size - 1)
    columns = jnp.clip(places[:, None] % size + reach, 0, size - 1)
    seen = board[rows[:, :, None] * size + columns[:, None, :]]
    return seen[..., None] == np.arange(kinds, dtype=np.uint8)


def words(key: jax.Array, number: int) -> Array:
    """Random uint32[number], good enough for a game and several times as fast as `jax.random`.

    Each index is mixed with one, then the other of two words drawn from the key, each time by the
    `lowbias32` hash, in which every input bit flips each output bit with probability close to 1/2.
    """
    first, second = jax.random.bits(key, (2,), np.uint32)
    return _mixed(_mixed(jnp.arange(number, dtype=np.uint32) + first) ^ second)


def _mixed(x: Array) -> Array:
    x = (x ^ (x >> 16)) * np.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * np.uint32(0x846CA68B)
    return x ^ (x >> 16)


def happens(draws: Array, probability: float) -> Array:
    """True with this probability for each uniform uint32; exact at 0 and 1, else to 2^-32."""
    limit = round(probability * 2**32)
    if limit == 0:
        return jnp.zeros(draws.shape, bool)
    return draws <= np.uint32(limit - 1)


def random_cells(key: jax.Array, board: Array, number: int) -> Array:
    """Distinct random empty cells, all choices equally likely: int32[number].

    If there are fewer, the empty ones come first and other cells follow.
    """
    # Floats, because top_k is fast on a CPU only for them.
    lots = jnp.where(board == EMPTY, words(key, board.size).astype(np.float32), -1)
    return jax.lax.top_k(lots, number)[1].astype(np.int32)


def check_world(
    name: str, size: int, turns: int, radius: int, counts: dict[str, int], chances: dict[str, float]
) -> None:
    """BadConfig for impossible settings of a grid world; everything in `counts` needs a cell."""
    for field, value, low in (("size", size, 3), ("turns", turns, 1), ("radius", radius, 1)):
        check_whole(name, field, value, low)
    for field, value in counts.items():
        check_whole(name, field, value, 1 if field == "agents" else 0)
    for field, value in chances.items():
        if not 0 <= value <= 1:
            raise BadConfig(f"{name}: {field} is a probability and must lie in [0, 1], got {value}")
    cells, needed = (size - 2) ** 2, sum(counts.values())
    if needed > cells:
        raise BadConfig(
            f"{name}: {' + '.join(counts)} = {needed}, but size {size} has {cells} cells inside "
            "its walls; raise size or lower the counts"
        )


def check_numbers(name: str, values: dict[str, float]) -> None:
    """BadConfig for values that are not finite."""
    for field, value in values.items():
        if not math.isfinite(value):
            raise BadConfig(f"{name}: {field} must be a finite number, got {value}")


def check_whole(name: str, field: str, value: Any, low: int) -> None:
    """BadConfig for a value that is not an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, int) or value < low:
        raise BadConfig(f"{name}: {field} must be a whole number of at least {low}, got {value!r}")


def picture(board: np.ndarray, places: np.ndarray, drawings: dict[int, np.ndarray]) -> np.ndarray:
    """Host: draw the board with 16 x 16 pixels per cell, uint8[16 * size, 16 * size, 3].

    `drawings` has tiles for kinds other than empty, wall and agent. There are five agent colours.
    """
    size, agents = math.isqrt(board.size), len(places)
    kinds = 1 + max((AGENT, *drawings))
    tiles = np.zeros((kinds + agents, _CELL, _CELL, 3), np.uint8)
    tiles[EMPTY] = _ground()
    tiles[WALL] = drawn(_WALL, "brick")
    for kind, tile in drawings.items():
        tiles[kind] = tile
    for agent in range(agents):
        tiles[kinds + agent] = drawn(_AGENTS[agent % len(_AGENTS)], "face")
    shown = np.asarray(board).astype(np.int64)
    shown[places] = kinds + np.arange(agents)
    cells = tiles[shown.reshape(size, size)]
    return cells.transpose(0, 2, 1, 3, 4).reshape(size * _CELL, size * _CELL, 3)


def _ground() -> np.ndarray:
    tile = np.full((_CELL, _CELL, 3), _GROUND, np.uint8)
    tile[0], tile[:, 0] = _LINE, _LINE
    return tile


def drawn(colour: tuple[int, int, int], shape: str) -> np.ndarray:
    """A tile, uint8[16, 16, 3]: brick, face, diamond, disc, bar, or head (a disc with antlers)."""
    y, x = np.mgrid[:_CELL, :_CELL] - (_CELL - 1) / 2
    tile = _ground()
    if shape == "brick":
        tile[:] = colour
        tile[::8], tile[:8, 7], tile[8:, 15] = _MORTAR, _MORTAR, _MORTAR
    elif shape == "face":
        tile[x**2 + y**2 < 46] = colour
        tile[(np.abs(np.abs(x) - 2.5) < 1.1) & (np.abs(y + 1.5) < 1.6)] = 255
    elif shape == "diamond":
        tile[np.abs(x) + np.abs(y) < 7] = colour
        tile[(np.abs(x + 2) + np.abs(y + 1)) < 2] = 255
    elif shape == "disc":
        tile[x**2 + y**2 < 26] = colour
    elif shape == "bar":
        tile[(np.abs(x + y) < 2) & (np.abs(x) < 5)] = colour
        tile[(np.hypot(np.abs(x) - 4, np.abs(y) - 4) < 2.3) & (x * y < 0)] = colour
    else:
        tile[x**2 + (y - 2) ** 2 < 20] = colour
        tile[(np.abs(np.abs(x) + y / 2 - 1.5) < 1.2) & (y < 0)] = colour
    return tile
