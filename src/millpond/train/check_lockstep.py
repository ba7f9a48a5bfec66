"""Check a lockstep run: repeat its cycles in one process and compare the two hash by hash.

`python -m millpond.train.check_lockstep RUN` runs this twin and writes `twin/trace.jsonl` into the
run's folder. It is a process of its own, as it needs the environment that the run's processes had.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import xxhash

from ..engine.environment import child_environment
from ..engine.sequential import LocalCrew
from ..engine.trace import Trace, read_trace
from ..errors import RunFailed
from .run import Run


class Comparison(NamedTuple):
    """Two traces side by side."""

    cycles: int  # from the start on, that are equal
    differs: str  # the first difference; empty if there is none
    digest: str  # hash of all rows, draws and agents up to the last equal cycle

    @property
    def identical(self) -> bool:
        """Whether every cycle is equal."""
        return not self.differs


def compare_with_twin(run: Run, timeout: float = 3600.0) -> Comparison:
    """Run the twin of a finished lockstep run and compare the two."""
    environment = child_environment(run.settings.crew.threads, False, run.path / "compiled")
    command = [sys.executable, "-m", "millpond.train.check_lockstep", str(run.path)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )
    if done.returncode:
        raise RunFailed(f"the sequential twin of {run.path} failed:\n{done.stderr}")
    return compare(Trace(run.path).path, Trace(run.path / "twin").path)


def compare(mine: Path, other: Path) -> Comparison:
    """Find the first place where two traces differ."""
    digest = ""
    here, there = read_trace(mine), read_trace(other)
    for number, (one, two) in enumerate(zip(here, there, strict=False)):
        for name in one:
            if one[name] != two.get(name):
                why = f"cycle {one['cycle']}: {name}: {one[name]} here, {two.get(name)} there"
                return Comparison(number, why, digest)
        digest = _digest(one)
    if len(here) != len(there):
        return Comparison(0, f"{len(here)} cycles here, {len(there)} there", digest)
    return Comparison(len(here), "", digest)


def _digest(line: dict[str, Any]) -> str:
    """One hash of a cycle's hashes, each of which covers all cycles before it."""
    return xxhash.xxh3_64_hexdigest("".join(str(value) for value in line.values()).encode())


def main() -> int:
    """Repeat all cycles of the run."""
    run = Run.open(Path(sys.argv[1]))
    cycles = len(read_trace(Trace(run.path).path))
    folder = run.path / "twin"
    folder.mkdir(exist_ok=True)
    Trace(folder).path.unlink(missing_ok=True)
    theirs = run.settings  # of mode lockstep, or of mode ray in lockstep
    crew = dataclasses.replace(theirs.crew, lockstep=False)
    settings = dataclasses.replace(
        theirs, mode="sequential", address="", replay_shards=theirs.shards, crew=crew
    )
    with LocalCrew.opened(settings, folder) as crew:
        crew.run(cycles)
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(main())
