"""Methods of an agent as one program each: op by op, each operation is compiled by itself."""

from __future__ import annotations

from typing import Any

import jax


def as_programs(agent: Any, *names: str) -> Any:
    """The agent, whose methods of these names are compiled whole when they are first called."""
    for name in names:
        setattr(agent, name, jax.jit(getattr(agent, name)))
    return agent
