"""`export_lake`: write the committed rows of a Lake in another format, completely or not at all.

They are written to TARGET.exporting, read back and compared; then the folder is renamed. A killed
export starts over.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from ..errors import BadConfig, BadState, LakeFailed
from ..lake import Lake
from ..lake.lock import take_lock
from ..rows import Rows
from ..spec import Spec
from .columns import cut_rows, difference, join_rows
from .formats import open_source, writer_of
from .importing import ORIGIN, Moved, Progress, Said
from .source import StreamInfo

_PIECE_BYTES, _PIECE_ROWS = 16 << 20, 8192  # most bytes and rows that are read at once


class LakeRows:
    """The rows that a Lake had committed when this was made, stream by stream."""

    def __init__(self, lake: Lake) -> None:
        self.lake, self.spec = lake, lake.spec
        self._held = [stream for stream in lake.streams if stream.stop > stream.first]
        self.streams = [StreamInfo(one.group, one.env, one.stop - one.first) for one in self._held]
        self.total = sum(stream.rows for stream in self.streams)
        self.piece = max(1, min(_PIECE_ROWS, _PIECE_BYTES // lake.spec.row_bytes))
        self.about = _origin(lake.path)

    def rows(self, stream: int, start: int = 0) -> Iterator[Rows]:
        """Rows [time] of a stream; `start` counts from the first stored row."""
        held = self._held[stream]
        for at in range(held.first + start, held.stop, self.piece):
            yield self.lake.read(held.number, at, min(at + self.piece, held.stop))


def _origin(path: Path) -> dict[str, Any]:
    """The metadata of the format that the Lake was imported from, if any."""
    try:
        found = json.loads((path / ORIGIN).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


class ExportPlan(Protocol):
    """How a Lake is written in a format: what is lost, how to write, what to expect back."""

    losses: list[str]
    spec: Spec  # of the rows that are read back

    def write(self, part: Path, progress: Progress) -> None:
        """Write everything into a new folder `part`."""
        ...

    def expected(self, stream: int) -> Iterator[Rows]:
        """The rows of a stream that must be read back."""
        ...


def export_lake(
    form: str,
    source: str | Path,
    target: str | Path,
    progress: Progress = lambda what, done, of: None,
    said: Said = lambda losses: None,
) -> Moved:
    """Write a Lake's committed rows in another format, and compare every row at the end.

    The Lake may be written to meanwhile; rows committed later are not exported.
    `export_lake("parquet", "runs/lake", "table")`.
    """
    target = Path(target)
    part = target.with_name(target.name + ".exporting")
    if target.exists():
        raise BadConfig(f"{target} already exists; choose another folder")
    writer, lake = writer_of(form), Lake.open(source)
    rows = LakeRows(lake)
    if not rows.total:
        raise BadConfig(f"{source} has no committed rows; there is nothing to export")
    plan: ExportPlan = writer.plan(rows)
    said(plan.losses)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        lock = take_lock(target.with_name(target.name + ".exporting.lock"), f"export to {target}")
        try:
            shutil.rmtree(part, ignore_errors=True)  # left by a killed export
            part.mkdir()
            plan.write(part, progress)
            _verify(form, part, plan, rows.total, progress)
            _sync(part)
            os.rename(part, target)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise
        finally:
            target.with_name(target.name + ".exporting.lock").unlink(missing_ok=True)
            lock.release()
    except OSError as error:
        raise LakeFailed(
            f"exporting {source}: {error.strerror or error} ({error.filename or part}); nothing "
            "was left behind: fix the cause and run the same command again"
        ) from error
    return Moved(target, rows.total, len(rows.streams), plan.losses)


def _verify(form: str, part: Path, plan: ExportPlan, total: int, progress: Progress) -> None:
    """Read everything back and compare it row by row."""
    back, done = open_source(form, part), 0
    if back.spec.fingerprint() != plan.spec.fingerprint():
        raise BadState(
            f"verifying: {form} reads back {list(back.spec.columns)}, expected "
            f"{list(plan.spec.columns)}; nothing was exported, please report this"
        )
    for stream in range(len(back.streams)):
        theirs = _Rebatched(back.rows(stream, 0))
        for wanted in plan.expected(stream):
            size = len(wanted.flags)
            found = theirs.take(size)
            wrong = ("number of rows", 0) if found is None else difference(plan.spec, found, wanted)
            if wrong is not None:
                raise BadState(
                    f"verifying: stream {stream}, row {wrong[1]} of a piece: '{wrong[0]}' differs "
                    "from the Lake; nothing was exported: check the disk"
                )
            done += size
            progress("verifying", min(done, total), total)
        if theirs.more():
            raise BadState(f"verifying: stream {stream} has too many rows; check the disk")


class _Rebatched:
    """Takes pieces of chosen sizes from rows in pieces of other sizes."""

    def __init__(self, pieces: Iterator[Rows]) -> None:
        self._pieces, self._waiting = pieces, list[Rows]()

    def take(self, number: int) -> Rows | None:
        """The next `number` rows, or None if there are fewer."""
        while sum(len(rows.flags) for rows in self._waiting) < number:
            following = next(self._pieces, None)
            if following is None:
                return None
            self._waiting.append(following)
        whole = join_rows(self._waiting)
        self._waiting = [cut_rows(whole, number)] if len(whole.flags) > number else []
        return cut_rows(whole, 0, number)

    def more(self) -> bool:
        """Whether there are rows left."""
        return bool(self._waiting) or next(self._pieces, None) is not None


def _sync(folder: Path) -> None:
    """Sync every file to disk, before the folder gets its final name."""
    for path in [*folder.rglob("*"), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
