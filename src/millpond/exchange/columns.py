"""Convert rows to columns by path and back; compare rows bit by bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..rows import BORDER, Rows
from ..spec import Field, Spec, walk


def fields_of(spec: Spec) -> dict[str, Field]:
    """Every column of a row; the bits of the flags byte are separate columns."""
    one = Field("bool")
    fields = {**spec.columns, "terminated": one, "truncated": one, "flags": Field("uint8")}
    return fields | ({"extras/life_lost": one} if "life_lost" in spec.extras else {})


def to_columns(spec: Spec, rows: Rows) -> dict[str, np.ndarray]:
    """Rows as values [time, ...] by path, in the fields' dtypes."""
    extras = {f"extras/{name}": rows.extras[name] for name in spec.extras}
    given: dict[str, Any] = {**dict(walk(rows.obs, "obs")), **extras}
    given |= {name: getattr(rows, name) for name in _PLAIN}
    return {path: np.asarray(given[path], field.dtype) for path, field in fields_of(spec).items()}


def to_rows(spec: Spec, columns: Mapping[str, np.ndarray]) -> Rows:
    """Rows [time] from values by path."""
    obs = spec.obs_tree({path: columns[path] for path, _ in walk(spec.obs, "obs")})
    extras = {name: columns[f"extras/{name}"] for name in spec.extras}
    plain: Any = {name: columns[name] for name in _PLAIN}
    return Rows(obs, **plain, extras=extras)


_PLAIN = ("action", "reward", "terminated", "truncated", "flags")


def cut_rows(rows: Rows, start: int, stop: int | None = None) -> Rows:
    """The rows from `start` to `stop` of rows [time]."""

    def part(tree: Any) -> Any:
        if isinstance(tree, Mapping):
            return {key: part(inner) for key, inner in tree.items()}
        return tree[start:stop]

    return Rows(*(part(value) for value in rows))


def join_rows(several: Sequence[Rows]) -> Rows:
    """Concatenate rows [time]."""
    if len(several) == 1:
        return several[0]

    def joined(*trees: Any) -> Any:
        if isinstance(trees[0], Mapping):
            return {key: joined(*(tree[key] for tree in trees)) for key in trees[0]}
        return np.concatenate(trees)

    return Rows(*(joined(*values) for values in zip(*several, strict=True)))


def difference(spec: Spec, one: Rows, other: Rows) -> tuple[str, int] | None:
    """The column and row of the first value that is not bitwise equal; None if all are."""
    here, there = to_columns(spec, one), to_columns(spec, other)
    for path, mine in here.items():
        theirs = there[path]
        if mine.shape != theirs.shape:
            return path, min(len(mine), len(theirs))
        flat = [np.ascontiguousarray(part).reshape(len(part), -1) for part in (mine, theirs)]
        wrong = (flat[0].view(np.uint8) != flat[1].view(np.uint8)).any(1)
        if wrong.any():
            return path, int(wrong.argmax())
    return None


def border_like(spec: Spec, obs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The columns [1] of a border row with the final observation `obs` [1, ...]."""
    found = {
        path: np.broadcast_to(field.lowest(), (1, *field.shape))
        if path == "action"
        else np.zeros((1, *field.shape), field.dtype)
        for path, field in fields_of(spec).items()
    }
    return found | dict(obs) | {"flags": np.array([BORDER], np.uint8)}
