"""`HostReplay`: replay as the host loop uses it: a Pond, HostPond or Lake for each policy."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np

from ..lake import Lake
from ..replay import HostPond, Pond
from ..rows import Batch, Draw, Rows
from ..spec import Spec
from .keys import Role, key_of
from .settings import Settings


class HostReplay(Protocol):
    """Rows [policies, envs] in, batches [policies, batch] out."""

    def add(self, rows: Rows) -> None:
        """One turn."""
        ...

    def sample(self, turn: int) -> Batch:
        """A batch for every policy."""
        ...

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        """New priorities, where the sampler has them."""
        ...

    def cut(self, envs: np.ndarray | None = None) -> None:
        """Continuity is lost after the newest rows of envs bool[env] (default: of all)."""
        ...

    def export(self) -> dict[str, np.ndarray]:
        """The whole state."""
        ...

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from an exported state."""
        ...


def make_replay(
    settings: Settings, spec: Spec, folder: Path, policies: Sequence[int] | None = None
) -> contextlib.AbstractContextManager:
    """The replay that the settings ask for, of all policies or of some; to be used in a `with`."""
    policies = range(settings.policies) if policies is None else policies
    if settings.replay == "lake":
        return LakeReplay.opened(settings, spec, folder, policies)
    kind = PondReplay if settings.replay == "pond" else HostPondReplay
    return contextlib.nullcontext(kind(settings, spec, policies))


class PondReplay:
    """A Pond in device memory for each policy, written together."""

    def __init__(self, settings: Settings, spec: Spec, policies: Sequence[int]) -> None:
        dqn = settings.dqn
        self.settings, self.policies = settings, policies
        self.pond = Pond(spec, dqn.capacity, settings.envs, settings.window, settings.sampler)
        axes = self.pond.axes
        self.state = self.pond.init_many(len(policies))
        over = (axes, 0)
        self._add = jax.jit(jax.vmap(self.pond.add, over, axes), donate_argnums=0)
        draw = jax.vmap(lambda s, k: self.pond.sample(s, k, dqn.batch), over, over)
        self._sample = jax.jit(draw, donate_argnums=0)
        rank = jax.vmap(self.pond.update_priorities, (axes, 0, 0), axes)
        self._rank = jax.jit(rank, donate_argnums=0)
        self._cut = jax.jit(jax.vmap(self.pond.cut, (axes, None), axes), donate_argnums=0)

    def add(self, rows: Rows) -> None:
        self.state = self._add(self.state, rows)

    def sample(self, turn: int) -> Batch:
        key = key_of(self.settings.seed, Role.DRAW, turn)
        keys = jax.random.split(key, len(self.policies))
        self.state, batch = self._sample(self.state, keys)
        return batch

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        self.state = self._rank(self.state, draw, errors)

    def cut(self, envs: np.ndarray | None = None) -> None:
        which = np.ones(self.settings.envs, bool) if envs is None else envs
        self.state = self._cut(self.state, which)

    def export(self) -> dict[str, np.ndarray]:
        leaves = jax.tree.leaves(self.state)
        return {f"{i}": np.asarray(leaf) for i, leaf in enumerate(leaves)}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        leaves, tree = jax.tree.flatten(self.state)
        put = [jax.numpy.asarray(arrays[f"{i}"]) for i in range(len(leaves))]
        self.state = jax.tree.unflatten(tree, put)


class HostPondReplay:
    """A HostPond for each policy."""

    def __init__(self, settings: Settings, spec: Spec, policies: Sequence[int]) -> None:
        dqn, envs = settings.dqn, settings.envs
        self.batch = dqn.batch
        self.ponds = [
            HostPond(
                spec,
                dqn.capacity,
                envs,
                settings.window,
                settings.sampler,
                seed=settings.seed * 1000 + policy,
            )
            for policy in policies
        ]

    def add(self, rows: Rows) -> None:
        for policy, pond in enumerate(self.ponds):
            pond.add(_of(rows, policy))

    def sample(self, turn: int) -> Batch:
        return _together([pond.sample(self.batch) for pond in self.ponds])

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        for policy, pond in enumerate(self.ponds):
            pond.update_priorities(_of(draw, policy), errors[policy])

    def cut(self, envs: np.ndarray | None = None) -> None:
        for pond in self.ponds:
            for env in _which(envs):
                pond.cut(env)

    def export(self) -> dict[str, np.ndarray]:
        return {
            f"{policy}/{name}": array
            for policy, pond in enumerate(self.ponds)
            for name, array in pond.export().items()
        }

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        for policy, pond in enumerate(self.ponds):
            begin = f"{policy}/"
            pond.restore(
                {k.removeprefix(begin): a for k, a in arrays.items() if k.startswith(begin)}
            )


class LakeReplay:
    """A Lake on disk for each policy. What was committed stays there when the run is killed.

    A Lake is not wound back: a resumed run goes on behind what it finds, after a cut.
    """

    def __init__(self, settings: Settings, lakes: list[Lake], writers: list[Any]) -> None:
        self.settings, self.lakes, self.writers = settings, lakes, writers
        self._random = np.random.default_rng(settings.seed)

    @staticmethod
    @contextlib.contextmanager
    def opened(
        settings: Settings, spec: Spec, folder: Path, policies: Sequence[int]
    ) -> Generator[LakeReplay]:
        """Open or create the Lakes, and close them at the end."""
        with contextlib.ExitStack() as stack:
            lakes: list[Lake] = []
            writers: list[Any] = []
            for policy in policies:
                path = folder / f"policy-{policy}"
                if path.exists():
                    lake = Lake.open(path, "a", spec)
                else:
                    lake = Lake.create(path, spec, settings.dqn.capacity)
                lakes.append(lake)
                writers.append(stack.enter_context(lake.writer("train", settings.envs)))
            yield LakeReplay(settings, lakes, writers)

    def add(self, rows: Rows) -> None:
        for policy, writer in enumerate(self.writers):
            writer.append(_of(rows, policy))
            writer.commit()

    def sample(self, turn: int) -> Batch:
        found: list[Batch] = []
        for lake in self.lakes:
            lake.refresh()
            settings = self.settings
            found.append(
                lake.sample(
                    self._random, settings.dqn.batch, settings.window, sampler=settings.sampler
                )
            )
        return _together(found)

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        raise AssertionError("Settings refuses priorities in a Lake")

    def cut(self, envs: np.ndarray | None = None) -> None:
        for writer in self.writers:
            for env in _which(envs):
                writer.cut(env)

    def export(self) -> dict[str, np.ndarray]:
        for writer in self.writers:
            writer.commit(sync=True)
        return {}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        pass  # the writer went on behind what it found, after a cut


def _which(envs: np.ndarray | None) -> Iterable[int | None]:
    """Envs to cut one by one; None means every env."""
    return [None] if envs is None else np.flatnonzero(envs).tolist()


def _of(tree: Any, policy: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[policy]), tree)


def _together(batches: list[Batch]) -> Batch:
    if len(batches) == 1:
        return jax.tree.map(lambda leaf: leaf[None], batches[0])
    return jax.tree.map(lambda *leaves: np.stack(leaves), *batches)
