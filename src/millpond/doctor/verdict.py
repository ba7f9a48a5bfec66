"""`Verdict`: what one check found: a state, the numbers behind it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from .evidence import Evidence

State = Literal["red", "yellow", "unknown", "green"]
ORDER: tuple[State, ...] = ("red", "yellow", "unknown", "green")  # worst first
# What a fault of the env or the rows brings with it, and what any fault does, comes after it.
_ORIGINS = ("process-health", "env-", "reward-timing", "action-effect", "row-order")
_EFFECTS = (
    "layers-move", "bellman-fit", "reward-scale", "train-and-eval", "greedy-actions",
    "dormant-units", "learning",
)  # fmt: skip


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


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """By state and, of one state, causes before what follows from them."""

    def place(verdict: Verdict) -> tuple[int, int]:
        name = verdict.name
        late = _EFFECTS.index(name) + 2 if name in _EFFECTS else 1
        origin = name.startswith(_ORIGINS) or (name == "settings-fit" and verdict.state == "red")
        return ORDER.index(verdict.state), 0 if origin else late

    return sorted(verdicts, key=place)


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
