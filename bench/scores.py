"""Scores of a preset over several seeds: trains them side by side and prints one table.

    python bench/scores.py treasurehunt-small
    python bench/scores.py minatar/breakout --out bench/out/scores --pqn.lam 0.65

A score is the mean of the last greedy evaluations (three, or --last). Where the env has a scripted
player it is also normalised, (score - random) / (script - random), by the agent's place in the
list, because earlier movers earn more. Further options are those of `millpond train`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

import jax
import numpy as np

from millpond.cli._options import given
from millpond.cli.train import parse_train
from millpond.metrics import read_metrics
from millpond.train import Referee, Run, train
from millpond.train.presets import settings_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("envs", nargs="+")
    parser.add_argument("--out", type=Path, default=Path("bench/out/scores"))
    parser.add_argument("--last", type=int, default=3, help="evaluations to average")
    parser.add_argument("--title", default="", help="a name for this variant")
    options, rest = parser.parse_known_args()
    if not any(arg.startswith("--members") for arg in rest):
        rest += ["--members", "5"]
    for env in options.envs:
        report = score(env, rest, options.out, options.title, options.last)
        show(report)


def score(env: str, rest: list[str], out: Path, title: str, last: int) -> dict:
    parts = {name: given(f"--{name}", rest) for name in ("agent", "sampler")}
    settings = parse_train(settings_for(env, **parts), rest)
    name = "-".join(filter(None, [env.replace("/", "-"), settings.agent, title]))
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    run = Run.create(folder, settings)
    began = time.perf_counter()
    train(run, lambda line: line["kind"] == "eval" and print(_line(line), file=sys.stderr))
    took = time.perf_counter() - began
    evals = list(read_metrics(run.metrics, "eval"))[-last:]
    agents, references = settings.world.num_agents, {}
    scores = np.mean([line["returns"] for line in evals], 0).reshape(settings.members, agents)
    referee = Referee(settings, max(1000, settings.eval_episodes) // settings.members + 1)
    for player in ("random", *settings.world.references):
        returns = referee.watch(player).mean().reshape(settings.members, agents)
        references[player] = returns.mean(0).tolist()
    report = {
        "env": env,
        "agent": settings.agent,
        "command": " ".join(["python bench/scores.py", env, f"--last {last}", *rest]),
        "device": str(jax.devices()[0].device_kind),
        "steps": settings.steps,
        "seconds": took,
        "pace": [line["steps_per_second"] for line in read_metrics(run.speed)][-1],
        "episodes": settings.eval_episodes,
        "evaluations": [line["steps"] for line in evals],
        "scores": scores.tolist(),
        "references": references,
        # Per seed, over the same evaluations: what the env counts besides, such as stags.
        "counts": {
            name: np.mean([line["counts"][name] for line in evals], 0).tolist()
            for name in evals[-1].get("counts", {})
        },
    }
    if settings.world.references:
        script = np.array(references[next(iter(settings.world.references))])
        chance = np.array(references["random"])
        report["normalised"] = ((scores - chance) / (script - chance)).tolist()
    (folder / "scores.json").write_text(json.dumps(report, indent=2))
    return report


def show(report: dict) -> None:
    scores = np.array(report["scores"])
    print(f"\n{report['env']} {report['agent']}, {report['steps']:,} steps, {report['device']}")
    print(f"  {report['command']}")
    print(
        f"  {report['seconds']:.0f} s, {report['pace']:,.0f} steps/s at the end, all seeds together"
    )
    for member, row in enumerate(scores):
        cells = "  ".join(f"{value:8.2f}" for value in row)
        extra = ""
        if "normalised" in report:
            extra = "   normalised " + "  ".join(
                f"{value:.3f}" for value in report["normalised"][member]
            )
        for name, seeds in report["counts"].items():
            extra += f"   {name} {seeds[member]:.2f}"
        print(f"  seed {member}: {cells}{extra}")
    print(
        f"  mean {scores.mean():.2f}, least {scores.min():.2f}, references {report['references']}"
    )
    for name, seeds in report["counts"].items():
        print(f"  {name} per episode: mean {np.mean(seeds):.2f}, least seed {min(seeds):.2f}")
    if "normalised" in report:
        all_of = np.array(report["normalised"])
        teams = all_of.mean(1)
        print(
            f"  normalised: mean {all_of.mean():.3f}, least agent {all_of.min():.3f}, "
            f"least team {teams.min():.3f}",
            flush=True,
        )


def _line(line: dict) -> str:
    return f"{line['steps']:>11,} {line['return']:9.2f} least {line['least']:9.2f}"


if __name__ == "__main__":
    main()
