"""`Replay`: where the rows of a learner are kept on the host: HostPonds, Lakes, or a given Lake."""

from __future__ import annotations

import contextlib
import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import BadConfig, NotEnoughData
from ..lake import Lake, Writer
from ..replay import HostPond
from ..rows import Draw, Rows
from ..sequence import Sample
from ..spec import Spec
from .checkpoint import Arrays
from .provenance import stored_spec, traced_spec
from .settings import Settings
from .trees import part, stacked

# A policy and what takes its rows [time, env]; or all policies, [time, policies, env], at once.
Stores = Sequence[tuple[int | slice, Callable[[Rows], None]]]


class Replay(Protocol):
    """The replay of a learner's policies, for `HostUpdates`. Methods left out do nothing."""

    stores: Stores = ()  # where each cycle's rows go; fixed once the replay is made

    @abstractmethod
    def draw(self, turn: int) -> Sample | None:
        """A batch [policies, batch] for update `turn`; None if there is nothing to draw from."""

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        """Set priorities [policies, batch]."""
        raise AssertionError("Settings refuses priorities in a Lake")

    def cut(self, envs: np.ndarray) -> None:
        """The next rows of envs bool[env] do not continue their newest ones."""

    @abstractmethod
    def export(self) -> list[Arrays]:
        """The state of each policy's replay."""

    def restore(self, arrays: Sequence[Arrays]) -> None:
        """Continue from what `export` returned."""

    def close(self) -> None:
        """Release files."""


def open_replay(settings: Settings, policies: range, folder: Path) -> Replay:
    """The replay of these policies that the settings ask for, in one piece."""
    if settings.from_lake:
        return LakeSource(settings)
    if settings.replay == "lake":
        return Lakes(settings, policies, folder / "lake")
    return HostPonds(settings, policies)


class HostPonds(Replay):
    """A HostPond for each policy."""

    def __init__(self, settings: Settings, policies: range) -> None:
        learns, self._batch = settings.replayed, settings.played_rows
        sizes = (learns.capacity, settings.envs, learns.window, settings.sampling)
        spec, seed = traced_spec(settings), settings.seed * 1000
        self.ponds = [HostPond(spec, *sizes, seed=seed + policy) for policy in policies]
        self.stores = [(policy, pond.add) for policy, pond in enumerate(self.ponds)]

    def draw(self, turn: int) -> Sample:
        return stacked([pond.sample(self._batch) for pond in self.ponds])

    def rank(self, draw: Draw, priority: np.ndarray) -> None:
        for policy, pond in enumerate(self.ponds):
            pond.update_priorities(part(draw, policy), priority[policy])

    def cut(self, envs: np.ndarray) -> None:
        for pond in self.ponds:
            pond.cut(envs)

    def export(self) -> list[Arrays]:
        return [pond.export() for pond in self.ponds]

    def restore(self, arrays: Sequence[Arrays]) -> None:
        for pond, one in zip(self.ponds, arrays, strict=True):
            pond.restore(one)


class Lakes(Replay):
    """A Lake on disk for each policy. What was committed stays there when the run is killed.

    A Lake is not wound back: a resumed run appends to what it finds, after a cut.
    """

    def __init__(self, settings: Settings, policies: range, folder: Path) -> None:
        self._settings = settings
        paths = [folder / f"policy-{policy}" for policy in policies]
        spec, capacity = traced_spec(settings), settings.replayed.capacity
        self._lakes = [open_or_create(path, spec, capacity) for path in paths]
        with contextlib.ExitStack() as stack:  # if one cannot be opened, the others are closed
            opened = stack.enter_context
            self._writers = [opened(lake.writer("train", settings.envs)) for lake in self._lakes]
            self._stack = stack.pop_all()
        self._random = [np.random.default_rng(settings.seed) for _ in policies]
        self.stores = [(i, functools.partial(_add, one)) for i, one in enumerate(self._writers)]

    def draw(self, turn: int) -> Sample:
        return stacked([self._sample(*one) for one in zip(self._lakes, self._random, strict=True)])

    def _sample(self, lake: Lake, random: np.random.Generator) -> Sample:
        settings = self._settings
        lake.refresh()
        number, window = settings.played_rows, settings.window
        return lake.sample(random, number, window, sampler=settings.sampling)

    def cut(self, envs: np.ndarray) -> None:
        for writer in self._writers:
            for env in [None] if envs.all() else np.flatnonzero(envs).tolist():
                writer.cut(env)

    def export(self) -> list[Arrays]:
        for writer in self._writers:
            writer.commit(sync=True)
        return [{} for _ in self._writers]

    def close(self) -> None:
        self._stack.close()


def _add(writer: Writer, rows: Rows) -> None:
    writer.append(rows)
    writer.commit()


def open_or_create(path: Path, spec: Spec, capacity: int, groups: int = 1) -> Lake:
    """The Lake at `path` to append to; a new one if there is none."""
    if path.exists():
        return Lake.open(path, "a", spec)
    return Lake.create(path, spec, capacity, groups=groups)


class LakeSource(Replay):
    """A given Lake, which one policy learns from without playing: nothing is added to it.

    Every draw has a generator of its own, from the seed and the number of the update.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.lake = settings, open_source(settings, settings.from_lake, "from_lake")
        self._extras = list(stored_spec(settings).extras)

    def draw(self, turn: int) -> Sample:
        settings, learns = self.settings, self.settings.replayed
        rng = np.random.default_rng((settings.seed, turn))
        found = self.lake.sample(rng, learns.batch, learns.window, sampler=settings.sampling)
        return stacked([without_trace(found, self._extras)])

    def export(self) -> list[Arrays]:
        return [{}]


def without_trace(found: Any, extras: list[str]) -> Any:
    """A sample with these extras only: rows of our own runs also have their provenance."""
    return found._replace(extras={name: found.extras[name] for name in extras})


def open_source(settings: Settings, path: str, name: str) -> Lake:
    """The Lake to learn from; one that is missing, empty or of another spec is refused.

    `name` is the setting that names it. The Lake may also have the columns that runs add.
    """
    spec = stored_spec(settings)
    if memory := spec.extras.get("memory"):
        held = Lake.open(path, "r").spec.extras.get("memory")
        if held != memory:
            raise BadConfig(
                f"{name}: {path} must hold the memory that its rows were acted "
                f"with, as extras/memory: {memory.describe()}, got "
                f"{held.describe() if held else 'none'}; write such rows, or use --network.memory 0"
            )
    traced = Lake.open(path, "r").spec == traced_spec(settings)
    lake = Lake.open(path, "r", traced_spec(settings) if traced else spec)
    settings.window.fits(lake.spec, 2**31)
    if not len(lake):
        raise NotEnoughData(f"{name}: {path} holds no rows; write some to it first")
    return lake
