"""`millpond presets`: list the presets, or show one

millpond presets
millpond presets minatar > mine.toml
millpond train minatar/asterix --preset mine.toml
"""

from __future__ import annotations

import argparse
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
        comment = preset_text(name).partition("\n")[0].removeprefix("# ")
        print(f"{name:{width}}  {comment}")
    return 0
