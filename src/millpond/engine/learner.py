"""`Learner`: replay and agents of some policies. It takes rows and gives parameters."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import Rollouts
from ..rows import Rows
from .checkpoint import Arrays, named_leaves, within
from .host_replay import Replay, open_replay
from .host_updates import HostUpdates
from .keys import Role, key_of
from .lake_share import LakeShare
from .limiter import Limiter
from .make_agent import make_agent
from .pond_updates import PondUpdates
from .rollout_updates import RolloutUpdates
from .row_audit import RowAudit
from .settings import Settings
from .sharded import LocalShards
from .trace import digest
from .updates import Cycle, Updates


class Progress(NamedTuple):
    """What a learner reports: where its policies stand, and sums since its last report."""

    cycles: int  # taken since the run began, as are the updates
    updates: np.ndarray  # int64[policies]
    synced: np.ndarray  # [policies]: changes of the target network
    bad: np.ndarray  # bool[policies]: an update was not finite
    steps: np.ndarray  # int64[policies]: env steps of all actors whose rows were taken
    taken: np.ndarray  # int32[policies]: updates since the last report
    found: np.ndarray  # float64[policies, reports]: sums over them of what the agent reports
    evidence: list[dict[str, Any]]  # of each policy, from the row audit


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
        self._lesson: Any = None  # of the newest cycle

    def _clear(self) -> None:
        """Sums over the updates since the last report."""
        self._taken, self._found = 0, np.zeros((len(self.policies), len(self.agent.reports)))

    @staticmethod
    @contextlib.contextmanager
    def opened(
        settings: Settings, policies: range, folder: Path, replay: Replay | None = None
    ) -> Generator[Learner]:
        """Open the policies' replay, unless one is given, and close it at the end."""
        agent = make_agent(settings)
        share = LakeShare(settings) if settings.lake else None
        with contextlib.ExitStack() as stack:
            if isinstance(settings.learns, Rollouts):
                learning: Updates = RolloutUpdates(settings, policies, agent)
            elif settings.replay == "pond" and not (settings.from_lake or settings.shards):
                learning = PondUpdates(settings, policies, share)
            else:
                if replay is None:
                    kind = LocalShards if settings.shards else open_replay
                    replay = kind(settings, policies, folder)
                    stack.callback(replay.close)
                learning = HostUpdates(settings, policies, replay, agent, share)
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
        """The version of the parameters: the most updates that a policy has taken."""
        return int(self.updates.max())

    def cycle(self, rows: Rows | None, after: np.ndarray | None = None) -> None:
        """Take one cycle's rows [time, policies, env] of all actors, then the updates that are due.

        `after` [policies, env] are the values of the states after the rows, for agents that learn
        from rollouts. Offline there are no rows.
        """
        before = None if after is None else self.steps  # when the rollout began
        if rows is not None:
            self.audit.took(rows, self.updates)
        self.cycles += 1
        due = 0 if self.bad else self.limiter.due(self.cycles)
        steps = self.steps if before is None else before
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
        """Hashes of each policy: what the last cycle drew and found, and the agent after it."""
        state = jax.device_get(self.state)
        return [
            {"draws": digest(_of(self._lesson, i)), "agent": digest(_of(state, i))}
            for i in range(len(self.policies))
        ]

    @property
    def bad(self) -> bool:
        """Whether an update was not finite; if so, nothing more is learned here."""
        return self.batch is not None

    def cut(self, actor: int) -> None:
        """The envs of an actor begin new episodes: its next rows do not continue those before."""
        envs = np.zeros(self.settings.envs, bool)
        width = self.settings.envs // self.settings.actors
        envs[actor * width : (actor + 1) * width] = True
        self.learning.cut(envs)
        self.audit.cut(envs)

    def report(self) -> Progress:
        """Where the policies stand, and what happened since the last report."""
        taken, found = np.full(len(self.policies), self._taken, np.int32), self._found
        self._clear()
        return Progress(
            self.cycles,
            self.updates.copy(),
            np.asarray(self.state.synced),
            np.asarray(self.state.bad),
            self.steps,
            taken,
            found,
            self.audit.report(),
        )

    def export(self) -> list[Arrays]:
        """The state of each policy, right after a report."""
        state = jax.device_get(self.state)
        found: list[Arrays] = []
        parts = zip(self.learning.export(), self.audit.export(), strict=True)
        for i, (replay, audit) in enumerate(parts):
            agent = {f"agent/{name}": leaf for name, leaf in named_leaves(_of(state, i))}
            replay = {f"replay/{name}": array for name, array in replay.items()}
            audit = {f"witness/{name}": array for name, array in audit.items()}
            cycles = np.array(self.cycles, np.int64)
            found.append({"cycles": cycles, **agent, **replay, **audit})
        return found

    def restore(self, arrays: Sequence[Arrays]) -> None:
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
