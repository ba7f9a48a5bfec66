"""Pieces of HTML for reports, styled by `page.css`."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any


def safe(text: Any) -> str:
    """The text, escaped for HTML."""
    return html.escape(str(text))


def panel(title: str, inside: str, kind: str = "") -> str:
    """A box with a heading. Its contents scroll if they are too wide, unless it has a `kind`."""
    scroll = "" if kind else f'<div class="scroll">{inside}</div>'
    return f'<section class="panel {kind}"><h3>{safe(title)}</h3>{scroll or inside}</section>'


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; cells are escaped."""

    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{safe(cell)}</{tag}>" for cell in cells) + "</tr>"

    body = "".join(line(row, "td") for row in rows)
    return f"<table><thead>{line(heads, 'th')}</thead><tbody>{body}</tbody></table>"
