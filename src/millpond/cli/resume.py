"""`millpond resume`: go on with a run that was stopped or killed

    millpond resume runs/breakout

The run's folder holds everything that is needed. On a CPU the result is bit for bit that of a run
that was never interrupted, if the env can save its state (all but atari/ and gym: can).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from ..mixture import MixRun, is_mixture
from ..train import Run
from ._mix_text import mix_and_show
from ._train_text import train_and_show


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="millpond resume",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("run", type=Path, help="the run's folder")
    path = parser.parse_args(args).run
    if is_mixture(path):
        return mix_and_show(MixRun.open(path))
    return train_and_show(Run.open(path))
