"""Finds parts by name: built in, registered by a package, or any class as `package.module:Name`.

Agents, envs and samplers are all found this way, so a user's own takes one file outside this
package. Packages register names as entry points (`millpond.agents`, `millpond.envs`,
`millpond.samplers`).
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import (
    EntryPoint,
    PackageNotFoundError,
    entry_points,
    packages_distributions,
    version,
)
from typing import Any

from .config import nearest
from .errors import BadConfig, MillpondError


def find_part(kind: str, name: str, ours: Mapping[str, Any]) -> Any:
    """The agent, env or sampler of that name; `kind` is "agent", "env" or "sampler".

    `find_part("agent", "my_package.agents:Mine", {"dqn": DQN})`.
    """
    if name in ours:
        return ours[name]
    if found := _registered(kind).get(name):
        return _loaded(kind, name, found)
    module, colon, attribute = name.partition(":")
    words = [*module.split("."), *attribute.split(".")]
    if not colon or not all(word.isidentifier() for word in words):
        raise BadConfig(
            f"there is no {kind} '{name}'; {nearest(name, part_names(kind, ours))} "
            "(your own: package.module:Name)"
        )
    return _imported(kind, name, module, attribute)


def make_part(kind: str, name: str, ours: Mapping[str, Any]) -> Any:
    """An instance of the env or sampler of that name, with its default settings."""
    found = find_part(kind, name, ours)
    if not callable(found):
        raise BadConfig(f"{kind} '{name}': expected a class, got {found!r}")
    try:
        return found()
    except TypeError as error:
        raise BadConfig(
            f"{kind} '{name}': could not be made without arguments: {error}; give each of its "
            "settings a default"
        ) from error
    except MillpondError:
        raise
    except Exception as error:
        raise BadConfig(f"{kind} '{name}': could not be made: {failure(error)}") from error


def part_names(kind: str, ours: Iterable[str]) -> list[str]:
    """Every known name: ours, then those registered by other packages."""
    return [*ours, *(name for name in sorted(_registered(kind)) if name not in set(ours))]


def add_cwd_to_path() -> None:
    """Put the current folder on the import path, as `python` does and a console script does not."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)


def failure(error: Exception) -> str:
    """An error raised by the user's code, and where: `ValueError: no level 7, in my_env.py:12`."""
    place = user_line("".join(traceback.format_exception(error)))
    return f"{type(error).__name__}: {error}" + (f", in {place}" if place else "")


def user_line(text: str) -> str:
    """The last place in a traceback in the user's own code, `my_env.py:12`; "" if there is none."""
    found = re.findall(r'File "([^"<]+)", line (\d+)', text)
    ours = os.path.dirname(__file__) + os.sep
    own = [one for one in found if "/lib/python3" not in one[0] and not one[0].startswith(ours)]
    file, line = (own or found or [("", "")])[-1]
    return f"{os.path.basename(file)}:{line}" if file else ""


def origin(part: Any) -> dict[str, str]:
    """Where a part comes from, saved with a run: its class and the version of its package."""
    kind: Any = part if isinstance(part, type) else type(part)
    where = {"class": f"{kind.__module__}:{kind.__qualname__}"}
    return where | {"version": _version(kind.__module__.partition(".")[0])}


def short_name(name: str) -> str:
    """The prefix of a part's settings: `mine`, as in `--mine.gamma`, for `package.module:Mine`."""
    return name.rpartition(":")[2].lower()


@functools.cache
def _registered(kind: str) -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"millpond.{kind}s")}


def _loaded(kind: str, name: str, point: EntryPoint) -> Any:
    try:
        return point.load()
    except (ImportError, AttributeError) as error:
        raise BadConfig(
            f"{kind} '{name}' is registered as {point.value} by the package "
            f"{point.dist.name if point.dist else '(unknown)'}, which cannot be imported: "
            f"{error}; reinstall that package"
        ) from error


def _imported(kind: str, name: str, module: str, attribute: str) -> Any:
    add_cwd_to_path()
    try:
        found: Any = importlib.import_module(module)
    except ImportError as error:
        lacking = isinstance(error, ModuleNotFoundError) and module.startswith(error.name or module)
        why = "" if lacking else f": {error}"
        raise BadConfig(
            f"{kind} '{name}': the module {module} cannot be imported{why}; install its package, "
            "set PYTHONPATH, or run from the folder that contains it"
        ) from error
    except Exception as error:
        raise BadConfig(
            f"{kind} '{name}': importing the module {module} failed: {failure(error)}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [n for n in dir(found) if not n.startswith("_")]
            raise BadConfig(f"{kind} '{name}': {module} has no {attribute}; {nearest(part, known)}")
        found = getattr(found, part)
    return found


@functools.cache
def _version(module: str) -> str:
    """The version of the installed package that a top-level module belongs to; "" if none does."""
    with contextlib.suppress(PackageNotFoundError):
        return version(module)  # most packages have the name of their module
    for name in packages_distributions().get(module, ()):  # slow: reads every package's file list
        return version(name)
    return ""
