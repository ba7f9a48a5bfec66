"""The features of a LeRobot dataset's frames: from meta/info.json to a Spec, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..spec import RESERVED, Field, Spec

COUNTS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
OWN = ("action", "next.reward", "next.done", "next.terminated")
NO_LAST = "the observation after an episode's end; a cut follows if it did not terminate"


class Frames:
    """The frames of a dataset: a Spec, and the features that make up its columns."""

    def __init__(self, features: Mapping[str, Any], tasks: int) -> None:
        self.losses = [NO_LAST]
        self.names: dict[str, str] = {}  # names of features, by path
        self.pictures: set[str] = set()  # paths of features that are image files
        seen = [name for name in features if name.startswith("observation.")]
        if "action" not in features or not seen:
            raise BadConfig("frames have no 'action' or no 'observation.…', but a Lake needs both")
        obs: Any = {}
        for name in seen:
            keys = name.split(".")[1:]
            alone = seen == ["observation.state"]
            field = self._field(name, "obs" if alone else "/".join(["obs", *keys]), features[name])
            node = obs
            for key in keys[:-1]:
                node = node.setdefault(key, {})
            node[keys[-1]] = field
            obs = field if alone else obs
        extras: dict[str, Field] = {}
        for name, about in features.items():
            if name in seen or name in OWN or (name in COUNTS and name != "task_index"):
                continue
            if name == "task_index" and tasks < 2:
                continue
            flag = name != "life_lost" or (
                str(_dtype(about)) == "bool" and list(about["shape"]) == [1]
            )
            if name in RESERVED or "/" in name or not flag or _dtype(about) is None:
                self.losses.append(f"'{name}': {about['dtype']}, which cannot be part of rows")
            else:
                extras[name] = self._field(name, f"extras/{name}", about)
        self.spec = Spec(obs, self._field("action", "action", features["action"]), extras)
        self.over = "next.terminated" if "next.terminated" in features else "next.done"
        self.done = "next.done" if "next.done" in features else self.over
        self.reward = "next.reward" if "next.reward" in features else None
        if self.over not in features:
            self.over = None
            self.losses.append("which episodes terminated is unknown; a cut follows each")
        elif self.over == "next.done":
            self.losses.append("'next.done' is taken as terminated")
        if self.reward is None:
            self.losses.append("the data has no rewards; all become 0")
        if "timestamp" in features:
            self.losses.append("timestamps of frames")

    def _field(self, name: str, path: str, about: Mapping[str, Any]) -> Field:
        if about["dtype"] == "video":
            raise BadConfig(
                f"'{name}' is a video, which cannot be decoded here; store its frames as images "
                "(dtype 'image'), or remove the feature from meta/info.json"
            )
        dtype = _dtype(about)
        if dtype is None:
            raise BadConfig(f"'{name}' is {about['dtype']}, but a Lake holds numbers")
        shape = tuple(int(n) for n in about["shape"])
        if about["dtype"] == "image":
            self.pictures.add(path)
        elif shape == (1,) and path != "obs" and not path.startswith("obs/"):
            # LeRobot gives single numbers this shape; continuous actions stay vectors.
            shape = shape if path == "action" and dtype.kind == "f" else ()
        self.names[path] = name
        return Field(dtype, shape, allow_nan=dtype.kind == "f")


def _dtype(about: Mapping[str, Any]) -> np.dtype | None:
    """The dtype of a feature; None if it is not an array of numbers."""
    if about["dtype"] == "image":
        return np.dtype(np.uint8)
    try:
        dtype = np.dtype(about["dtype"])
    except TypeError:
        return None
    return dtype if dtype.kind in "biuf" else None


def json_of(field: Field) -> dict[str, Any]:
    return {"dtype": field.dtype.name, "shape": list(field.shape or (1,)), "names": None}
