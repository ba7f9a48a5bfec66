"""millpond: experience replay that flows from device memory to disk, and can prove it."""

from .errors import (
    BadConfig,
    BadState,
    BrokenEpisode,
    FaultsFound,
    LakeDamaged,
    LakeFailed,
    LakeFull,
    LakeLocked,
    LakeRefused,
    MillpondError,
    NotEnoughData,
    RowsGone,
    SpecMismatch,
)
from .lake import Lake, Writer
from .replay import HostPond, Pond, PondState
from .rows import Batch, Draw, Flag, Rows, border_row, next_flags
from .samplers import prioritized, recent, stratified, uniform
from .spec import Field, Spec
from .window import History, Stacker, Window

__all__ = [
    "BadConfig",
    "BadState",
    "Batch",
    "BrokenEpisode",
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
    "Spec",
    "SpecMismatch",
    "Stacker",
    "Window",
    "Writer",
    "border_row",
    "next_flags",
    "prioritized",
    "recent",
    "stratified",
    "uniform",
]
