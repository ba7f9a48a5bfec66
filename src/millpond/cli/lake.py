"""`millpond lake`: inspect, verify or repair a Lake on disk; import or export data

millpond lake info runs/lake
millpond lake verify runs/lake
millpond lake repair runs/lake --dry-run
millpond lake import DATA runs/lake --format minari
millpond lake export runs/lake table --format parquet
"""

from __future__ import annotations

import difflib
import json
import os
import sys
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import BadConfig, MillpondError
from ..lake.manifest import not_a_lake
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
from ._options import Parser, in_digits

_NOT_VERIFIED = 3
_COMMANDS = {
    "info": """`millpond lake info`: show the rows, episodes and sizes in a Lake

    millpond lake info runs/lake""",
    "verify": """`millpond lake verify`: check every byte that a committed row depends on

    millpond lake verify runs/lake

Changes nothing, and works while the Lake is being written. The exit code is 0 if there is no
damage, 1 if there is, and 3 if the Lake could not be verified.""",
    "repair": """`millpond lake repair`: keep the rows before the first damaged one of each stream

    millpond lake repair runs/lake --dry-run

Damaged files are renamed to NUMBER.damaged, never deleted. No writer may be open. A second run
changes nothing.""",
    "import": """`millpond lake import`: create a Lake from data in another format

    millpond lake import ~/.minari/datasets/mine runs/lake --format minari --env gym:CartPole-v1

Every row is compared at the end. What a Lake cannot keep is listed. After an interruption, run the
same command again to continue.""",
    "export": """`millpond lake export`: write a Lake's rows in another format

    millpond lake export runs/lake table --format parquet

Every row is compared at the end. The Lake may be written to meanwhile. The target appears when it
is complete.""",
}


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond lake", __doc__)
    parser.add_argument("command", metavar="COMMAND", help="info, verify, repair, import, export")
    if not args:
        parser.error("name one of info, verify, repair, import, export")
    if args[0].startswith("-"):
        parser.parse_args(args)
    name = args[0]
    if name not in _COMMANDS:
        near = difflib.get_close_matches(name, _COMMANDS, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else f"use one of {', '.join(_COMMANDS)}"
        raise BadConfig(f"there is no command 'millpond lake {name}'; {remedy}")
    parser = Parser(f"millpond lake {name}", _COMMANDS[name])
    if name in ("import", "export"):
        return _move(name, parser, args[1:])
    parser.add_argument("path", metavar="PATH", type=Path, help="the Lake's folder")
    if name == "repair":
        parser.add_argument(
            "--dry-run", action="store_true", help="only show what would be kept and lost"
        )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    asked = parser.parse_args(args[1:])
    _check_folder(asked.path)
    if name == "info":
        with _bar("reading records", asked.json) as progress:
            survey = survey_lake(asked.path, progress)
        _print(survey_json(survey)) if asked.json else show_survey(survey)
        return 0
    if name == "verify":
        with _bar("verifying", asked.json) as progress:
            verified = _verified(asked.path, progress)
        if verified is None:
            return _NOT_VERIFIED
        _print(verified_json(verified)) if asked.json else show_verified(verified)
        return 0 if verified.clean else 1
    with _bar("verifying", asked.json) as progress:
        repaired = repair_lake(asked.path, asked.dry_run, None, progress, _threads())
    _print(repaired_json(repaired)) if asked.json else show_repaired(repaired)
    return 0


def _move(name: str, parser: Parser, args: Sequence[str]) -> int:
    """Import or export, with a progress bar; losses are printed before and after."""
    from ..exchange import EXPORTS, IMPORTS, export_lake, import_lake

    importing = name == "import"
    first, second = ("source", "lake") if importing else ("lake", "target")
    abouts = {
        "source": "the file or folder with the data",
        "lake": "a new folder for the Lake" if importing else "the Lake's folder",
        "target": "a new file or folder to write",
    }
    for one in (first, second):
        parser.add_argument(one, metavar=one.upper(), type=Path, help=abouts[one])
    kinds = ", ".join(IMPORTS if importing else EXPORTS)
    parser.add_argument("--format", required=True, metavar="NAME", help=f"one of {kinds}")
    if importing:
        parser.add_argument("--env", default="", help="check the rows against this env")
        parser.add_argument(
            "--capacity",
            default="",
            help="rows, or bytes such as 40GB, that the Lake keeps; default: all",
        )
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    asked = parser.parse_args(args)

    def said(losses: list[str]) -> None:
        for loss in losses:
            print(f"{name}: cannot be kept: {loss}", file=sys.stderr, flush=True)

    if not importing:
        _check_folder(asked.lake)
    with _bars(asked.json) as progress:
        if importing:
            text = in_digits(asked.capacity)
            capacity = int(text) if text.isdecimal() else text or None
            moved = import_lake(
                asked.format, asked.source, asked.lake, asked.env, capacity, progress, said
            )
        else:
            moved = export_lake(asked.format, asked.lake, asked.target, progress, said)
    if asked.json:
        _print({**moved._asdict(), "path": str(moved.path)})
    else:
        show_moved(moved)
    return 0


def _verified(path: Path, progress: Callable[[int, int], None] | None) -> Verified | None:
    """What verify found; None if it failed, which must not be taken for damage."""
    try:
        return verify_lake(path, progress, _threads())
    except MillpondError as error:
        print(f"millpond lake: not verified: {error}", file=sys.stderr)
    except Exception:
        traceback.print_exc()
    return None


def _check_folder(path: Path) -> None:
    """BadConfig for a wrong path, which must not be taken for a damaged Lake."""
    if not path.is_dir():
        what = "this is a file" if path.exists() else "there is no such folder"
        raise BadConfig(f"{path}: {what}; give the folder of a Lake")
    if not (path / "lake.json").exists():
        raise BadConfig(not_a_lake(path))


def _threads() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))


def _print(plain: dict[str, Any]) -> None:
    print(json.dumps(plain, indent=2))


@contextmanager
def _bars(quiet: bool) -> Generator[Callable[[str, int, int], None]]:
    """One progress bar for writing and verifying."""
    with _bar("opening", quiet) as bar:
        passes: list[str] = []

        def progress(what: str, done: int, total: int) -> None:
            if bar is not None:
                passes.append(what) if what not in passes else None
                number = passes.index(what)
                bar(number * total + done, 2 * total)  # writing, then verifying

        yield progress


@contextmanager
def _bar(what: str, quiet: bool) -> Generator[Callable[[int, int], None] | None]:
    """A progress line on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    shown = [-1]

    def progress(done: int, total: int) -> None:
        percent = 100 * done // max(1, total)
        if percent != shown[0]:  # printing for every record would take longer than reading it
            shown[0] = percent
            sys.stderr.write(f"\r{what} {percent:3}%")
            sys.stderr.flush()

    try:
        yield progress
    finally:
        sys.stderr.write("\r" + " " * (len(what) + 5) + "\r")
        sys.stderr.flush()
