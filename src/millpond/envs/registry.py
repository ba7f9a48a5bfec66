"""Envs by name: `make_env("minatar/breakout")`."""

from __future__ import annotations

import re
from collections.abc import Callable

from ..config import nearest
from ..errors import BadConfig
from .atari import Atari
from .env import AnyEnv
from .gym import GymEnv
from .minatar import GAMES, MinAtar
from .staghunt import Staghunt
from .treasurehunt import Treasurehunt

_NAMED: dict[str, Callable[[], AnyEnv]] = {
    "treasurehunt": Treasurehunt,
    "treasurehunt-small": Treasurehunt.small,
    "staghunt": Staghunt,
}


def make_env(name: str) -> AnyEnv:
    """The env of that name with its own settings; unknown names raise BadConfig.

    `make_env("minatar/breakout")`.
    """
    if name in _NAMED:
        return _NAMED[name]()
    if name.startswith("minatar/"):
        return MinAtar(name.removeprefix("minatar/"))
    if name.startswith("atari/"):
        return Atari(name.removeprefix("atari/"))
    if name.startswith("gym:"):
        return GymEnv(name.removeprefix("gym:"))
    if re.fullmatch(r"[\w./-]+-v\d+", name):  # as Gymnasium names its envs
        raise BadConfig(f"there is no env '{name}'; did you mean 'gym:{name}'?")
    raise BadConfig(f"there is no env '{name}'; {nearest(name, env_names())}")


def env_names() -> list[str]:
    """What can be asked for by name; `atari/GAME` and `gym:ID` stand for many.

    `"staghunt" in env_names()`.
    """
    minatar = [f"minatar/{game}" for game in GAMES]
    return [*_NAMED, *minatar, "atari/GAME", "gym:ID"]
