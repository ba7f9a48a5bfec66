"""`within`: checks the bounds of several numbers at once, from their bytes.

For few numbers, this takes a fraction of the time of the two NumPy calls it replaces.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import byteorder
from typing import Any

import numpy as np

Asked = Callable[[bytes], bool]
# Bytes; for more, NumPy is faster.
_MOST_LANES, _MOST_TOPS = 256, 1024


def within(dtype: np.dtype, size: int, low: Any, high: Any) -> Asked | None:
    """A function that checks from their bytes that `size` numbers are in [low, high], without NaN.

    It never accepts invalid numbers, but may reject valid ones: a negative zero, and numbers near
    infinity. A bound of None means no bound; the function is None if there is no fast check.
    """
    width, floats = dtype.itemsize, dtype.kind == "f"
    if dtype.kind not in "fiu" or not dtype.isnative:
        return None
    edge = float(np.finfo(dtype).max) if floats else int(np.iinfo(dtype).max)
    if floats and width > 2 and low in (None, -edge) and high in (None, edge, np.inf):
        return _finite(width) if size * width <= _MOST_TOPS else None
    high = edge if high is None else high
    even = floats and low == -high
    if size * width > _MOST_LANES or high < 0 or high > edge or not (even or low == 0):
        return None
    bits = int(np.array(high, dtype).view(f"u{width}"))
    sign = 1 << 8 * width - 1
    return _lanes(width, size, bits, even) if bits < sign else None


def _finite(width: int) -> Asked:
    """Checks the highest byte of each float: for NaN and infinities it is 127 or 255."""
    first = width - 1 if byteorder == "little" else 0
    return lambda packed: 127 not in (tops := packed[first::width]) and 255 not in tops


def _lanes(width: int, size: int, most: int, even: bool) -> Asked:
    """Checks all numbers as lanes of one long integer, against the bits of the bound `most`.

    Apart from the sign, floats sort like their bits: numbers, then infinity, then NaN. `even`: the
    bounds are symmetric, so the sign is ignored; otherwise it must not be set.
    """

    def everywhere(lane: int) -> int:
        return int.from_bytes(lane.to_bytes(width, byteorder) * size, byteorder)

    sign = 1 << 8 * width - 1
    signs, rest, bounds = everywhere(sign), everywhere(sign - 1), everywhere(sign | most)
    read = int.from_bytes
    # `bounds` has the sign bit set in every lane, so that no lane borrows from the next; after the
    # subtraction it is still set if and only if the number is not above the bound.
    if even:
        return lambda packed: (bounds - (read(packed, byteorder) & rest)) & signs == signs
    return lambda packed: (
        not (numbers := read(packed, byteorder)) & signs and (bounds - numbers) & signs == signs
    )
