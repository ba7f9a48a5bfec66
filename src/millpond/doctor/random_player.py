"""What a random policy scores: played once per run, kept in `random.json` in its folder."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from ..errors import MillpondError
from ..train import Referee, Run
from ..whole_file import write_whole

_EPISODES = 256  # at most: enough to tell it from a policy that has learned anything


def known_chance(run: Run) -> dict[str, Any] | None:
    """What was found before, or None."""
    try:
        return json.loads((run.path / "random.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def chance(run: Run) -> dict[str, Any]:
    """Mean return and error of every policy's place; seeds are fixed, so it is always the same.

    `chance(Run.open(path))`.
    """
    if (found := known_chance(run)) is not None:
        return found
    scores = Referee(run.settings, min(_EPISODES, run.settings.eval_episodes)).watch("random")
    means, errors = scores.mean(), scores.error()
    found = {
        "return": float(means.mean()),
        "returns": [float(value) for value in means],
        "errors": [float(value) if value < float("inf") else None for value in errors],
        "episodes": scores.returns.shape[1],
    }
    with contextlib.suppress(MillpondError):  # a folder that cannot be written can be read
        write_whole(run.path / "random.json", json.dumps(found).encode() + b"\n")
    return found
