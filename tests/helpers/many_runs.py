"""Hundreds of runs with curves of their own, and the results of a sweep."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
from tiny_runs import settings

from millpond.agents import DQNSettings
from millpond.compare import Arm, results
from millpond.train import Run, Settings
from millpond.train.presets import settings_for

SEEDS = 5
BATCHES, GAMMAS = (32, 64, 128), (0.9, 0.95, 0.99, 0.995)
ENVS = ("treasurehunt-small", "minatar/breakout", "staghunt")


def write_many(root: Path, number: int, lines: int = 200) -> list[Run]:
    """`number` runs of several envs, five seeds of each setting; some were killed, some failed."""
    bases = {env: settings_for(env, agent="dqn") for env in ENVS}
    return [_write(root, bases, index, lines) for index in range(number)]


def _write(root: Path, bases: dict[str, Settings], index: int, lines: int) -> Run:
    setting, seed = divmod(index, SEEDS)
    env = ENVS[setting % len(ENVS)]
    batch = BATCHES[setting // len(ENVS) % len(BATCHES)]
    gamma = GAMMAS[setting // len(ENVS) // len(BATCHES) % len(GAMMAS)]
    width = 8 * (1 + setting // (len(ENVS) * len(BATCHES) * len(GAMMAS)))
    base = bases[env]
    assert isinstance(base.learning, DQNSettings)
    learning = dataclasses.replace(base.learning, batch=batch, gamma=gamma)
    network = dataclasses.replace(base.network, width=width)
    of = dataclasses.replace(base, seed=seed, learning=learning, network=network, steps=100 * lines)
    name = f"{env.replace('/', '-')}-batch-{batch}-gamma-{gamma}-width-{width}-{seed}"
    run = Run.create(root / name, of)
    rng = np.random.default_rng(index)
    state = "finished" if index % 17 else "running"  # nobody holds its lock: it was killed
    why = ""
    if index % 23 == 22:
        state, why = "failed", "ValueError: observation 3 of env 0 has shape (4,), its space (5,)"
    reached = lines if state == "finished" else max(2, int(lines * rng.uniform(0.2, 0.9)))
    metrics, speed = [], []
    top = 40 * gamma + 5 * np.log2(batch / 32) + rng.normal(0, 3)
    for i in range(1, reached + 1):
        level = top * (1 - np.exp(-3 * i / lines))
        place = {"steps": 100 * i, "frames": 400 * i}
        values = {"return": level * 0.9 + rng.normal(0, 3), "loss": 1 / i + rng.uniform(0, 0.02)}
        values |= {"q": level / 3, "gradient": rng.uniform(0.5, 2), "change": 0.01, "updates": i}
        values |= {"epsilon": [max(0.05, 1 - 2 * i / lines)], "entropy": 1.4 - i / lines}
        metrics.append({"kind": "train", **place, **values})
        if i % 10 == 0:
            greedy = {"return": level + rng.normal(0, 1), "returns": [level], "errors": [0.5]}
            metrics.append({"kind": "eval", **place, **greedy, "episodes": 20})
        pace = {"seconds": i * 0.8, "steps_per_second": 120 + rng.normal(0, 9)}
        speed.append({"kind": "speed", **place, **pace})
    for path, found in ((run.metrics, metrics), (run.speed, speed)):
        path.write_text("".join(f"{json.dumps(line)}\n" for line in found))
    run.say(state, 100 * reached, why)
    return run


def swept(arms: int) -> dict[str, Any]:
    """Results of a grid of so many arms; the last one is best."""
    found: list[Any] = []
    for i in range(arms):
        about = Arm(
            f"batch={i}", "dqn", settings(), 1, (("dqn.batch", i), ("dqn.kind", "<i>k</i>"))
        )
        curve = [[100.0, [i, i + 1]], [200.0, [2 * i, 2 * i + 1]]]
        plain = {"scores": [2.0 * i, 2 * i + 1.0], "frames": 200, "curve": curve}
        found.append(results.summary(about, plain | {"gradient_steps": 4, "row_updates": 600}))
    return {"env": "arms", "frames": 200, "seeds": 2, "arms": found, "pairs": results.pairs(found)}
