"""The argument parser of all commands, and values that several commands take."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

_WIDEST = 100


class Parser(argparse.ArgumentParser):
    """The parser of one command. The docstring of the command's file is its help text."""

    def __init__(self, prog: str, about: str | None, **options: Any) -> None:
        title, _, rest = (about or "").partition("\n")
        rest = re.sub(r"^(?=millpond )", "    ", rest, flags=re.M)  # indent all examples
        title = title.rpartition("`: ")[2]
        about = f"{title[:1].upper()}{title[1:]}.\n{rest}".strip() if title else None
        super().__init__(prog=prog, description=about, formatter_class=_Plain, **options)

    def error(self, message: str) -> NoReturn:
        """Print usage, the error and where to find help; exit with code 2."""
        self.print_usage(sys.stderr)
        if found := re.match(r"unrecognized arguments: (--[\w-]+)", message):
            near = difflib.get_close_matches(found[1], self._option_string_actions, n=1)
            message = f"there is no option {found[1]}"
            message += f"; did you mean {near[0]}?" if near else ""
        message = re.sub(r"^argument (?:-\w/)?(-[^:]+): ", r"\1: ", message)
        message = re.sub(r"invalid int value: (.*)", r"expected a whole number, got \1", message)
        message = re.sub(r"invalid float value: (.*)", r"expected a number, got \1", message)
        message = message.replace("the following arguments are required:", "missing")
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


class _Plain(argparse.RawDescriptionHelpFormatter):
    """Keeps the text's own line breaks and limits the width."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=26, width=width())


def width() -> int:
    """The width of the terminal in columns, but at most 100."""
    return min(_WIDEST, shutil.get_terminal_size().columns)


def in_digits(text: str) -> str:
    """`20k`, `1.5M` and `2e5` in digits; other texts unchanged."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|e\d+)", text)
    if not found:
        return text
    value = float(found[1] + {"k": "e3", "M": "e6"}.get(found[2], found[2]))
    return str(int(value)) if value.is_integer() else text


def whole(text: str) -> int:
    """An argparse type: a whole number of at least 1, also written as 2e6."""
    digits = in_digits(text)
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(digits)


def given(option: str, args: Sequence[str]) -> str | None:
    """The value of one option, such as --agent, before the others are parsed; None if absent."""
    for number, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == option:
            return value if equals else next(iter(args[number + 1 :]), None)
    return None


def free_folder(env: str, kind: str, seed: int) -> Path:
    """runs/ENV-KIND-SEED, with a number appended if that exists."""
    name = f"{env.replace('/', '-').replace(':', '-')}-{kind}-{seed}"
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
