"""Repairing a Lake: of every stream of a damaged segment, the longest verified prefix is kept.

What is kept is sealed again under the same number; the damaged file is moved aside and never
deleted. Rows in later segments stay: their ids leave a gap, which nothing crosses. Whatever stops
this, running it again ends in the same state; on a Lake without damage it changes nothing.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import LakeRefused
from .codec import Codecs
from .columns import Columns
from .damage import Continuity, Examined
from .dictionaries import Dictionaries
from .examine import examine
from .files import Files, translated_errors
from .layout import PACKED, Rows
from .lock import take_lock
from .manifest import GroupInfo, LakeInfo, load_groups, load_lake
from .mark import Mark, this_boot, write_mark
from .recovery import segment_files, set_aside_files
from .seal import as_packed, mapped_rows, seal
from .sealed_file import SealedFile
from .segment import OPEN, SEALED, Meta, open_meta, path_of
from .verify import Progress, examine_segments

REWRITTEN, ASIDE, SHORTENED = "rewritten", "set aside", "journal shortened"
RAW, CLOSED = "rewritten from its raw twin", "sealed, as rows before it are gone"
NOTED = "kept, noted that rows before it are gone"


@dataclass(frozen=True)
class Mended:
    """What becomes of one segment: damaged, or sealed because of a damaged one before it.

    Arrays are int64[streams of its group].
    `for one in repair_lake(path).segments: print(one.path, one.lost.sum())`.
    """

    path: Path
    group: GroupInfo
    number: int
    action: str  # one of the words above
    aside: Path | None  # where the damaged file goes
    first: np.ndarray  # row ids
    kept: np.ndarray  # rows
    lost: np.ndarray
    known: bool  # False: not even how many rows were lost is known


@dataclass(frozen=True)
class Repaired:
    """What repair did, or with `dry_run` would do.

    `repair_lake(path, dry_run=True).damaged`.
    """

    path: Path
    dry_run: bool
    segments: tuple[Mended, ...]

    @property
    def damaged(self) -> tuple[Mended, ...]:
        """The segments that were damaged, not those that are only sealed because of them."""
        return tuple(one for one in self.segments if one.action not in (CLOSED, NOTED))

    @property
    def kept(self) -> int:
        """Rows kept of the damaged segments."""
        return sum(int(one.kept.sum()) for one in self.damaged)

    @property
    def lost(self) -> int:
        """Rows lost, as far as their number is known."""
        return sum(int(one.lost.sum()) for one in self.segments)


def repair_lake(
    path: str | Path,
    dry_run: bool = False,
    files: Files | None = None,
    progress: Progress | None = None,
    threads: int = 1,
) -> Repaired:
    """Keep every row that can be verified; LakeLocked if any group is being written.

    `repair_lake("runs/lake", dry_run=True)` says what would happen and changes nothing.
    """
    folder, files = Path(path), files or Files()
    info = load_lake(folder)
    groups = load_groups(folder, info)
    with ExitStack() as locks:
        if not dry_run:
            for group in groups:
                path = folder / "groups" / group.name / "lock"
                locks.enter_context(take_lock(path, f"writer group '{group.name}'"))
        mended: list[Mended] = []
        found = list(examine_segments(folder, info, groups, progress, threads))
        for group in groups:
            mine = [one for one in found if one.group.index == group.index]
            mender = _GroupRepair(files, folder / "groups" / group.name, info, group, mine)
            mended += mender.run(dry_run, threads)
    return Repaired(folder, dry_run, tuple(mended))


class _GroupRepair:
    """Repairs one group, the oldest segment first."""

    def __init__(
        self, files: Files, folder: Path, info: LakeInfo, group: GroupInfo, found: list[Examined]
    ) -> None:
        self.files, self.folder, self.info, self.group = files, folder, info, group
        self.columns, self.found = Columns(info.spec), found
        self.raw = {one.number: one.meta for one in found if one.kind == OPEN and one.meta}
        self.dictionaries = Dictionaries(folder.parent.parent, info, [group])
        # A new segment uses the dictionaries of the whole ones, as its writer would.
        self.known: dict[str, Codecs] = {}
        for one in found:
            for name, codec in one.codecs.items():
                codecs = self.known.setdefault(name, Codecs(codec.width)).known
                if all(codec.identity != other.identity for other in codecs):
                    codecs.append(codec)

    def run(self, dry_run: bool, threads: int) -> list[Mended]:
        plans = {one.number: self._plan(one) for one in self.found if one.damages}
        ids = self._lost_ids(plans)
        behind = self._close_open_ones(plans, ids is not None)
        if dry_run:
            return [plans[number] for number in sorted(plans)]
        self._note_gaps(behind)
        self._finish_moving()
        if ids is not None:
            self._remember(ids)
        # Whole ones first: rows after a gap are safe from recovery only in a sealed segment.
        for one in sorted(self.found, key=lambda one: bool(one.damages)):
            plan = plans.get(one.number)
            if plan is None:
                continue
            if plan.action == SHORTENED:
                self._shorten(one)
            elif plan.action == NOTED:
                continue
            elif plan.action == ASIDE:
                for suffix in (".seg", ".open", ".journal"):
                    self._move_aside(path_of(self.folder, one.number, suffix))
            else:
                self._seal(one, plan, threads)
            with translated_errors("syncing the folder", self.folder):
                self.files.sync_folder(self.folder)
        return [plans[number] for number in sorted(plans)]

    def _plan(self, one: Examined) -> Mended:
        """What becomes of a damaged segment, looked at alone."""
        kept, action, aside = one.keep, REWRITTEN, free_name(one.path)
        meta, twin = one.meta, self._raw_twin(one)
        if twin is not None and twin.meta is not None and twin.keep.sum() >= kept.sum():
            kept, action, meta = twin.keep, RAW, twin.meta
            self.raw[one.number] = meta
        elif not kept.any():
            action = ASIDE
        elif one.kind == OPEN:
            action, aside = SHORTENED, None
        lost = np.maximum(one.count - kept, 0)
        first = np.zeros(self.group.streams, np.int64) if meta is None else meta.first
        known = action == RAW or all(damage.rows is not None for damage in one.damages)
        return Mended(one.path, self.group, one.number, action, aside, first, kept, lost, known)

    def _raw_twin(self, one: Examined) -> Examined | None:
        """The raw segment next to a sealed one, if its writer died before it was removed."""
        paths = [path_of(self.folder, one.number, suffix) for suffix in (".open", ".journal")]
        if one.kind != SEALED or not all(path.exists() for path in paths):
            return None
        continuity = Continuity(self.group.streams)
        twin = examine(
            self.folder, self.group, one.number, OPEN, self.info, continuity, self.dictionaries
        )
        return None if twin.damages else twin

    def _close_open_ones(self, plans: dict[int, Mended], ids_were_lost: bool) -> list[int]:
        """Plan to seal every open segment that a writer must not continue with; those after gaps.

        That is one after a gap (recovery takes it for rows that a power loss left over), one
        that lost rows and is not the newest, and any where newer ids were given already.
        """
        if not plans and all(one.gap is None for one in self.found):
            return []
        behind: list[int] = []
        remain = [
            n.number for n in self.found if n.number not in plans or plans[n.number].kept.any()
        ]
        end, before = np.zeros(self.group.streams, np.int64), False
        for one in self.found:
            plan = plans.get(one.number)
            if one.number not in remain or (one.meta is None and plan is None):
                continue
            first, kept = (plan.first, plan.kept) if plan else (self._first(one), one.keep)
            gap = before and bool((first > end).any())
            newest = one.number == remain[-1]
            if gap:
                behind.append(one.number)
            if one.gap is not None and plan is None:
                lost = np.maximum(first - end, 0)
                plans[one.number] = Mended(
                    one.path, self.group, one.number, NOTED, None, first, kept, lost, True
                )
            if one.kind == OPEN and (gap or ids_were_lost or (plan is not None and not newest)):
                action = CLOSED if plan is None else REWRITTEN
                aside = None if plan is None else free_name(one.path)
                lost, known = (kept * 0, True) if plan is None else (plan.lost, plan.known)
                plans[one.number] = Mended(
                    one.path, self.group, one.number, action, aside, first, kept, lost, known
                )
            end, before = np.maximum(end, first + kept), True
        return behind

    def _note_gaps(self, behind: list[int]) -> None:
        """Say that rows before these segments are known to be gone; done before all else."""
        for number in behind:
            path = path_of(self.folder, number, ".gap")
            if not path.exists():
                with translated_errors("noting a gap", path):
                    self.files.close(self.files.create(path))
                    self.files.sync_folder(self.folder)

    def _first(self, one: Examined) -> np.ndarray:
        assert one.meta is not None
        return one.meta.first

    def _seal(self, one: Examined, plan: Mended, threads: int) -> None:
        """Seal the kept rows under the same number; until the rename everything stays."""
        raw = path_of(self.folder, one.number, ".open")
        if plan.aside is not None and not plan.aside.exists():
            with translated_errors("setting a damaged segment aside", one.path):
                self.files.link(one.path, plan.aside)
                self.files.sync_folder(self.folder)
        if one.kind == SEALED and plan.action == REWRITTEN:
            assert one.meta is not None
            fd = os.open(one.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                source = SealedFile(fd, one.path, one.meta, self.columns)
                source.codecs = one.codecs
                meta, rows = replace(one.meta, count=plan.kept), source.rows
                if meta.layout == PACKED:
                    meta, rows = as_packed(one.meta, rows, plan.kept)
                self._write(meta, rows, threads)
            finally:
                os.close(fd)
        else:
            meta = self.raw[one.number]
            rows = mapped_rows(raw, meta, self.columns)
            self._write(replace(meta, count=plan.kept), rows, threads)
        journal = path_of(self.folder, one.number, ".journal")
        if one.kind == OPEN and one.damages:
            self._move_aside(journal)
        for path in (raw, journal):
            if path.exists():
                with translated_errors("removing a raw segment", path):
                    self.files.unlink(path)

    def _write(self, meta: Meta, rows: Rows, threads: int) -> None:
        seal(self.files, self.folder, self.columns, meta, rows, self.known, threads)

    def _shorten(self, one: Examined) -> None:
        """Cut an open segment's journal after the last record that holds, as recovery does."""
        end, path = one.blocks[-1].bytes_to_here, one.path.with_suffix(".journal")
        with translated_errors("shortening a journal", path), ExitStack() as last:
            rows, journal = self.files.open(one.path), self.files.open(path)
            last.callback(self.files.close, rows)
            last.callback(self.files.close, journal)
            write_mark(self.files, rows, Mark(end, 0, this_boot()))
            self.files.sync(rows)
            self.files.truncate(journal, end)
            self.files.sync(journal)

    def _move_aside(self, path: Path) -> None:
        if path.exists():
            aside = free_name(path)
            with translated_errors("moving a damaged file aside", path):
                if aside.exists():  # a stopped repair gave it this second name already
                    self.files.unlink(path)
                else:
                    self.files.rename(path, aside)

    def _finish_moving(self) -> None:
        """A repair that was stopped may have moved an open segment aside, but not its journal."""
        aside = set_aside_files(self.folder)
        for number, kinds in segment_files(self.folder).items():
            if kinds == {"journal"} and number in aside:
                self._move_aside(path_of(self.folder, number, ".journal"))

    def _lost_ids(self, plans: dict[int, Mended]) -> np.ndarray | None:
        """Where ids end, if what remains would not say it: they are never given twice."""
        used = np.zeros(self.group.streams, np.int64)  # after all ids that ever were rows' here
        left = used.copy()  # the same, by what remains
        unknown = 0  # unreadable segments since the last that said where ids begin
        for one in self.found:
            plan = plans.get(one.number)
            if plan is not None and plan.action == RAW:
                used = left = np.maximum(left, plan.first + plan.kept)
                unknown = 0
                continue
            if one.meta is None:
                unknown += bool(one.damages)
                continue
            kept = one.keep if plan is None else plan.kept
            used = np.maximum(used, one.meta.first + self._given(one))
            unknown = 0
            if plan is None or plan.action != ASIDE:
                left = np.maximum(left, one.meta.first + kept)
        used = used + unknown * self.info.slots  # perhaps all rows were those of one stream
        return None if (left >= used).all() else used

    def _given(self, one: Examined) -> np.ndarray:
        """Rows per stream to which a segment gave ids, as far as it can be known: else at most."""
        assert one.meta is not None
        known = one.kind == SEALED or all(damage.rows is not None for damage in one.damages)
        return one.count if known else np.full(self.group.streams, one.meta.length)

    def _remember(self, ids: np.ndarray) -> None:
        """An empty segment with the next number says where ids end; written before all else."""
        taken = [n for n, kinds in segment_files(self.folder).items() if kinds != {"tmp"}]
        number = 1 + max([*taken, *set_aside_files(self.folder)])
        fingerprint, index, slots = self.info.fingerprint, self.group.index, self.info.slots
        self._note_gaps([number])
        meta = open_meta(self.columns, fingerprint, index, number, slots, ids)
        self._write(meta, _no_rows, 1)


def _no_rows(name: str, start: int, stop: int) -> np.ndarray:
    raise AssertionError(f"an empty segment has no rows {start} to {stop} of {name}")


def free_name(path: Path) -> Path:
    """Where a damaged file goes: NUMBER.damaged, or one more if another has that name already."""
    suffix = ".damaged.journal" if path.suffix == ".journal" else ".damaged"
    name = path.with_suffix(suffix)
    for turn in range(1, 10_000):
        if not name.exists() or name.samefile(path):
            return name
        name = path.with_suffix(f"{suffix}.{turn}")
    raise LakeRefused(f"{path}: thousands of damaged copies of it are here; remove some")
