"""millpond: experience replay that flows from device memory to disk, and can prove it."""

from .errors import (
    BadConfig,
    BadState,
    BrokenEpisode,
    FaultsFound,
    MillpondError,
    NotEnoughData,
    SpecMismatch,
)
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
    "MillpondError",
    "NotEnoughData",
    "Pond",
    "PondState",
    "Rows",
    "Spec",
    "SpecMismatch",
    "Stacker",
    "Window",
    "border_row",
    "next_flags",
    "prioritized",
    "recent",
    "stratified",
    "uniform",
]
