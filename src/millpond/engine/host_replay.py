"""`HostReplay`: a policy's rows on the host: a HostPond, a Lake, or a Lake of others."""

from __future__ import annotations

import contextlib
from abc import abstractmethod
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..errors import BadConfig, NotEnoughData
from ..lake import Lake
from ..replay import HostPond
from ..rows import Draw, Rows
from ..sequence import Sample
from ..spec import Spec
from .provenance import stored_spec, traced_spec
from .settings import Settings


class HostReplay(Protocol):
    """Rows [time, env] of one policy in, batches out. What is not said here keeps nothing."""

    def add(self, rows: Rows) -> None:
        """Some turns."""
        raise AssertionError("a run from a Lake plays nothing")

    @abstractmethod
    def sample(self, turn: int) -> Sample:
        """The batch of update `turn`."""

    def rank(self, draw: Draw, priorities: np.ndarray) -> None:
        """New priorities, where the sampler has them."""
        raise AssertionError("Settings refuses priorities in a Lake")

    def cut(self, envs: np.ndarray) -> None:
        """Continuity is lost after the newest rows of envs bool[env]."""

    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from an exported state."""


def open_replay(
    settings: Settings, spec: Spec, folder: Path, policy: int
) -> contextlib.AbstractContextManager[HostReplay]:
    """The replay of one policy that the settings ask for; to be used in a `with`."""
    if settings.from_lake:
        return contextlib.nullcontext(LakeSource(settings))
    if settings.replay == "lake":
        return LakeReplay.opened(settings, spec, folder / f"policy-{policy}")
    return contextlib.nullcontext(HostPondReplay(settings, spec, policy))


class HostPondReplay(HostReplay):
    """A HostPond, whose own methods most of these are."""

    def __init__(self, settings: Settings, spec: Spec, policy: int) -> None:
        learns, self.batch = settings.replayed, settings.played_rows
        sizes = (learns.capacity, settings.envs, learns.window, settings.sampling)
        self.pond = pond = HostPond(spec, *sizes, seed=settings.seed * 1000 + policy)
        self.add, self.rank, self.cut = pond.add, pond.update_priorities, pond.cut
        self.export, self.restore = pond.export, pond.restore

    def sample(self, turn: int) -> Sample:
        return self.pond.sample(self.batch)


class LakeReplay(HostReplay):
    """A Lake on disk. What was committed stays there when the run is killed.

    A Lake is not wound back: a resumed run appends to what it finds, after a cut.
    """

    def __init__(self, settings: Settings, lake: Lake, writer: Any) -> None:
        self.settings, self.lake, self.writer = settings, lake, writer
        self._random = np.random.default_rng(settings.seed)

    @staticmethod
    @contextlib.contextmanager
    def opened(settings: Settings, spec: Spec, path: Path) -> Generator[LakeReplay]:
        """Open or create the Lake, and close it at the end."""
        if path.exists():
            lake = Lake.open(path, "a", spec)
        else:
            lake = Lake.create(path, spec, settings.replayed.capacity)
        with lake.writer("train", settings.envs) as writer:
            yield LakeReplay(settings, lake, writer)

    def add(self, rows: Rows) -> None:
        self.writer.append(rows)
        self.writer.commit()

    def sample(self, turn: int) -> Sample:
        self.lake.refresh()
        learns = self.settings.replayed
        sampler = self.settings.sampling
        number = self.settings.played_rows
        return self.lake.sample(self._random, number, learns.window, sampler=sampler)

    def cut(self, envs: np.ndarray) -> None:
        for env in [None] if envs.all() else np.flatnonzero(envs).tolist():
            self.writer.cut(env)

    def export(self) -> dict[str, np.ndarray]:
        self.writer.commit(sync=True)
        return {}


class LakeSource(HostReplay):
    """A Lake of others, to learn from alone: nothing is added to it.

    Every draw has its own generator, from the seed and its number.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings, self.lake = settings, open_source(settings, settings.from_lake, "from_lake")
        self._extras = list(stored_spec(settings).extras)

    def sample(self, turn: int) -> Sample:
        settings, learns = self.settings, self.settings.replayed
        rng = np.random.default_rng((settings.seed, turn))
        found = self.lake.sample(rng, learns.batch, learns.window, sampler=settings.sampling)
        return without_trace(found, self._extras)


def without_trace(found: Any, extras: list[str]) -> Any:
    """A sample without what rows of our own runs say of themselves beyond these extras."""
    return found._replace(extras={name: found.extras[name] for name in extras})


def open_source(settings: Settings, path: str, name: str) -> Lake:
    """The Lake to learn from; one that is not there, of another spec or empty is refused.

    `name` is the setting that names it. It may also have the columns that runs add.
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
