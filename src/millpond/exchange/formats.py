"""The formats by name; each is a module of its own, imported on demand."""

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
    """Open data to import; BadConfig if there is none or a package is missing."""
    return _module(form, IMPORTS, "import").open_source(path)


def writer_of(form: str) -> Any:
    """The module that writes a format: `plan(rows)` returns an `ExportPlan`."""
    return _module(form, EXPORTS, "export")


def _module(form: str, known: tuple[str, ...], doing: str) -> Any:
    if form not in known:
        raise BadConfig(f"{doing}: there is no format '{form}'; {nearest(form, known)}")
    return import_module(f".{form}", __package__)
