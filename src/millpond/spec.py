"""`Spec`: what one row holds, field by field."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import ceil, floor, inf
from typing import Any

import numpy as np

from .errors import BadConfig, SpecMismatch

_KINDS = {"b": "bool", "i": "an integer", "u": "an integer", "f": "a float"}
_EXACT = 2**53 - 1  # above it, float64 does not represent every whole number
RESERVED = ("obs", "action", "reward", "terminated", "truncated", "flags")


@dataclass(frozen=True, eq=False)  # bounds may be arrays, whose `==` is not a bool
class Field:
    """One value of a row: dtype, shape and inclusive bounds; `binary` values are stored as bits.

    Bounds are scalars or arrays of the field's shape. NaN is refused unless `allow_nan`; infinities
    are allowed within the bounds. `Field("uint8", (84, 84))`.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    low: Any = None
    high: Any = None
    binary: bool = False
    allow_nan: bool = False

    def __post_init__(self) -> None:
        dtype = np.dtype(self.dtype)
        if dtype.kind not in _KINDS:
            raise BadConfig(f"Field: dtype {dtype} cannot be stored; use bool, integers or floats")
        shape = tuple(int(n) for n in self.shape)
        if any(n < 1 for n in shape):
            raise BadConfig(f"Field: every axis must be at least 1 long, got shape {shape}")
        object.__setattr__(self, "dtype", dtype)
        object.__setattr__(self, "shape", shape)
        # A single bool takes a byte either way; packing it would only cost time.
        object.__setattr__(self, "binary", self.binary or (dtype.kind == "b" and self.size > 1))
        for name in ("low", "high"):
            object.__setattr__(self, name, self._bound(name, getattr(self, name)))
        if self.low is not None and self.high is not None and np.any(self.low > self.high):
            raise BadConfig(f"Field: low {self.low} is above high {self.high}; swap them")

    def _bound(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        given = np.asarray(value)
        bound = np.asarray(given, np.float64)
        if np.isnan(bound).any():
            raise BadConfig(f"Field: {name} is not a number; omit it if there is no bound")
        if given.dtype.kind in "iu" and (np.abs(bound) > _EXACT).any():
            bound = given  # too large for float64 to be exact: keep the integers
        if bound.ndim and bound.shape != self.shape:
            raise BadConfig(
                f"Field: {name} has shape {bound.shape}, the field {self.shape}; "
                "give one number or one per element"
            )
        if bound.ndim and np.all(bound == bound.flat[0]):
            bound = bound.flat[0]  # a scalar is faster to check and easier to read
        if bound.ndim == 0:
            bound = bound.item()
            edge = np.iinfo(self.dtype) if self.dtype.kind in "iu" else None
            if np.isinf(bound) or (edge and bound == (edge.min if name == "low" else edge.max)):
                return None  # a bound that the dtype itself implies
        return bound

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Field):
            return NotImplemented
        return self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash((self.dtype, self.shape, self.binary))

    @property
    def size(self) -> int:
        """Elements per row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        """Bytes per row as stored: binary fields take one bit per element."""
        return -(-self.size // 8) if self.binary else self.size * self.dtype.itemsize

    def lowest(self) -> np.ndarray:
        """The lower bound, or `blank` where there is none: the dummy action of a border row."""
        low, blank = self.limits(self.dtype)[0], self.blank()
        if low is None:
            return blank
        return np.where(low == -inf, blank, low).astype(self.dtype)

    def blank(self) -> np.ndarray:
        """0, or the value nearest to it within the bounds: for rows without a real value."""
        value = np.zeros(self.shape, self.dtype)
        for bound, nearest in zip(self.limits(self.dtype), (np.maximum, np.minimum), strict=True):
            value = value if bound is None else nearest(value, bound)
        return np.asarray(value, self.dtype)

    def accepts(self, dtype: np.dtype) -> bool:
        """Whether values of `dtype` can be stored without changing their meaning.

        Floats of any width and integers fit a float field; integers fit an integer field (their
        values are checked against the bounds); nothing else is ever converted.
        """
        if dtype == self.dtype:
            return True
        kind = self.dtype.kind
        return (kind == "f" and dtype.kind in "fiu") or (kind in "iu" and dtype.kind in "iu")

    def limits(self, dtype: np.dtype) -> tuple[Any, Any]:
        """(low, high) to check values of `dtype` against; None where no check is needed.

        Floats are compared as they will be stored, in the field's dtype, so bounds are rounded to
        it too. Integers are compared as given: the bounds are whole numbers within `dtype`, so
        neither side is converted. If no value of `dtype` can fit, low is above high.
        """
        if self.binary:
            return (None, None) if dtype.kind == "b" else (dtype.type(0), dtype.type(1))
        if self.dtype.kind == "f":
            return _rounded(self.low, self.dtype), _rounded(self.high, self.dtype)
        if dtype.kind not in "iu":
            return None, None
        return _whole(self.low, self.high, self.dtype, dtype)

    def describe(self) -> str:
        """Short form used in messages, such as `uint8 (84, 84)`."""
        return f"{self.dtype} {self.shape}"

    def to_json(self) -> dict[str, Any]:
        """A plain description; equal fields give equal descriptions."""
        plain = [None if b is None else np.asarray(b).tolist() for b in (self.low, self.high)]
        described = {
            "dtype": self.dtype.newbyteorder("<").str,
            "shape": list(self.shape),
            "low": plain[0],
            "high": plain[1],
            "binary": self.binary,
        }
        # Only if set: files and fingerprints of other fields stay as they were before it existed.
        return described | ({"allow_nan": True} if self.allow_nan else {})

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Field:
        """The field that `to_json` described."""
        bounds = plain["low"], plain["high"]
        nan = plain.get("allow_nan", False)
        return Field(plain["dtype"], tuple(plain["shape"]), *bounds, plain["binary"], nan)


def _rounded(bound: Any, dtype: np.dtype) -> Any:
    """A bound rounded to a float dtype, as values are: a value that rounds to it must fit."""
    if bound is None:
        return None
    with np.errstate(over="ignore"):  # too large for the dtype: infinite, so it bounds nothing
        return np.asarray(bound).astype(dtype)[()]


def _whole(low: Any, high: Any, field: np.dtype, dtype: np.dtype) -> tuple[Any, Any]:
    """Bounds of an integer field, in `dtype`; None where every value of `dtype` is within them."""
    mine, edge = np.iinfo(field), np.iinfo(dtype)
    low, high = (mine.min if low is None else low), (mine.max if high is None else high)
    low, high = np.broadcast_arrays(*(np.asarray(bound, object) for bound in (low, high)))
    pairs: list[tuple[int, int]] = []
    for one, other in zip(low.ravel(), high.ravel(), strict=True):
        least = max(mine.min, edge.min) if one == -inf else max(ceil(one), edge.min)
        most = min(mine.max, edge.max) if other == inf else min(floor(other), edge.max)
        fits = least <= edge.max and most >= edge.min
        pairs.append((least, most) if fits else (edge.max, edge.min))
    lows, highs = np.array(pairs, dtype).T
    return (
        None if (lows == edge.min).all() else lows.reshape(low.shape)[()],
        None if (highs == edge.max).all() else highs.reshape(high.shape)[()],
    )


Tree = Field | Mapping[str, Any]


@dataclass(frozen=True)
class Spec:
    """What every row of a run holds. The reward is always one float32.

    `obs` is a Field or a nested dict of Fields; `extras` are more values recorded with each step.
    `Spec(obs=Field("float32", (4,)), action=Field("int32", (), 0, 1))`.
    """

    obs: Tree
    action: Field
    extras: Mapping[str, Field] = field(default_factory=dict[str, Field])

    def __post_init__(self) -> None:
        for name in self.extras:
            if name in RESERVED or "/" in name:
                raise BadConfig(f"Spec: an extra cannot be called {name!r}; choose another name")
        if "life_lost" in self.extras and self.extras["life_lost"] != Field("bool"):
            raise BadConfig('Spec: the extra life_lost must be Field("bool"), one flag per row')
        _check_keys(self.obs, "obs")
        paths = [path for path, _ in walk(self.obs, "obs")]
        if not paths:
            raise BadConfig("Spec: obs holds no field; give a Field or a dict of Fields")
        twice = {path for path in paths if paths.count(path) > 1}
        if twice:
            raise BadConfig(
                f"Spec: two fields of obs have the path {sorted(twice)}, one by a key with '/' and "
                "one by nested dicts; rename one of them"
            )

    @property
    def columns(self) -> dict[str, Field]:
        """Every stored field by path: `obs` or `obs/<key>/...`, `action`, `reward`, `extras/<key>`.

        Except the extra `life_lost`, which is stored in the flags byte.
        """
        columns = dict(walk(self.obs, "obs"))
        columns["action"] = self.action
        columns["reward"] = Field("float32")
        columns |= {f"extras/{n}": f for n, f in sorted(self.extras.items()) if n != "life_lost"}
        return columns

    @property
    def row_bytes(self) -> int:
        """Bytes per stored row, including the flags byte."""
        return 1 + sum(f.nbytes for f in self.columns.values())

    @property
    def packed(self) -> Spec:
        """The same spec with binary observations packed, 8 values to a byte, as they are stored.

        Storage is identical; only the values passed in and returned differ.
        """

        def bytes_of(field: Field) -> Field:
            plain = not (field.binary and field.shape)
            return field if plain else Field("uint8", (field.nbytes,))

        obs = self.obs_tree({path: bytes_of(field) for path, field in walk(self.obs, "obs")})
        return Spec(obs, self.action, self.extras)

    def obs_tree(self, columns: Mapping[str, Any]) -> Any:
        """An observation structured like `obs`, from values by path."""
        return _build(self.obs, "obs", columns)

    def to_json(self) -> dict[str, Any]:
        """A plain description, from which `from_json` restores the spec."""

        def plain(node: Tree) -> Any:
            if isinstance(node, Field):
                return node.to_json()
            return {"keys": {key: plain(node[key]) for key in sorted(node)}}

        extras = {name: f.to_json() for name, f in sorted(self.extras.items())}
        return {"obs": plain(self.obs), "action": self.action.to_json(), "extras": extras}

    @staticmethod
    def from_json(plain: Mapping[str, Any]) -> Spec:
        """The spec that `to_json` described."""

        def tree(node: Mapping[str, Any]) -> Tree:
            if "keys" in node:
                return {key: tree(value) for key, value in node["keys"].items()}
            return Field.from_json(node)

        extras = {name: Field.from_json(f) for name, f in plain["extras"].items()}
        return Spec(tree(plain["obs"]), Field.from_json(plain["action"]), extras)

    def fingerprint(self) -> str:
        """16 hex digits, equal for equal specs on every machine and in every version."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @staticmethod
    def from_env(env: Any, extras: Mapping[str, Field] | None = None) -> Spec:
        """The spec of a single or vector Gymnasium env. 64-bit spaces become 32-bit fields.

        `Spec.from_env(gymnasium.make("CartPole-v1"))`.
        """
        obs = getattr(env, "single_observation_space", env.observation_space)
        action = getattr(env, "single_action_space", env.action_space)
        action_field = _from_space(action, "action")
        if not isinstance(action_field, Field):
            raise BadConfig("Spec.from_env: a dict of actions is not supported; flatten it")
        return Spec(_from_space(obs, "obs"), action_field, extras or {})


def walk(tree: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Leaves of a nested dict with their paths, in sorted order."""
    if isinstance(tree, Mapping):
        for key in sorted(tree):
            yield from walk(tree[key], f"{path}/{key}")
    else:
        yield path, tree


def _check_keys(tree: Any, path: str) -> None:
    if isinstance(tree, Field):
        return
    if not isinstance(tree, Mapping):
        raise BadConfig(
            f"Spec: {path} is a {type(tree).__name__}; give a Field or a dict of Fields"
        )
    for key, value in tree.items():
        if not isinstance(key, str):
            raise BadConfig(f"Spec: {path} has the key {key!r}; keys are strings, so use '{key}'")
        _check_keys(value, f"{path}/{key}")


def _build(tree: Tree, path: str, columns: Mapping[str, Any]) -> Any:
    if isinstance(tree, Mapping):
        return {key: _build(tree[key], f"{path}/{key}", columns) for key in tree}
    return columns[path]


def _from_space(space: Any, path: str) -> Tree:
    kind = type(space).__name__
    if kind == "Dict":
        return {key: _from_space(inner, f"{path}/{key}") for key, inner in space.spaces.items()}
    narrow = {"float64": "float32", "int64": "int32", "uint64": "uint32"}
    dtype = narrow.get(str(space.dtype), space.dtype)
    if kind == "Box" and path.startswith("obs") and space.dtype.kind == "f":
        return Field(dtype, space.shape)  # envs exceed their bounds of float observations
    if kind == "Box":
        return Field(dtype, space.shape, space.low, space.high)
    if kind == "Discrete":
        return Field(dtype, (), int(space.start), int(space.start + space.n - 1))
    if kind == "MultiDiscrete":
        start = np.asarray(space.start)
        return Field(dtype, space.shape, start, start + space.nvec - 1)
    if kind == "MultiBinary":
        return Field(dtype, space.shape, binary=True)
    raise BadConfig(
        f"Spec.from_env: {path} is a {kind} space, which has no fixed shape per step; "
        "wrap the env so that it gives Box, Discrete, MultiDiscrete, MultiBinary or Dict"
    )


def mismatch(path: str, expected: str, got: str, remedy: str) -> SpecMismatch:
    """The error for a field, with what was expected, what was given, and a remedy."""
    return SpecMismatch(f"field '{path}': expected {expected}, got {got}; {remedy}")
