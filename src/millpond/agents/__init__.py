"""Agents as pure functions over pytrees."""

from .agent import AgentState, Learned
from .dqn import DQN, DQNSettings
from .networks import Network, QNetwork
from .optimizer import Optimizer
from .pqn import PQN, Minibatch, PQNSettings, Rollout

__all__ = [
    "DQN",
    "PQN",
    "AgentState",
    "DQNSettings",
    "Learned",
    "Minibatch",
    "Network",
    "Optimizer",
    "PQNSettings",
    "QNetwork",
    "Rollout",
]
