"""`millpond presets`: list the presets, or print one

millpond presets
millpond presets minatar > mine.toml
millpond train minatar/asterix --preset mine.toml
"""

from __future__ import annotations

import itertools
import json
import textwrap
import tomllib
from collections.abc import Sequence
from typing import Any

from ..train.presets import preset_names, preset_text
from ._options import Parser, width


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = Parser("millpond presets", __doc__)
    parser.add_argument("name", metavar="NAME", nargs="?", help="the preset to print")
    parser.add_argument("--json", action="store_true", help="JSON instead of text")
    options = parser.parse_args(args)
    if options.json:
        print(json.dumps(plain(options.name), indent=2))
        return 0
    if options.name:
        print(preset_text(options.name), end="")
        return 0
    indent = 2 + max(len(name) for name in preset_names())
    for name in preset_names():
        text = f"{name:{indent}}{first_sentence(preset_text(name))}"
        print(textwrap.fill(text, width(), subsequent_indent=" " * indent, break_on_hyphens=False))
    return 0


def plain(name: str | None) -> Any:
    """One preset's settings, or the names and descriptions of all."""
    if name:
        return tomllib.loads(preset_text(name))
    return [{"name": one, "about": first_sentence(preset_text(one))} for one in preset_names()]


def first_sentence(text: str) -> str:
    """The first sentence of the comment at the top of a preset."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return comment.partition(". ")[0].removesuffix(".") + "."
