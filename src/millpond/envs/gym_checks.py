"""`GymChecks`: a wrapper that checks what a Gymnasium env returns against its spaces."""

from __future__ import annotations

from typing import Any, NoReturn

import gymnasium
import numpy as np

from ..errors import SpecMismatch


class GymChecks(gymnasium.Wrapper):
    """Raises SpecMismatch before Gymnasium stacks, casts or unpacks values that do not fit.

    It checks shapes and dtypes; values are checked later, for all envs at once. It is the outermost
    wrapper: `gymnasium.make_vec(id, 8, wrappers=[functools.partial(GymChecks, name="gym:My-v0")])`.
    """

    def __init__(self, env: Any, name: str) -> None:
        super().__init__(env)
        self._name = name
        self._shape, self._dtype = env.observation_space.shape, env.observation_space.dtype

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The env's `obs, info`."""
        given: Any = self.env.reset(seed=seed, options=options)
        if not isinstance(given, tuple) or len(given) != 2:
            self._refuse(f"reset must return (obs, info), got {_kind(given)}")
        self._check(given[0])
        return given

    def step(self, action: Any) -> Any:
        """The env's `obs, reward, terminated, truncated, info`."""
        given: Any = self.env.step(action)
        if not isinstance(given, tuple) or len(given) != 5:
            self._refuse(
                f"step must return (obs, reward, terminated, truncated, info), got {_kind(given)}"
            )
        obs, reward, terminated, truncated, _ = given
        self._check(obs)
        if not isinstance(reward, (float, int, np.number)) and not _is_scalar(reward, "biuf"):
            self._refuse(f"reward: expected one number, got {_kind(reward)}")
        for word, flag in (("terminated", terminated), ("truncated", truncated)):
            if not isinstance(flag, (bool, np.bool_)) and not _is_scalar(flag, "biu"):
                self._refuse(f"{word}: expected True or False, got {_kind(flag)}")
        return given

    def _check(self, obs: Any) -> None:
        found = obs if isinstance(obs, np.ndarray) else np.asarray(obs)
        fits = found.dtype == self._dtype or np.can_cast(found.dtype, self._dtype, "same_kind")
        if found.shape != self._shape or not fits:
            self._refuse(f"its observation space is {self.observation_space}, got {_kind(obs)}")

    def _refuse(self, what: str) -> NoReturn:
        raise SpecMismatch(
            f"env {self._name} contradicts what it declares: {what}; correct the env or its space"
        )


def _is_scalar(value: Any, kinds: str) -> bool:
    found = np.asarray(value)
    return found.size == 1 and found.ndim <= 1 and found.dtype.kind in kinds


def _kind(value: Any) -> str:
    """`float64 (4,)` for an array, `a tuple of 4` for a tuple, else the repr."""
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {value.shape}"
    if isinstance(value, tuple):
        return f"a tuple of {len(value)}"
    return repr(value)
