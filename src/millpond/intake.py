"""`Intake` decides whether rows fit a Spec, in one place for every ring and every placement.

Shapes, dtypes and names are checked by `arrange` and raise, also while tracing. Values can only
raise on the host (`check_values`); inside jit the same rules give a mask (`bad_values`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from .errors import BrokenEpisode, SpecMismatch
from .rows import BORDER, CONTEXT, CUT, ENDED, FIRST, Array, Flag, Rows, Tree, pack_flags
from .spec import Field, Spec, mismatch, walk

KNOWN_FLAGS = FIRST | BORDER | CONTEXT | CUT
_BOOL, _BYTE = Field("bool"), Field("uint8", low=0, high=KNOWN_FLAGS)


class Intake:
    """Checks rows against one Spec: `columns = Intake(spec).arrange(rows, lead=(8,))`."""

    def __init__(self, spec: Spec, whole: bool = False) -> None:
        self.obs = [path for path, _ in walk(spec.obs, "obs")]
        self._flat = self.obs == ["obs"]
        self.fields = {**spec.columns, "terminated": _BOOL, "truncated": _BOOL, "flags": _BYTE}
        if whole:
            self.fields |= {f"next_{path}": field for path, field in walk(spec.obs, "obs")}
        if "life_lost" in spec.extras:
            self.fields["extras/life_lost"] = _BOOL
        bounds = {path: field.limits(field.dtype) for path, field in self.fields.items()}
        self._bounded = {
            path: (low, high)
            for path, (low, high) in bounds.items()
            if low is not None or high is not None
        }
        self._bounded["flags"] = (None, KNOWN_FLAGS)  # unsigned: nothing lies below

    def arrange(
        self, rows: Rows, lead: tuple[int, ...], whose: str, next_obs: Tree | None = None
    ) -> dict[str, Array]:
        """Values by path, each of shape lead + field.shape; nothing is broadcast or squeezed."""
        if not isinstance(rows, Rows):
            raise SpecMismatch(
                f"add: expected Rows, got {type(rows).__name__}; "
                "build Rows(obs, action, reward, terminated, truncated, flags)"
            )
        given = self._given(rows, next_obs)
        values: dict[str, Array] = {}
        for path, field in self.fields.items():
            value = given[path]
            if not isinstance(value, (np.ndarray, jax.Array)):
                value = np.asarray(value)
            if value.shape != lead + field.shape:
                expected, shape = lead + field.shape, tuple(value.shape)
                wanted = f"shape {expected} ({whose} + field {field.shape})"
                raise mismatch(path, wanted, f"{shape}", _shape_remedy(shape, expected))
            if value.dtype != field.dtype and not field.accepts(np.dtype(value.dtype)):
                got = f"{value.dtype}"
                raise mismatch(path, f"{field.dtype}", got, "convert it where it is made")
            values[path] = value
        return values

    def _given(self, rows: Rows, next_obs: Tree | None) -> dict[str, Any]:
        plain = self._flat and not isinstance(rows.obs, Mapping)
        given = {"obs": rows.obs} if plain else dict(walk(rows.obs, "obs"))
        if next_obs is not None:
            given |= dict(walk(next_obs, "next_obs"))
        given |= {f"extras/{name}": value for name, value in rows.extras.items()}
        for path in ("action", "reward", "terminated", "truncated", "flags"):
            given[path] = getattr(rows, path)
        if given.keys() != self.fields.keys():
            missing = [path for path in self.fields if path not in given]
            unknown = [path for path in given if path not in self.fields]
            raise SpecMismatch(
                f"fields: expected {sorted(self.fields)}, missing {missing}, unknown {unknown}; "
                "give exactly the fields the Spec declares (next_obs in layout 'shared' alone)"
            )
        return given

    def check_values(self, values: Mapping[str, Array]) -> None:
        """Host: raise SpecMismatch for the first value outside its field's bounds."""
        for path, field in self.fields.items():
            value = values[path]
            if value.dtype == field.dtype:
                if path not in self._bounded:
                    continue
                low, high = self._bounded[path]
            else:
                low, high = field.limits(value.dtype)
            # Written so that NaN, which compares with nothing, is refused too. Where one number
            # bounds all elements, the extremes tell, in one pass.
            if low is not None and not _all_above(value, low):
                raise _out_of_bounds(path, field, value, ~(value >= low))
            if high is not None and not _all_below(value, high):
                raise _out_of_bounds(path, field, value, ~(value <= high))
            if field.binary and value.dtype.kind == "f" and np.any((value != 0) & (value != 1)):
                raise mismatch(path, "only 0 and 1 (binary)", "other values", "drop binary=True")
        if not np.isfinite(values["reward"]).all():
            raise mismatch("reward", "finite numbers", f"{_first_bad(values['reward'])}", _NAN)

    def bad_values(self, values: Mapping[str, Array], rank: int, xp: Any) -> Array:
        """Device: bool[lead] of rows that `check_values` would refuse; `rank` leading axes."""
        bad = ~xp.isfinite(values["reward"])
        for path, field in self.fields.items():
            value = values[path]
            low, high = field.limits(np.dtype(value.dtype))
            wrong = None if low is None else ~(value >= low)
            if high is not None:
                wrong = ~(value <= high) if wrong is None else wrong | ~(value <= high)
            if field.binary and np.dtype(value.dtype).kind == "f":
                wrong = (value != 0) & (value != 1)
            if wrong is not None:
                bad = bad | wrong.any(axis=tuple(range(rank, wrong.ndim)))
        return bad


def short_way(spec: Spec, whole: bool) -> tuple[Field, Field] | None:
    """The obs and action fields, if one row is right when their class, shape and dtype are."""
    if whole or spec.extras or not isinstance(spec.obs, Field):
        return None
    for field in (spec.obs, spec.action):
        open_, closed = (
            field.low is None and field.high is None,
            isinstance(field.low, float) and isinstance(field.high, float),
        )
        if field.binary or not (open_ if field.size > 64 else open_ or closed):
            return None
        if not field.shape and not (field.dtype.kind in "iu" and closed):
            return None
    return spec.obs, spec.action


def pack_values(values: Mapping[str, Array]) -> Array:
    """The stored flags byte of checked values: uint8[...]."""
    lost = values.get("extras/life_lost")
    return pack_flags(values["flags"], values["terminated"], values["truncated"], lost)


def _all_above(value: Array, low: Any) -> bool:
    if isinstance(low, np.ndarray) or not value.size:
        return bool((value >= low).all())
    return value.min() >= low


def _all_below(value: Array, high: Any) -> bool:
    if isinstance(high, np.ndarray) or not value.size:
        return bool((value <= high).all())
    return value.max() <= high


_NAN = "find the env that gave it; rewards must be numbers"


def _first_bad(reward: Array) -> str:
    where = np.argwhere(~np.isfinite(np.atleast_1d(reward)))[0]
    return f"{np.atleast_1d(reward)[tuple(where)]} at {tuple(int(i) for i in where)}"


def _out_of_bounds(path: str, field: Field, value: Array, wrong: Array) -> SpecMismatch:
    where = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])
    low, high = field.limits(value.dtype)
    got = f"{np.atleast_1d(value)[where]} at index {where}"
    return mismatch(path, f"values in [{low}, {high}]", got, "correct it before adding")


def _shape_remedy(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if shape[:1] == (1,) and shape[1:] == expected:
        return "squeeze the leading axis"
    if np.prod(shape, dtype=np.int64) == np.prod(expected, dtype=np.int64):
        return "reshape it; millpond never broadcasts"
    return "give one value per row in the shape the Spec declares"


def broken_episode(before: int, after: int, where: str) -> BrokenEpisode:
    """The error for two rows that cannot follow each other."""
    names = "|".join(f.name or "" for f in Flag if after & f) or "no flag"
    if before & ENDED:
        need = "its BORDER row (the final observation)"
        prior = "terminated" if before & 16 else "truncated"
    elif before & BORDER:
        need, prior = "a FIRST row", "a BORDER row"
    else:
        need, prior = "a row that is neither FIRST nor BORDER", "an ordinary row"
    return BrokenEpisode(
        f"{where}: after {prior} expected {need}, got {names}; carry flags with "
        "next_flags(flags, terminated, truncated), or cut() the stream if rows were lost"
    )
