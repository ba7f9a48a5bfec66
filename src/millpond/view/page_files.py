"""The files of the page, as they ship; and Plotly's, from the installed package."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

# In the order in which they are run. Reports carry the shared ones.
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
    """A file of the page."""
    return (files("millpond.view") / "page" / name).read_text(encoding="utf-8")


def plotly_path() -> Path:
    """Plotly's script."""
    return Path(str(files("plotly") / "package_data" / "plotly.min.js"))


@cache
def index_page() -> str:
    """The page, with its scripts and with the marks that keep Plotly's sheets out.

    Plotly adds a sheet for maps to the page unless there is an element of a certain id; our policy
    would refuse it, and the browser's console would say so each time.
    """
    found = re.findall(r'getElementById\("([0-9a-f]{64})"\)', plotly_path().read_text("utf-8"))
    marks = "".join(f'<meta id="{one}">' for one in dict.fromkeys(found))
    names = ("plotly.js", *SHARED_SCRIPTS, *PAGE_SCRIPTS)
    scripts = "".join(f'<script src="/{name}" defer></script>\n  ' for name in names)
    page = page_file("index.html")
    return page.replace("<!-- marks -->", marks).replace("<!-- scripts -->", scripts.rstrip())
