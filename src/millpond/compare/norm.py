"""`Norm`: what random and scripted players earn, so that scores of several agents can be compared.

A score is (agent - random) / (script - random), by the agent's place in the list, because earlier
movers earn more.
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
    """Returns of both players, by the agent's place."""

    random: tuple[float, ...]
    script: tuple[float, ...]

    @staticmethod
    def of(settings: Settings, path: Path, episodes: int = 1000) -> Norm | None:
        """Played once and kept in a file; None where the env has no scripted player."""
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
        """Returns [..., agents] as scores."""
        low, high = np.array(self.random), np.array(self.script)
        return (np.asarray(returns) - low) / (high - low)
