"""`Sealer`: seals full segments while the writer works, and drops the oldest when over quota."""

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
        self.check_folder: Callable[[], None] = lambda: None  # raises if the folder was replaced
        self._queue: deque[OpenSegment] = deque()
        self._error: BaseException | None = None
        self._stop = False
        # Queues, not a condition: an exception from a signal handler may leave a condition locked.
        self._work: SimpleQueue[None] = SimpleQueue()  # a token: look whether there is work
        self._news: SimpleQueue[None] = SimpleQueue()  # a token: a segment was sealed, or failed
        self._running = _thread.allocate_lock()  # held by the thread while it runs
        self._ident = 0

    def submit(self, segment: OpenSegment) -> None:
        """Seal a full, committed segment soon; waits while too many wait already."""
        self._wait(lambda: len(self._queue) < _WAITING)
        # Without a call between, so that no signal handler sees one without the other.
        self._queue += (segment,)
        segment.sent = True
        self._wake()

    def check(self) -> None:
        """Raise what went wrong in the thread; after LakeFull, sealing is tried again."""
        error = self._error
        if isinstance(error, LakeFull):
            self._error = None
            self._wake()
        if error is not None:
            raise error

    def finish(self) -> None:
        """Return when nothing is left to seal; raise what went wrong."""
        self._wait(lambda: not self._queue)

    def stop(self) -> None:
        """End the thread; what is not sealed stays open, committed and readable."""
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
                    f"{self.folder}: sealing has not advanced for {_PATIENCE:.0f} s; "
                    "look at the disk"
                ) from None
        self.check()

    def _wake(self) -> None:
        """Doing it again is harmless, as after an interruption here."""
        if not self._running.locked():
            # Not threading.Thread: its start() waits for a condition.
            _thread.start_new_thread(self._run, ())
        self._work.put(None)

    def _run(self) -> None:
        if not self._running.acquire(blocking=False):
            return  # another was started a moment before
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
        """Seal one segment, delete its raw files, evict what is over quota."""
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
            with translated_errors("dropping the oldest segment", path):
                self.files.sync_folder(self.folder)
                self.files.unlink(path)
            del self.sealed[oldest]


def size_on_disk(folder: Path, number: int) -> int:
    """Bytes a sealed segment takes."""
    return os.stat(path_of(folder, number, ".seg")).st_blocks * 512
