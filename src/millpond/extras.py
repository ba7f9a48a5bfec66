"""Optional dependencies, and the one message that says which extra installs them."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import sys
from typing import Any

from .errors import NotInstalled


def require(what: str, extra: str, *modules: str, otherwise: str = "") -> None:
    """Raise NotInstalled unless every module can be found; none is imported.

    `require("training", "train", "flax", "optax")`.
    """
    missing = [name for name in modules if not _is_there(name)]
    if missing:
        raise not_installed(what, extra, *missing, otherwise=otherwise)


def import_extra(what: str, extra: str, module: str, otherwise: str = "") -> Any:
    """Import a module that an extra installs: `import_extra("mode ray", "ray", "ray")`.

    Whatever it prints on import goes to stderr, because stdout may be JSON for another program.
    """
    try:
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        if _is_there(package) and error.name not in (None, module, package):
            raise NotInstalled(  # it is installed, but one of its dependencies is not
                f"{what} needs {package}, which cannot be imported ({error}); "
                f"run: pip install 'millpond[{extra}]'"
            ) from error
        raise not_installed(what, extra, package, otherwise=otherwise) from error


def not_installed(what: str, extra: str, *packages: str, otherwise: str = "") -> NotInstalled:
    """`training needs flax, which is not installed; run: pip install 'millpond[train]'`"""
    names = " and ".join([", ".join(packages[:-1])] * (len(packages) > 1) + [packages[-1]])
    verb = "is" if len(packages) == 1 else "are"
    remedy = f"; or {otherwise}" if otherwise else ""
    return NotInstalled(
        f"{what} needs {names}, which {verb} not installed; "
        f"run: pip install 'millpond[{extra}]'{remedy}"
    )


def _is_there(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # its import is blocked, or it is None in sys.modules
        return False
