"""`Playground`: the envs of MuJoCo Playground as pure functions, for use inside jit."""

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


@dataclass(frozen=True)
class Playground(Physics):
    """A MuJoCo Playground env by its name, with one agent.

    If it observes a dict, `sees` names the entry to use; `state` is meant for policies. Envs with
    robots of the MuJoCo Menagerie download these when first built.
    `VectorEnv(Playground("CartpoleBalance"), 2048)`.
    """

    sees: str = "state"  # entry of the observation, if that is a dict
    impl: str = "jax"  # physics: jax, or warp, which needs a GPU and for some envs much memory

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.impl not in ("jax", "warp"):
            raise BadConfig(f"{self.name}: impl must be jax or warp, got {self.impl!r}")
        known = _playground().registry.ALL_ENVS
        if self.id not in known:
            raise BadConfig(
                f"{self.name}: MuJoCo Playground has no env of that name; {nearest(self.id, known)}"
            )

    @property
    def name(self) -> str:
        """`playground:CartpoleBalance`"""
        return f"playground:{self.id}"

    def game(self) -> Any:
        """Playground's env, without its wrappers for time limit and autoreset."""
        return _game(self.id, self.impl)

    def see(self, obs: Any) -> Array:
        """The observation, or its entry `sees`."""
        if not isinstance(obs, dict):
            return obs
        if self.sees not in obs:
            raise BadConfig(
                f"{self.name}: sees is {self.sees!r}, but it observes {sorted(obs)}; "
                f"{nearest(self.sees, obs)}"
            )
        return obs[self.sees]

    def picture(self, inner: Any) -> np.ndarray:
        """Host: a picture, uint8[240, 320, 3]."""
        return self.game().render([inner], height=240, width=320)[0]


@lru_cache(maxsize=64)
def _game(name: str, impl: str) -> Any:
    # Building it loads arrays, which inside jit would be tracers.
    with jax.ensure_compile_time_eval(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _playground().registry.load(name, config_overrides={"impl": impl})
        except Exception as error:  # such as a failed download
            raise BadConfig(
                f"playground:{name}: MuJoCo Playground could not build it: {error}"
            ) from error


def _playground() -> Any:
    with jax.ensure_compile_time_eval(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_extra("env playground:NAME", "playground", "mujoco_playground")
