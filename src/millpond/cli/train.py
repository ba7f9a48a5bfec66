"""`millpond train`: train an agent and watch it learn

    millpond train treasurehunt-small
    millpond train minatar/breakout --agent pqn --steps 400000 --run runs/breakout
    millpond train gym:CartPole-v1 --dqn.n-step 5 --seed 3
    millpond train minatar/breakout --lake-phases --steps 10000000

Every setting is an option; the env's preset gives the others (see `millpond presets`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from ..cluster.ray import import_ray
from ..engine.host_replay import open_source
from ..engine.lake_share import LakeShare
from ..engine.make_agent import check_agent
from ..engine.room import check_room
from ..engine.settings import tiny
from ..envs import env_names, spec_of
from ..errors import BadConfig
from ..metrics import import_tracker, read_metrics
from ..mixture import SEED_003, MixSettings, mix_for, tiny_mix, with_frames
from ..train import Run, Settings
from ..train.check_lockstep import Comparison, compare_with_twin
from ..train.presets import settings_for
from ._options import Parser, free_folder, given, whole
from ._settings import parse_settings, parse_world
from ._train_text import train_and_show
from ._watching import check_watch, watching
from .mix import begin


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "millpond train",
        __doc__,
        epilog="millpond train ENV --help lists the settings, --help-all explains each.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("env", metavar="ENV", nargs="?", help=f"one of {', '.join(env_names())}")
    parser.add_argument(
        "--run", type=Path, help="a new folder for the run; default: runs/ENV-AGENT-SEED"
    )
    parser.add_argument(
        "--preset",
        type=Path,
        help="a TOML file, or the name of a preset; default: the env's preset",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="with --mode lockstep or ray: also run sequentially, and compare every bit",
    )
    parser.add_argument(
        "--lake-phases",
        action="store_true",
        help="keep all rows in a Lake and learn from them again in phases; settings as for mix",
    )
    parser.add_argument("--watch", action="store_true", help="serve a live page until the run ends")
    known, rest = parser.parse_known_args(args)
    first = args[0].partition("=")[0] if args else ""
    own = ("--run", "--preset", "--check", "--lake-phases", "--watch", "-h", "--help")
    if first.startswith("-") and first not in own:
        # Which options take a value depends on the env, so it must come first.
        if first in ("--env", "--env-id", "--env_id"):
            env = given(first, args) or "ENV"
            raise BadConfig(
                f"there is no option {first}; the env comes first: millpond train {env}"
            )
        raise BadConfig(f"name the env before its options: millpond train ENV {first} ...")
    if known.env is None:
        wanted = {"-h", "--help"} & set(args)
        print(parser.format_help())
        return 0 if wanted else 2
    if known.lake_phases:
        if known.check:
            raise BadConfig("--check compares modes lockstep and ray; --lake-phases has neither")
        settings = parse_phases(known.env, known.preset, rest)
        folder = known.run or free_folder(settings.env, "phases", settings.seed)
        return begin(settings, folder, known.watch)
    parts = {name: given(f"--{name}", rest) for name in ("agent", "sampler")}
    world = parse_world(known.env, rest)
    settings = parse_train(settings_for(known.env, known.preset, **parts, world=world), rest)
    if known.check:
        if settings.mode not in ("lockstep", "ray"):
            raise BadConfig(
                f"--check compares modes lockstep and ray, got {settings.mode}; add --mode lockstep"
            )
        on_ray = settings.mode == "ray"
        crew = dataclasses.replace(settings.crew, trace=True, lockstep=on_ray)
        settings = dataclasses.replace(settings, crew=crew)
    # Check everything that can be refused before the folder is created.
    spec_of(settings.world)
    check_agent(settings)
    check_room(settings)
    if settings.mode == "ray":
        import_ray()
    if settings.from_lake:
        open_source(settings, settings.from_lake, "from_lake")
    if settings.lake:
        LakeShare(settings)
    if settings.track:
        import_tracker(settings.track)
    check_watch(known.watch)
    folder = known.run or free_folder(settings.env, settings.section, settings.seed)
    run = Run.create(folder, settings)
    with watching(run.path, known.watch):
        return train_and_show(run) or (check_twin(run) if known.check else 0)


def check_twin(run: Run) -> int:
    """Compare a lockstep run with its sequential twin; the exit code is 0 if they are identical."""
    found = compare_with_twin(run)
    if found.identical:
        updates = [line.get("updates", 0) for line in read_metrics(run.metrics, "train")]
        print(identical_text(found, max(updates, default=0)))
        return 0
    print(f"NOT identical: the first {found.cycles:,} cycles are; then {found.differs}")
    return 1


def identical_text(found: Comparison, updates: int) -> str:
    """What was compared, its hash, and whether any learning was compared."""
    much = f"{found.cycles:,} cycles, {updates:,} updates, in lockstep and in sequence"
    hashed = f"hash of all rows, draws and agents {found.digest}"
    more = "" if updates else "\nno learning was compared yet; use more --steps to include it"
    return f"identical: {much}; {hashed}{more}"


def parse_train(preset: Settings, args: Sequence[str]) -> Settings:
    """The preset's settings, changed by the options on the command line."""
    preset = tiny(preset) if "--debug" in args else preset
    return parse_settings(preset, args, f"millpond train {preset.env}")


def parse_phases(env: str, file: Path | None, args: Sequence[str]) -> MixSettings:
    """The settings of --lake-phases: a mixture with one agent, for the steps asked for."""
    counts = Parser("millpond train", None, add_help=False, allow_abbrev=False)
    counts.add_argument("--steps", type=whole, default=None)
    known, rest = counts.parse_known_args(args)
    base = mix_for(env, file, given("--agent", rest), given("--big-agent", rest), agents=1)
    base = tiny_mix(base) if "--debug" in rest else base
    steps = known.steps or settings_for(env, None if file == SEED_003 else file, base.agent).steps
    if "--debug" not in rest or known.steps:
        base = with_frames(base, steps * base.world.frames_per_step)
    return parse_settings(
        base, rest, f"millpond train {base.env} --lake-phases", hidden=["frames", "agents"]
    )
