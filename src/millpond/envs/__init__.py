"""Environments; each is a frozen dataclass of its settings, and all give the same kind of rows."""

from ..extras import require

require("millpond.envs", "train", "gymnasium")

from .actions import action_of, any_action, bounds, is_real
from .adapters import GridGymnasium, GridPettingZoo
from .atari import Atari
from .brax import Brax
from .checked import checked_vector
from .env import AnyEnv, Counting, Env, Facts, HostEnv, HostVector, Outcome, Policy, spec_of
from .gym import GymEnv
from .gym_rows import GymRows
from .gymnax import Gymnax
from .hosted import HostedVector
from .minatar import MinAtar
from .pendulum import Pendulum
from .pettingzoo import PettingZooEnv
from .playground import Playground
from .registry import env_names, make_env
from .sorrel import SorrelEnv
from .staghunt import Staghunt
from .tmaze import TMaze
from .treasurehunt import Treasurehunt
from .vector import EnvState, VectorEnv

__all__ = [
    "AnyEnv",
    "Atari",
    "Brax",
    "Counting",
    "Env",
    "EnvState",
    "Facts",
    "GridGymnasium",
    "GridPettingZoo",
    "GymEnv",
    "GymRows",
    "Gymnax",
    "HostEnv",
    "HostVector",
    "HostedVector",
    "MinAtar",
    "Outcome",
    "Pendulum",
    "PettingZooEnv",
    "Playground",
    "Policy",
    "SorrelEnv",
    "Staghunt",
    "TMaze",
    "Treasurehunt",
    "VectorEnv",
    "action_of",
    "any_action",
    "bounds",
    "checked_vector",
    "env_names",
    "is_real",
    "make_env",
    "spec_of",
]
