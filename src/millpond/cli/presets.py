"""`millpond presets`: list the presets, or show one

millpond presets
millpond presets minatar > mine.toml
millpond train minatar/asterix --preset mine.toml
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

from ..train.presets import preset_names, preset_text


def main(args: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    parser = argparse.ArgumentParser(
        prog="millpond presets",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="the preset to show")
    name = parser.parse_args(args).name
    if name:
        print(preset_text(name), end="")
        return 0
    width = max(len(name) for name in preset_names())
    for name in preset_names():
        print(f"{name:{width}}  {first_sentence(preset_text(name))}")
    return 0


def first_sentence(text: str) -> str:
    """Of the comment at the top of a preset, which may be several lines long."""
    lines = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
    comment = " ".join(line.removeprefix("#").strip() for line in lines)
    return comment.partition(". ")[0].removesuffix(".") + "."
