"""`millpond COMMAND ...`: finds the command and runs it.

A command is one file beside this one: its name is the command's, the first line of its docstring
what `millpond --help` says, and its `main(args) -> int` runs it and returns the exit code. Files
that begin with an underscore are no commands.
"""

from __future__ import annotations

import ast
import difflib
import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..errors import BadConfig, MillpondError

_HERE = Path(__file__)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 2 for a wrong call, 1 for any other failure, 130
    for Ctrl-C.

    As usual in Python, a parser's `--help` and unknown options raise SystemExit with theirs.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    commands = find_commands()
    if not args:
        print(_help(commands), file=sys.stderr)
        return 2
    name, *rest = args
    if name in ("-h", "--help", "help"):
        print(_help(commands))
        return 0
    if name == "--version":
        print(f"millpond {_version()}")
        return 0
    if name.startswith("-"):
        command = next((arg for arg in rest if arg in commands), "COMMAND")
        where = f"{command} ENV" if command in ("train", "mix") else command
        behind = "the env" if where.endswith("ENV") else "the command"
        told = f"options go behind {behind}: millpond {where} {name} ..."
        print(f"millpond: {told}; see millpond --help", file=sys.stderr)
        return 2
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else "see millpond --help"
        print(f"millpond: there is no command '{name}'; {remedy}", file=sys.stderr)
        return 2
    try:
        return import_module(f"{__package__}.{name.replace('-', '_')}").main(rest)
    except MillpondError as error:
        said = str(error).removeprefix(f"{name}: ")  # some errors name the command themselves
        print(f"millpond {name}: {said}", file=sys.stderr)
        return 2 if isinstance(error, BadConfig) else 1
    except KeyboardInterrupt:  # commands that have something to save do so first
        print(f"millpond {name}: stopped", file=sys.stderr)
        return 130


def find_commands() -> dict[str, str]:
    """Every command and what it does. None of them is imported: help stays fast."""
    commands: dict[str, str] = {}
    for path in sorted(_HERE.parent.glob("*.py")):
        if path != _HERE and not path.stem.startswith("_"):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            commands[path.stem.replace("_", "-")] = text.partition("\n")[0].rpartition("`: ")[2]
    return commands


# What belongs together in the help; a command that no group names comes last.
_GROUPS = {
    "train": ("train", "mix", "resume", "compare", "presets"),
    "see": ("watch", "report", "runs", "eval", "doctor"),
    "store": ("plan", "lake"),
}


def _help(commands: dict[str, str]) -> str:
    width = max(len(name) for name in commands)
    grouped = {name for names in _GROUPS.values() for name in names}
    groups = {**_GROUPS, "more": tuple(name for name in commands if name not in grouped)}
    lines: list[str] = []
    for title, names in groups.items():
        there = [name for name in names if name in commands]
        if there:
            lines += ["", f"{title}:"]
            lines += [f"  {name:{width}}  {commands[name]}" for name in there]
    return "\n".join(
        [
            "usage: millpond COMMAND [options]",
            "",
            "Experience replay that flows from device memory to disk, and can prove it.",
            *lines,
            "",
            "millpond COMMAND --help explains a command's options; --version prints the version.",
        ]
    )


def _version() -> str:
    try:
        return version("millpond")
    except PackageNotFoundError:
        return "not installed"
