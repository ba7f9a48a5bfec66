"""Mixtures so small that two cycles end in a second."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny_runs import Arms, at_rate

from millpond.agents import Network, PQNSettings, QLambdaSettings
from millpond.mixture import MixRun, MixSettings, mix
from millpond.mixture.programs import Programs
from millpond.mixture.settings import BigSettings, LakeSettings

PLAIN = Arms(pay=(0.25, 1.0, -0.5), turns=9, uneven=True)  # episodes of 1 to 9 turns


def mixture(**changes: Any) -> MixSettings:
    """Two members of two agents each; a cycle is six updates, the Ponds hold two.

    The BigAgent plays itself and begins with its agents' values, so that all of it is run.
    """
    base = dict(
        frames=2_300,
        agents=2,
        members=2,
        updates=6,
        envs=4,
        stack=2,
        pond=32,
        network=Network(width=8),
        learning=PQNSettings(rollout=4, minibatches=2, epochs=2, optimizer=at_rate(1e-3)),
        big_learning=QLambdaSettings(length=4, batch=2, optimizer=at_rate(1e-3)),
        big=BigSettings(28.0, capacity=400, own_fraction=0.3, distill=0.25),
        lake=LakeSettings(capacity=20_000),
        eval_updates=3,
        eval_episodes=3,
        eval_turns=12,
        checkpoint_updates=4,
        resume_updates=4,
    )
    return MixSettings("arms", **dict(world=PLAIN) | base | changes)


class Crash(Exception):
    """What a test throws into a mixture."""


def crash_where(run: MixRun, programs: Programs, wanted: Any) -> list[dict[str, Any]]:
    """Mix until `wanted(line)` is true, and crash there; the lines told, without the last."""
    told: list[dict[str, Any]] = []

    def tell(line: dict[str, Any]) -> None:
        if wanted(line):
            raise Crash
        told.append(line)

    try:
        mix(run, tell, programs)
    except Crash:
        return told
    raise AssertionError("the mixture ended before it could crash")


def files_of(run: Path) -> dict[str, bytes]:
    """What two equal mixtures have in common: metrics, the last state and every checkpoint."""
    names = ["metrics.jsonl", "resume.safetensors", "status.json", "config.json"]
    kept = sorted(path.relative_to(run).as_posix() for path in (run / "checkpoints").iterdir())
    return {name: (run / name).read_bytes() for name in [*names, *kept]}
