"""`Sealer`: seals full segments in the background, and drops the oldest when over quota."""

from __future__ import annotations

import _thread
import os
import time
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue

from ..errors import LakeFailed, LakeFull
from .codec import Codecs
from .columns import Columns
from .files import Files, translated_errors
from .open_segment import OpenSegment
from .seal import mapped_rows, seal
from .segment import path_of

_WAITING = 2  # full segments that may wait; with more, the writer waits too
_PATIENCE = 600.0  # seconds after which waiting is an error


class Sealer:
    """A thread that owns every full segment of a group. Its errors are raised in the writer."""

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
        self.check_folder: Callable[[], None] = lambda: None  # raises if the folder was replaced
        self._queue: deque[OpenSegment] = deque()
        self._error: BaseException | None = None
        self._stop = False
        # Queues, not conditions: an exception from a signal handler may leave a condition locked.
        self._work: SimpleQueue[None] = SimpleQueue()  # a token: there may be work
        self._news: SimpleQueue[None] = SimpleQueue()  # a token: a segment was sealed, or failed
        self._running = _thread.allocate_lock()  # held by the thread while it runs
        self._ident = 0

    def submit(self, segment: OpenSegment) -> None:
        """Queue a full, committed segment to be sealed; blocks while too many are waiting."""
        self._wait(lambda: len(self._queue) < _WAITING)
        # No call in between, so that no signal handler sees one change without the other.
        self._queue += (segment,)
        segment.sent = True
        self._wake()

    def check(self) -> None:
        """Raise the thread's error, if there is one; after LakeFull, sealing is tried again."""
        error = self._error
        if isinstance(error, LakeFull):
            self._error = None
            self._wake()
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when nothing is left to seal; raise the thread's error, if there is one."""
        self._wait(lambda: not self._queue)

    def stop(self) -> None:
        """End the thread; segments that are not sealed stay open, committed and readable."""
        self._stop = True
        self._work.put(None)
        if self._ident != _thread.get_ident() and self._running.acquire(timeout=_PATIENCE):
            self._running.release()
        with ExitStack() as all_of_them:
            for segment in self._queue:
                all_of_them.callback(segment.close)
            self._queue.clear()

    def waiting(self) -> list[OpenSegment]:
        """Segments that are full and not sealed yet."""
        return list(self._queue)

    def _wait(self, done: Callable[[], bool]) -> None:
        end = time.monotonic() + _PATIENCE
        while not done() and self._error is None:
            self._wake()
            try:
                self._news.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                raise LakeFailed(
                    f"{self.folder}: sealing has made no progress for {_PATIENCE:.0f} s; "
                    "check the disk"
                ) from None
        self.check()

    def _wake(self) -> None:
        """Start the thread if it does not run, and wake it; harmless to repeat if interrupted."""
        if not self._running.locked():
            # Not threading.Thread, whose start() waits for a condition.
            _thread.start_new_thread(self._run, ())
        self._work.put(None)

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # another thread was started just before
        self._ident = _thread.get_ident()
        with ExitStack() as end:
            end.callback(self._running.release)
            while not self._stop:
                self._work.get()
                while self._queue and self._error is None and not self._stop:
                    try:
                        self.seal_one(self._queue[0])
                        self._queue.popleft()
                    except BaseException as error:
                        self._error = error
                    self._news.put(None)

    def seal_one(self, segment: OpenSegment) -> None:
        """Evict what is over quota, seal one segment and delete its raw files."""
        segment.check_no_failed_sync()
        self.check_folder()
        self.evict(segment, len(self._queue) + 1)
        meta = segment.committed()
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
        """Drop the oldest sealed segments until the rest, and `unsealed` more, fit the quota.

        `segment` is the next to be sealed. The folder is synced before each removal: after a power
        loss, no dropped segment reappears without those that came after it.
        """
        rows_each = int(segment.count.sum())  # assume the others are as full as this one
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
                segment.sync()  # the last record of which ids were assigned must survive
            with translated_errors("dropping the oldest segment", path):
                self.files.sync_folder(self.folder)
                self.files.unlink(path)
            del self.sealed[oldest]


def size_on_disk(folder: Path, number: int) -> int:
    """Bytes a sealed segment takes."""
    return os.stat(path_of(folder, number, ".seg")).st_blocks * 512
