"""Writes docs/cli.md from the commands' own help: `python docs/make_cli.py`; `--check` compares.

The same text for every terminal: 100 columns, no colours.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from unittest import mock

PAGE = Path(__file__).with_name("cli.md")
_HEAD = """<!-- Written by docs/make_cli.py from the commands' own help. Do not edit. -->

# The command line

Exit codes: 0 success; 1 failure, or a red check of `doctor`; 2 wrong usage; 3 the run diverged; 4
the disk was full; 130 stopped by Ctrl-C, with the state saved. Numbers may be written as `20k`,
`1.5M` and `2e6`. Error messages end with what to do.

Commands whose output a program may read have `--json`, with which they print only JSON.
"""
# With an env the settings are listed too, here as one env's preset has them.
_ENVS = {"train": "treasurehunt-small", "mix": "minatar/breakout"}


def commands() -> list[str]:
    """Every command: one file each, whose name does not begin with an underscore."""
    folder = Path(import_module("millpond.cli").__path__[0])
    names = (path.stem for path in sorted(folder.glob("*.py")))
    return [name.replace("_", "-") for name in names if name[0] != "_" and name != "main"]


def subcommands(name: str) -> Iterator[list[str]]:
    """A command, and those below it."""
    yield [name]
    if name == "lake":
        yield from ([name, part] for part in ("info", "verify", "repair"))
    if name in _ENVS:
        yield [name, _ENVS[name]]


def help_of(words: list[str]) -> str:
    """What `millpond WORDS --help` prints; with an env `--help-all`."""
    main = import_module("millpond.cli.main").main
    said = io.StringIO()
    plain = {"COLUMNS": "100", "NO_COLOR": "1", "TERM": "dumb"}
    quiet = contextlib.suppress(SystemExit)
    with mock.patch.dict(os.environ, plain), contextlib.redirect_stdout(said), quiet:
        main([*words, "--help-all" if words[1:] and words[0] in _ENVS else "--help"])
    text = re.sub(r"\x1b\[[0-9;]*m", "", said.getvalue())
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def page() -> str:
    """The whole page."""
    parts = [_HEAD, "## millpond\n", f"```text\n{help_of([])}\n```\n"]
    for name in commands():
        for words in subcommands(name):
            level = "##" if len(words) == 1 else "###"
            parts += [f"{level} millpond {' '.join(words)}\n", f"```text\n{help_of(words)}\n```\n"]
    return "\n".join(parts)


def words_of(text: str) -> list[str]:
    """The words alone: where lines break differs between versions of Python."""
    return re.sub(r"[╭╮╰╯│─]", " ", text).split()


if __name__ == "__main__":
    if "--check" in sys.argv:
        same = PAGE.exists() and words_of(PAGE.read_text(encoding="utf-8")) == words_of(page())
        sys.exit(0 if same else "docs/cli.md is not what the commands say; python docs/make_cli.py")
    PAGE.write_text(page(), encoding="utf-8")
