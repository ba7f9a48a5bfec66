"""millpond: experience replay that flows from device memory to disk, and can prove it."""

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

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
from .replay import HostPond, Pond, PondState
from .returns import lambda_returns
from .rows import Batch, Draw, Flag, Rows, border_row, next_flags
from .samplers import prioritized, recent, stratified, uniform
from .sequence import Sequence, SequenceBatch, sequence_priority
from .spec import Field, Spec
from .window import History, Stacker, Window

if TYPE_CHECKING:
    from .logged import run

try:
    __version__ = version("millpond")
except PackageNotFoundError:  # used from a source tree that is not installed
    __version__ = "unknown"


def __getattr__(name: str) -> Any:
    """`run` is imported when it is used first: who only wants replay needs no pictures."""
    if name == "run":
        from .logged import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


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
