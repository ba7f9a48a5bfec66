"""flashbax Vaults, for import only; their arrays are read in place with tensorstore.

A Vault holds steps [batch, time] without the observation after an episode's end. A terminated step
is followed by a border row, whose observation is never used; a truncated step by a cut.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig, BadState
from ..rows import CUT, FIRST, Rows
from ..spec import RESERVED, Field, Spec, walk
from .columns import border_like, cut_rows, fields_of, to_rows
from .source import StreamInfo, damaged, no_source, package

_NAMES = {
    "obs": ("obs", "observation", "observations"),
    "action": ("action", "actions"),
    "reward": ("reward", "rewards"),
    "terminated": ("terminated", "terminal", "terminals", "termination", "done", "dones"),
    "truncated": ("truncated", "truncation", "truncations"),
    "discount": ("discount", "discounts"),
}
_TURNS = 4096  # turns that are read at once


def open_source(path: Path) -> VaultSource:
    """Open a vault's folder (the one with metadata.json), or a folder with a single vault."""
    inner = [path] if (path / "metadata.json").is_file() else sorted(path.glob("*/"))
    found = [one for one in inner if (one / "metadata.json").is_file()] if path.is_dir() else []
    if len(found) != 1:
        raise no_source(path, "the folder of one Vault, with metadata.json")
    return VaultSource(found[0])


class VaultSource:
    """A stream for every index of the batch axis, in the group `vault`."""

    def __init__(self, path: Path) -> None:
        self._path, self._store = path, package("tensorstore", "vault")
        try:
            about = json.loads((path / "metadata.json").read_text(encoding="utf-8"))
            if int(about["version"]) != 1:
                raise BadState(f"expected version 1, got {about['version']}")
            shapes = {name: ast.literal_eval(text) for name, text in _flat(about, "shape").items()}
            dtypes = _flat(about, "dtype")
            self._number = int(np.asarray(self._open("vault_index").read().result()).reshape(-1)[0])
        except (OSError, KeyError, ValueError, TypeError, SyntaxError, BadState) as error:
            raise damaged(path, error) from error
        self.about = {"vault": {"version": about["version"]}}
        self._paths = _chosen(list(shapes))
        self._arrays = {name: self._open(f"{name.replace('/', '.')}.") for name in shapes}
        self.losses = ["the observation after an episode's end, which a Vault does not hold"]
        if self._paths["terminated"].rpartition("/")[2] in ("done", "dones"):
            self.losses.append("whether an end is a truncation: 'done' is taken as terminated")
        if "truncated" not in self._paths:
            self.losses.append("truncations, which the Vault does not record")
        if dtypes[self._paths["reward"]] != "float32":
            self.losses.append(f"rewards are {dtypes[self._paths['reward']]}; rounded to float32")
        self.spec = self._spec_of(shapes, dtypes)
        self._batch = int(next(iter(shapes.values()))[0])
        rows = [sum(len(c) for c in self._ends_of(b)) for b in range(self._batch)]
        extra = [sum(int(c.sum()) for c in self._ends_of(b)) for b in range(self._batch)]
        self.streams = [
            StreamInfo("vault", b, rows[b] + extra[b]) for b in range(self._batch) if self._number
        ]

    def _open(self, name: str) -> Any:
        base = f"file://{self._path.resolve()}"
        where = {"driver": "ocdbt", "base": base, "path": name}
        return self._store.open({"driver": "zarr", "kvstore": where}, open=True).result()

    def _spec_of(self, shapes: dict[str, tuple[int, ...]], dtypes: dict[str, str]) -> Spec:
        def field(name: str) -> Field:
            dtype = np.dtype(dtypes[name])
            return Field(dtype, shapes[name][2:], allow_nan=dtype.kind == "f")

        used = set(self._paths.values()) | set(self._obs)
        extras: dict[str, Field] = {}
        for name in shapes:
            if name in used:
                continue
            if "/" in name or name in RESERVED or name == "life_lost":
                self.losses.append(f"'{name}', which cannot be part of a row")
            else:
                extras[name] = field(name)
        obs: Any = {name: field(name) for name in self._obs}
        tree: Any = obs.get(self._paths["obs"])
        if tree is None:
            tree = {}
            for name, one in obs.items():
                *parents, last = name.split("/")[1:]
                node = tree
                for parent in parents:
                    node = node.setdefault(parent, {})
                node[last] = one
        return Spec(tree, field(self._paths["action"]), extras)

    @property
    def _obs(self) -> list[str]:
        """The arrays of the observation: one, or all below its name."""
        head = self._paths["obs"]
        return [name for name in self._arrays if name == head or name.startswith(f"{head}/")]

    def _read(self, name: str, batch: int, start: int, stop: int) -> np.ndarray:
        return np.asarray(self._arrays[name][batch, start:stop].read().result())

    def _ends_of(self, batch: int) -> Iterator[np.ndarray]:
        """Which steps of one stream terminate, piece by piece."""
        for start in range(0, self._number, _TURNS):
            stop = min(start + _TURNS, self._number)
            yield self._terminated(batch, start, stop)

    def _terminated(self, batch: int, start: int, stop: int) -> np.ndarray:
        found = self._read(self._paths["terminated"], batch, start, stop)
        return found == 0 if self._paths["terminated"] == self._paths.get("discount") else found > 0

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        at, fresh = 0, True
        for begin in range(0, self._number, _TURNS):
            stop = min(begin + _TURNS, self._number)
            terminated = self._terminated(stream, begin, stop)
            size = len(terminated) + int(terminated.sum())
            truncated = self._truncated(stream, begin, stop) & ~terminated
            if at + size > start:
                rows = self._rows_of(stream, begin, stop, terminated, truncated, fresh)
                yield cut_rows(rows, max(0, start - at))
            at, fresh = at + size, bool(terminated[-1] or truncated[-1])

    def _truncated(self, stream: int, begin: int, stop: int) -> np.ndarray:
        if "truncated" not in self._paths:
            return np.zeros(stop - begin, bool)
        return self._read(self._paths["truncated"], stream, begin, stop) > 0

    def _rows_of(
        self,
        stream: int,
        begin: int,
        stop: int,
        terminated: np.ndarray,
        truncated: np.ndarray,
        fresh: bool,
    ) -> Rows:
        """The rows of some turns, with a border row after every terminated step."""
        columns: dict[str, np.ndarray] = {}
        for path in fields_of(self.spec):
            if path in ("terminated", "truncated", "flags"):
                continue
            columns[path] = self._read(self._name_of(path), stream, begin, stop)
        ended = terminated | truncated
        first = np.concatenate([[fresh], ended[:-1]])
        flags = first * np.uint8(FIRST) + truncated * np.uint8(CUT)
        columns |= {"terminated": terminated, "truncated": truncated, "flags": flags}
        behind = np.flatnonzero(terminated) + 1
        obs = {path: columns[path] for path, _ in walk(self.spec.obs, "obs")}
        border = border_like(self.spec, {path: value[:1] for path, value in obs.items()})
        for path, value in columns.items():
            between = obs[path][behind - 1] if path in obs else border[path][0]
            columns[path] = np.insert(value, behind, between, axis=0)
        return to_rows(self.spec, columns)

    def _name_of(self, path: str) -> str:
        if path.startswith("obs"):
            return self._paths["obs"] + path.removeprefix("obs")
        return self._paths.get(path) or path.removeprefix("extras/")

    def lost(self) -> list[str]:
        cut = "truncated steps are followed by a cut, so no transition starts there"
        number = sum(
            int(self._truncated(b, s, min(s + _TURNS, self._number)).sum())
            for b in range(self._batch)
            for s in range(0, self._number, _TURNS)
        )
        return [f"{number:,} {cut}"] * bool(number)


def _flat(about: dict[str, Any], what: str) -> dict[str, str]:
    found = dict(walk(about[f"structure_{what}"], ""))
    return {name.removeprefix("/"): text for name, text in found.items()}


def _chosen(names: list[str]) -> dict[str, str]:
    """The Vault's arrays by our names; BadConfig if one that rows need is missing."""
    heads = {name.partition("/")[0] for name in names}
    found: dict[str, str] = {}
    for ours, known in _NAMES.items():
        if there := [one for one in known if one in heads]:
            found[ours] = there[0]
    if "terminated" not in found and "discount" in found:
        found["terminated"] = found["discount"]
    if missing := [name for name in ("obs", "action", "reward", "terminated") if name not in found]:
        known = ", ".join(" or ".join(_NAMES[name][:3]) for name in missing)
        raise BadConfig(
            f"the Vault has arrays {', '.join(names)}, but none named {known}; write it again with "
            "one of these names"
        )
    return found
