"""`millpond compare`: compare settings over several seeds, with confidence intervals

    millpond compare --preset mixture-vs-single --env minatar/breakout --frames 1e8 --seeds 10
    millpond compare --arms sequential,processes --env treasurehunt-small --seeds 10
    millpond compare --env minatar/breakout --frames 1e7 --seeds 5 \\
        --arm "none=mixture" --arm "fifth=mixture big.own_fraction=0.2" --set lake.envs=32
    millpond compare --env treasurehunt-small --seeds 5 \\
        --grid dqn.batch=32,64 --grid dqn.gamma=0.9,0.99

An arm is one side of the comparison: NAME=KIND KEY=VALUE ..., where KIND is single, mixture, apart,
alone, seed-003, an agent such as dqn, or a training mode. --grid makes an arm of every combination
of its values, for each named arm or for the env's default agent. Finished runs are not repeated:
run the same command again to continue. Writes results.json, report.html and report.png.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from rich.console import Console

from ..compare import PRESETS, Arm, Grid, Study, make_arms
from ..compare.arms import pair
from ..errors import BadConfig, NotInstalled, Paused
from ..train.presets import settings_for
from ..train.session import Report
from ..view.report import arms_table, grid_table, pairs_table, save_picture, save_report
from ._mix_text import Teller
from ._options import Parser, whole
from ._print import empty_table, print_table


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "millpond compare",
        __doc__,
        allow_abbrev=False,
    )
    parser.add_argument("--env", required=True, help="the env, the same for all arms")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="a predefined set of arms")
    parser.add_argument("--only", help="names of the preset's arms to run, such as A,B")
    parser.add_argument("--arms", help="kinds of arms, separated by commas: dqn,pqn")
    parser.add_argument(
        "--arm", action="append", default=[], help="NAME=KIND KEY=VALUE ...; repeatable"
    )
    parser.add_argument(
        "--grid",
        action="append",
        default=[],
        metavar="KEY=VALUE,...",
        help="values to sweep; repeatable",
    )
    parser.add_argument(
        "--set", action="append", default=[], help="KEY=VALUE for every arm; repeatable"
    )
    parser.add_argument(
        "--frames", type=whole, help="frames per seed, such as 1e7; default: the env's preset"
    )
    parser.add_argument("--seeds", type=whole, default=10, help="seeds per arm (default 10)")
    parser.add_argument("--seed", type=int, default=0, help="the first seed (default 0)")
    parser.add_argument(
        "--agents", type=whole, default=4, help="agents in mixture and apart (default 4)"
    )
    parser.add_argument(
        "--together",
        type=int,
        default=0,
        help="seeds per run; 0: all, if they can run as one program (default 0)",
    )
    parser.add_argument("--out", type=Path, help="its folder; default: runs/compare-ENV-FRAMES")
    parser.add_argument("--json", action="store_true", help="print results.json instead of tables")
    options = parser.parse_args(args)
    if options.frames is None:
        preset = settings_for(options.env)
        options.frames = preset.steps * preset.world.frames_per_step
    common = dict(pair(text) for text in options.set)
    grid = Grid.of(options.grid) if options.grid else None
    arms = make_arms(chosen(options), options.env, options.frames, common, options.agents, grid)
    name = options.env.replace("/", "-").replace(":", "-")
    out = options.out or Path("runs") / f"compare-{name}-{options.frames}"
    study = Study.open(
        out, arms, options.env, options.frames, options.seeds, options.seed, options.together
    )
    console = Console(stderr=True)
    try:
        results = study.go(lambda *run: _announce(console, *run))
    except KeyboardInterrupt:
        console.print("stopped; run the same command again to continue", soft_wrap=True)
        return 130
    except Paused as error:
        console.print(f"{error}; or run this command again", style="yellow", soft_wrap=True)
        return 4
    save_picture(out / "report.png", results)
    with redirect_stdout(sys.stderr if options.json else sys.stdout):
        if not options.json:
            show(results)
        _write_report(out / "report.html", results)
    if options.json:
        print(json.dumps(results, indent=1))
    return 0


def chosen(options: Any) -> list[str]:
    """The texts of the arms asked for."""
    ways = [bool(options.preset), bool(options.arms), bool(options.arm)]
    if options.grid and not any(ways) and not options.only:
        return [settings_for(options.env).agent]
    if sum(ways) != 1:
        raise BadConfig(
            "name the arms with one of --preset, --arms and --arm, such as --arms dqn,pqn, or the "
            "settings to sweep with --grid"
        )
    if options.only and not options.preset:
        raise BadConfig("--only selects arms of a --preset; add --preset, or omit --only")
    if options.arm:
        return options.arm
    if options.arms:
        return options.arms.split(",")
    texts = list(PRESETS[options.preset])
    wanted = options.only.split(",") if options.only else [t.partition("=")[0] for t in texts]
    if unknown := set(wanted) - {text.partition("=")[0] for text in texts}:
        known = ", ".join(text.partition("=")[0] for text in texts)
        raise BadConfig(f"{options.preset} has no arm {', '.join(sorted(unknown))}; it has {known}")
    return [text for text in texts if text.partition("=")[0] in wanted]


def _announce(console: Console, arm: Arm, first: int, last: int) -> Report:
    seeds = f"seed {first}" if first == last else f"seeds {first} to {last}"
    console.print(f"arm {arm.name} ({arm.about}), {seeds}", soft_wrap=True)
    teller = Teller(console)

    def report(line: dict[str, Any]) -> None:
        if line["kind"] == "eval" and "when" not in line:
            console.print(f"{line['steps']:>12,} steps    greedy {line['return']:.2f}")
        else:
            teller(line)

    return report


def show(results: dict[str, Any]) -> None:
    """Print the tables of arms and of pairs of arms."""
    swept = grid_table(results)
    tables = [(swept, 1)] if swept else [(arms_table(results), 2)]
    tables += [(pairs_table(results), 2)] if results["pairs"] else []
    shown = [empty_table(heads, words) for (heads, _), words in tables]
    for table, ((_, rows), _) in zip(shown, tables, strict=True):
        for row in rows:
            table.add_row(*row)
    print_table(*shown)
    normalised = all("worst_agent" in arm for arm in results["arms"])
    scale = "normalised scores: random play is 0, the env's scripted player 1"
    print(f"mean and IQM over seeds are {scale if normalised else 'returns, not normalised'}")


def _write_report(path: Path, results: dict[str, Any]) -> None:
    """Write the page, if its packages are installed."""
    try:
        save_report(path, results)
    except NotInstalled as error:
        print(f"no {path.name}: {error}, and run the same command again")
    else:
        print(f"report: {path}")
