"""What the doctor costs a run: CPU of its recorded evidence and checks, as a share of the run's.

    python bench/doctor_cost.py
    python bench/doctor_cost.py treasurehunt-small --mode sequential --steps 100000

Timed in the run itself: what learners keep for it (`RowAudit`) and the checks at every line of the
log (`Watch`). What is computed inside jitted programs, as hashes of stacks, is not seen here.
"""

from __future__ import annotations

import functools
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from millpond.cli.train import parse_train
from millpond.doctor import Watch
from millpond.engine.row_audit import RowAudit
from millpond.train import Run, train
from millpond.train.presets import settings_for

DEFAULT = ["--mode", "sequential", "--steps", "100000"]
spent = dict.fromkeys(("evidence", "checks"), 0.0)


def timed(owner: Any, name: str, what: str) -> None:
    """Count the CPU seconds of a method."""
    method = getattr(owner, name)

    @functools.wraps(method)
    def other(*given: Any) -> Any:
        began = time.process_time()
        try:
            return method(*given)
        finally:
            spent[what] += time.process_time() - began

    setattr(owner, name, other)


def main() -> None:
    env, *rest = sys.argv[1:] or ["treasurehunt-small"]
    settings = parse_train(settings_for(env), rest or DEFAULT)
    for name in ("took", "learned", "report"):
        timed(RowAudit, name, "evidence")
    timed(Watch, "__call__", "checks")
    with tempfile.TemporaryDirectory() as folder:
        run = Run.create(Path(folder) / "run", settings)
        watch, began = Watch(run), time.process_time()
        train(run, lambda line: watch(line) and None)
        whole = time.process_time() - began
    print(
        f"{env}, {settings.agent}, {settings.way}, {settings.steps:,} steps: {whole:.1f} s of CPU"
    )
    for what, seconds in spent.items():
        print(f"{what}: {seconds:.2f} s, {seconds / whole:.2%}")
    print(f"together {sum(spent.values()) / whole:.2%} (target 2%)")


if __name__ == "__main__":
    main()
