"""`Source`: data to import, as streams of rows in a fixed order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import xxhash

from ..errors import BadConfig, BadState
from ..extras import not_installed
from ..rows import Rows
from ..spec import Spec


class StreamInfo(NamedTuple):
    """One stream: its group, its place in the group, and its number of rows."""

    group: str
    env: int
    rows: int


class Source(Protocol):
    """Data to import. `rows(stream, start)` returns the same rows whenever it is called."""

    spec: Spec
    streams: list[StreamInfo]
    losses: list[str]  # descriptions of what a Lake cannot keep
    about: dict[str, Any]  # metadata of its format, for an export back to it

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        """Rows [time] of a stream from row `start` on, in pieces that fit into memory."""
        ...

    def lost(self) -> list[str]:
        """Further losses, counted while all rows were read."""
        ...


def stamp_of(path: Path) -> str:
    """A hash of the names, sizes and times of a source's files."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    seen = [
        (file.relative_to(path).as_posix(), stat.st_size, stat.st_mtime_ns)
        for file in files
        for stat in [file.stat()]
    ]
    return xxhash.xxh3_64_hexdigest(json.dumps(seen).encode())


def damaged(path: Path, error: object) -> BadState:
    """The error for a source that cannot be read."""
    return BadState(f"{path} cannot be read: {error}; get the file again, or remove it")


def no_source(path: Path, what: str) -> BadConfig:
    """The error for a path that holds no data of the format."""
    missing = "nothing exists there" if not path.exists() else "it is something else"
    return BadConfig(f"{path}: expected {what}, but {missing}; give the data's folder or file")


def package(name: str, extra: str) -> Any:
    """Import a module that the format needs; the error says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise missing_package(extra, error) from error


def missing_package(extra: str, error: ImportError) -> BadConfig:
    """The error for a package that the format needs and that is not installed."""
    return not_installed("this format", extra, error.name or str(error))
