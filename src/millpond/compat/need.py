"""`need`: a package that millpond works with but does not bring."""

from __future__ import annotations

from typing import Any

from ..extras import import_extra


def need(module: str, extra: str) -> Any:
    """That module; NotInstalled, with what to install, where it is missing.

    `torch = need("torch", "torch")`.
    """
    return import_extra("millpond.compat", extra, module)
