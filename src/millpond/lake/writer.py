"""`Writer`: appends rows of one group's streams to a Lake; only committed rows are readable."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig, LakeFailed, LakeFull, MillpondError, SpecMismatch
from ..intake import Intake, broken_episode, pack_values
from ..rows import CUT, Rows, Tree, breaks
from .columns import LOST, Columns
from .cuts import read_cuts, save_cuts
from .files import Files, translated_errors
from .layout import fits, layout_after, length_of
from .lock import take_lock
from .manifest import GroupInfo, LakeInfo
from .open_segment import OpenSegment
from .pending_rows import PendingRows
from .recovery import Recovered, open_segment, recover
from .same_step import ReadyRows, split_with_borders
from .sealer import Sealer
from .segment import open_meta


class Writer:
    """The one writer of a group, from `lake.writer(group, streams)`.

        with lake.writer("agent-0", streams=8) as writer:
            writer.append(rows)           # [env] or [time, env]
            writer.commit()               # survives SIGKILL; sync=True survives power loss

    Leaving the block without an error commits. After LakeFull nothing is lost: free some space and
    call again. After a failed sync, the writer refuses every call: open it again.
    """

    def __init__(
        self,
        files: Files,
        folder: Path,
        info: LakeInfo,
        group: GroupInfo,
        continues: bool,
        threads: int,
    ) -> None:
        self._files, self._folder, self._info, self._group = files, folder, info, group
        self._columns = Columns(info.spec)
        self._unpacked = Intake(info.spec), self._columns
        self._packed = Intake(info.spec.packed), Columns(info.spec.packed)
        self._lock = take_lock(folder / "lock", f"writer group '{group.name}'")
        self._pid = os.getpid()
        self._failed: MillpondError | None = None
        self._unwritten: tuple[Columns, list[ReadyRows]] = (self._columns, [])
        self._segments: list[OpenSegment] = []  # open ones; all but the last, newest one are full
        try:
            found = recover(files, folder, info, group)
        except BaseException:
            self._lock.release()
            raise
        rows, size = (n and n // info.groups for n in (info.capacity.rows, info.capacity.size))
        self._sealer = Sealer(
            files, folder, self._columns, (rows, size), found.sealed, found.known, threads
        )
        self._sealer.check_folder = self._lock.check_path
        try:
            self._begin(found, continues)
        except BaseException:
            self._release()
            raise

    def _begin(self, found: Recovered, continues: bool) -> None:
        self._number = found.next_number
        self._next_id = found.next_id  # after the rows of every segment but the newest
        for meta, blocks in found.unsealed:
            segment = open_segment(self._files, self._folder, self._columns, meta, blocks)
            self._segments.append(segment)
        self._names_synced = self._path_synced = False
        self._layout = found.layout  # of the next segment to be created
        self._pending = PendingRows(self._columns, self.streams, self._info.slots)
        self._last = np.where(found.next_id > 0, found.last_flags, CUT).astype(np.uint8)
        self._lost = found.next_id > 0  # bool[streams]: a cut precedes the next row
        self._saved: dict[str, int] | None = {}  # cuts as last saved; None: the file is damaged
        if continues:
            self._lost, known = read_cuts(self._folder, found.next_id)
            self._saved = {} if known else None
        self._send_full()

    @property
    def streams(self) -> int:
        """Number of streams of this group."""
        return self._group.streams

    @property
    def next_row(self) -> np.ndarray:
        """int64[streams]: the id that the next row of each stream will get."""
        return self._end() + self._pending.count

    def append(
        self,
        rows: Rows,
        env: int | None = None,
        packed: bool = False,
        final_obs: Tree | None = None,
    ) -> None:
        """Append rows [env] or [time, env]; with `env`, one row [] or rows [time] of that stream.

        On an error, none are appended. They become readable with the next commit. `packed`: binary
        observations are given as bytes, from `pond.packed`. `final_obs`, shaped like the
        observations, is for envs that reset in the same step: the true final observations of the
        rows that ended an episode.
        """
        self._check()
        self._write_unwritten()
        intake, columns = self._packed if packed else self._unpacked
        values, flags, which = self._arrange(intake, rows, env)
        intake.check_values(values)
        if not len(flags):
            return  # no rows: nothing to append
        if final_obs is None:
            self._append(columns, values, flags, which)
            return
        final, _, _ = self._arrange(intake, rows._replace(obs=final_obs), env)
        last = np.where(self._lost[which], np.uint8(CUT), self._last[which])
        self._unwritten = (columns, split_with_borders(intake, values, final, which, last))
        with suppress(LakeFull):  # rows are accepted: the next call writes them first, or raises
            self._write_unwritten()

    def _write_unwritten(self) -> None:
        """Append rows with border rows that were accepted but not written yet."""
        columns, pieces = self._unwritten
        while pieces:
            self._append(columns, *pieces[0])
            del pieces[0]

    def _append(
        self, columns: Columns, values: dict[str, np.ndarray], flags: np.ndarray, which: slice
    ) -> None:
        last = self._check_episodes(flags, which)
        lost = self._lost[which]
        if lost.any():
            flags = flags.copy()
            flags[0] |= np.where(lost, np.uint8(LOST), np.uint8(0))
        encoded = columns.encode(values, flags)
        turned = {name: block.swapaxes(0, 1) for name, block in encoded.items()}
        self._stage(turned, which, len(flags))
        self._last[which] = last
        self._lost[which] = False

    def cut(self, env: int | None = None) -> None:
        """Mark the newest row of a stream (default: of all) as not continued by the next."""
        self._check()
        self._write_unwritten()
        which = slice(None) if env is None else self._only("cut", env)
        self._lost[which] = self.next_row[which] > 0

    def commit(self, sync: bool = False) -> None:
        """Make every appended row readable and safe from SIGKILL; with `sync`, from power loss."""
        self._check()
        self._write_unwritten()
        if self._pending.count.any():
            self._flush()
        for segment in self._segments:
            segment.commit()
        self._save_cuts()
        if sync:
            self._sync()
        self._send_full()

    def _save_cuts(self) -> None:
        """Save the cuts that no row records yet; saving one that a row does is harmless."""
        if self._saved is not None and not self._lost.any():
            return
        end = self._end()
        cuts = {str(stream): int(end[stream]) for stream in np.flatnonzero(self._lost)}
        if self._saved is None or not cuts.items() <= self._saved.items():
            save_cuts(self._files, self._folder, cuts)
            self._saved = cuts

    def close(self, commit: bool = True) -> None:
        """Commit and sync, wait until full segments are sealed, release the group.

        After LakeFull the writer stays open and keeps its rows: free some space and close it again,
        or discard uncommitted rows with `commit=False`.
        """
        if not self._lock.held:
            return
        try:
            if commit and self._failed is None:
                self.commit(sync=True)
                self._sealer.finish()
        except BaseException as error:
            if not isinstance(error, LakeFull) or self._failed is not None:
                self._release()
            raise
        self._release()

    def _release(self) -> None:
        """Release everything, the lock last, even if something fails."""
        with ExitStack() as last:
            last.callback(self._lock.release)
            for segment in self._segments:
                last.callback(segment.close)
            last.callback(self._sealer.stop)

    def __reduce__(self) -> Any:
        raise BadConfig(
            f"Writer: only one process at a time writes to group '{self._group.name}', so a writer "
            "cannot be copied or pickled; send the Lake, and open a writer of another group there"
        )

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.close(commit=kind is None)
        finally:
            self.close(commit=False)

    def __del__(self, ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Not at interpreter exit: the threads to wait for no longer run.
        if hasattr(self, "_sealer") and self._lock.held and not ending():
            self._release()
            warnings.warn(
                f"{self._folder}: a writer was deleted without close(); uncommitted rows are lost",
                ResourceWarning,
                stacklevel=2,
            )

    def _check(self) -> None:
        if os.getpid() == self._pid and not self._lock.held:
            raise LakeFailed(f"{self._folder}: this writer is closed; open another")
        if os.getpid() != self._pid:
            raise LakeFailed(
                f"{self._folder}: this writer belongs to process {self._pid}, and process "
                f"{os.getpid()} inherited a copy of it, which must not write; in each process, "
                "open a writer of a group of its own after it has started"
            )
        if self._failed is not None:
            raise LakeFailed(
                f"{self._folder}: this writer failed before and now refuses every call; "
                "close it and open the writer again: it recovers"
            ) from self._failed
        self._sealer.check()

    def _arrange(
        self, intake: Intake, rows: Rows, env: int | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray, slice]:
        """Values and flags with leading axes [time, stream], and the slice of their streams."""
        shape = np.shape(getattr(rows, "reward", 0))
        if env is None:
            which = slice(0, self.streams)
            time = shape[:1] if len(shape) == 2 else ()
            lead, whose = (*time, self.streams), "[time, env]" if time else "[env]"
            if not shape and self.streams == 1:
                lead, whose = (), "one row"
        else:
            which = self._only("append", env)
            lead = shape[:1]
            whose = "[time]" if lead else "one row"
        values = intake.arrange(rows, lead, whose)
        number = which.stop - which.start
        time = int(np.prod(lead)) // number if lead else 1

        def block(value: Any) -> np.ndarray:
            value = np.asarray(value)
            return value.reshape(time, number, *value.shape[len(lead) :])

        values = {path: block(value) for path, value in values.items()}
        return values, pack_values(values), which

    def _only(self, doing: str, env: Any) -> slice:
        """The slice of one stream, or SpecMismatch."""
        if not isinstance(env, (int, np.integer)) or not 0 <= env < self.streams:
            raise SpecMismatch(
                f"{doing}: env must lie in [0, {self.streams - 1}], got {env}; "
                "pass the stream's index in this group"
            )
        return slice(int(env), int(env) + 1)

    def _check_episodes(self, flags: np.ndarray, which: slice) -> np.ndarray:
        """Raise BrokenEpisode if a row cannot follow the one before; return the newest flags."""
        last = np.where(self._lost[which], np.uint8(CUT), self._last[which])
        before = np.concatenate([last[None], flags[:-1]])
        broken = breaks(before, flags)
        if broken.any():
            time, stream = (int(i) for i in np.unravel_index(np.argmax(broken), broken.shape))
            where = f"append: stream {which.start + stream}, row {time} of {len(flags)}"
            raise broken_episode(int(before[time, stream]), int(flags[time, stream]), where)
        return flags[-1]

    def _stage(self, rows: dict[str, np.ndarray], which: slice, number: int) -> None:
        """Put rows[column][stream, time, width] into memory; straight to disk if they are many."""
        if not self._fits(which, number):
            self._flush()
            if not self._fits(which, number):
                self._write_through(rows, which, number)
                return
        self._pending.put(rows, which, number, self._layout_now)

    @property
    def _layout_now(self) -> str:
        """The layout of the segment that the next rows go to."""
        return self._segments[-1].meta.layout if self._segments else self._layout

    def _fits(self, which: slice, number: int) -> bool:
        layout, after = self._layout_now, self._pending.count.copy()
        after[which] += number
        if int(after[which].max()) > self._pending.steps(layout):
            return False
        length = length_of(layout, self._info.slots, self.streams)
        return fits(layout, length, self._written() + after)

    def _written(self) -> np.ndarray:
        """int64[streams]: rows written to the newest segment."""
        return self._segments[-1].written if self._segments else np.zeros(self.streams, np.int64)

    def _end(self) -> np.ndarray:
        """int64[streams]: the id after each stream's last written row."""
        if not self._segments:
            return self._next_id
        newest = self._segments[-1]
        return newest.meta.first + newest.written

    def _flush(self) -> None:
        """Write the staged rows to the newest segment; on an error they stay staged."""
        if not self._pending.count.any():
            return
        if not self._segments:
            self._segments.append(self._new_segment(self._next_id, self._layout))
        segment = self._segments[-1]
        rows = self._pending.rows(segment.meta.layout)
        written = segment.write(rows, segment.written, self._pending.count)
        # No call in between: an exception from a signal handler would write the rows twice.
        segment.pending += (written,)
        self._pending.count[:] = 0

    def _write_through(self, rows: dict[str, np.ndarray], which: slice, number: int) -> None:
        """Write rows that fit neither in memory nor in the segment; on an error, none count."""
        segment = self._segments[-1] if self._segments else None
        written = self._written().copy()
        first = self._end() - written
        old, blocks = segment, list[tuple[np.ndarray, int]]()  # blocks are the old segment's
        fresh: list[OpenSegment] = []
        done = 0
        try:
            while done < number:
                room = 0 if segment is None else segment.room(which, written)
                if segment is None or room == 0:
                    layout = self._layout if segment is None else layout_after(written)
                    first = first + written
                    segment = self._new_segment(first, layout)
                    fresh.append(segment)
                    written = np.zeros(self.streams, np.int64)
                    continue
                some = min(number - done, room, self._pending.most)
                count = np.zeros(self.streams, np.int64)
                count[which] = some
                part = {
                    name: np.ascontiguousarray(block[:, done : done + some])
                    for name, block in rows.items()
                }
                block = segment.write(part, written, count, which.start)
                (blocks if segment is old else segment.pending).append(block)
                written = written + count
                done += some
        except BaseException:
            for unused in fresh:  # uncommitted; the next attempt replaces them
                unused.close()
            if fresh:
                self._number = fresh[0].meta.number
            raise
        # No call in between: an exception from a signal handler would keep some of the rows.
        if old is not None:
            old.pending += blocks
        self._segments += fresh

    def _new_segment(self, first: np.ndarray, layout: str) -> OpenSegment:
        """Create the next open segment, whose rows begin at ids `first`."""
        self._lock.check_path()
        meta = open_meta(
            self._columns,
            self._info.fingerprint,
            self._group.index,
            self._number,
            self._info.slots,
            first.copy(),
            layout,
        )
        segment = OpenSegment(self._files, self._folder, self._columns, meta)
        try:
            segment.create()
            with self._failing_for_good():
                segment.sync()  # a segment with a journal must have a description
            segment.create_journal()
        except BaseException:
            segment.close()
            raise
        self._number += 1
        self._names_synced = False
        return segment

    def _sync(self) -> None:
        self._lock.check_path()
        segments = [*self._sealer.waiting(), *self._segments]
        with self._failing_for_good():
            for segment in segments:
                segment.sync()
            if not self._names_synced:
                with translated_errors("syncing the folder", self._folder, again=False):
                    self._files.sync_folder(self._folder)
                    for above in () if self._path_synced else [*self._folder.parents][:3]:
                        self._files.sync_folder(above)  # its creator may have been killed too early
                self._names_synced = self._path_synced = True
        for segment in segments:
            segment.mark_synced()

    @contextmanager
    def _failing_for_good(self) -> Generator[None]:
        """After an error in this block, the writer refuses every call."""
        try:
            yield
        except LakeFailed as error:
            self._failed = error
            raise

    def _send_full(self) -> None:
        """Hand segments that are full and committed to the sealer."""
        while len(self._segments) > 1 or (self._segments and self._segments[0].full):
            segment = self._segments[0]
            if segment.pending:
                return
            self._next_id = np.maximum(self._next_id, segment.meta.first + segment.count)
            if not segment.sent:
                self._sealer.submit(segment)
            layout = layout_after(segment.count)
            # No call in between: staged rows are ordered for the layout of the next segment.
            self._layout = layout
            self._segments = self._segments[1:]
