"""What commands print alike: tables, numbers with their noun, sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

_WIDEST = 10_000


def print_table(console: Console, *tables: Table) -> None:
    """As wide as their values need: a cut-off number would be a wrong one."""
    width = console.width
    for table in tables:
        console.print()
        console.width = _WIDEST  # an argument to print would only make it narrower
        console.width = max(width, console.measure(table).maximum)
        console.print(table, crop=False, no_wrap=True)
        console.width = width
    console.print()


def empty_table(heads: Sequence[str], text: int) -> Table:
    """An empty table whose first `text` columns hold words and the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for number, head in enumerate(heads):
        table.add_column(head, justify="left" if number < text else "right", no_wrap=True)
    return table


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def sized(count: int | None) -> str:
    if count is None:
        return "unknown"
    for scale, unit in ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= scale:
            digits = max(0, 2 - int(math.log10(count / scale)))
            return f"{count / scale:,.{digits}f} {unit}"
    return f"{count} B"
