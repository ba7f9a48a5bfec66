"""`need`: import an optional package that millpond works with."""

from __future__ import annotations

from typing import Any

from ..extras import import_extra


def need(module: str, extra: str) -> Any:
    """Import a module; NotInstalled says what to install if it is missing.

    `torch = need("torch", "torch")`.
    """
    return import_extra("millpond.compat", extra, module)
