"""Replay on disk: a folder of committed rows, sampled in place."""

from .lake import Lake, Stats, Stream
from .writer import Writer

__all__ = ["Lake", "Stats", "Stream", "Writer"]
