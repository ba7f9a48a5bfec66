"""`Population`: which env and which agent of it belongs to which policy.

A run has `members` independent copies, each with `envs` envs of `agents` agents. What envs give is
`[agents, members * envs]`; what policies see is `[policies, envs]`, policy = member * agents + i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from ..rows import Array


@dataclass(frozen=True)
class Population:
    """`population.by_policy(rows)`, and back: `population.by_env(action)`."""

    members: int
    agents: int
    envs: int

    @property
    def policies(self) -> int:
        """Policies of all members."""
        return self.members * self.agents

    @property
    def all_envs(self) -> int:
        """Envs of all members."""
        return self.members * self.envs

    def by_policy(self, tree: Any) -> Any:
        """Leaves [agents, members * envs, ...] -> [policies, envs, ...]"""
        return self._swap(tree, (self.agents, self.members), (self.policies, self.envs))

    def seen(self, envs: Any, xp: Any = np) -> tuple[Array, Array]:
        """The observations and flags that envs show now, [policies, envs]."""
        flags = xp.broadcast_to(envs.flags, envs.obs.shape[:2])
        return self.by_policy((envs.obs, flags))

    def by_env(self, tree: Any) -> Any:
        """Leaves [policies, envs, ...] -> [agents, members * envs, ...]"""
        return self._swap(tree, (self.members, self.agents), (self.agents, self.all_envs))

    def _swap(self, tree: Any, lead: tuple[int, int], shape: tuple[int, int]) -> Any:
        def swap(leaf: Array) -> Array:
            split = leaf.reshape(*lead, self.envs, *leaf.shape[2:])
            return split.swapaxes(0, 1).reshape(*shape, *leaf.shape[2:])

        return jax.tree.map(swap, tree)

    def flat(self, tree: Any) -> Any:
        """Leaves [policies, envs, ...] -> [policies * envs, ...]"""
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), tree)

    def deep(self, tree: Any) -> Any:
        """Leaves [policies * envs, ...] -> [policies, envs, ...]"""
        return jax.tree.map(
            lambda leaf: leaf.reshape(self.policies, self.envs, *leaf.shape[1:]), tree
        )
