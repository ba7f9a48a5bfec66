"""`offline_page(...)`: a report as one HTML file that needs no network."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from .markup import safe
from .page_files import SHARED_SCRIPTS, page_file, plotly_path
from .traces import Figure


def offline_page(
    title: str, parts: Iterable[str], figures: Sequence[list[Figure]], waters: Sequence[Any] = ()
) -> str:
    """The whole file. `<div class="charts" data-charts="0">` in a part shows the first `figures`.

    `data-water` does the same for `waters`; with `data-seeds` readers may choose means over seeds.
    """
    # Escape `<`, so that no name in the data can close the script element.
    data = json.dumps(
        {"figures": figures, "water": waters}, allow_nan=False, separators=(",", ":")
    ).replace("<", "\\u003c")
    scripts = [plotly_path().read_text(encoding="utf-8")]
    scripts += [page_file(name) for name in (*SHARED_SCRIPTS, "report.js")]
    return "".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{safe(title)}</title><style>{page_file('page.css')}</style></head>",
            f'<body><main class="report"><h1>{safe(title)}</h1>{"".join(parts)}</main>',
            f'<script type="application/json" id="data">{data}</script>',
            *(f"<script>{script}</script>" for script in scripts),
            "</body></html>\n",
        ]
    )
