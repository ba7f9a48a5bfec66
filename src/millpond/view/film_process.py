"""Makes a film for `Projector`: `python -m millpond.view.film_process PARENT RUN STEPS FILE`."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

from ..process.worker import die_with

_TURNS = 300  # most turns of the episode


def main() -> int:
    """Make the film; returns the exit code. The last line of stderr says what went wrong."""
    parent, folder, steps, target = sys.argv[1:5]
    die_with(int(parent))
    os.nice(19)
    with contextlib.suppress(OSError):  # run only when a core is idle
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from ..mixture.params import load_params, open_everyone
    from ..train.film import film

    run = open_everyone(Path(folder))
    kept = run.checkpoint(int(steps))
    film(run.settings, load_params(run, kept.path), Path(target), turns=_TURNS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
