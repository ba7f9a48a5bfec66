"""Sphinx: `make docs` builds every page of this folder, warnings are errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from myst_parser.parsers.sphinx_ import MystParser

sys.path.insert(0, str(Path(__file__).parent))
from run_notebooks import page_of

project = "millpond"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
root_doc = "index"
exclude_patterns = ["requirements.lock"]

html_theme = "furo"
html_title = "millpond"
html_static_path = ["style"]
html_css_files = ["wide.css"]
html_copy_source = False
html_show_copyright = False

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"  # shapes and meaning are in the docstrings
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True

_MARKS = re.compile(r"([*|_])")


class NotebookParser(MystParser):
    """A notebook is a page: its text, its code, and what its last run in `make docs` showed."""

    supported = ("notebook",)

    def parse(self, inputstring: str, document: Any) -> None:
        super().parse(page_of(Path(document["source"])), document)


def setup(app: Any) -> None:
    app.add_source_suffix(".ipynb", "notebook")
    app.add_source_parser(NotebookParser)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("autodoc-skip-member", skip)


def skip(app: Any, what: str, name: str, member: Any, skipped: bool, options: Any) -> bool | None:
    """Fields of named tuples say nothing of themselves; the class's docstring does."""
    text = getattr(member, "__doc__", None) or ""
    return True if text.startswith("Alias for field number") else None


def as_restructured_text(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    """Docstrings are plain text with `code` in single ticks and code blocks indented by four."""
    found: list[str] = []
    literal = False
    for number, line in enumerate(lines):
        indented = line.startswith("    ")
        if indented and not literal and (number == 0 or not lines[number - 1].strip()):
            found += ["::", ""]
            literal = True
        elif line.strip() and not indented:
            literal = False
        found.append(line if literal else _inline(line))
    lines[:] = found


def _inline(line: str) -> str:
    """Single ticks become double ones; marks outside them lose their meaning."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return _MARKS.sub(r"\\\1", line.replace("`", "'"))
    return "".join(
        f"``{part}``" if number % 2 else _MARKS.sub(r"\\\1", part)
        for number, part in enumerate(parts)
    )
