"""`millpond mix`: train a mixture: agents that share a Lake, and a BigAgent that learns from it

    millpond mix minatar/breakout --frames 2e6 --run runs/mixture
    millpond mix minatar/asterix --frames 1e7 --big.minibatches-per-1k 4
    millpond mix minatar/breakout --preset seed-003
    millpond mix minatar/breakout --transfer live
    millpond mix minatar/breakout --debug

Every setting is an option. The defaults for network, agents and BigAgent come from the env's
preset. `--preset seed-003` is the first design of the mixture, in which a DQN learns from the whole
Lake. `millpond resume RUN` continues a mixture that was stopped or killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..cluster.ray import import_ray
from ..engine.make_agent import check_agent
from ..envs import spec_of
from ..metrics import import_tracker
from ..mixture import MixRun, MixSettings, mix_for, tiny_mix, with_frames
from ._mix_text import mix_and_show
from ._options import Parser, free_folder, given, whole
from ._settings import parse_settings
from ._watching import check_watch, watching


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser(
        "millpond mix",
        __doc__,
        epilog="millpond mix ENV --help lists the settings, --help-all explains each.",
        add_help=False,
        allow_abbrev=False,
    )
    parser.add_argument("env", metavar="ENV", nargs="?", help="an env with one agent")
    parser.add_argument("--run", type=Path, help="a new folder; default: runs/ENV-mix-SEED")
    parser.add_argument("--preset", type=Path, help="a TOML file, or the name of a preset")
    parser.add_argument(
        "--frames", type=whole, help="frames per member, over all its agents, such as 2e6"
    )
    parser.add_argument("--watch", action="store_true", help="serve a live page until the run ends")
    known, rest = parser.parse_known_args(args)
    if known.env is None or known.env.startswith("-"):
        print(parser.format_help())
        return 0 if {"-h", "--help"} & set(args) else 2
    parts = (given("--agent", rest), given("--big-agent", rest))
    base = mix_for(known.env, known.preset, *parts)
    base = tiny_mix(base) if "--debug" in rest else base
    if known.frames is not None:
        base = with_frames(base, known.frames)
    settings = parse_settings(base, rest, f"millpond mix {base.env}", hidden=["frames"])
    return begin(
        settings, known.run or free_folder(settings.env, "mix", settings.seed), known.watch
    )


def begin(settings: MixSettings, folder: Path, watch: bool) -> int:
    """Create a mixture in a folder and run it to its end; returns the exit code."""
    # Check everything that can be refused before the folder is created.
    spec_of(settings.world)
    check_agent(settings.playing)
    check_agent(settings.big_playing)
    if settings.mode == "ray":
        import_ray()
    if settings.track:
        import_tracker(settings.track)
    check_watch(watch)
    run = MixRun.create(folder, settings)
    with watching(folder, watch):
        return mix_and_show(run)
