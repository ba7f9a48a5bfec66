"""`RolloutUpdates`: a learner without replay, which learns from each cycle's rows only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Rollout
from ..envs import spec_of
from ..rows import Array, Rows
from ..window import History, Stacker
from .checkpoint import Arrays
from .episode_stats import numbers_of
from .keys import Role, key_of
from .provenance import stack_hash
from .settings import Settings
from .trees import part
from .updates import Cycle, Learnt, Lesson


class RolloutUpdates:
    """Rebuilds the stacks that the actors acted on, and compares the two by hash."""

    def __init__(self, settings: Settings, policies: range, agent: Any) -> None:
        self.settings, self._agent = settings, agent
        self._policies = np.asarray(policies, np.uint32)
        self._stacker = Stacker(spec_of(settings.world), settings.sight)
        self._history: History = self._stacker.init(len(policies) * settings.envs)
        self._learn = jax.jit(self._improve, donate_argnums=0)

    def learn(self, agent: AgentState, cycle: Cycle) -> Learnt:
        assert cycle.rows is not None
        turn = np.uint32(cycle.number * self.settings.learns.turns)
        agent, self._history, found, strange, evidence = self._learn(
            agent, self._history, cycle.rows, cycle.after, cycle.steps, turn
        )
        lesson = self._lesson(np.asarray(found), np.asarray(strange))
        bad = np.flatnonzero(np.asarray(agent.bad))
        if not bad.size:
            return agent, lesson, None
        return agent, lesson, jax.device_get(part(evidence, bad[0]))

    def _improve(
        self,
        agent: AgentState,
        history: History,
        rows: Rows,
        after: Array,
        steps: Array,
        turn: Array,
    ) -> tuple[AgentState, History, Array, Array, Any]:
        settings, lead = self.settings, rows.reward.shape[1:]

        def push(history: History, row: tuple[Array, Array]) -> tuple[History, Array]:
            flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), row)
            return self._stacker.push(history, *flat)

        history, stacks = jax.lax.scan(push, history, (rows.obs, rows.flags))
        obs = jax.tree.map(lambda leaf: leaf.reshape(-1, *lead, *leaf.shape[2:]), stacks)
        strange = (stack_hash(obs, 3) != rows.extras["stack_hash"]).sum((0, 2), dtype=np.int32)
        value = jnp.concatenate([rows.extras["worth"], after[None]])
        facts = (rows.action, rows.reward, rows.terminated, rows.truncated, rows.flags)
        keys = jax.random.split(key_of(settings.seed, Role.LEARN, turn), settings.policies)
        now = settings.now(steps, self._policies, jnp)
        learn = jax.vmap(self._agent.learn, in_axes=(0, 1, 0, 0))
        memory = rows.extras["memory"][:1] if "memory" in rows.extras else None
        rollout = Rollout(obs, *facts, value, memory)
        agent, found, evidence = learn(agent, rollout, now, keys[self._policies])
        return agent, history, numbers_of(found, self._agent.reports), strange, evidence

    def _lesson(self, found: np.ndarray, strange: np.ndarray) -> Lesson:
        """Nothing is drawn, so batches have no rows; each update shows the mean of all."""
        policies, updates = len(found), self.settings.learns.updates
        none = np.zeros((policies, updates, 0), np.float32)
        ids = np.zeros((policies, updates, 0), np.int64)
        each = np.broadcast_to(found[:, None], (policies, updates, found.shape[-1]))
        odd = np.zeros((policies, updates), np.int32)
        odd[:, 0] = strange
        return Lesson(each, ids.astype(np.int32), ids, none, none, none.astype(bool), odd)

    def cut(self, envs: np.ndarray) -> None:
        """Nothing to do: new episodes begin with a FIRST row, which resets the stack."""

    def export(self) -> list[Arrays]:
        """The frames that the next stacks are made of."""
        policies = len(self._policies)
        leaves = jax.tree.leaves(jax.device_get(self._history))
        each = [leaf.reshape(policies, -1, *leaf.shape[1:]) for leaf in leaves]
        return [{f"{i}": leaf[policy] for i, leaf in enumerate(each)} for policy in range(policies)]

    def restore(self, arrays: Sequence[Arrays]) -> None:
        tree = jax.tree.structure(self._history)
        leaves = [np.concatenate([one[f"{i}"] for one in arrays]) for i in range(tree.num_leaves)]
        self._history = jax.tree.unflatten(tree, leaves)
