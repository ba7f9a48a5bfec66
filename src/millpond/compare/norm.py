"""`Norm`: normalises returns by those of a random and a scripted player.

A score is (agent - random) / (script - random), separately for each agent's place in the env,
because agents that move earlier earn more.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from ..train import Referee, Settings
from ..whole_file import write_whole


@dataclasses.dataclass(frozen=True)
class Norm:
    """Mean returns of both players, per place."""

    random: tuple[float, ...]
    script: tuple[float, ...]

    @staticmethod
    def of(settings: Settings, path: Path, episodes: int = 1000) -> Norm | None:
        """Measure both players, once per file `path`; None if the env has no scripted player."""
        names = list(settings.world.references)
        if not names:
            return None
        if path.exists():
            plain = json.loads(path.read_text(encoding="utf-8"))
            return Norm(tuple(plain["random"]), tuple(plain["script"]))
        alone = dataclasses.replace(settings, members=1)
        referee = Referee(alone, episodes)
        random, script = (
            tuple(float(value) for value in referee.watch(name).mean())
            for name in ("random", names[0])
        )
        write_whole(path, json.dumps({"random": random, "script": script}).encode() + b"\n")
        return Norm(random, script)

    def __call__(self, returns: Any) -> np.ndarray:
        """Turn returns [..., agents] into scores."""
        low, high = np.array(self.random), np.array(self.script)
        return (np.asarray(returns) - low) / (high - low)
