"""`make_agent`: the agent that settings describe, for the env that they describe."""

from __future__ import annotations

from typing import Any

import jax

from ..agents import find_agent
from ..envs import spec_of
from .settings import Settings


def make_agent(settings: Settings) -> Any:
    """The agent; one whose actions are not those of the env raises BadConfig."""
    spec, kind = spec_of(settings.world), find_agent(settings.agent)
    settings.check_actions()
    return kind(settings.learning, settings.network, spec, settings.stack)


def check_agent(settings: Settings) -> None:
    """Raise BadConfig unless the agent fits its env and its network the observations.

    Shapes alone are computed: no device is touched, and nothing is made.
    """
    agent = make_agent(settings)
    jax.eval_shape(lambda: agent.init(jax.random.key(0)))
