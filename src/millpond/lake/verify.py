"""Verifies a Lake: checks every byte that a committed row depends on, and changes nothing.

Works while the Lake is being written: of each segment, it sees what is committed at that time.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import LakeFailed, LakeRefused
from .damage import Continuity, Damage, Examined
from .dictionaries import Dictionaries
from .examine import examine
from .gaps import Gaps, gap_damage
from .manifest import (
    GroupInfo,
    LakeInfo,
    folders_without_manifest,
    group_folders,
    load_group,
    load_groups,
    load_lake,
    read_json,
)
from .recovery import segment_files
from .segment import OPEN, SEALED, path_of

Progress = Callable[[int, int], None]  # (bytes done, total bytes)
_TRIES = 20  # a file may be sealed or dropped between listing and opening it


@dataclass(frozen=True)
class Verified:
    """The result of verifying a Lake; `damages` is empty if every byte is what was written.

    `verify_lake(path).clean`.
    """

    path: Path
    damages: tuple[Damage, ...]
    groups: int
    sealed: int  # segments
    open: int
    rows: int  # committed rows, as far as is known
    damaged_rows: int  # how many of these are damaged
    lost_rows: int  # rows that repair could not keep, including those after a damaged one
    unreadable: int  # segments whose number of rows is unknown
    bytes_read: int

    @property
    def clean(self) -> bool:
        return not self.damages


def verify_lake(path: str | Path, progress: Progress | None = None, threads: int = 1) -> Verified:
    """Check everything in a Lake's folder; LakeRefused if it is not a Lake.

    `verify_lake("runs/lake").damages` lists every damaged range of every file.
    """
    folder = Path(path)
    info, groups, damages = manifests(folder)
    found = (
        list(examine_segments(folder, info, groups, progress, threads)) if info is not None else []
    )
    for one in found:
        damages += one.damages if one.gap is None else [one.gap, *one.damages]
    return Verified(
        folder,
        tuple(damages),
        groups=len(groups),
        sealed=sum(one.kind == SEALED for one in found),
        open=sum(one.kind == OPEN for one in found),
        rows=sum(int(one.count.sum()) for one in found),
        damaged_rows=sum(one.damaged_rows for one in found),
        lost_rows=sum(int((one.count - one.keep).sum()) for one in found),
        unreadable=sum(one.meta is None and bool(one.damages) for one in found),
        bytes_read=sum(one.size for one in found),
    )


def manifests(folder: Path) -> tuple[LakeInfo | None, list[GroupInfo], list[Damage]]:
    """Read lake.json and every group.json; returns what is intact, and the damage of the others."""
    damages: list[Damage] = []
    groups: list[GroupInfo] = []
    path = folder / "lake.json"
    try:
        if path.exists():
            read_json(path)
    except LakeRefused as error:
        return None, [], [_of_manifest(path, error)]
    info = load_lake(folder)  # intact; refused if it is not a Lake of this version
    for inner in group_folders(folder):
        try:
            groups.append(load_group(inner))
        except LakeRefused as error:
            damages.append(_of_manifest(inner / "group.json", error))
    for inner in folders_without_manifest(folder):
        what = "the manifest of a group that holds segments is missing; restore it from a copy"
        damages.append(Damage(inner / "group.json", 0, 1, what, None))
    groups.sort(key=lambda group: group.index)
    if not damages:  # the intact groups must be complete
        try:
            load_groups(folder, info)
        except LakeRefused as error:
            damages.append(Damage(folder / "groups", 0, 1, str(error), None))
    return info, groups, damages


def _of_manifest(path: Path, error: LakeRefused) -> Damage:
    what = str(error).removeprefix(f"{path}: ")
    return Damage(path, 0, max(1, os.stat(path).st_size), what, None)


def examine_segments(
    folder: Path,
    info: LakeInfo,
    groups: list[GroupInfo],
    progress: Progress | None = None,
    threads: int = 1,
) -> Iterator[Examined]:
    """Examine every segment, group by group, the oldest first."""
    dictionaries = Dictionaries(folder, info, groups)
    here = [(group, folder / "groups" / group.name) for group in groups]
    total = sum(sum(_size(inner, n) for n in segment_files(inner)) for _, inner in here)
    done = 0
    for group, inner in here:
        continuity, gaps = Continuity(group.streams), Gaps(inner)
        for number in segment_files(inner):
            before = copy.deepcopy(continuity)
            found = _examine_now(inner, group, number, info, continuity, dictionaries, threads)
            if found is not None and found.kind == OPEN and found.damages:
                # Its writer may just have recovered and continued: only lasting damage counts.
                continuity = before
                found = _examine_now(inner, group, number, info, continuity, dictionaries, threads)
            if found is None:
                continue
            old = copy.copy(gaps)
            missing = gaps.find(found)
            if missing is not None and old.before is not None and old.before.kind == OPEN:
                # The segment before may have received commits since, before this one was written.
                fresh = Continuity(group.streams)
                again = _examine_now(
                    inner, group, old.before.number, info, fresh, dictionaries, threads
                )
                if again is not None and again.meta is not None:
                    old.end = again.meta.first + again.count
                gaps, missing = old, old.find(found)
            if missing is not None:
                found.gap = gap_damage(found, missing)
            done += found.size
            if progress is not None:
                progress(min(done, total), total)
            yield found


def _examine_now(
    folder: Path,
    group: GroupInfo,
    number: int,
    info: LakeInfo,
    continuity: Continuity,
    dictionaries: Dictionaries,
    threads: int,
) -> Examined | None:
    """Examine a segment as a reader would see it now; None if it does not exist any more."""
    for _ in range(_TRIES):
        kinds = segment_files(folder).get(number, set())
        if not {"seg", "open"} & kinds:
            return None
        kind = SEALED if "seg" in kinds else OPEN
        try:
            return examine(folder, group, number, kind, info, continuity, dictionaries, threads)
        except FileNotFoundError:
            continue  # just sealed or dropped
    raise LakeFailed(f"{folder}: files kept vanishing while they were read; try again")


def _size(folder: Path, number: int) -> int:
    sizes = [path_of(folder, number, suffix) for suffix in (".seg", ".open")]
    return sum(os.stat(path).st_blocks * 512 for path in sizes if path.exists())
