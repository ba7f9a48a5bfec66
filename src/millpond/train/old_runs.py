"""Settings of runs of version 0.1, as this version reads them: to look at, not to resume."""

from __future__ import annotations

from typing import Any


def from_version_1(plain: Any) -> Any:
    """Nested tables in today's form. Then the sampler was a setting of DQN's, and `fused` meant
    whatever one process did."""
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
    """The same for a run of `train`."""
    if isinstance(plain, dict) and plain.get("mode") == "fused":
        return {**plain, "mode": "auto"}
    return plain
