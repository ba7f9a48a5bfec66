"""`Verdict`: what one check found: a state, the numbers behind it, and what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

from .evidence import Evidence

State = Literal["red", "yellow", "unknown", "green"]
ORDER: tuple[State, ...] = ("red", "yellow", "unknown", "green")  # worst first
# What a fault of the env or the rows brings with it, and what any fault does, comes after it;
# so do rewards that never change, where episodes end as they should not.
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
    suspect: str = ""  # of a green one: what it says if the run has not learned

    @property
    def fired(self) -> bool:
        """Whether there is something to look at."""
        return self.state in ("red", "yellow")


def with_suspects(verdicts: list[Verdict]) -> list[Verdict]:
    """The same; if the run has not learned, what a healthy task may have too is yellow.

    Actions that do the same, say, are no fault of a game with a fixed set of buttons.
    """
    if not any(verdict.name == "learning" and verdict.fired for verdict in verdicts):
        return verdicts
    return [
        verdict._replace(state="yellow", message=verdict.suspect) if verdict.suspect else verdict
        for verdict in verdicts
    ]


def worst_first(verdicts: Iterable[Verdict]) -> list[Verdict]:
    """By state and, of one state, causes before what follows from them.

    That nothing was learned follows from everything: it comes after all other findings.
    """

    def place(verdict: Verdict) -> tuple[int, int]:
        name = verdict.name
        if name == "learning" and verdict.fired:
            return ORDER.index("yellow"), len(_EFFECTS) + 2
        frozen = name == "layers-move" and verdict.evidence.get("still")
        late = 1 if frozen else _EFFECTS.index(name) + 2 if name in _EFFECTS else 1
        setting = name == "settings-fit" and verdict.state == "red"
        origin = setting or (name.startswith(_ORIGINS) and name != "env-rewards")
        return ORDER.index(verdict.state), 0 if origin else late

    return sorted(verdicts, key=place)


Check = Callable[[Evidence], Verdict]


def green(name: str, message: str, **numbers: Any) -> Verdict:
    """Nothing is wrong."""
    return Verdict(name, "green", message, numbers)


def suspicious(verdict: Verdict, message: str, remedy: str) -> Verdict:
    """A green verdict that becomes a yellow one with this message if the run has not learned."""
    return verdict._replace(suspect=message, remedy=remedy)


def unknown(name: str, why: str, **numbers: Any) -> Verdict:
    """Nothing can be said, and why."""
    return Verdict(name, "unknown", why, numbers)


def yellow(name: str, message: str, remedy: str, **numbers: Any) -> Verdict:
    """Worth a look."""
    return Verdict(name, "yellow", message, numbers, remedy)


def red(name: str, message: str, remedy: str, **numbers: Any) -> Verdict:
    """Wrong."""
    return Verdict(name, "red", message, numbers, remedy)
