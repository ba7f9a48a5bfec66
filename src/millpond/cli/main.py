"""`millpond COMMAND ...`: finds the command and runs it.

Every file next to this one is a command of that name, unless it begins with an underscore. The
first line of its docstring appears in `millpond --help`; its `main(args) -> int` runs the command
and returns the exit code.
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
_SHOWN = ("report", "watch")  # commands that also need the page's packages


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code: 2 for wrong usage, 1 for other failures, 130 for
    Ctrl-C.

    `--help` and unknown options raise SystemExit, as argparse does.
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
        said = str(error).removeprefix(f"{name}: ")  # some messages begin with the command
        said = with_option(said, rest) if isinstance(error, BadConfig) else said
        print(f"millpond {name}: {said}", file=sys.stderr)
        return 2 if isinstance(error, BadConfig) else 1
    except KeyboardInterrupt:  # a command with something to save has done so
        print(f"millpond {name}: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        raise
    except Exception as error:  # raised by a user's env or agent, or a bug of ours
        from ..plugins import failure  # only here: its imports take longer than all of --help

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
    """Put the option in front of an error about the setting that it set.

    After `--dqn.batch 0`, `DQN: batch must be at least 1, got 0` begins with `--dqn.batch 0`.
    """
    for number, arg in enumerate(args):
        option, equals, value = arg.partition("=")
        value = value if equals else next(iter(args[number + 1 :]), "")
        field = option.rpartition(".")[2].lstrip("-").replace("-", "_")
        begin = re.match(rf"(?:\w+: )?(?={re.escape(field)}\b)", said)
        several = "." in option and " must " in said and re.search(rf"\b{re.escape(field)}\b", said)
        if arg.startswith("--") and option not in said and (begin or several):
            said = said[begin.end() :] if begin else said
            for own in (f"{field}: ", f"{field} {value}: "):
                said = said.removeprefix(own)
            return f"{option} {value}: {said}"
    return said


@contextlib.contextmanager
def _usual_interrupts() -> Generator[None]:
    """Let Ctrl-C raise KeyboardInterrupt, so that a running command can save its state."""
    before = signal.getsignal(signal.SIGINT)
    if before is not end_at_once:  # called from a program, which handles its own signals
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def find_commands() -> dict[str, str]:
    """Every command and its one-line description, without importing any, to keep help fast."""
    commands: dict[str, str] = {}
    for path in sorted(_HERE.parent.glob("*.py")):
        if path != _HERE and not path.stem.startswith("_"):
            text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            commands[path.stem.replace("_", "-")] = text.partition("\n")[0].rpartition("`: ")[2]
    return commands


# Groups of commands in the help; commands without a group come last.
_GROUPS = {
    "train": ("train", "mix", "resume", "compare", "presets"),
    "inspect": ("watch", "report", "runs", "eval", "doctor"),
    "data": ("plan", "lake"),
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
