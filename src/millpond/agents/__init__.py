"""Agents as pure functions over pytrees. Needs the extra `train`."""

from ..extras import require

require("training", "train", "flax", "optax")

from .action_box import ActionBox
from .actor_critic import ActorCritic
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
from .sac import SAC, SACSettings
from .td3 import TD3, TD3Settings

__all__ = [
    "DQN",
    "IQN",
    "PQN",
    "SAC",
    "TD3",
    "Act",
    "ActionBox",
    "ActorCritic",
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
    "SACSettings",
    "TD3Settings",
    "agent_names",
    "apply_gradient",
    "find_agent",
    "relative_change",
]
