"""The results of an arm's runs, read from their metrics: scores by seed, curves, resets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ..metrics import read_metrics
from ..mixture import MixSettings
from ..train import Settings
from . import stats
from .arms import Arm
from .norm import Norm

Plain = dict[str, Any]

_MANY = 12  # arms; with more, each is compared only with the best
_LAST = 3  # a normalised score is the mean of the last three evaluations


def of_run(path: Path, arm: Arm, seeds: int, norm: Norm | None = None) -> Plain:
    """The results of one finished run of `seeds` seeds; lists have one entry per seed.

    With a `norm` the scores of a training run are normalised team means over the last evaluations,
    and `worst` holds the worst agent's score.
    """
    lines = list(read_metrics(path / "metrics.jsonl"))
    if isinstance(arm.settings, MixSettings):
        return _of_mixture(lines, arm.settings)
    return _of_train(lines, arm.settings, seeds, norm)


def _of_train(lines: list[Plain], settings: Settings, seeds: int, norm: Norm | None) -> Plain:
    evaluations = [line for line in lines if line["kind"] == "eval"]
    last = [line for line in lines if line["kind"] == "train"][-1]

    def agents(line: Plain) -> np.ndarray:
        returns = np.array(line["returns"]).reshape(seeds, -1)
        return norm(returns) if norm else returns

    def by_seed(line: Plain) -> list[float]:
        return agents(line).mean(1).tolist()

    policies = len(evaluations[-1]["returns"]) // seeds
    final = np.mean([agents(line) for line in evaluations[-_LAST if norm else -1 :]], 0)
    return {
        "scores": final.mean(1).tolist(),
        **({"worst": final.min(1).tolist()} if norm else {}),
        "frames": last["frames"] / seeds,
        "gradient_steps": last["updates"] * policies,
        "row_updates": last["updates"] * policies * settings.learns.rows(settings.envs),
        "curve": [[line["frames"] / seeds, by_seed(line)] for line in evaluations],
    }


def _of_mixture(lines: list[Plain], settings: MixSettings) -> Plain:
    evaluations = [line for line in lines if line["kind"] == "eval"]
    last = [line for line in lines if line["kind"] == "train"][-1]
    ours = last["updates"] * settings.agents
    # Count the phase after the last `train` line too; live has no phases, but that line has all.
    phases = [line["minibatches"] for line in lines if line["kind"] == "big"]
    theirs = sum(phases) if phases else last["big_updates"]
    rows = ours * settings.learns.rows(settings.envs)
    rows += theirs * settings.big_learns.rows(settings.envs)

    def by_seed(line: Plain) -> list[float]:
        return np.array(line["returns"]).mean(1).tolist()

    resets: list[Plain] = []
    for line in lines:
        if line["kind"] == "reset":
            since = {"cycle": line["cycle"], "frames": line["frames"], "target": line["target"]}
            resets.append({**since, "cloned": line["cloned"], "points": []})
        elif line["kind"] == "eval" and resets and line["when"] != "final":
            resets[-1]["points"].append([line["frames"] - resets[-1]["frames"], by_seed(line)])
    took = [line["frames_to_recovery"] for line in lines if line["kind"] == "recovery"]
    return {
        "scores": evaluations[-1]["scores"],
        "chosen": evaluations[-1]["chosen"],
        "agents": by_seed(evaluations[-1]),
        "big": evaluations[-1]["big"],
        "frames": last["frames"],
        "gradient_steps": ours + theirs,
        "row_updates": rows,
        "curve": [[line["frames"], by_seed(line)] for line in evaluations],
        "big_curve": [[line["frames"], line["big"]] for line in evaluations],
        "resets": resets,
        "frames_to_recovery": took,
        "recloned": sum(line["kind"] == "recloned" for line in lines),
    }


def together(runs: list[Plain]) -> Plain:
    """Join the results of an arm's runs; lists get the seeds of all."""
    if len(runs) == 1:
        return runs[0]
    whole: Plain = {
        name: [x for run in runs for x in run[name]]
        for name in ("scores", "worst", "chosen", "agents", "big")
        if name in runs[0]
    }
    for name in ("frames", "gradient_steps", "row_updates"):
        whole[name] = float(np.mean([run[name] for run in runs]))
    for name in ("curve", "big_curve"):
        if name in runs[0]:
            whole[name] = _side_by_side([run[name] for run in runs])
    if "resets" in runs[0]:
        whole["resets"] = [
            {
                **parts[0],
                "target": [x for part in parts for x in part["target"]],
                "cloned": [x for part in parts for x in part["cloned"]],
                "points": _side_by_side([part["points"] for part in parts]),
            }
            for parts in zip(*(run["resets"] for run in runs), strict=False)
        ]
        whole["frames_to_recovery"] = [
            [x for part in parts for x in part]
            for parts in zip(*(run["frames_to_recovery"] for run in runs), strict=False)
        ]
        whole["recloned"] = sum(run["recloned"] for run in runs)
    return whole


def _side_by_side(curves: list[Any]) -> list[Any]:
    """Join the curves of several runs, whose evaluations were at nearly the same frames."""
    return [
        [float(np.mean([x for x, _ in points])), [y for _, ys in points for y in ys]]
        for points in zip(*curves, strict=False)
    ]


def summary(arm: Arm, found: Plain) -> Plain:
    """The results of an arm with their statistics."""
    scores = found["scores"]
    numbers: Plain = {
        "name": arm.name,
        "about": arm.about,
        "mean": float(np.mean(scores)),
        "iqm": stats.iqm(scores),
        "interval": stats.interval(scores),
    }
    if arm.values:
        numbers["values"] = dict(arm.values)
    if "worst" in found:
        numbers["worst_agent"] = min(found["worst"])
    if "big" in found:
        numbers["agents_mean"] = float(np.mean(found["agents"]))
        numbers["big_mean"] = float(np.mean(found["big"]))
        numbers["big_iqm"] = stats.iqm(found["big"])
    return numbers | found


def pairs(arms: list[Plain]) -> list[Plain]:
    """Compare every arm with every one before it; if there are many, each with the best only."""
    found: list[Plain] = []
    if len(arms) > _MANY:
        best = max(arms, key=lambda arm: arm["mean"])
        for arm in arms:
            if arm is not best:
                against = stats.versus(arm["scores"], best["scores"])
                found.append({"of": arm["name"], "over": best["name"], **against._asdict()})
        return found
    for later, second in enumerate(arms):
        for first in arms[:later]:
            against = stats.versus(second["scores"], first["scores"])
            found.append({"of": second["name"], "over": first["name"], **against._asdict()})
    return found
