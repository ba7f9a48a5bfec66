"""`Sealer`: seals full segments beside the writer, and drops the oldest when over quota."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from ..errors import LakeFailed, LakeFull
from .codec import Codecs
from .columns import Columns
from .files import Files, said_plainly
from .open_segment import OpenSegment
from .seal import mapped_rows, seal
from .segment import path_of

_WAITING = 2  # full segments that may wait; the writer then waits too
_PATIENCE = 600.0  # seconds after which waiting is an error


class Sealer:
    """One thread that owns every full segment of a group. Its errors are raised in the writer."""

    def __init__(
        self,
        files: Files,
        folder: Path,
        columns: Columns,
        quota: tuple[int | None, int | None],
        sealed: dict[int, tuple[int, int]],
        known: dict[str, Codecs],
        threads: int,
    ) -> None:
        self.files, self.folder, self.columns = files, folder, columns
        self.quota_rows, self.quota_bytes = quota
        self.sealed = sealed  # number → rows, bytes on disk
        self.known, self.threads = known, threads
        self._queue: deque[OpenSegment] = deque()
        self._change = threading.Condition()
        self._error: BaseException | None = None
        self._stop = False
        self._thread: threading.Thread | None = None

    def submit(self, segment: OpenSegment) -> None:
        """Seal a full, committed segment soon; waits while too many wait already."""
        with self._change:
            self._wait(lambda: len(self._queue) < _WAITING)
            self._queue.append(segment)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="lake-sealer", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def check(self) -> None:
        """Raise what went wrong in the thread; after LakeFull, sealing is tried again."""
        with self._change:
            self._tell()

    def finish(self) -> None:
        """Return when nothing is left to seal; raise what went wrong."""
        with self._change:
            self._wait(lambda: not self._queue)

    def stop(self) -> None:
        """End the thread; what is not sealed stays open, committed and readable."""
        with self._change:
            self._stop = True
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE)
        with ExitStack() as all_of_them:
            for segment in self._queue:
                all_of_them.callback(segment.close)
            self._queue.clear()

    def waiting(self) -> list[OpenSegment]:
        """Segments that are full and not sealed yet."""
        with self._change:
            return list(self._queue)

    def _wait(self, done: object) -> None:
        assert callable(done)
        if not self._change.wait_for(lambda: done() or self._error is not None, _PATIENCE):
            raise LakeFailed(
                f"{self.folder}: sealing has not advanced for {_PATIENCE:.0f} s; look at the disk"
            )
        self._tell()

    def _tell(self) -> None:
        error = self._error
        if isinstance(error, LakeFull):
            self._error = None
            self._change.notify_all()
        if error is not None:
            raise error

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(
                    lambda: self._stop or (bool(self._queue) and self._error is None)
                )
                if self._stop:
                    return
                segment = self._queue[0]
            try:
                self.seal_one(segment)
            except BaseException as error:
                with self._change:
                    self._error = error
                    self._change.notify_all()
                continue
            with self._change:
                self._queue.popleft()
                self._change.notify_all()

    def seal_one(self, segment: OpenSegment) -> None:
        """Seal one segment, delete its raw files, evict what is over quota."""
        segment.check_whole()
        self.evict(segment, len(self._queue) + 1)
        meta = replace(segment.meta, count=segment.count)
        rows = mapped_rows(segment.path, meta, self.columns)
        seal(
            self.files,
            self.folder,
            self.columns,
            meta,
            rows,
            self.known,
            self.threads,
            in_place=segment.sync_rows,
        )
        self.sealed[meta.number] = (int(meta.count.sum()), size_on_disk(self.folder, meta.number))
        segment.remove()

    def evict(self, segment: OpenSegment, unsealed: int) -> None:
        """Drop the oldest sealed segments until what is there and what is coming fits the quota.

        `segment` follows them. Names are synced one by one: after a power loss, no segment is
        back without those that came after it.
        """
        rows_each = int(segment.count.sum())  # the next ones are taken to be as full as this one
        raw = rows_each * self.columns.row_bytes
        while self.sealed:
            rows = sum(n for n, _ in self.sealed.values()) + unsealed * rows_each
            size = sum(n for _, n in self.sealed.values()) + unsealed * raw
            over_rows = self.quota_rows is not None and rows > self.quota_rows
            if not over_rows and not (self.quota_bytes is not None and size > self.quota_bytes):
                return
            oldest = min(self.sealed)
            path = path_of(self.folder, oldest, ".seg")
            if len(self.sealed) == 1:
                segment.sync()  # somebody must know which ids were given
            with said_plainly("dropping the oldest segment", path):
                self.files.sync_folder(self.folder)
                self.files.unlink(path)
            del self.sealed[oldest]


def size_on_disk(folder: Path, number: int) -> int:
    """Bytes a sealed segment takes."""
    return os.stat(path_of(folder, number, ".seg")).st_blocks * 512
