"""`need`: a package that millpond works with but does not bring."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import BadConfig


def need(module: str, extra: str) -> Any:
    """That module; BadConfig, with what to install, where it is missing.

    `torch = need("torch", "torch")`.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise BadConfig(
            f"millpond.compat needs {module}, which is not installed ({error}); "
            f"run: pip install 'millpond[{extra}]'"
        ) from error
