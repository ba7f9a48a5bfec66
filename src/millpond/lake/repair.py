"""Repairs a Lake: keeps the longest verified prefix of every stream of a damaged segment.

What is kept is sealed again under the same number; the damaged file is moved aside, never deleted.
Rows in later segments stay, after a gap in the ids that no window crosses. An interrupted repair
can be run again, with the same result; on a Lake without damage it changes nothing.
"""

from __future__ import annotations

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
from .files import Files, opened, translated_errors
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
    """What happens to one segment, either damaged or affected by damage before it.

    Arrays are int64[streams of its group].
    `for one in repair_lake(path).segments: print(one.path, one.lost.sum())`.
    """

    path: Path
    group: GroupInfo
    number: int
    action: str  # one of the constants above
    aside: Path | None  # where the damaged file is moved
    first: np.ndarray  # id of the first row
    kept: np.ndarray  # rows
    lost: np.ndarray  # rows
    known: bool  # False: the number of lost rows is unknown


@dataclass(frozen=True)
class Repaired:
    """What repair did, or would do with `dry_run`.

    `repair_lake(path, dry_run=True).damaged`.
    """

    path: Path
    dry_run: bool
    segments: tuple[Mended, ...]

    @property
    def damaged(self) -> tuple[Mended, ...]:
        """The damaged segments, without those that are only affected by damage before them."""
        return tuple(one for one in self.segments if one.action not in (CLOSED, NOTED))

    @property
    def kept(self) -> int:
        """Rows kept from the damaged segments."""
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
    """Keep every row that can be verified; LakeLocked while any group has a writer.

    `repair_lake("runs/lake", dry_run=True)` returns what would happen and changes nothing.
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
        # Rewritten segments reuse the dictionaries of intact ones, as their writer would.
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
        # Undamaged ones first: after a gap, recovery keeps rows of sealed segments only.
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
        """What to do with a damaged segment, considered by itself."""
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
        """The raw copy next to a sealed segment, left if the writer died before removing it."""
        paths = [path_of(self.folder, one.number, suffix) for suffix in (".open", ".journal")]
        if one.kind != SEALED or not all(path.exists() for path in paths):
            return None
        continuity = Continuity(self.group.streams)
        twin = examine(
            self.folder, self.group, one.number, OPEN, self.info, continuity, self.dictionaries
        )
        return None if twin.damages else twin

    def _close_open_ones(self, plans: dict[int, Mended], ids_were_lost: bool) -> list[int]:
        """Plan to seal open segments that a writer must not continue; return those after gaps.

        These are: one after a gap (recovery would take it for the remains of a power loss), one
        that lost rows and is not the newest, and any if newer ids have been assigned already.
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
        """Record that rows before these segments are known to be lost; the first step."""
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
        """Seal the kept rows under the same number; nothing changes until the final rename."""
        raw = path_of(self.folder, one.number, ".open")
        if plan.aside is not None and not plan.aside.exists():
            with translated_errors("setting a damaged segment aside", one.path):
                self.files.link(one.path, plan.aside)
                self.files.sync_folder(self.folder)
        if one.kind == SEALED and plan.action == REWRITTEN:
            assert one.meta is not None
            with opened(one.path) as fd:
                source = SealedFile(fd, one.path, one.meta, self.columns)
                source.codecs = one.codecs
                meta, rows = replace(one.meta, count=plan.kept), source.rows
                if meta.layout == PACKED:
                    meta, rows = as_packed(one.meta, rows, plan.kept)
                self._write(meta, rows, threads)
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
        """Truncate an open segment's journal after the last verified record, as recovery does."""
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
                if aside.exists():  # an interrupted repair has already linked it there
                    self.files.unlink(path)
                else:
                    self.files.rename(path, aside)

    def _finish_moving(self) -> None:
        """Move journals aside whose segments an interrupted repair has already moved aside."""
        aside = set_aside_files(self.folder)
        for number, kinds in segment_files(self.folder).items():
            if kinds == {"journal"} and number in aside:
                self._move_aside(path_of(self.folder, number, ".journal"))

    def _lost_ids(self, plans: dict[int, Mended]) -> np.ndarray | None:
        """The next ids, if the remaining rows do not show them; ids are never reused."""
        used = np.zeros(self.group.streams, np.int64)  # after all ids that were ever assigned
        left = used.copy()  # after all ids of the rows that remain
        unknown = 0  # unreadable segments since the last readable one
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
        used = used + unknown * self.info.slots  # all their rows may be of one stream
        return None if (left >= used).all() else used

    def _given(self, one: Examined) -> np.ndarray:
        """How many ids of each stream a segment assigned; the maximum if that is unknown."""
        assert one.meta is not None
        known = one.kind == SEALED or all(damage.rows is not None for damage in one.damages)
        return one.count if known else np.full(self.group.streams, one.meta.length)

    def _remember(self, ids: np.ndarray) -> None:
        """Write an empty segment, with the next number, that records the next ids."""
        taken = [n for n, kinds in segment_files(self.folder).items() if kinds != {"tmp"}]
        number = 1 + max([*taken, *set_aside_files(self.folder)])
        fingerprint, index, slots = self.info.fingerprint, self.group.index, self.info.slots
        self._note_gaps([number])
        meta = open_meta(self.columns, fingerprint, index, number, slots, ids)
        self._write(meta, _no_rows, 1)


def _no_rows(name: str, start: int, stop: int) -> np.ndarray:
    raise AssertionError(f"an empty segment has no rows {start} to {stop} of {name}")


def free_name(path: Path) -> Path:
    """Where to move a damaged file: NUMBER.damaged, with a counter if that name is taken."""
    suffix = ".damaged.journal" if path.suffix == ".journal" else ".damaged"
    name = path.with_suffix(suffix)
    for turn in range(1, 10_000):
        if not name.exists() or name.samefile(path):
            return name
        name = path.with_suffix(f"{suffix}.{turn}")
    raise LakeRefused(f"{path}: there are thousands of damaged copies of it; remove some")
