"""`Intake`: checks rows against a Spec, in one place for every ring, on the device and the host.

`arrange` checks names, shapes and dtypes, and raises even while tracing. Bad values raise on the
host only (`check_values`); inside jit the same rules give a mask (`bad_values`).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
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
        self._rules: dict[tuple[str, Any], tuple[Any, Any, bool]] = {}
        # By path, for values in their field's own dtype: what to check, None for nothing.
        self._plain = [(path, f.dtype, self._needed(path, f)) for path, f in self.fields.items()]

    def _needed(self, path: str, field: Field) -> tuple[Any, Any, bool] | None:
        low, high, nan = self._rule(path, field.dtype)
        return (low, high, nan) if nan or low is not None or high is not None else None

    def _rule(self, path: str, dtype: np.dtype) -> tuple[Any, Any, bool]:
        """What to check in values of a dtype: low, high, and whether to look for NaN."""
        found = self._rules.get((path, dtype))
        if found is None:
            field = self.fields[path]
            nan = field.dtype.kind == "f" and not field.allow_nan and path != "reward"
            found = self._rules[path, dtype] = (*field.limits(dtype), nan)
        return found

    def arrange(
        self, rows: Rows, lead: tuple[int, ...], whose: str, next_obs: Tree | None = None
    ) -> dict[str, Array]:
        """Values by path, each of shape lead + field.shape; `whose` names these axes in errors."""
        if not isinstance(rows, Rows):
            raise no_rows(rows)
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
                raise mismatch(path, f"{field.dtype}", got, "convert it where it is created")
            values[path] = value
        return values

    def _given(self, rows: Rows, next_obs: Tree | None) -> dict[str, Any]:
        plain = self._flat and not isinstance(rows.obs, Mapping)
        given = {"obs": rows.obs} if plain else _by_path(rows.obs, "obs")
        if next_obs is not None:
            given |= _by_path(next_obs, "next_obs")
        given |= {f"extras/{name}": value for name, value in rows.extras.items()}
        for path in ("action", "reward", "terminated", "truncated", "flags"):
            given[path] = getattr(rows, path)
        if given.keys() != self.fields.keys():
            missing = [path for path in self.fields if path not in given]
            unknown = [path for path in given if path not in self.fields]
            raise SpecMismatch(
                f"fields: expected {sorted(self.fields)}, missing {missing}, unknown {unknown}; "
                "give exactly the fields the Spec declares (next_obs only in layout 'shared')"
            )
        return given

    def check_values(self, values: dict[str, Array], keep: Array | None = None) -> None:
        """Host: raise SpecMismatch for the first value that its field does not accept.

        Floats are converted in place to their field's dtype, as they will be stored. Rows masked
        out by `keep` may hold anything.
        """
        for path, dtype, rule in self._plain:
            value = values[path]
            if value.__class__ is not np.ndarray:
                value = values[path] = np.asarray(value)
            if value.dtype != dtype:
                if dtype.kind == "f":
                    value = values[path] = self._narrow(path, value, keep)
                rule = self._rule(path, value.dtype)
            if rule is None:
                continue
            wrong = _wrong(value, *rule)
            if wrong is not None and _counts(wrong, keep):
                raise self._refused(path, value, wrong & _rows_of(keep, wrong))
        reward = values["reward"]
        if not _all_finite(reward):
            wrong = ~np.isfinite(reward)
            if _counts(wrong, keep):
                got = _first(reward, wrong & _rows_of(keep, wrong))
                raise mismatch("reward", "finite numbers", got, _NAN)
        if values["flags"].any():
            stray = _stray_borders(values)
            if _counts(stray, keep):
                where = tuple(int(i) for i in np.argwhere(np.atleast_1d(stray))[0])
                got = f"a border row that is a step at {where}"
                raise mismatch("flags", "BORDER rows with reward 0 and no end", got, _SAME_STEP)

    def _narrow(self, path: str, value: Array, keep: Array | None) -> Array:
        """Values as the field's float dtype; SpecMismatch for a finite one that overflows it."""
        with np.errstate(over="ignore"):
            narrow = value.astype(self.fields[path].dtype)
        wrong = np.isinf(narrow)
        if wrong.any():
            wrong &= np.isfinite(value)
            if _counts(wrong, keep):
                got = _first(value, wrong & _rows_of(keep, wrong))
                kind = f"numbers that {narrow.dtype} can hold"
                raise mismatch(path, kind, got, "scale it, or declare a wider field")
        return narrow

    def _refused(self, path: str, value: Array, wrong: Array) -> SpecMismatch:
        field, got = self.fields[path], _first(value, wrong)
        low, high, nan = self._rule(path, value.dtype)
        if field.binary:
            return mismatch(path, "only 0 and 1 (binary)", got, "drop binary=True")
        if nan and np.isnan(value[wrong][0]):
            remedy = "find where it comes from, or declare the field with allow_nan=True"
            return mismatch(path, "numbers", got, remedy)
        return mismatch(path, f"values in [{low}, {high}]", got, "correct it before adding")

    def bad_values(self, values: Mapping[str, Array], rank: int, xp: Any) -> Array:
        """Device: bool[lead], the rows that `check_values` would refuse; `lead` has `rank` axes."""
        bad = ~xp.isfinite(values["reward"].astype(np.float32)) | _stray_borders(values)
        for path, field in self.fields.items():
            value, wrong = values[path], None
            if field.dtype.kind == "f" and value.dtype != field.dtype:
                narrow = value.astype(field.dtype)
                wrong = xp.isinf(narrow) & xp.isfinite(value)
                value = narrow
            low, high, nan = self._rule(path, np.dtype(value.dtype))
            # NaN fails every comparison: `~(value >= low)` refuses it, `value < low` allows it.
            if low is not None:
                wrong = _either(wrong, value < low if field.allow_nan else ~(value >= low))
            if high is not None:
                wrong = _either(wrong, value > high if field.allow_nan else ~(value <= high))
            if nan and low is None and high is None:
                # Element by element: XLA's max reduction may drop a NaN.
                wrong = _either(wrong, xp.isnan(value))
            if wrong is not None:
                bad = bad | wrong.any(axis=tuple(range(rank, wrong.ndim)))
        return bad


def _by_path(tree: Tree, name: str) -> dict[str, Any]:
    leaves = list(walk(tree, name))
    given = dict(leaves)
    if len(given) < len(leaves):
        paths = [path for path, _ in leaves]
        twice = sorted({path for path in paths if paths.count(path) > 1})
        raise mismatch(twice[0], "one value", "two", "one key holds '/', the other is nested")
    return given


def no_rows(given: object) -> SpecMismatch:
    """The error for an argument that is not Rows."""
    return SpecMismatch(
        f"add: expected Rows, got {type(given).__name__}; "
        "build Rows(obs, action, reward, terminated, truncated, flags)"
    )


def pack_values(values: Mapping[str, Array]) -> Array:
    """The flags byte stored for each checked row: uint8[...]."""
    lost = values.get("extras/life_lost")
    return pack_flags(values["flags"], values["terminated"], values["truncated"], lost)


def _wrong(value: Array, low: Any, high: Any, nan: bool) -> Array | None:
    """bool[...]: which elements break the rule; None if none does."""
    if low is None and high is None:
        return None if not nan or _no_nan(value) else np.isnan(value)
    if not value.size:
        return None
    if not (isinstance(low, np.ndarray) or isinstance(high, np.ndarray)):
        # Scalar bounds: the extremes decide, in one pass; a NaN propagates to both.
        above = low is None or np.minimum.reduce(value, axis=None) >= low
        if above and (high is None or np.maximum.reduce(value, axis=None) <= high):
            return None
    # NaN fails every comparison: `~(value >= low)` refuses it, `value < low` allows it.
    wrong = np.zeros(value.shape, bool)
    if low is not None:
        wrong |= ~(value >= low) if nan else value < low
    if high is not None:
        wrong |= ~(value <= high) if nan else value > high
    return wrong if wrong.any() else None


def _no_nan(value: Array) -> bool:
    """Whether no element is NaN, without allocating a mask."""
    if value.size <= _FEW and value.dtype.itemsize >= 4:
        square = np.vdot(value, value)  # NaN if and only if some element is
        return bool(square == square)
    return not value.size or not np.isnan(np.maximum.reduce(value, axis=None))


_SAME_STEP = (
    "this is what an env that resets in the same step produces: pass its final "
    "observations, add(rows, final_obs=...), with next_flags(..., same_step=True)"
)


def _stray_borders(values: Mapping[str, Array]) -> Array:
    """Rows flagged BORDER that carry a reward, a termination or a truncation, as only steps do."""
    step = (values["reward"] != 0) | values["terminated"] | values["truncated"]
    return ((values["flags"] & BORDER) != 0) & step


def _all_finite(value: Array) -> bool:
    """Whether all elements are finite; checked again in full where their squares overflow."""
    if value.size <= _FEW and isfinite(np.vdot(value, value)):
        return True
    return bool(np.isfinite(value).all())


def _rows_of(keep: Array | None, wrong: Array) -> Array:
    """keep[lead], reshaped to broadcast against wrong[lead + shape]."""
    if keep is None:
        return np.True_
    return np.reshape(keep, (*keep.shape, *(1,) * (wrong.ndim - keep.ndim)))


def _counts(wrong: Array, keep: Array | None) -> bool:
    return bool((wrong & _rows_of(keep, wrong)).any())


def _either(wrong: Array | None, more: Array) -> Array:
    return more if wrong is None else wrong | more


_FEW = 10_000  # elements; a longer dot product would wake up BLAS's threads
_NAN = "find the env that returned it; rewards must be finite"


def _first(value: Array, wrong: Array) -> str:
    where = tuple(int(i) for i in np.argwhere(np.atleast_1d(wrong))[0])
    return f"{np.atleast_1d(value)[where]} at index {where}"


def _shape_remedy(shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    if shape[:1] == (1,) and shape[1:] == expected:
        return "squeeze the leading axis"
    if np.prod(shape, dtype=np.int64) == np.prod(expected, dtype=np.int64):
        return "reshape it; millpond never broadcasts"
    return "give one value per row in the shape the Spec declares"


def broken_episode(before: int, after: int, where: str) -> BrokenEpisode:
    """The error for a row with flags `after` that cannot follow one with flags `before`."""
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
