"""`millpond lake`: what a Lake on disk holds, whether it is whole, how to mend it; data in and out

Parses and prints; the work is `millpond.lake`'s survey, verify and repair, and `millpond.exchange`.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console
from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from ..errors import BadConfig, MillpondError
from ..exchange import Moved, export_lake, import_lake
from ..exchange.importing import Progress, Said
from ..lake.repair import repair_lake
from ..lake.survey import survey_lake
from ..lake.verify import Verified, verify_lake
from ._lake_text import (
    repaired_json,
    show_moved,
    show_repaired,
    show_survey,
    show_verified,
    survey_json,
    verified_json,
)
from ._options import in_digits

_Folder = Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="PATH")]
_Flag = tyro.conf.FlagCreatePairsOff[bool]


@dataclass(frozen=True)
class Info:
    """What a Lake holds: rows, steps, episodes, and what every field takes on disk.

    millpond lake info runs/lake
    """

    path: _Folder
    """The Lake's folder."""
    json: _Flag = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Verify:
    """Check every byte that a committed row depends on. Changes nothing.

    Works while the Lake is being written. Exit code 0: all is what was written; 1: there is damage;
    3: it could not be verified.
    """

    path: _Folder
    """The Lake's folder."""
    json: _Flag = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Repair:
    """Keep of every stream of a damaged segment the rows before the first damaged one.

    Damaged files are moved aside as NUMBER.damaged, never deleted. No group may be open in a
    writer. Running it twice changes nothing.
    """

    path: _Folder
    """The Lake's folder."""
    dry_run: _Flag = False
    """Say what would be kept and lost, and change nothing."""
    json: _Flag = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Import:
    """Make a Lake of data in another format, and compare every row at the end.

    millpond lake import ~/.minari/datasets/mine runs/lake --format minari --env gym:CartPole-v1

    What a Lake cannot keep is named before and after. Interrupted, the same command goes on.
    """

    source: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """The data's file or folder."""
    lake: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LAKE")]
    """The folder to make the Lake in; it must not exist."""
    format: str
    """What the data is: one of parquet, minari, vault."""
    env: str = ""
    """Check the rows against this env, so that runs in it can learn from them."""
    capacity: str = ""
    """Rows, or bytes such as 40GB, that the Lake keeps; default: all that are imported."""
    json: _Flag = False
    """Print one JSON object and nothing else."""


@dataclass(frozen=True)
class Export:
    """Write what a Lake has committed in another format, and compare every row at the end.

    millpond lake export runs/lake table --format parquet

    The Lake may be written meanwhile. The target is there when all of it is.
    """

    lake: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="LAKE")]
    """The Lake's folder."""
    target: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="TARGET")]
    """The folder to write; it must not exist."""
    format: str
    """What to write: parquet or minari."""
    json: _Flag = False
    """Print one JSON object and nothing else."""


_NOT_VERIFIED = 3
_COMMANDS = {
    "info": Info,
    "verify": Verify,
    "repair": Repair,
    "import": Import,
    "export": Export,
}


def main(args: Sequence[str]) -> int:
    """Run one of info, verify, repair, import and export."""
    name = args[0] if args else ""
    if name and not name.startswith("-") and name not in _COMMANDS:
        near = difflib.get_close_matches(name, _COMMANDS, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(_COMMANDS)}"
        raise BadConfig(f"there is no 'millpond lake {name}'; {remedy}")
    commands: Any = (
        Annotated[Info, tyro.conf.subcommand("info")]
        | Annotated[Verify, tyro.conf.subcommand("verify")]
        | Annotated[Repair, tyro.conf.subcommand("repair")]
        | Annotated[Import, tyro.conf.subcommand("import")]
        | Annotated[Export, tyro.conf.subcommand("export")]
    )
    asked: Info | Verify | Repair | Import | Export = tyro.cli(
        commands,
        prog="millpond lake",
        args=list(args),
        description="What a Lake on disk holds, whether it is whole; data in and out.",
    )
    if isinstance(asked, Import):
        return _import(asked)
    if isinstance(asked, Export):
        _check_folder(asked.lake)
        return _moved(
            asked,
            lambda told, said: export_lake(asked.format, asked.lake, asked.target, told, said),
        )
    _check_folder(asked.path)
    console = Console(highlight=False, markup=False, emoji=False)
    if isinstance(asked, Info):
        with _bar("reading records", asked.json) as progress:
            survey = survey_lake(asked.path, progress)
        _print(survey_json(survey)) if asked.json else show_survey(survey, console)
        return 0
    if isinstance(asked, Verify):
        with _bar("verifying", asked.json) as progress:
            verified = _verified(asked.path, progress)
        if verified is None:
            return _NOT_VERIFIED
        _print(verified_json(verified)) if asked.json else show_verified(verified, console)
        return 0 if verified.clean else 1
    with _bar("verifying", asked.json) as progress:
        repaired = repair_lake(asked.path, asked.dry_run, None, progress, _threads())
    _print(repaired_json(repaired)) if asked.json else show_repaired(repaired, console)
    return 0


def _import(asked: Import) -> int:
    text = in_digits(asked.capacity)
    capacity = int(text) if text.isdecimal() else text or None
    return _moved(
        asked,
        lambda told, said: import_lake(
            asked.format, asked.source, asked.lake, asked.env, capacity, told, said
        ),
    )


def _moved(asked: Import | Export, move: Callable[[Progress, Said], Moved]) -> int:
    """Move rows with a bar for each pass; what is lost is said before, and in the result."""
    doing = type(asked).__name__.lower()

    def said(losses: list[str]) -> None:
        for loss in losses:
            print(f"{doing}: cannot be kept: {loss}", file=sys.stderr, flush=True)

    with _bars(asked.json) as told:
        moved = move(told, said)
    if asked.json:
        _print({**moved._asdict(), "path": str(moved.path)})
    else:
        show_moved(moved, Console(highlight=False, markup=False, emoji=False))
    return 0


def _verified(path: Path, progress: Callable[[int, int], None] | None) -> Verified | None:
    """What verify found; None if it could not look, which must not pass for damage."""
    try:
        return verify_lake(path, progress, _threads())
    except MillpondError as error:
        print(f"millpond lake: not verified: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return None


def _check_folder(path: Path) -> None:
    """A slip in the path is a wrong call, not a damaged Lake."""
    if not path.is_dir():
        what = "this is a file" if path.exists() else "there is no such folder"
        raise BadConfig(f"{path}: {what}; give the folder that Lake.create made")
    if not (path / "lake.json").exists():
        inner = sorted(child.parent for child in path.glob("*/lake.json"))
        remedy = f"did you mean {inner[0]}?" if inner else "give the folder that Lake.create made"
        raise BadConfig(f"{path}: not a Lake (no lake.json); {remedy}")


def _threads() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))


def _print(plain: dict[str, Any]) -> None:
    print(json.dumps(plain, indent=2))


@contextmanager
def _bars(quiet: bool) -> Generator[Progress]:
    """The same for passes that have names: one bar after the other."""
    with _bar("opening", quiet) as bar:
        passes: list[str] = []

        def told(what: str, done: int, total: int) -> None:
            if bar is not None:
                passes.append(what) if what not in passes else None
                number = passes.index(what)
                bar(number * total + done, 2 * total)  # writing, then verifying

        yield told


@contextmanager
def _bar(what: str, quiet: bool) -> Generator[Callable[[int, int], None] | None]:
    """A progress bar on a terminal's stderr; nothing anywhere else."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    console = Console(stderr=True)
    with Bars(*columns, TimeRemainingColumn(), console=console, transient=True) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
