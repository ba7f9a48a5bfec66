"""The features of an RLDS dataset's steps: from features.json to a Spec, and back."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadConfig
from ..spec import RESERVED, Field, Spec
from .pictures import decode_picture
from .tf_example import Values

CORE = "tensorflow_datasets.core.features."
MARKS = ("is_first", "is_last", "is_terminal", "discount")
OWN = (*MARKS, "observation", "action", "reward")
_WIDE = 1024  # bytes from which on a field is compressed


class Feature(NamedTuple):
    """An array in every step; `encoding` is none, bytes, zlib or image."""

    dtype: np.dtype
    shape: tuple[int, ...]
    encoding: str

    @property
    def field(self) -> Field:
        return Field(self.dtype, self.shape, allow_nan=self.dtype.kind == "f")

    def encode(self, values: np.ndarray) -> Values:
        """Encode values [time, *shape] for an Example."""
        if self.encoding == "none":
            kind = np.float32 if self.dtype.kind == "f" else np.int64
            return values.astype(kind).reshape(-1)
        raw = [np.ascontiguousarray(one).tobytes() for one in values]
        return [zlib.compress(one) for one in raw] if self.encoding == "zlib" else raw

    def decode(self, values: Values, steps: int) -> np.ndarray:
        """Decode values of an Example; ValueError if they do not fit."""
        wanted = (steps, *self.shape)
        if not isinstance(values, list):
            found = values.astype(self.dtype)
            if self.encoding != "none" or (found.dtype.kind in "iu" and (found != values).any()):
                raise ValueError(f"values that are not {self.dtype} as {self.encoding}")
            return found.reshape(wanted)
        found = np.empty(wanted, self.dtype)
        for index, one in enumerate(values):
            found[index] = self._one(one)
        if len(values) != steps:
            raise ValueError(f"{len(values)} values in {steps} steps")
        return found

    def _one(self, data: bytes) -> np.ndarray:
        if self.encoding == "image":
            return decode_picture(data, self.shape, "rlds")
        if self.encoding == "zlib":  # unpack no more than expected, whatever the data claims
            size = int(np.prod(self.shape)) * self.dtype.itemsize
            data = zlib.decompressobj().decompress(data, size + 1)
        return np.frombuffer(data, self.dtype).reshape(self.shape)


class Steps:
    """The steps of a dataset: a Spec, and the features that make up its columns."""

    def __init__(self, features: Mapping[str, Any]) -> None:
        """`features` are those of a step, as in features.json."""
        self.losses: list[str] = []
        self.columns: dict[str, Feature] = {}  # by path
        self.names: dict[str, str] = {}  # names of features in an Example, by path
        tree = {name: _read_feature(one) for name, one in features.items()}
        if missing := [name for name in ("observation", "action") if name not in tree]:
            raise BadConfig(f"steps have no {' and no '.join(missing)}, but a Lake needs both")
        obs = self._obs(tree["observation"], "observation", "obs")
        self._add("action", "action", tree["action"])
        extras: dict[str, Field] = {}
        self.marks = {name for name in MARKS if isinstance(tree.get(name), Feature)}
        if "reward" in tree:
            self._add("reward", "reward", tree["reward"])
        else:
            self.losses.append("the data has no rewards; all become 0")
        for name in sorted(tree.keys() - set(OWN)):
            one = tree[name]
            flag = name != "life_lost" or one == Feature(np.dtype(bool), (), "none")
            if isinstance(one, Feature) and name not in RESERVED and "/" not in name and flag:
                self._add(f"extras/{name}", name, one)
                extras[name] = one.field
            else:
                self.losses.append(f"'{name}' of steps: {_kind(one)}, which cannot be part of rows")
        self.spec = Spec(obs, self.columns["action"].field, extras)

    def _add(self, path: str, name: str, one: Any) -> Feature:
        if not isinstance(one, Feature):
            raise BadConfig(f"'{name}' of steps is {_kind(one)}; a Lake holds arrays of one shape")
        self.columns[path], self.names[path] = one, f"steps/{name}"
        return one

    def _obs(self, one: Any, name: str, path: str) -> Any:
        if isinstance(one, dict):
            return {k: self._obs(v, f"{name}/{k}", f"{path}/{k}") for k, v in one.items()}
        return self._add(path, name, one).field


def _kind(one: Any) -> str:
    return "a dict" if isinstance(one, dict) else "an array" if isinstance(one, Feature) else one


def _read_feature(about: Mapping[str, Any]) -> Any:
    """A Feature, a dict of them, or a description of what it is instead."""
    if "featuresDict" in about:
        inner = about["featuresDict"]["features"]
        return {name: _read_feature(one) for name, one in inner.items()}
    name = str(about.get("pythonClassName", "of no class")).rpartition(".")[2]
    if "image" in about and "dtype" in about["image"]:
        kind, encoding = about["image"], "image"
    elif "tensor" in about:
        kind = about["tensor"]
        encoding = str(kind.get("encoding") or "none").lower()
    else:
        return f"of kind {name}"
    shape = tuple(int(n) for n in (kind.get("shape") or {}).get("dimensions", ()))
    dtype = str(kind["dtype"])
    try:
        if np.dtype(dtype).kind in "biuf" and min(shape, default=1) > 0:
            return Feature(np.dtype(dtype), shape, encoding)
    except TypeError:
        pass
    return f"of dtype {dtype} and shape {shape}"


def feature_of(field: Field) -> Feature:
    """The Feature for a field: numbers if int64 or float32 hold every value, else bytes."""
    dtype: np.dtype = field.dtype
    if field.size * dtype.itemsize >= _WIDE:
        return Feature(dtype, field.shape, "zlib")
    exact = dtype.kind in "bi" or dtype.name in ("uint8", "uint16", "uint32", "float16", "float32")
    return Feature(dtype, field.shape, "none" if exact else "bytes")


def json_of(tree: Any) -> dict[str, Any]:
    """A Feature, or a dict of them, in the form of features.json."""
    if isinstance(tree, Mapping):
        inner = {name: json_of(one) for name, one in tree.items()}
        name = f"{CORE}features_dict.FeaturesDict"
        return {"pythonClassName": name, "featuresDict": {"features": inner}}
    one: Feature = tree
    kind = "tensor_feature.Tensor" if one.shape else "scalar.Scalar"
    shape = {"dimensions": [str(n) for n in one.shape]} if one.shape else {}
    tensor = {"shape": shape, "dtype": one.dtype.name, "encoding": one.encoding}
    return {"pythonClassName": CORE + kind, "tensor": tensor}


def obs_features(tree: Any) -> Any:
    if isinstance(tree, Mapping):
        return {key: obs_features(inner) for key, inner in tree.items()}
    return feature_of(tree)
