"""Environments: each is a frozen dataclass of its settings that speaks the one row format."""

from .env import AnyEnv, Env, Facts, HostEnv, HostVector, Outcome, Policy, spec_of
from .registry import env_names, make_env
from .vector import EnvState, VectorEnv

__all__ = [
    "AnyEnv",
    "Env",
    "EnvState",
    "Facts",
    "HostEnv",
    "HostVector",
    "Outcome",
    "Policy",
    "VectorEnv",
    "env_names",
    "make_env",
    "spec_of",
]
