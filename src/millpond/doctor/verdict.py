"""`Verdict`: what one check found: a state, the numbers behind it, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from .evidence import Evidence

State = Literal["red", "yellow", "unknown", "green"]
ORDER: tuple[State, ...] = ("red", "yellow", "unknown", "green")  # worst first


class Verdict(NamedTuple):
    """`red` is wrong, `yellow` deserves a look, `unknown` says why nothing can be said.

    `[verdict.name for verdict in examine(evidence) if verdict.fired]`.
    """

    name: str
    state: State
    message: str
    evidence: dict[str, Any]  # numbers
    remedy: str = ""

    @property
    def fired(self) -> bool:
        """Whether there is something to look at."""
        return self.state in ("red", "yellow")


Check = Callable[[Evidence], Verdict]


def green(name: str, message: str, **numbers: Any) -> Verdict:
    """Nothing is wrong."""
    return Verdict(name, "green", message, numbers)


def unknown(name: str, why: str, **numbers: Any) -> Verdict:
    """Nothing can be said, and why."""
    return Verdict(name, "unknown", why, numbers)


def yellow(name: str, message: str, remedy: str, **numbers: Any) -> Verdict:
    """Worth a look."""
    return Verdict(name, "yellow", message, numbers, remedy)


def red(name: str, message: str, remedy: str, **numbers: Any) -> Verdict:
    """Wrong."""
    return Verdict(name, "red", message, numbers, remedy)
