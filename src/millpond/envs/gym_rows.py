"""`GymRows`: the rows of a Gymnasium vector env in any autoreset mode."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from gymnasium.vector import AutoresetMode

from ..errors import BadConfig
from ..rows import FIRST, Rows, Tree, next_flags


class GymRows:
    """Steps a vector env and returns rows, with final observations if it resets in the same step.

        loop = GymRows(envs)
        obs = loop.reset(seed=0)
        rows, final_obs = loop.step(action)
        pond.add(rows, final_obs=final_obs)     # act on loop.obs next

    If the env's metadata do not name its autoreset mode, pass `same_step`. EnvPool's do not; its
    envs reset on the step after an end: `GymRows(envs, same_step=False)`.
    """

    def __init__(self, envs: Any, same_step: bool | None = None) -> None:
        mode = (getattr(envs, "metadata", None) or {}).get("autoreset_mode")
        if mode is not None:
            mode = AutoresetMode(mode)
        if mode == AutoresetMode.DISABLED or (mode is None and same_step is None):
            said = "says that autoreset is off" if mode else "does not say how it resets itself"
            raise BadConfig(
                f"GymRows: the env's metadata {said} (autoreset_mode); make it with "
                "vector_kwargs={'autoreset_mode': AutoresetMode.NEXT_STEP}, or pass same_step="
            )
        if getattr(envs, "is_async", False) is True:
            raise BadConfig(
                "GymRows: an asynchronous EnvPool steps some of its envs at a time, in any order; "
                "make it without batch_size, or add(row, env=...) by the env_id in its info"
            )
        found = mode == AutoresetMode.SAME_STEP if mode else bool(same_step)
        if same_step is not None and found != same_step:
            raise BadConfig(
                f"GymRows: same_step={same_step}, but the env's metadata says {mode}; leave it out"
            )
        self.envs, self.same_step = envs, found
        self.obs: Tree = None
        self._flags = np.zeros(0, np.uint8)

    def reset(self, seed: int | None = None) -> Tree:
        """Reset all envs; returns the observations [env, ...]."""
        # EnvPool takes its seed when it is made, and no argument in reset.
        self.obs, _ = self.envs.reset(seed=seed) if seed is not None else self.envs.reset()
        self._flags = np.full(len(jax.tree.leaves(self.obs)[0]), FIRST, np.uint8)
        return self.obs

    def step(self, action: np.ndarray) -> tuple[Rows, Tree | None]:
        """Step all envs; returns rows [env], and final observations if they come separately."""
        if self.obs is None:
            raise BadConfig("GymRows: step before reset; call reset(seed=...) first")
        obs = jax.tree.map(np.copy, self.obs)  # some vector envs reuse the array
        seen, reward, terminated, truncated, info = self.envs.step(action)
        rows = Rows(obs, np.asarray(action), reward, terminated, truncated, self._flags)
        final = None
        if self.same_step:
            final = final_observations(seen, info, terminated | truncated)
        self.obs = seen
        self._flags = next_flags(self._flags, terminated, truncated, same_step=self.same_step)
        return rows, final


def final_observations(seen: Tree, info: dict[str, Any], ended: np.ndarray) -> Tree:
    """`info["final_obs"]` as arrays [env, ...]; `seen` where no episode ended."""
    final = jax.tree.map(np.copy, seen)
    if not ended.any():
        return final
    if "final_obs" not in info:
        raise BadConfig(
            "GymRows: an episode ended in an env that resets in the same step, but info has no "
            "'final_obs', so the true final observation is lost; make the env with "
            "vector_kwargs={'autoreset_mode': AutoresetMode.NEXT_STEP}"
        )
    for env in np.flatnonzero(ended):

        def put(into: np.ndarray, value: Any, env: int = int(env)) -> None:
            into[env] = value

        jax.tree.map(put, final, info["final_obs"][env])
    return final
