"""millpond: experience replay in device memory, in host memory and on disk, and training with it.

Names are imported on first use, so `import millpond` itself is fast.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .errors import (
        BadConfig,
        BadState,
        BrokenEpisode,
        ChannelBroken,
        ChannelClosed,
        ChannelFull,
        Diverged,
        FaultsFound,
        LakeDamaged,
        LakeFailed,
        LakeFull,
        LakeLocked,
        LakeRefused,
        MillpondError,
        NotEnoughData,
        RowsGone,
        RunFailed,
        RunRefused,
        SpecMismatch,
        WeightsBroken,
    )
    from .lake import Lake, Writer
    from .logged import run
    from .replay import HostPond, PackedStep, Pond, PondState
    from .returns import lambda_returns
    from .rows import Batch, Draw, Flag, Rows, border_row, next_flags
    from .samplers import prioritized, recent, stratified, uniform
    from .sequence import Sequence, SequenceBatch, sequence_priority
    from .spec import Field, Spec
    from .window import History, Stacker, Window

    __version__: str

# Which module each name comes from; names not listed here come from `errors`.
_MODULES = {
    "lake": ("Lake", "Writer"),
    "logged": ("run",),
    "replay": ("HostPond", "PackedStep", "Pond", "PondState"),
    "returns": ("lambda_returns",),
    "rows": ("Batch", "Draw", "Flag", "Rows", "border_row", "next_flags"),
    "samplers": ("prioritized", "recent", "stratified", "uniform"),
    "sequence": ("Sequence", "SequenceBatch", "sequence_priority"),
    "spec": ("Field", "Spec"),
    "window": ("History", "Stacker", "Window"),
}
_HOME = {name: module for module, names in _MODULES.items() for name in names}


__all__ = [
    "BadConfig",
    "BadState",
    "Batch",
    "BrokenEpisode",
    "ChannelBroken",
    "ChannelClosed",
    "ChannelFull",
    "Diverged",
    "Draw",
    "FaultsFound",
    "Field",
    "Flag",
    "History",
    "HostPond",
    "Lake",
    "LakeDamaged",
    "LakeFailed",
    "LakeFull",
    "LakeLocked",
    "LakeRefused",
    "MillpondError",
    "NotEnoughData",
    "PackedStep",
    "Pond",
    "PondState",
    "Rows",
    "RowsGone",
    "RunFailed",
    "RunRefused",
    "Sequence",
    "SequenceBatch",
    "Spec",
    "SpecMismatch",
    "Stacker",
    "WeightsBroken",
    "Window",
    "Writer",
    "border_row",
    "lambda_returns",
    "next_flags",
    "prioritized",
    "recent",
    "run",
    "sequence_priority",
    "stratified",
    "uniform",
]


def __getattr__(name: str) -> Any:
    """Import a public name, or a submodule, when it is first accessed."""
    if name == "__version__":
        found: Any = _version()
    elif name in _HOME or name in __all__:
        found = getattr(import_module(f".{_HOME.get(name, 'errors')}", __name__), name)
    elif name in _MODULES or name == "errors":
        return import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module 'millpond' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("millpond")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"
