"""The output of `millpond lake`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np

from ..lake.repair import Mended, Repaired
from ..lake.survey import Survey
from ..lake.verify import Verified
from ..run_folder import shell_word
from ._print import empty_table, many, print_table, sized

if TYPE_CHECKING:  # it needs more than the core's packages
    from ..exchange import Moved

_LINES = 12  # most lines about one damaged segment


def show_survey(survey: Survey) -> None:
    """Print a survey as text."""
    stats = survey.stats
    print(
        f"{survey.path}: {many(stats.rows, 'row')} ({many(survey.steps, 'step')}) of "
        f"{many(stats.streams, 'stream')} in {many(stats.groups, 'group')}",
    )
    if survey.capacity_rows is not None:
        capacity = f"{survey.capacity_rows:,} rows"
    else:
        capacity = sized(survey.capacity_bytes)
    print(
        f"{sized(stats.bytes_on_disk)} on disk, {sized(stats.bytes_raw)} raw "
        f"(ratio {_ratio(stats.bytes_raw, stats.bytes_on_disk)}); "
        f"{survey.use:.1%} of its capacity of {capacity}",
    )
    open_ones = stats.segments - stats.sealed
    print(
        f"{many(stats.segments, 'segment')} of up to {survey.slots:,} rows: "
        f"{stats.sealed:,} sealed, {open_ones:,} open",
    )
    table = empty_table(("field", "stored", "raw", "on disk", "ratio", "index", "dicts"), words=2)
    for part in survey.parts:
        dictionary = f"{part.dictionaries} ({sized(part.dictionary)})"
        table.add_row(
            part.name,
            part.stored,
            sized(part.raw),
            sized(part.disk),
            _ratio(part.raw, part.disk + part.index + part.dictionary),
            sized(part.index) if part.index else "-",
            dictionary if part.dictionaries else "-",
        )
    heads = ("group", "streams", "rows", "sealed", "open", "row ids", "written")
    groups = empty_table(heads, words=1)
    for group in survey.groups:
        groups.add_row(
            group.name,
            f"{group.streams:,}",
            f"{group.rows:,}",
            f"{group.sealed:,}",
            f"{group.open:,}",
            f"{group.oldest:,}-{group.newest:,}" if group.rows else "-",
            _times(group.first_time, group.last_time),
        )
    print_table(table, groups)
    _show_episodes(survey)
    for group in survey.groups:
        if group.damaged_files:
            print(
                f"Group {group.name} has {many(group.damaged_files, 'damaged file')} that repair "
                f"moved aside ({sized(group.damaged_bytes)}); delete *.damaged* when you no longer "
                "need them",
            )


def _show_episodes(survey: Survey) -> None:
    found = survey.episodes
    print(
        f"{many(found.finished, 'episode')} finished: {found.terminated:,} terminated, "
        f"{found.truncated:,} truncated",
    )
    if not found.whole:
        return
    print(f"Of the {found.whole:,} that are stored completely:")
    for what, one in (("return", found.returns), ("length", found.lengths)):
        print(f"  {what}  mean {one.mean:,.2f}   min {one.least:,.6g}   max {one.most:,.6g}")


def survey_json(survey: Survey) -> dict[str, Any]:
    """A survey as JSON values."""
    return {**asdict(survey), "path": str(survey.path)}


def show_verified(found: Verified) -> None:
    """Print what verify found: every damaged range, then a summary."""
    for damage in found.damages:
        path = damage.path.relative_to(found.path)
        rows = "an unknown number of rows" if damage.rows is None else many(damage.rows, "row")
        print(f"{path}: bytes {damage.start}-{damage.stop - 1}: {damage.what} ({rows})")
    looked = (
        f"{many(found.rows, 'row')} in {many(found.sealed + found.open, 'segment')} of "
        f"{many(found.groups, 'group')}, {sized(found.bytes_read)}"
    )
    if found.clean:
        print(f"{found.path}: no damage. Checked {looked}")
        return
    print(f"\n{found.path}: {many(len(found.damages), 'damaged range')}. Checked {looked}")
    text = f"{many(found.damaged_rows, 'row')} damaged"
    behind = found.lost_rows - found.damaged_rows
    if behind > 0:
        text += f", {behind:,} more come after a damaged row in their segment"
    if found.unreadable:
        text += f"; {many(found.unreadable, 'segment')} cannot be read at all"
    print(f"{text}. Nothing was changed.")
    print(f"millpond lake repair {shell_word(found.path)} --dry-run shows what can be kept")


def verified_json(found: Verified) -> dict[str, Any]:
    """What verify found as JSON values."""
    damages = [
        {**asdict(damage), "path": str(damage.path.relative_to(found.path))}
        for damage in found.damages
    ]
    return {**asdict(found), "path": str(found.path), "clean": found.clean, "damages": damages}


def show_repaired(found: Repaired) -> None:
    """Print what repair keeps and loses, by segment and stream."""
    if not found.segments:
        print(f"{found.path}: no damage, nothing was changed")
        return
    for one in found.segments:
        path = one.path.relative_to(found.path)
        action = one.action if one.aside is None else f"{one.action}, original in {one.aside.name}"
        print(f"{path}: {'would be ' * found.dry_run}{action}")
        lines = list(_streams(one))
        more = [f"... and {len(lines) - _LINES} more lines; --json lists every stream"]
        for line in lines if len(lines) <= _LINES + 1 else lines[:_LINES] + more:
            print(f"  {line}")
    unknown = sum(not one.known for one in found.segments)
    more = f", and an unknown number in {many(unknown, 'segment')}" if unknown else ""
    print(
        f"\nOf {many(len(found.damaged), 'damaged segment')} {many(found.kept, 'row')} "
        f"{'would be ' * found.dry_run}kept, {found.lost:,} lost{more}",
    )
    if found.dry_run:
        print("Nothing was changed: this was a dry run")


def _streams(one: Mended) -> Iterator[str]:
    """Lines per group of equal streams: 'streams 0-3, each: rows kept 8-11, lost 12-15'."""
    if not one.kept.any() and not one.lost.any():
        yield "no rows were lost" if one.known else "the number of rows it held is unknown"
        return
    if not one.lost.any():
        yield f"all {int(one.kept.sum()):,} rows kept" + ("" if one.known else ", as far as known")
        return
    facts = np.stack([one.first, one.kept, one.lost], axis=1)
    edges = np.flatnonzero((np.diff(facts, axis=0) != 0).any(1)) + 1
    for some in np.split(np.arange(len(facts)), edges):
        first, kept, lost = (int(n) for n in facts[some[0]])
        if not kept and not lost:
            continue
        low, high = (one.group.base + int(some[k]) for k in (0, -1))
        name = f"stream {low}" if low == high else f"streams {low}-{high}, each"
        parts = [
            f"{what} {start}-{start + number - 1}"
            for what, start, number in (("kept", first, kept), ("lost", first + kept, lost))
            if number
        ]
        yield f"{name}: rows {', '.join(parts)}"


def repaired_json(found: Repaired) -> dict[str, Any]:
    """What repair did as JSON values."""
    return {
        "path": str(found.path),
        "dry_run": found.dry_run,
        "kept": found.kept,
        "lost": found.lost,
        "segments": [
            {
                "path": str(one.path.relative_to(found.path)),
                "group": one.group.name,
                "number": one.number,
                "action": one.action,
                "aside": None if one.aside is None else str(one.aside.relative_to(found.path)),
                "known": one.known,
                "first": one.first.tolist(),
                "kept": one.kept.tolist(),
                "lost": one.lost.tolist(),
            }
            for one in found.segments
        ],
    }


def show_moved(moved: Moved) -> None:
    """Print the result of import or export."""
    what = f"{many(moved.rows, 'row')} of {many(moved.streams, 'stream')}, verified row by row"
    print(f"{moved.path}: {what}")
    if moved.resumed:
        print(f"{moved.resumed:,} of them came from an earlier import that was interrupted")
    for loss in moved.losses:
        print(f"not kept: {loss}")


def _ratio(raw: int, disk: int) -> str:
    return f"{raw / disk:,.1f}x" if disk else "-"


def _times(first: float, last: float) -> str:
    if not first:
        return "-"
    old, new = (datetime.fromtimestamp(t) for t in (first, last))
    if f"{old:%Y-%m-%d %H:%M}" == f"{new:%Y-%m-%d %H:%M}":
        return f"{old:%Y-%m-%d %H:%M}"
    day = "%H:%M" if old.date() == new.date() else "%Y-%m-%d %H:%M"
    return f"{old:%Y-%m-%d %H:%M} to {new.strftime(day)}"
