"""Border rows for envs that reset in the same step that ends an episode.

Gymnasium calls this same-step autoreset; gymnax and Brax do it too. At an episode's end, `step`
returns the first observation of the next episode, and the final observation separately.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .rows import BORDER, Array
from .spec import Field


def close_episodes(
    fields: Mapping[str, Field],
    values: Mapping[str, Array],
    final: Mapping[str, Array],
    keep: Array | None,
    xp: Any,
) -> tuple[dict[str, Array], Array]:
    """Insert a border row after every row; return values and `keep`, both [2 * time, stream].

    `values` have the leading axes [time, stream]. `final` holds final observations by path, and is
    read only where an episode ended. A border row is kept if its row is kept and ended an episode.
    """
    ended = values["terminated"] | values["truncated"]
    keep = xp.ones(ended.shape, bool) if keep is None else keep
    closed: dict[str, Array] = {}
    for path, value in values.items():
        if path in final:
            # Elsewhere, the row's own observation, which is known to be valid.
            border = xp.where(_along(ended, value), final[path], value)
        else:
            field = fields[path]
            none = np.asarray(field.lowest() if path == "action" else field.blank())
            none = np.uint8(BORDER) if path == "flags" else none
            value = _wide_enough(value, none)
            border = xp.broadcast_to(xp.asarray(none, value.dtype), value.shape)
        closed[path] = _interleave(value, border, xp)
    return closed, _interleave(keep, keep & ended, xp)


def final_observations(
    values: Mapping[str, Array], final: Mapping[str, Array], xp: Any
) -> dict[str, Array]:
    """Transitions whose next observation is the final one wherever the episode ended."""
    ended = values["terminated"] | values["truncated"]
    true = {
        f"next_{path}": xp.where(_along(ended, value), value, values[f"next_{path}"])
        for path, value in final.items()
    }
    return {**values, **true}


def _wide_enough(value: Array, none: Any) -> Array:
    """The values in a dtype that can also hold `none`, such as a -1 among unsigned integers."""
    if (none.astype(value.dtype).astype(none.dtype) == none).all():
        return value
    return value.astype(np.promote_types(value.dtype, none.dtype))


def _interleave(rows: Array, borders: Array, xp: Any) -> Array:
    both = xp.stack([rows, borders], axis=1)
    return both.reshape(2 * rows.shape[0], *rows.shape[1:])


def _along(ended: Array, value: Array) -> Array:
    return ended.reshape(*ended.shape, *(1,) * (value.ndim - ended.ndim))
