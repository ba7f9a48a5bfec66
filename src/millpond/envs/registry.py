"""Envs by name: `make_env("minatar/breakout")`."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from importlib.util import find_spec

import gymnasium

from ..config import nearest
from ..errors import BadConfig
from ..plugins import make_part, part_names
from .actions import action_of
from .atari import Atari, atari_name, snake
from .brax import Brax
from .env import AnyEnv, Env, HostEnv
from .gym import GymEnv
from .gymnax import Gymnax
from .minatar import GAMES, MinAtar
from .pendulum import Pendulum
from .pettingzoo import PettingZooEnv
from .playground import Playground
from .sorrel import SorrelEnv
from .staghunt import Staghunt
from .tmaze import TMaze
from .treasurehunt import Treasurehunt

_OURS: dict[str, Callable[[], AnyEnv]] = {
    "treasurehunt": Treasurehunt,
    "treasurehunt-small": Treasurehunt.small,
    "staghunt": Staghunt,
    "tmaze": TMaze,
    "pendulum": Pendulum,
    **{f"minatar/{game}": functools.partial(MinAtar, game) for game in GAMES},
}

# Envs of other packages, by the prefix of their names.
FAMILIES: dict[str, Callable[[str], AnyEnv]] = {
    "minatar/": MinAtar,
    "atari/": Atari,
    "gym:": GymEnv,
    "gymnax:": Gymnax,
    "brax:": Brax,
    "playground:": Playground,
    "pettingzoo:": PettingZooEnv,
    "sorrel:": SorrelEnv,
}


def make_env(name: str) -> AnyEnv:
    """The env of that name, with default settings; BadConfig for unknown names.

    `make_env("minatar/breakout")`.
    """
    if name in _OURS:
        return _OURS[name]()
    for prefix, family in FAMILIES.items():
        if name.startswith(prefix):
            return family(name.removeprefix(prefix))
    if name not in part_names("env", _OURS) and (meant := _elsewhere(name)):
        raise BadConfig(f"there is no env '{name}'; did you mean '{meant}'?")
    return _of_another(name)


def _elsewhere(name: str) -> str:
    """Our name for an env that is named as in another package; "" if it is not one of those.

    `gym:CartPole-v1` for `gym/CartPole-v1`, `minatar/breakout` for `MinAtar/Breakout-v1`.
    """
    head, *others = re.split("[:/]", name, maxsplit=1)
    prefix = {prefix[:-1]: prefix for prefix in FAMILIES}.get(head.lower(), "")
    if prefix and others and not (f"{head}:" in name and find_spec(head)):
        (rest,) = others
        return prefix + (snake(rest) if prefix.endswith("/") else rest)
    theirs = re.fullmatch(r"[\w./-]+-v\d+", name)  # as Gymnasium names its envs
    return atari_name(name) or (f"gym:{name}" if theirs else "")


def _of_another(name: str) -> AnyEnv:
    """An env that an installed package registers, or `package.module:Name`."""
    if ":" not in name and name not in part_names("env", _OURS):
        remedy = _in_full(name) or nearest(name, env_names())
        raise BadConfig(f"there is no env '{name}'; {remedy} (your own: package.module:Name)")
    env = make_part("env", name, _OURS)
    if isinstance(env, gymnasium.Env):
        raise BadConfig(f"env '{name}' is a Gymnasium env; use 'gym:{name}'")
    if not isinstance(env, (Env, HostEnv)):
        raise BadConfig(
            f"env '{name}': expected an Env (reset, step, observe, render) or a HostEnv (vector) "
            f"that declares its name, agents, actions and observation, got {type(env).__name__}; "
            "see docs/how-to/your-own-environment.md"
        )
    action_of(env)  # BadConfig if it does not declare its actions
    return env


def _in_full(name: str) -> str:
    """A hint for an env given without prefix and version: `cartpole` means `gym:CartPole-v1`."""
    theirs = (f"gym:{one}" for one in reversed(gymnasium.registry) if "/" not in one)
    for full in (*part_names("env", _OURS), *theirs):
        if _bare(full) == _bare(name):
            return f"did you mean '{full}'?"
    return ""


def _bare(name: str) -> str:
    """`gym:CartPole-v1` -> `cartpole`"""
    return re.sub(r"-v\d+$", "", re.split(r"[:/]", name)[-1]).lower()


def env_names() -> list[str]:
    """The names of known envs; `atari/GAME`, `gym:ID` and the like stand for many.

    `"staghunt" in env_names()`.
    """
    many = (
        "atari/GAME",
        "gym:ID",
        "gymnax:ID",
        "brax:NAME",
        "playground:NAME",
        "pettingzoo:MODULE",
        "sorrel:treasurehunt",
    )
    return [*part_names("env", _OURS), *many]
