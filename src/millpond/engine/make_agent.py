"""`make_agent`: the agent that settings describe, for the env that they describe."""

from __future__ import annotations

from typing import Any

import jax

from ..agents import agent_names, find_agent
from ..envs import spec_of
from ..errors import BadConfig
from .settings import Settings


def make_agent(settings: Settings) -> Any:
    """The agent; one whose actions are not those of the env raises BadConfig."""
    spec, kind = spec_of(settings.world), find_agent(settings.agent)
    real = spec.action.dtype.kind == "f"
    if real != kind.continuous:
        fit = [name for name in agent_names() if find_agent(name).continuous == real]
        raise BadConfig(
            f"agent {settings.agent}: acts with {_kind(kind.continuous)}, but {settings.env} takes "
            f"{_kind(real)}; agents that fit are {', '.join(fit) or 'none of ours'}"
        )
    return kind(settings.learning, settings.network, spec, settings.stack)


def check_agent(settings: Settings) -> None:
    """Raise BadConfig unless the agent fits its env and its network the observations.

    Shapes alone are computed: no device is touched, and nothing is made.
    """
    agent = make_agent(settings)
    jax.eval_shape(lambda: agent.init(jax.random.key(0)))


def _kind(real: bool) -> str:
    return "real vectors" if real else "one of several actions"
