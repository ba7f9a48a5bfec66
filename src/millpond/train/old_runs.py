"""Read the settings of runs of version 0.1, which can be shown but not resumed."""

from __future__ import annotations

from typing import Any


def from_version_1(plain: Any) -> Any:
    """The tables in today's form; in 0.1 the sampler was one of DQN's settings."""
    if not isinstance(plain, dict):
        return plain
    new: dict[str, Any] = {**plain}
    table = new.get("dqn")
    if isinstance(table, dict):
        dqn: dict[str, Any] = {**table}
        sampler = dqn.pop("sampler", "uniform")
        values = {"recent": ("half_life",), "prioritized": ("alpha",)}.get(sampler, ())
        own = {name: dqn[name] for name in values if name in dqn}
        for name in ("half_life", "alpha"):
            dqn.pop(name, None)
        new |= {"dqn": dqn, "sampler": sampler, "sampling": own}
    return new


def with_auto_mode(plain: Any) -> Any:
    """Today's mode, for runs of `train`; in 0.1 `fused` meant any run in one process."""
    if isinstance(plain, dict) and plain.get("mode") == "fused":
        return {**plain, "mode": "auto"}
    return plain
