"""`millpond resume`: continue a run that was stopped or killed

    millpond resume runs/breakout

The run's folder holds everything needed. On a CPU the result is bit for bit that of an
uninterrupted run, if the env can save its state (atari/, gym:, pettingzoo: and sorrel: cannot).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..mixture import MixRun, is_mixture
from ..train import Run
from ._mix_text import mix_and_show
from ._options import Parser
from ._train_text import train_and_show
from ._watching import check_watch, watching


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond resume", __doc__)
    parser.add_argument("run", metavar="RUN", type=Path, help="the run's folder")
    parser.add_argument("--watch", action="store_true", help="serve a live page until the run ends")
    options = parser.parse_args(args)
    check_watch(options.watch)
    path = options.run
    if is_mixture(path):
        run = MixRun.open(path)
        with watching(path, options.watch):
            return mix_and_show(run)
    run = Run.open(path)
    with watching(path, options.watch):
        return train_and_show(run)
