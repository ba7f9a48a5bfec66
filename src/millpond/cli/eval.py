"""`millpond eval`: evaluate a run greedily, against random and scripted players

millpond eval runs/treasure --episodes 1000
millpond eval runs/treasure --checkpoint 100000 --video film.gif --json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..mixture.params import load_params, open_everyone
from ..train import Referee, Run, Scores
from ..train.film import film
from ._options import Parser
from ._print import empty_table, print_table


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond eval", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument(
        "--episodes", type=int, default=100, help="episodes per player (default 100)"
    )
    parser.add_argument(
        "--checkpoint",
        type=int,
        help="env steps of the checkpoint (for a mixture, frames); default: the newest",
    )
    parser.add_argument("--video", type=Path, help="film one episode: a .gif or an .mp4")
    parser.add_argument("--json", action="store_true", help="JSON instead of a table")
    options = parser.parse_args(args)
    if options.episodes < 2:
        raise BadConfig(
            f"--episodes must be at least 2, for a standard error, got {options.episodes}"
        )
    run = open_everyone(options.run)
    kept = run.checkpoint(options.checkpoint)
    params = load_params(run, kept.path)
    pictures = film(run.settings, params, options.video) if options.video else 0
    result = compare(run, params, options.episodes)
    result |= {"run": str(run.path), "steps": kept.steps}
    if options.json:
        print(json.dumps(result, indent=2))
    else:
        show(result)
        if options.video:
            print(f"{pictures} frames in {options.video}")
    return 0


def compare(run: Run, params: Any, episodes: int) -> dict[str, Any]:
    """Mean returns of every policy and of the reference players in its place; normalised scores.

    `events` holds what the env counts, per episode and member, for each player.
    """
    world: Any = run.settings.world
    referee = Referee(run.settings, episodes)
    greedy, chance = referee.play(params), referee.watch("random")
    scripts = {name: referee.watch(name) for name in world.references}
    best = next(iter(scripts.values()), None)
    players = {"greedy": greedy, "random": chance, **scripts}
    rows: list[dict[str, Any]] = []
    for policy in range(run.settings.policies):
        row = {
            "policy": policy,
            "member": policy // world.num_agents,
            "agent": policy % world.num_agents,
            "greedy": float(greedy.mean()[policy]),
            "error": float(greedy.error()[policy]),
            "random": float(chance.mean()[policy]),
        }
        row |= {name: float(scores.mean()[policy]) for name, scores in scripts.items()}
        if best is not None:
            span = float(best.mean()[policy]) - row["random"]
            row["normalised"] = (row["greedy"] - row["random"]) / span if span else None
        rows.append(row)
    return {
        "env": run.settings.env,
        "agent": run.settings.agent,
        "episodes": episodes,
        "unfinished": greedy.unfinished,
        "references": list(scripts),
        "policies": rows,
        "team": _team(rows, greedy),
        "events": {
            name: {player: scores.events()[name] for player, scores in players.items()}
            for name in greedy.counts
        },
    }


def _team(rows: list[dict[str, Any]], greedy: Scores) -> dict[str, Any]:
    scores = [row["normalised"] for row in rows if row.get("normalised") is not None]
    team: dict[str, Any] = {"greedy": float(greedy.mean().mean())}
    if scores:
        team |= {"normalised": float(np.mean(scores)), "least": min(scores)}
    return team


def show(result: dict[str, Any]) -> None:
    """Print the table of an evaluation."""
    scripts = result["references"]
    heads = ["policy", "greedy", "±", "random", *scripts]
    normalised = bool(scripts)
    scale = f"normalised\n(random 0, {scripts[0]} 1)" if normalised else ""
    table = empty_table([*heads, scale] if normalised else heads, 1)
    for row in result["policies"]:
        numbers = [row["greedy"], row["error"], row["random"], *(row[name] for name in scripts)]
        cells = [f"{number:.2f}" for number in numbers]
        if normalised:
            score = row["normalised"]
            cells.append("-" if score is None else f"{score:.3f}")
        table.add_row(f"{row['policy']}", *cells)
    print(
        f"{result['env']}, {result['agent']} after {result['steps']:,} steps: "
        f"{result['episodes']:,} greedy episodes, mean return"
    )
    print_table(table)
    team = result["team"]
    text = f"mean of all policies {team['greedy']:.2f}"
    if "normalised" in team:
        first = scripts[0]
        text += f"; normalised (random 0, {first} 1): mean {team['normalised']:.3f}, "
        text += f"worst agent {team['least']:.3f}"
    print(text)
    for name, players in result["events"].items():
        means = (f"{player} {np.mean(members):.2f}" for player, members in players.items())
        print(f"{name} per episode: {', '.join(means)}; worst member {min(players['greedy']):.2f}")
    if result["unfinished"]:
        print(f"{result['unfinished']} episodes were cut off at eval_turns turns")
