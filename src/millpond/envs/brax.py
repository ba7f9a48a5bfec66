"""`Brax`: the envs of Brax as pure functions, for use inside jit."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ..config import nearest
from ..errors import BadConfig
from ..extras import import_extra
from ..rows import Array
from .physics import Physics

_BACKENDS = ("", "generalized", "spring", "positional", "mjx")


@dataclass(frozen=True)
class Brax(Physics):
    """A Brax env by its name, with one agent.

    `VectorEnv(Brax("hopper", backend="spring"), 2048)`.
    """

    backend: str = ""  # physics backend; default: the env's own

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.backend not in _BACKENDS:
            known = ", ".join(_BACKENDS[1:])
            raise BadConfig(
                f"{self.name}: backend must be one of {known}, or empty for the env's default, "
                f"got {self.backend!r}"
            )
        known = _brax()._envs  # Brax has no other list of its names
        if self.id not in known:
            raise BadConfig(f"{self.name}: Brax has no env of that name; {nearest(self.id, known)}")

    @property
    def name(self) -> str:
        """`brax:hopper`"""
        return f"brax:{self.id}"

    def game(self) -> Any:
        """Brax's env, without its wrappers for time limit and autoreset."""
        return _game(self.id, self.backend)

    def see(self, obs: Any) -> Array:
        """The observation; BadConfig if it is a dict."""
        if isinstance(obs, dict):
            raise BadConfig(
                f"{self.name}: expected one array as observation, got a dict {sorted(obs)}; write "
                "an env of your own around it that concatenates them"
            )
        return obs

    def picture(self, inner: Any) -> np.ndarray:
        """Host: a picture, uint8[240, 320, 3]."""
        return self.game().render([inner.pipeline_state])[0]


@lru_cache(maxsize=64)
def _game(name: str, backend: str) -> Any:
    # Building it loads arrays, which inside jit would be tracers.
    with jax.ensure_compile_time_eval(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Brax warns that it is no longer developed
        try:
            return _brax().get_environment(name, **({"backend": backend} if backend else {}))
        except Exception as error:  # such as for a backend that the env does not support
            raise BadConfig(f"brax:{name}: Brax could not build it: {error}") from error


def _brax() -> Any:
    with jax.ensure_compile_time_eval(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_extra("env brax:NAME", "brax", "brax.envs")
