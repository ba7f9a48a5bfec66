"""Agents as pure functions over pytrees."""

from .agent import (
    Act,
    Agent,
    AgentSettings,
    AgentState,
    Learned,
    Now,
    Replayed,
    Rollout,
    Rollouts,
)
from .dqn import DQN, DQNSettings
from .iqn import IQN, IQNSettings
from .networks import Network, QNetwork
from .optimizer import Optimizer
from .pqn import PQN, Minibatch, PQNSettings
from .q_agent import Applied, QAgent, apply_gradient, relative_change
from .q_lambda import QLambda, QLambdaSettings
from .registry import agent_names, find_agent

__all__ = [
    "DQN",
    "IQN",
    "PQN",
    "Act",
    "Agent",
    "AgentSettings",
    "AgentState",
    "Applied",
    "DQNSettings",
    "IQNSettings",
    "Learned",
    "Minibatch",
    "Network",
    "Now",
    "Optimizer",
    "PQNSettings",
    "QAgent",
    "QLambda",
    "QLambdaSettings",
    "QNetwork",
    "Replayed",
    "Rollout",
    "Rollouts",
    "agent_names",
    "apply_gradient",
    "find_agent",
    "relative_change",
]
