"""Environments: each is a frozen dataclass of its settings that speaks the one row format."""

from .adapters import GridGymnasium, GridPettingZoo
from .atari import Atari
from .checked import check_rows, check_seen, checked_vector
from .env import AnyEnv, Counting, Env, Facts, HostEnv, HostVector, Outcome, Policy, spec_of
from .gym import GymEnv
from .gym_rows import GymRows
from .hosted import HostedVector
from .minatar import MinAtar
from .pettingzoo import PettingZooEnv
from .registry import env_names, make_env
from .staghunt import Staghunt
from .tmaze import TMaze
from .treasurehunt import Treasurehunt
from .vector import EnvState, VectorEnv

__all__ = [
    "AnyEnv",
    "Atari",
    "Counting",
    "Env",
    "EnvState",
    "Facts",
    "GridGymnasium",
    "GridPettingZoo",
    "GymEnv",
    "GymRows",
    "HostEnv",
    "HostVector",
    "HostedVector",
    "MinAtar",
    "Outcome",
    "PettingZooEnv",
    "Policy",
    "Staghunt",
    "TMaze",
    "Treasurehunt",
    "VectorEnv",
    "check_rows",
    "check_seen",
    "checked_vector",
    "env_names",
    "make_env",
    "spec_of",
]
