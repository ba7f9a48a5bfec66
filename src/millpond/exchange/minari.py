"""Minari: local datasets, read and written with Minari's own code, one episode at a time.

All episodes become one stream; last observations become border rows, and infos become extras.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from ..errors import BadConfig
from ..rows import Rows
from ..spec import RESERVED, Field, Spec, walk
from .columns import cut_rows, fields_of
from .episodes import Episode, Episodes, per_observation, rows_of
from .exporting import LakeRows
from .importing import Progress
from .source import StreamInfo, damaged, missing_package, no_source, package

_SPACES = gymnasium.spaces
_KEPT = ("observation_space", "action_space", "env_spec", "dataset_id", "algorithm_name", "author")
_NARROW = "rewards are {}; rounded to float32"


def _storage() -> Any:
    return package("minari.dataset.minari_storage", "minari").MinariStorage


def open_source(path: Path) -> MinariSource:
    """Open a dataset's folder, or the folder `data` in it."""
    storage = _storage()
    folder = path / "data" if (path / "data" / "metadata.json").exists() else path
    if not (folder / "metadata.json").is_file():
        raise no_source(path, "a Minari dataset, with data/metadata.json")
    with _reading(folder):
        return MinariSource(folder, storage.read(folder))


@contextlib.contextmanager
def _reading(folder: Path) -> Generator[None]:
    """Turn whatever Minari and HDF5 raise for a bad file into one error."""
    try:
        yield
    except ImportError as error:
        raise missing_package("minari", error) from error
    except (OSError, KeyError, ValueError, TypeError, RuntimeError, AssertionError) as error:
        if isinstance(error, BadConfig):
            raise
        raise damaged(folder, f"{type(error).__name__}: {error}") from error


class MinariSource:
    """All episodes, in one stream of the group `minari`."""

    def __init__(self, folder: Path, storage: Any) -> None:
        self._folder, self._storage = folder, storage
        raw = storage.read_raw_metadata(folder)
        self.about = {"minari": {name: raw[name] for name in _KEPT if name in raw}}
        about = storage.get_episode_metadata(range(storage.total_episodes))
        self._steps = np.array([int(one["total_steps"]) for one in about], np.int64)
        self._ends = np.cumsum(self._steps + 1)
        self.streams = [StreamInfo("minari", 0, int(self._ends[-1]) if len(self._ends) else 0)]
        self.losses = ["seeds and options of episodes"]
        self._infos: list[str] = []
        self._rounded = 0
        first = next(iter(storage.get_episodes([0])), None) if len(self._steps) else None
        self.spec = self._spec_of(first) if first else Spec(Field("uint8"), Field("uint8"))

    def _spec_of(self, first: Mapping[str, Any]) -> Spec:
        """The Spec, with the data's dtypes and the spaces' bounds."""
        obs = _field_of(self._storage.observation_space, first["observations"], "obs")
        action = _field_of(self._storage.action_space, first["actions"], "action")
        if not isinstance(action, Field):
            raise BadConfig("the action is a dict, but rows hold one array; flatten it first")
        extras: dict[str, Field] = {}
        for path, values in _infos_of(first).items():
            values = np.asarray(values)
            fits = len(values) == int(self._steps[0]) + 1 and values.dtype.kind in "biuf"
            flag = path != "life_lost" or (values.dtype.kind == "b" and values.ndim == 1)
            if fits and flag and "/" not in path and path not in RESERVED:
                extras[path] = _extra(values.dtype, values.shape[1:])
                self._infos.append(path)
            else:
                self.losses.append(f"infos '{path}': not one number or array per observation")
        reward = np.asarray(first["rewards"]).dtype
        if reward != np.float32:
            self.losses.append(_NARROW.format(reward))
        raw = self.about["minari"]
        if self._storage.jpeg_encoding and "uint8" in str(raw.get("observation_space")):
            self.losses.append("images are kept as decoded from Minari's JPEG")
        return Spec(obs, action, extras)

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        first = int(np.searchsorted(self._ends, start, side="right"))
        if first >= len(self._ends):
            return
        skip = start - int(self._ends[first] - self._steps[first] - 1)
        self._rounded = 0 if not start else self._rounded
        with _reading(self._folder):
            for one in self._storage.get_episodes(range(first, len(self._ends))):
                yield cut_rows(rows_of(self.spec, self._episode(one)), skip)
                skip = 0

    def _episode(self, one: Mapping[str, Any]) -> Episode:
        number = int(one["id"])
        steps, columns = int(self._steps[number]), dict[str, np.ndarray]()
        columns |= {path: np.asarray(value) for path, value in walk(one["observations"], "obs")}
        columns["action"] = np.asarray(one["actions"])
        rewards = np.asarray(one["rewards"])
        columns["reward"] = rewards.astype(np.float32)
        self._rounded += int(np.count_nonzero(columns["reward"] != rewards))
        columns["terminated"] = np.asarray(one["terminations"], bool)
        columns["truncated"] = np.asarray(one["truncations"], bool)
        infos = _infos_of(one)
        for name in self._infos:
            if name not in infos:
                raise ValueError(f"episode {number} has no infos '{name}', unlike the first one")
            columns[f"extras/{name}"] = np.asarray(infos[name])
        for path, value in columns.items():
            field = fields_of(self.spec)[path]
            wanted = (steps + per_observation(path), *field.shape)
            value = value.reshape(wanted) if value.size == np.prod(wanted) else value
            if value.shape != wanted or not field.accepts(value.dtype):
                raise ValueError(
                    f"episode {number}: '{path}' is {value.dtype} {value.shape}, expected "
                    f"{field.dtype} {wanted}"
                )
            columns[path] = value
        early = np.flatnonzero((columns["terminated"] | columns["truncated"])[:-1])
        if len(early):
            raise ValueError(f"episode {number} ends at step {early[0]} of {steps}")
        return Episode(columns, steps)

    def lost(self) -> list[str]:
        total = int(self._steps.sum())
        return [f"{self._rounded:,} of {total:,} rewards changed by rounding"] * bool(self._rounded)


def _extra(dtype: np.dtype, shape: tuple[int, ...]) -> Field:
    return Field(dtype, shape, allow_nan=dtype.kind == "f")


def _infos_of(one: Mapping[str, Any]) -> dict[str, Any]:
    return {path.removeprefix("/"): value for path, value in walk(one["infos"] or {}, "")}


def _field_of(space: Any, values: Any, path: str) -> Any:
    """The field for a space, with the data's dtype."""
    if isinstance(space, _SPACES.Dict):
        return {
            key: _field_of(inner, values[key], f"{path}/{key}")
            for key, inner in space.spaces.items()
        }
    if not isinstance(values, np.ndarray):
        raise BadConfig(
            f"{path} is a {type(space).__name__} space, but a Lake holds arrays and dicts of them"
        )
    if isinstance(space, _SPACES.Discrete):
        return Field(values.dtype, (), int(space.start), int(space.start + space.n - 1))
    if isinstance(space, _SPACES.MultiDiscrete):
        start = np.asarray(space.start)
        return Field(values.dtype, space.shape, start, start + space.nvec - 1)
    if isinstance(space, _SPACES.MultiBinary):
        return Field(values.dtype, space.shape, binary=True)
    assert isinstance(space, _SPACES.Box)
    if values.dtype.kind == "f":
        # Without bounds, since envs exceed those of floats; NaN is kept.
        return Field(values.dtype, space.shape, allow_nan=True)
    return Field(values.dtype, space.shape, space.low, space.high)


def _space_of(tree: Any) -> Any:
    """The space for a field, or for a dict of fields."""
    if isinstance(tree, Mapping):
        return _SPACES.Dict({key: _space_of(inner) for key, inner in tree.items()})
    field: Field = tree
    if field.binary:
        one = len(field.shape) == 1
        return _SPACES.MultiBinary(field.shape[0] if one else field.shape)
    whole = field.dtype.kind in "iu"
    low, high = (None if bound is None else np.asarray(bound) for bound in (field.low, field.high))
    if whole and not field.shape and low is not None and high is not None:
        return _SPACES.Discrete(int(high) - int(low) + 1, start=int(low))
    if whole and high is not None and low is not None and not low.any():
        nvec = np.broadcast_to(high, field.shape) + 1
        return _SPACES.MultiDiscrete(nvec, dtype=field.dtype.type)
    edge = np.iinfo(field.dtype) if whole else None
    if field.dtype.kind == "b":
        return _SPACES.Box(0, 1, field.shape, np.int8)
    ends = (edge.min, edge.max) if edge else (-np.inf, np.inf)
    low, high = (
        np.broadcast_to(end if bound is None else bound, field.shape).astype(field.dtype)
        for bound, end in zip((low, high), ends, strict=True)
    )
    return _SPACES.Box(low, high, field.shape, field.dtype.type)


class MinariPlan:
    """Writes a Lake's episodes as a dataset of HDF5 files."""

    def __init__(self, rows: LakeRows) -> None:
        self._rows, self._episodes = rows, Episodes(rows)
        spec = rows.spec
        extras = {name: _extra(f.dtype, f.shape) for name, f in spec.extras.items()}
        self.spaces = _space_of(spec.obs), _space_of(spec.action)
        columns = {path: np.zeros((1, *f.shape), f.dtype) for path, f in fields_of(spec).items()}
        obs = _field_of(self.spaces[0], spec.obs_tree(columns), "obs")
        self.spec = Spec(obs, _field_of(self.spaces[1], columns["action"], "action"), extras)
        self.losses = self._episodes.losses()
        changed = [path for path, f in spec.columns.items() if f != self.spec.columns[path]]
        if changed:
            self.losses.append(f"bounds of {', '.join(changed)}")
        if spec.extras:
            self.losses.append("extras become infos of their row's observation")

    def write(self, part: Path, progress: Progress) -> None:
        buffer = package("minari.data_collector", "minari").EpisodeBuffer
        # Resolved, because Minari looks up the size of a relative path in the wrong folder.
        data, about = part.resolve() / "data", self._rows.about.get("minari") or {}
        data.mkdir()
        storage = _storage().new(data, *self.spaces, data_format="hdf5", jpeg_encoding=False)
        done = 0

        def buffers() -> Iterator[Any]:
            nonlocal done
            for number, episode in enumerate(self._episodes):
                columns = episode.columns
                names = {"rewards": "reward", "terminations": "terminated"}
                names |= {"truncations": "truncated", "actions": "action"}
                plain = {name: columns[path] for name, path in names.items()}
                plain["rewards"] = plain["rewards"].astype(np.float64)  # Minari's dtype
                infos = {name: columns[f"extras/{name}"] for name in self.spec.extras}
                obs = self.spec.obs_tree(columns)
                yield buffer(id=number, observations=obs, infos=infos or None, **plain)
                done += episode.steps + 1
                progress("exporting", done, self._rows.total)

        storage.update_episodes(buffers())
        file = data / "metadata.json"
        found = json.loads(file.read_text(encoding="utf-8"))
        # Keep the metadata from when the Lake was imported, if the spaces still fit.
        same = _same_kind(about, found)
        kept = {name: about[name] for name in _KEPT if name in about and same}
        found |= {"dataset_id": "millpond/lake-v0", "minari_version": _version()} | kept
        file.write_text(json.dumps(found), encoding="utf-8")

    def expected(self, stream: int) -> Iterator[Rows]:
        for episode in self._episodes:
            yield rows_of(self.spec, episode)


def _same_kind(about: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether the spaces of both have equal structure and shapes; bounds may differ."""

    def shapes(plain: Any) -> Any:
        if isinstance(plain, dict):
            return {k: shapes(v) for k, v in plain.items() if k not in ("low", "high", "dtype")}
        return [shapes(v) for v in plain] if isinstance(plain, list) else plain

    names = ("observation_space", "action_space")
    return all(
        name in about and shapes(json.loads(about[name])) == shapes(json.loads(found[name]))
        for name in names
    )


def _version() -> str:
    return str(package("minari", "minari").__version__)


def plan(rows: LakeRows) -> MinariPlan:
    """Plan an export."""
    _storage()
    return MinariPlan(rows)
