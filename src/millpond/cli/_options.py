"""Options that commands share: whole numbers, settings, a folder for the run."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar, get_type_hints

import tyro

S = TypeVar("S")


class Parser(argparse.ArgumentParser):
    """One command's options: its docstring is its help, and every error says where help is."""

    def __init__(self, prog: str, about: str | None, **options: Any) -> None:
        plain = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=prog, description=about, formatter_class=plain, **options)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where to read on; exit code 2."""
        self.print_usage(sys.stderr)
        self.exit(2, f"{self.prog}: {message}; {self.prog} --help tells more\n")


def in_digits(text: str) -> str:
    """`20k`, `1.5M` and `2e5` in digits; anything else as it is."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)(k|M|e\d+)", text)
    if not found:
        return text
    value = float(found[1] + {"k": "e3", "M": "e6"}.get(found[2], found[2]))
    return str(int(value)) if value.is_integer() else text


def whole(text: str) -> int:
    """A whole number of at least 1, also as 2e6, for argparse."""
    digits = in_digits(text)
    if not digits.isdecimal() or int(digits) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text}")
    return int(digits)


def parse_settings(base: S, args: Sequence[str], prog: str, hidden: Sequence[str] = ()) -> S:
    """Settings with the options of the command line; wrong ones end the program.

    Env, agent and sampler type their own settings: --world.size belongs to a grid world only.
    """
    kind: Any = type(base)
    names: dict[str, str] = getattr(base, "names")  # noqa: B009  of both kinds of settings
    values = {f.name: getattr(base, f.name) for f in dataclasses.fields(kind)}
    comments, types = _comments(kind), get_type_hints(kind)
    fields: list[Any] = []
    for name, value in values.items():
        if name in ("env", *hidden):
            fields.append((name, tyro.conf.Suppress[type(value)]))
        elif types[name] is Any:
            shown = tyro.conf.arg(name=names.get(name, name))
            fields.append((name, Annotated[type(value), shown]))
        elif name in comments:
            fields.append((name, Annotated[types[name], tyro.conf.arg(help=comments[name])]))
    typed: Any = dataclasses.make_dataclass(kind.__name__, fields, bases=(kind,), frozen=True)
    plain = [in_digits(arg) for arg in args]
    chosen = tyro.cli(typed, prog=prog, args=plain, default=typed(**values))
    return kind(**{name: getattr(chosen, name) for name in values})


def _comments(kind: type) -> dict[str, str]:
    """What the source says behind each field; tyro finds it in written classes only."""
    return dict(re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", inspect.getsource(kind), re.M))


def given(option: str, args: Sequence[str]) -> str | None:
    """The value of an option on which the others depend, such as --agent; None if not given."""
    for number, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        if name == option:
            return value if equals else next(iter(args[number + 1 :]), None)
    return None


def free_folder(env: str, kind: str, seed: int) -> Path:
    """runs/ENV-KIND-SEED, with a number behind it if that is taken."""
    name = f"{env.replace('/', '-').replace(':', '-')}-{kind}-{seed}"
    path, number = Path("runs") / name, 2
    while path.exists():
        path, number = Path("runs") / f"{name}-{number}", number + 1
    return path
