"""`Learner`: replay and agents of some policies: rows in, cycle by cycle, and parameters out."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Rollouts
from ..rows import Rows
from .checkpoint import named_leaves, within
from .host_replay import open_replay
from .host_updates import HostUpdates, Replay, Replays
from .keys import Role, key_of
from .lake_share import LakeShare
from .limiter import Limiter
from .make_agent import make_agent
from .pond_updates import PondUpdates
from .provenance import traced_spec
from .rollout_updates import RolloutUpdates
from .row_audit import RowAudit
from .settings import Settings
from .sharded import LocalShards
from .trace import digest
from .updates import Cycle, Updates


class Progress(NamedTuple):
    """What a learner reports of a policy: sums since the last report, and where it stands."""

    updates: int  # since the run began, as the next one
    synced: int
    bad: bool
    cycles: int  # taken, since the run began
    steps: int  # env steps of all actors whose rows were taken
    learned: dict[str, float]  # sums over the updates since the last report, and their number
    evidence: dict[str, Any]


class Learner:
    """One of `Settings.groups`: its policies learn together, in one program.

    with Learner.opened(settings, policies, folder) as learner: learner.cycle(rows)
    """

    def __init__(self, settings: Settings, policies: range, learning: Updates, agent: Any) -> None:
        self.settings, self.policies, self.agent = settings, policies, agent
        self.learning = learning
        self.limiter = Limiter.of(settings)
        self.audit = RowAudit(settings, policies)
        self.cycles = 0
        self.batch: Any = None  # of the first update that was not finite
        keys = jax.random.split(key_of(settings.seed, Role.PARAMETERS), settings.policies)
        self.state = jax.jit(jax.vmap(agent.init))(keys[np.asarray(policies)])  # [policies]
        self.updates = np.zeros(len(policies), np.int64)
        self._clear()
        self._lesson: Any = None  # the newest, if the run keeps a trace

    def _clear(self) -> None:
        """Sums over the updates since the last report."""
        self._taken, self._found = 0, np.zeros((len(self.policies), len(self.agent.reports)))

    @staticmethod
    @contextlib.contextmanager
    def opened(
        settings: Settings, policies: range, folder: Path, shards: Replay | None = None
    ) -> Generator[Learner]:
        """Open the policies' replay, and close it at the end; `shards` that are elsewhere stay."""
        agent = make_agent(settings)
        if shards is not None:
            updates = HostUpdates(settings, policies, shards, agent)
            yield Learner(settings, policies, updates, agent)
            return
        with contextlib.ExitStack() as stack:
            share = LakeShare(settings) if settings.lake else None
            if settings.shards:
                here = LocalShards(settings, policies, folder)
                stack.callback(here.close)
                learning: Updates = HostUpdates(settings, policies, here, agent)
            elif isinstance(settings.learns, Rollouts):
                learning = RolloutUpdates(settings, policies, agent)
            elif settings.replay == "pond" and not settings.from_lake:
                learning = PondUpdates(settings, policies, share)
            else:
                spec = traced_spec(settings)
                replays = [
                    stack.enter_context(open_replay(settings, spec, folder / "lake", policy))
                    for policy in policies
                ]
                learning = HostUpdates(settings, policies, Replays(replays), agent, share)
            yield Learner(settings, policies, learning, agent)

    @property
    def params(self) -> Any:
        """The parameters to act with, [policies]."""
        return self.state.params

    @property
    def steps(self) -> np.ndarray:
        """Env steps of each policy whose rows were taken; offline, updates."""
        if self.settings.from_lake:
            return np.full(len(self.policies), self.cycles)
        return self.audit.steps.sum(1)

    @property
    def version(self) -> int:
        """Of the parameters: updates taken so far, by those that took most."""
        return int(self.updates.max())

    def cycle(self, rows: Rows | None, after: np.ndarray | None = None) -> None:
        """Take one cycle's rows [time, policies, env] of all actors; the updates that are due.

        `after` [policies, env] is what the states after the rows are worth, for agents that learn
        from rollouts. Offline there are no rows.
        """
        before = self.steps
        if rows is not None:
            self.audit.took(rows, self.updates)
        self.cycles += 1
        due = 0 if self.bad else self.limiter.due(self.cycles)
        steps = before if after is not None else self.steps
        cycle = Cycle(rows, self.cycles, due, steps.astype(np.uint32), after)
        self.state, lesson, batch = self.learning.learn(self.state, cycle)
        self._lesson = lesson
        if lesson is None:
            return
        self.audit.learned(lesson)
        if batch is None:
            self.updates += lesson.mask.shape[1]
        else:
            self.batch, self.updates = batch, self._updates_of_agents()
        self._taken += lesson.mask.shape[1]
        self._found += lesson.found.sum(1)

    def _updates_of_agents(self) -> np.ndarray:
        return np.asarray(self.state.updates).astype(np.int64)

    def traced(self) -> list[dict[str, int]]:
        """Of each policy: hashes of what the last cycle drew and found, of the agent after it."""
        state = jax.device_get(self.state)
        return [
            {"draws": digest(_of(self._lesson, i)), "agent": digest(_of(state, i))}
            for i in range(len(self.policies))
        ]

    @property
    def bad(self) -> bool:
        """Whether an update of a policy was not finite; nothing is learned here any longer."""
        return self.batch is not None

    def cut(self, actor: int) -> None:
        """An actor was lost: nothing may cross from its rows before to its rows after."""
        envs = np.zeros(self.settings.envs, bool)
        width = self.settings.envs // self.settings.actors
        envs[actor * width : (actor + 1) * width] = True
        self.learning.cut(envs)
        self.audit.cut(envs)

    def report(self) -> list[Progress]:
        """Of each policy what happened since the last report."""
        taken, found = self._taken, self._found.tolist()
        self._clear()
        synced, bad = np.asarray(self.state.synced).tolist(), np.asarray(self.state.bad).tolist()
        steps, evidence = self.steps.tolist(), self.audit.report()
        progress: list[Progress] = []
        for i, updates in enumerate(self.updates.tolist()):
            learned = {"updates": taken, **dict(zip(self.agent.reports, found[i], strict=True))}
            where = (updates, synced[i], bad[i], self.cycles, steps[i])
            progress.append(Progress(*where, learned, evidence[i]))
        return progress

    def export(self) -> list[dict[str, np.ndarray]]:
        """The whole state of each policy, right after a report."""
        state = jax.device_get(self.state)
        found: list[dict[str, np.ndarray]] = []
        parts = zip(self.learning.export(), self.audit.export(), strict=True)
        for i, (replay, audit) in enumerate(parts):
            agent = {f"agent/{name}": leaf for name, leaf in named_leaves(_of(state, i))}
            replay = {f"replay/{name}": array for name, array in replay.items()}
            audit = {f"witness/{name}": array for name, array in audit.items()}
            cycles = np.array(self.cycles, np.int64)
            found.append({"cycles": cycles, **agent, **replay, **audit})
        return found

    def restore(self, arrays: Sequence[Mapping[str, np.ndarray]]) -> None:
        """Continue from an exported state of each policy."""
        self.cycles = int(arrays[0]["cycles"])
        leaves = [
            jnp.array([one[f"agent/{name}"] for one in arrays])
            for name, _ in named_leaves(self.state)
        ]
        self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        self.updates = self._updates_of_agents()
        self.learning.restore([within(one, "replay/") for one in arrays])
        self.audit.restore([within(one, "witness/") for one in arrays])


def _of(tree: Any, policy: int) -> Any:
    return jax.tree.map(lambda leaf: np.asarray(leaf[policy]), tree)
