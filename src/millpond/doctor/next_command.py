"""`settles(verdict, run, env)`: the command that would settle what a check suspects."""

from __future__ import annotations

from ..run_folder import shell_word
from .verdict import Verdict

_ENV = (
    "env-rewards", "env-observations", "env-ends", "env-resets", "env-copies", "env-seeds",
    "env-fresh-start", "env-rows", "reward-timing", "action-effect", "row-order",
    "env-dead-ends", "env-final-observation", "action-range",
)  # fmt: skip
_EVAL = ("evaluation-again", "train-and-eval", "learning")
_WATCHED = (
    "replay-transitions", "replay-draws", "update-audit", "stored-rows", "action-labels",
    "exploration", "stacks-acted-on", "target-network", "target-cadence", "bellman-fit",
)  # fmt: skip
_TWIN = ("acting-weights", "policy-lag")


def settles(verdict: Verdict, run: str, env: str) -> str:
    """A command line, or nothing where the remedy is the command.

    `settles(verdict, "runs/mine", "staghunt")`.
    """
    if not verdict.fired:
        return ""
    if verdict.name in _ENV:
        return f"millpond doctor --env {env}"
    if verdict.name in _EVAL:
        return f"millpond eval {shell_word(run)}"
    if verdict.name in _TWIN:
        twin = shell_word(f"{run}-twin")
        return f"millpond train {env} --mode lockstep --check --steps 5k --run {twin}"
    if verdict.name in _WATCHED:
        watched = shell_word(f"{run}-watched")
        return f"millpond train {env} --mode sequential --run {watched}, then the doctor again"
    return ""
