"""Replay on disk: a folder of committed rows, sampled in place."""

from .lake import Lake, Stats, Stream
from .shuffle import Shuffle
from .writer import Writer

__all__ = ["Lake", "Shuffle", "Stats", "Stream", "Writer"]
