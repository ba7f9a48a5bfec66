"""Moves rows between a Pond and a Lake during training: `drain` (to the Lake), `fill` (from it)."""

from .drain import Drain, drain
from .fill import Fill, fill
from .row_runs import Choice

__all__ = ["Choice", "Drain", "Fill", "drain", "fill"]
