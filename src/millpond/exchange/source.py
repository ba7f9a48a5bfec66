"""`Source`: rows from elsewhere, stream by stream, in an order that never changes."""

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
    """One stream: the group that it belongs to, its place in it, and its rows."""

    group: str
    env: int
    rows: int


class Source(Protocol):
    """What is imported. `rows(stream, start)` gives the same rows whenever it is asked."""

    spec: Spec
    streams: list[StreamInfo]
    losses: list[str]  # what a Lake cannot keep of it, in words
    about: dict[str, Any]  # of its format, so that an export can give it back

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        """Rows [time] of a stream from row `start` on, in pieces that fit memory."""
        ...

    def lost(self) -> list[str]:
        """What was lost, counted, once all rows were read."""
        ...


def stamp_of(path: Path) -> str:
    """A hash that changes with the files of a source: their names, sizes and times."""
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    seen = [
        (file.relative_to(path).as_posix(), stat.st_size, stat.st_mtime_ns)
        for file in files
        for stat in [file.stat()]
    ]
    return xxhash.xxh3_64_hexdigest(json.dumps(seen).encode())


def damaged(path: Path, error: object) -> BadState:
    """A source that cannot be read as what it should be."""
    return BadState(f"{path} cannot be read: {error}; get the file again, or leave it out")


def no_source(path: Path, what: str) -> BadConfig:
    """There is no such source."""
    missing = "there is nothing at this path" if not path.exists() else "it is something else"
    return BadConfig(f"{path}: expected {what}, {missing}; name the folder or file of the data")


def package(name: str, extra: str) -> Any:
    """A module that the format needs; BadConfig says how to install it."""
    try:
        return import_module(name)
    except ImportError as error:
        raise missing_package(extra, error) from error


def missing_package(extra: str, error: ImportError) -> BadConfig:
    """What the format needs is not installed."""
    return not_installed("this format", extra, error.name or str(error))
