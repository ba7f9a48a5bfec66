"""Envs by name: `make_env("minatar/breakout")`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable

from ..errors import BadConfig
from ..plugins import make_part, part_names
from .atari import Atari
from .env import AnyEnv, Env, HostEnv
from .gym import GymEnv
from .minatar import GAMES, MinAtar
from .pettingzoo import PettingZooEnv
from .staghunt import Staghunt
from .tmaze import TMaze
from .treasurehunt import Treasurehunt

_OURS: dict[str, Callable[[], AnyEnv]] = {
    "treasurehunt": Treasurehunt,
    "treasurehunt-small": Treasurehunt.small,
    "staghunt": Staghunt,
    "tmaze": TMaze,
    **{f"minatar/{game}": functools.partial(MinAtar, game) for game in GAMES},
}


def make_env(name: str) -> AnyEnv:
    """The env of that name with its own settings; unknown names raise BadConfig.

    `make_env("minatar/breakout")`.
    """
    if name in _OURS:
        return _OURS[name]()
    if name.startswith("minatar/"):
        return MinAtar(name.removeprefix("minatar/"))
    if name.startswith("atari/"):
        return Atari(name.removeprefix("atari/"))
    if name.startswith("gym:"):
        return GymEnv(name.removeprefix("gym:"))
    if name.startswith("pettingzoo:"):
        return PettingZooEnv(name.removeprefix("pettingzoo:"))
    if re.fullmatch(r"[\w./-]+-v\d+", name):  # as Gymnasium names its envs
        raise BadConfig(f"there is no env '{name}'; did you mean 'gym:{name}'?")
    return _of_another(name)


def _of_another(name: str) -> AnyEnv:
    """An env that a package registered, or `package.module:Name`."""
    env = make_part("env", name, _OURS)
    if not isinstance(env, (Env, HostEnv)):
        raise BadConfig(
            f"env '{name}': expected an Env (reset, step, observe, render) or a HostEnv (vector), "
            f"with their facts, got {type(env).__name__}; docs/how-to/your-own-environment.md "
            "builds one"
        )
    return env


def env_names() -> list[str]:
    """What can be asked for by name; `atari/GAME`, `gym:ID` and `pettingzoo:MODULE` stand for many.

    `"staghunt" in env_names()`.
    """
    return [*part_names("env", _OURS), "atari/GAME", "gym:ID", "pettingzoo:MODULE"]
