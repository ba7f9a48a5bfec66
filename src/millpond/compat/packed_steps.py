"""`PackedSteps`: a fast path that adds well-formed steps to a pond as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..replay import HostPond, PackedStep
from ..rows import FIRST, TERMINATED, TRUNCATED
from .last_seen import LastSeen

_FLOAT32, _BOOL = np.dtype(np.float32), np.dtype(bool)
_ndarray = np.ndarray


class PackedSteps:
    """The fast path of Stable-Baselines3's `add`, for observations that are one unstacked array.

    `timeouts`: whether `infos` say which ends are truncations. If anything is unusual,
    `packed.add(...)` changes nothing and returns None.
    """

    def __init__(self, pond: HostPond, seen: LastSeen, timeouts: bool) -> None:
        obs, action, envs = pond.spec.columns["obs"], pond.spec.action, pond.num_envs
        self._pond, self._seen, self._timeouts, self._envs = pond, seen, timeouts, envs
        self._obs, self._shape, self._width = obs.dtype, (envs, *obs.shape), obs.nbytes
        self._action = action.dtype
        # Actions of one number may come without an axis.
        self._actions = {(envs, *action.shape)} | ({(envs,)} if action.size == 1 else set())
        self._lead, self._none = (envs,), bytes(envs)

    def add(
        self,
        obs: Any,
        next_obs: Any,
        action: Any,
        reward: Any,
        done: Any,
        infos: list[Any],
        fresh: list[int],
    ) -> list[int] | None:
        """Add a step of every env; those in `fresh` begin an episode. Returns which envs ended."""
        if not (
            obs.__class__ is next_obs.__class__ is action.__class__ is _ndarray
            and reward.__class__ is done.__class__ is _ndarray
            and obs.dtype is next_obs.dtype is self._obs
            and obs.shape == next_obs.shape == self._shape
            and action.dtype is self._action
            and action.shape in self._actions
            and reward.dtype is _FLOAT32
            and done.dtype is _BOOL
            and reward.shape == done.shape == self._lead
            and self._seen.goes_on(now := obs.tobytes(), fresh)
        ):
            return None
        after, over, flags = next_obs.tobytes(), done.tobytes(), self._none
        ended: list[int] = []
        final: dict[int, bytes] = {}
        if fresh or over != flags:
            if self._timeouts and len(infos) != self._envs:
                return None
            marks, width = bytearray(flags), self._width
            for env in fresh:
                marks[env] = FIRST
            ended = [env for env, end in enumerate(over) if end]
            for env in ended:
                late = self._timeouts and infos[env].get("TimeLimit.truncated", False)
                marks[env] |= TRUNCATED if late else TERMINATED
                final[env] = after[env * width : (env + 1) * width]
            flags = bytes(marks)
        step = PackedStep(now, action.tobytes(), reward.tobytes(), flags, final)
        if not self._pond.add_packed(step):
            return None
        self._seen.note_packed(after, self._obs, self._shape)
        return ended
