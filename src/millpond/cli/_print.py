"""Printing that commands share: tables, counts, sizes, times."""

from __future__ import annotations

import math
import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

_CODES = {"red": "31", "yellow": "33", "green": "32", "dim": "2"}


class Coloured(NamedTuple):
    """A cell of a table with a colour: `Coloured("red", "red")`."""

    text: str
    colour: str


Cell = str | Coloured


@dataclass
class Table:
    """A table. The first `words` columns hold text, the others numbers, aligned right.

    `table = empty_table(["run", "steps"], words=1); table.add_row("a", "100"); print_table(table)`
    """

    heads: Sequence[str]
    words: int
    rows: list[tuple[Cell, ...]] = field(default_factory=list)

    def add_row(self, *cells: Cell) -> None:
        """Add a row, with one cell per column."""
        if len(cells) != len(self.heads):
            raise ValueError(f"expected {len(self.heads)} cells, got {len(cells)}")
        self.rows.append(cells)

    def lines(self, colours: bool) -> list[str]:
        """The table as text."""
        heads = [head.split("\n") for head in self.heads]
        deep = max(map(len, heads))
        heads = [[""] * (deep - len(head)) + head for head in heads]
        columns = [[*head, *(_text(row[i]) for row in self.rows)] for i, head in enumerate(heads)]
        widths = [max(map(len, column)) for column in columns]
        found = [self._line([head[k] for head in heads], widths, False) for k in range(deep)]
        found.append("-" * (sum(widths) + 2 * (len(widths) - 1)))
        return found + [self._line(row, widths, colours) for row in self.rows]

    def without(self, heads: Sequence[str]) -> Table:
        """The same table without those columns."""
        kept = [i for i, head in enumerate(self.heads) if head not in heads]
        rows = [tuple(row[i] for i in kept) for row in self.rows]
        return Table([self.heads[i] for i in kept], sum(i < self.words for i in kept), rows)

    def _line(self, cells: Sequence[Cell], widths: Sequence[int], colours: bool) -> str:
        parts: list[str] = []
        for i, (cell, width) in enumerate(zip(cells, widths, strict=True)):
            text = _text(cell)
            text = text.ljust(width) if i < self.words else text.rjust(width)
            if colours and isinstance(cell, Coloured):
                text = coloured(text, cell.colour)
            parts.append(text)
        return "  ".join(parts).rstrip()


def empty_table(heads: Sequence[str], words: int) -> Table:
    """An empty table whose first `words` columns hold words and the others numbers."""
    return Table(heads, words)


def print_table(*tables: Table) -> None:
    """Print tables at full width: a number that is cut off would be wrong."""
    colours = wants_colours()
    for table in tables:
        print("", *table.lines(colours), sep="\n")
    print()


def fitted(table: Table, least: Sequence[str]) -> Table:
    """The table without as many of the columns `least`, in order, as needed to fit the terminal.

    A file or a pipe gets all columns.
    """
    if not sys.stdout.isatty():
        return table
    room = shutil.get_terminal_size().columns
    for number in range(len(least) + 1):
        shown = table.without(least[:number])
        if max(map(len, shown.lines(False))) <= room:
            return shown
    return table.without(least)


def wants_colours() -> bool:
    """Whether standard output is a terminal with colours."""
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"


def coloured(text: str, colour: str) -> str:
    """`text` with the terminal's codes for a colour."""
    return f"\x1b[{_CODES[colour]}m{text}\x1b[0m" if colour in _CODES else text


def many(count: int, noun: str) -> str:
    """`3 rows`, `1 row`"""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def sized(count: int | None) -> str:
    """`1.23 GB`"""
    if count is None:
        return "unknown"
    for scale, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= scale:
            digits = max(0, 2 - int(math.log10(count / scale)))
            return f"{count / scale:,.{digits}f} {unit}"
    return f"{count} B"


def short(number: float) -> str:
    """`1.23M`, `45k`"""
    for scale, unit in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if abs(number) >= scale:
            return f"{number / scale:.3g}{unit}"
    return f"{number:.3g}"


def elapsed(seconds: float) -> str:
    """`7 s`, `3:05`, `1:02:33`"""
    hours, rest = divmod(round(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    if hours:
        return f"{hours}:{minutes:02}:{rest:02}"
    return f"{minutes}:{rest:02}" if minutes else f"{rest} s"


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Coloured) else cell
