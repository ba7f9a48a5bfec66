"""What the settings of SAC and TD3 have in common: what is refused, what `--debug` shrinks."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..errors import BadConfig

_COUNTS = ("batch", "n_step", "update_every", "updates", "min_fill", "capacity")


def check_sizes(name: str, settings: Any) -> None:
    """Refuse sizes and rates with which nothing could be learned: `check_sizes("SAC", self)`."""
    for count in _COUNTS:
        if getattr(settings, count) < 1:
            raise BadConfig(f"{name}: {count} must be at least 1, got {getattr(settings, count)}")
    if not 0 < settings.tau <= 1:
        raise BadConfig(f"{name}: tau must lie in (0, 1], got {settings.tau}")
    if settings.min_fill > settings.capacity:
        raise BadConfig(
            f"{name}: min_fill {settings.min_fill} is more than the capacity {settings.capacity}, "
            "so learning would never start; lower it or raise the capacity"
        )


def tiny_sizes(settings: Any) -> dict[str, Any]:
    """Changes with which it learns after a few rows: `replace(self, **tiny_sizes(self))`."""
    changes: dict[str, Any] = dict(batch=4, min_fill=8, capacity=64, updates=1, update_every=2)
    for name in ("optimizer", "actor_optimizer", "temperature_optimizer"):
        if rule := getattr(settings, name, None):
            changes[name] = dataclasses.replace(rule, accumulate=1)
    return changes
