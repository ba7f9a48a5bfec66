"""The files of the page, and Plotly's script from the installed package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

# In order of execution. Reports include the shared ones.
SHARED_SCRIPTS = ("dom.js", "curves.js", "controls.js", "downloads.js", "charts.js", "water.js")
PAGE_SCRIPTS = (
    "numbers.js",
    "server.js",
    "table.js",
    "overview.js",
    "run.js",
    "compare.js",
    "page.js",
)


def page_file(name: str) -> str:
    """The text of one of the page's files."""
    return (files("millpond.view") / "page" / name).read_text(encoding="utf-8")


def plotly_path() -> Path:
    """The path of Plotly's script."""
    return Path(str(files("plotly") / "package_data" / "plotly.min.js"))


@cache
def index_page() -> str:
    """The page, with its scripts and with elements that keep Plotly from adding style sheets.

    Plotly adds a style sheet for maps unless there is an element with a certain id. Our policy
    would refuse it, with an error in the browser's console.
    """
    found = re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_path().read_text("utf-8"))
    marks = "".join(f'<meta id="{one}">' for one in dict.fromkeys(found))
    names = ("plotly.js", *SHARED_SCRIPTS, *PAGE_SCRIPTS)
    scripts = "".join(f'<script src="/{name}" defer></script>\n  ' for name in names)
    page = page_file("index.html")
    return page.replace("<!-- marks -->", marks).replace("<!-- scripts -->", scripts.rstrip())
