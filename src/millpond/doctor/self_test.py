"""`self_test(folder)`: each known bug in a real short run; which checks fire, and which should."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from collections.abc import Generator, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import NamedTuple

from ..errors import MillpondError
from ..train import Run, train
from .evidence import Evidence
from .examine import examine
from .plants import Plant
from .plants_modes import compiled_again, plants_in
from .probe import Probe
from .probe_checks import examined_with
from .random_player import chance
from .verdict import Verdict

# Compiled once for all processes of all runs, and not for speed.
_COMPILING = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}


_PROBE_S = 3600.0  # however busy the machine is: what is asked must be answered


class Result(NamedTuple):
    """What became of one planted bug."""

    plant: Plant
    verdicts: dict[str, Verdict]
    ended: str  # the error that ended the run, if one did
    seconds: float

    @property
    def fired(self) -> list[str]:
        """Checks that are yellow or red."""
        return [name for name, verdict in self.verdicts.items() if verdict.fired]

    @property
    def wrong(self) -> list[str]:
        """What should have been otherwise; empty if all is as it was declared."""
        plant, fired = self.plant, self.fired
        found = [f"{plant.fires} is quiet"] if plant.fires and plant.fires not in fired else []
        found += [f"{name} fired" for name in fired if name not in (plant.fires, *plant.may)]
        if plant.all_green:
            states = {name: verdict.state for name, verdict in self.verdicts.items()}
            found += [f"{name} is unknown" for name, state in states.items() if state == "unknown"]
        if not plant.fires and self.ended:
            found.append(f"the run ended: {self.ended}")
        return found


def chosen(only: str = "", mode: str = "") -> list[Plant]:
    """The plants whose name, or whose check's name, contains `only`; `mode` is another one."""
    return [plant for plant in plants_in(mode) if only in plant.name or only in plant.fires]


def self_test(folder: Path, only: str = "", mode: str = "", jobs: int = 2) -> Iterator[Result]:
    """Run every chosen plant in a folder of its own; results come as runs end.

    They run in `jobs` processes, side by side; the folders are removed.
    """
    spawn = multiprocessing.get_context("spawn")
    with _compiled_once(folder / "compiled"), ProcessPoolExecutor(jobs, spawn) as pool:
        plants = {
            pool.submit(_named, plant.name, mode, folder / f"{number}"): plant
            for number, plant in enumerate(chosen(only, mode))
        }
        try:
            for done in as_completed(plants):
                yield Result(plants[done], *done.result())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _named(name: str, mode: str, path: Path) -> tuple[dict[str, Verdict], str, float]:
    """In a process of its own: a plant is known by its name, its functions do not travel."""
    (plant,) = (plant for plant in plants_in(mode) if plant.name == name)
    result = planted(plant, path)
    shutil.rmtree(path)
    return result[1:]


def planted(plant: Plant, path: Path) -> Result:
    """One run with one bug, examined as any run would be."""
    run, began, ended = Run.create(path, plant.settings), time.perf_counter(), ""
    with compiled_again(), plant.patch() if plant.outlives else nullcontext():
        try:
            with nullcontext() if plant.outlives else plant.patch():
                train(run, opener=plant.opener)
        except MillpondError as error:
            ended = f"{type(error).__name__}: {error}".partition("\n")[0]
        evidence = Evidence.of(run)
        if evidence.eval and not plant.fires:  # it is too early to judge the learning of the others
            evidence.chance = chance(run)
        found = examine(evidence)
        if plant.probed:
            found = examined_with(found, Probe.of(run), _PROBE_S)
    verdicts = {verdict.name: verdict for verdict in found}
    return Result(plant, verdicts, ended, time.perf_counter() - began)


@contextmanager
def _compiled_once(folder: Path) -> Generator[None]:
    """One cache for all processes that are started, unless there is one already."""
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        yield
        return
    names = {"JAX_COMPILATION_CACHE_DIR": str(folder), **_COMPILING}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
