"""`millpond COMMAND ...`: finds the command and runs it.

A command is one file next to this one: its name is the command's, the first line of its docstring
what `millpond --help` says, and its `main(args) -> int` runs it and returns the exit code. Files
that begin with an underscore are not commands.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import gc
import re
import signal
import sys
import traceback
from collections.abc import Generator, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from ..errors import BadConfig, MillpondError
from ..extras import require
from ._start import end_at_once

_HERE = Path(__file__)
_CORE = ("lake", "plan")  # commands that work without any extra
_SHOWN = ("report", "watch")  # those that need the page's packages too


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
        remedy = f"options go after {behind}: millpond {where} {name} ..."
        print(f"millpond: {remedy}; see millpond --help", file=sys.stderr)
        return 2
    if name not in commands:
        near = difflib.get_close_matches(name, commands, n=1)
        remedy = f"did you mean '{near[0]}'?" if near else "see millpond --help"
        print(f"millpond: there is no command '{name}'; {remedy}", file=sys.stderr)
        return 2
    try:
        if name not in _CORE:
            extra = "train,view" if name in _SHOWN else "train"
            require("this command", extra, "flax", "gymnasium", "optax", "rich")
        command = _imported(name.replace("-", "_"))
        with _usual_interrupts():
            return command.main(rest)
    except MillpondError as error:
        said = str(error).removeprefix(f"{name}: ")  # some errors name the command themselves
        said = with_option(said, rest) if isinstance(error, BadConfig) else said
        print(f"millpond {name}: {said}", file=sys.stderr)
        return 2 if isinstance(error, BadConfig) else 1
    except KeyboardInterrupt:  # commands that have something to save do so first
        print(f"millpond {name}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:  # of a user's env or agent, or a fault of ours
        from ..plugins import failure  # only here: what it imports takes longer than all of help

        traceback.print_exc()
        print(f"\nmillpond {name}: failed: {failure(error)}", file=sys.stderr)
        return 1


def _imported(command: str) -> ModuleType:
    """Without looking for garbage: imports leave none, and it takes a fifth of their time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return import_module(f"{__package__}.{command}")
    finally:
        if collecting:
            gc.enable()


def with_option(said: str, args: Sequence[str]) -> str:
    """An error about a setting, with the option that set it in front.

    `DQN: batch must be at least 1, got 0` after `--dqn.batch 0` begins with that option.
    """
    for number, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        value = value if equals else next(iter(args[number + 1 :]), "")
        field = option.rpartition(".")[2].lstrip("-").replace("-", "_")
        begin = re.match(rf"(?:\w+: )?(?={re.escape(field)}\b)", said)
        several = "." in option and " must " in said and re.search(rf"\b{re.escape(field)}\b", said)
        if arg.startswith("--") and option not in said and (begin or several):
            said = said[begin.end() :].removeprefix(f"{field}: ") if begin else said
            return f"{option} {value}: {said}"
    return said


@contextlib.contextmanager
def _usual_interrupts() -> Generator[None]:
    """Ctrl-C raises KeyboardInterrupt: a command that runs may have something to save."""
    before = signal.getsignal(signal.SIGINT)
    if before is not end_at_once:  # called from a program, whose signals are its own
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


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
            "Experience replay and off-policy training in JAX.",
            *lines,
            "",
            "millpond COMMAND --help explains a command's options; --version prints the version.",
        ]
    )


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("millpond")
    except PackageNotFoundError:
        return "not installed"
