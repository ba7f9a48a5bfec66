"""`import_lake`: make a Lake from data in another format.

Rows are written to TARGET.importing, described by TARGET.importing.json, and verified before that
is renamed. A killed import continues after the last committed row when it is called again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BadConfig, BadState, LakeFailed
from ..lake import Lake
from ..rows import Rows
from ..whole_file import write_whole
from .columns import difference
from .formats import open_source
from .source import Source, stamp_of
from .source_for_env import SourceForEnv

ORIGIN = "origin.json"  # in the Lake's folder: metadata of its source
_ROOM = 1 << 14  # spare rows, because a Lake needs two segments per group
_COMMIT = 20_000  # rows between two commits, roughly
# progress(what, rows done, rows in total)
Progress = Callable[[str, int, int], None]
# said(losses): called with what cannot be kept, before anything is written
Said = Callable[[list[str]], None]


class Moved(NamedTuple):
    """The result of an import or export; `losses` describes what could not be kept.

    `print(import_lake("parquet", "table", "runs/lake").losses)`.
    """

    path: Path
    rows: int
    streams: int
    losses: list[str]
    resumed: int = 0  # rows that an interrupted import had committed


def import_lake(
    form: str,
    source: str | Path,
    target: str | Path,
    env: str = "",
    capacity: int | str | None = None,
    progress: Progress = lambda what, done, of: None,
    said: Said = lambda losses: None,
) -> Moved:
    """Make a Lake from data in another format, and compare every row at the end.

    With `env`, rows get the Spec of that env, so that runs can learn from them. After an
    interruption, call it again to continue. `import_lake("parquet", "table", "runs/lake")`.
    """
    path, target = Path(source), Path(target)
    part, note = (target.with_name(target.name + end) for end in (".importing", ".importing.json"))
    if target.exists():
        raise BadConfig(f"{target} already exists; choose another folder for the Lake")
    found = open_source(form, path)
    if env:
        from ..envs import make_env, spec_of  # not part of the core

        found = SourceForEnv(found, spec_of(make_env(env)), env)
    total = sum(stream.rows for stream in found.streams)
    if not total:
        raise BadConfig(f"{path} holds no rows; there is nothing to import")
    said(found.losses)
    try:
        _begin(part, note, _about(form, path, found, capacity))
        lake = _opened(part, found, capacity)
        resumed = _write(lake, found, total, progress)
        _verify(lake, found, total, progress)
        write_whole(part / ORIGIN, json.dumps({"format": form, **found.about}).encode() + b"\n")
        os.rename(part, target)
        note.unlink()
    except OSError as error:
        raise LakeFailed(
            f"importing {path}: {error.strerror or error} ({error.filename or part}); what was "
            "committed is kept: fix the cause and run the same command again"
        ) from error
    lost = [*found.losses, *found.lost()]
    return Moved(target, total, len(found.streams), list(dict.fromkeys(lost)), resumed)


def _about(form: str, path: Path, source: Source, capacity: int | str | None) -> dict[str, Any]:
    return {
        "format": form,
        "source": str(path.resolve()),
        "stamp": stamp_of(path),
        "spec": source.spec.fingerprint(),
        "capacity": capacity,
    }


def _begin(part: Path, note: Path, about: dict[str, Any]) -> None:
    """Write down what is imported, or check that an interrupted import was of the same."""
    if not note.exists() or not part.exists():
        if part.exists():
            raise BadConfig(f"{part} exists but is not from an import; delete or rename it")
        write_whole(note, json.dumps(about, indent=2).encode() + b"\n")
        return
    try:
        before = json.loads(note.read_text(encoding="utf-8"))
    except ValueError:
        before = {}
    if before != about:
        changed = [name for name in about if before.get(name) != about[name]]
        raise BadConfig(
            f"{note} is from an interrupted import with another {', '.join(changed)}; run the "
            f"same command as then, or delete {note.name} and {part.name} to start over"
        )


def _opened(part: Path, source: Source, capacity: int | str | None) -> Lake:
    if part.exists() and not (part / "lake.json").exists():
        shutil.rmtree(part)  # killed while the Lake was created
    if part.exists():
        return Lake.open(part, "a", source.spec)
    groups: dict[str, int] = {}
    for stream in source.streams:
        groups[stream.group] = groups.get(stream.group, 0) + stream.rows
    # Capacity is divided evenly among groups, and the largest must fit with room to spare.
    enough = len(groups) * (2 * max(groups.values()) + _ROOM)
    return Lake.create(part, source.spec, capacity or enough, len(groups))


def _write(lake: Lake, source: Source, total: int, progress: Progress) -> int:
    """Append all rows that are not committed yet; returns how many already were."""
    resumed = done = 0
    groups = dict.fromkeys(stream.group for stream in source.streams)
    for group in groups:
        mine = [(i, one) for i, one in enumerate(source.streams) if one.group == group]
        width = 1 + max(one.env for _, one in mine)
        with lake.writer(group, width, continues=True) as writer:
            before = writer.next_row
            resumed += int(before.sum())
            for number, stream in mine:
                start = int(before[stream.env])
                done += start
                since = 0
                for rows in source.rows(number, start):
                    writer.append(rows, env=stream.env)
                    size = len(rows.flags)
                    done, since = done + size, since + size
                    progress("importing", done, total)
                    if since >= _COMMIT:
                        writer.commit()
                        since = 0
                writer.commit()
                wrote = int(writer.next_row[stream.env])
                if wrote != stream.rows:
                    raise BadState(
                        f"stream {number} has {wrote:,} rows, but the source said "
                        f"{stream.rows:,}; it was changed meanwhile: delete what was imported and "
                        "start again"
                    )
    return resumed


def _verify(lake: Lake, source: Source, total: int, progress: Progress) -> None:
    """Compare every row that the Lake still holds with the source."""
    lake.refresh()
    held = {(one.group, one.env): one for one in lake.streams}
    done = 0
    for number, stream in enumerate(source.streams):
        mine = held[stream.group, stream.env]
        at = mine.first  # evicted rows cannot be compared
        done += at
        for rows in source.rows(number, at):
            stop = at + len(rows.flags)
            stored = lake.read(mine.number, at, stop)
            _compare(lake, stored, rows, number, at)
            done, at = done + stop - at, stop
            progress("verifying", done, total)


def _compare(lake: Lake, stored: Rows, wanted: Rows, stream: int, at: int) -> None:
    found = difference(lake.spec, stored, wanted)
    if found is not None:
        path, row = found
        raise BadState(
            f"verifying: stream {stream}, row {at + row}: '{path}' differs from the source; "
            "delete what was imported and start again"
        )
