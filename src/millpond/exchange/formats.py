"""The formats by name: one file each, imported when it is asked for."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from ..config import nearest
from ..errors import BadConfig
from .source import Source

IMPORTS = ("parquet", "minari", "rlds", "lerobot", "vault")
EXPORTS = ("parquet", "minari", "rlds", "lerobot")


def open_source(form: str, path: Path) -> Source:
    """The data at a path, to read; BadConfig if there is none or its package is missing."""
    return _module(form, IMPORTS, "import").open_source(path)


def writer_of(form: str) -> Any:
    """The module that writes a format: `plan(lake)`, then `write(...)`."""
    return _module(form, EXPORTS, "export")


def _module(form: str, known: tuple[str, ...], doing: str) -> Any:
    if form not in known:
        raise BadConfig(f"{doing}: there is no format '{form}'; {nearest(form, known)}")
    return import_module(f".{form}", __package__)
