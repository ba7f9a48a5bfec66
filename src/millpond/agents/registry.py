"""Agents by name: `find_agent("dqn")`, `find_agent("package.module:Mine")`."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import BadConfig
from ..plugins import find_part, part_names
from .dqn import DQN
from .iqn import IQN
from .pqn import PQN
from .q_lambda import QLambda
from .sac import SAC
from .td3 import TD3

_OURS: dict[str, type] = {
    "dqn": DQN,
    "iqn": IQN,
    "pqn": PQN,
    "qlambda": QLambda,
    "sac": SAC,
    "td3": TD3,
}
_NEEDED = ("Settings", "continuous", "reports", "init", "chance", "act", "best", "worth", "adopt")


def find_agent(name: str) -> Any:
    """The agent class of that name; BadConfig if there is none or it is not an agent.

    `find_agent("dqn").Settings(batch=32)`.
    """
    found = find_part("agent", name, _OURS)
    missing = [part for part in _NEEDED if not hasattr(found, part)]
    if not isinstance(found, type) or missing:
        lacks = f"it lacks {', '.join(missing)}" if isinstance(found, type) else f"got {found!r}"
        raise BadConfig(
            f"agent '{name}': expected a class with {', '.join(_NEEDED)}; {lacks}. "
            "docs/how-to/your-own-agent.md builds one"
        )
    kind: Any = found
    if not dataclasses.is_dataclass(kind.Settings) or not hasattr(kind.Settings, "learns"):
        raise BadConfig(
            f"agent '{name}': its Settings must be a frozen dataclass with learns, schedules and "
            f"tiny, got {kind.Settings!r}"
        )
    return kind


def agent_names() -> list[str]:
    """The names of all known agents: `"dqn" in agent_names()`."""
    return part_names("agent", _OURS)
