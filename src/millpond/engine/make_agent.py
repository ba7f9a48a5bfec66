"""`make_agent`: the agent of a run, for its env."""

from __future__ import annotations

from typing import Any

import jax

from ..agents import find_agent
from ..envs import spec_of
from .settings import Settings


def make_agent(settings: Settings) -> Any:
    """The agent; raises BadConfig if its actions do not fit the env."""
    spec, kind = spec_of(settings.world), find_agent(settings.agent)
    settings.check_actions()
    return kind(settings.learning, settings.network, spec, settings.stack)


def check_agent(settings: Settings) -> None:
    """Raise BadConfig unless the agent fits the env, and its network the observations.

    Only shapes are computed; no device is touched.
    """
    agent = make_agent(settings)
    jax.eval_shape(lambda: agent.init(jax.random.key(0)))
