"""Runs of a user's own loop: metrics, status and replay checks, as millpond's own runs have."""

from .folder import LoggedRun, find_logged
from .logger import Logger, run
from .watched_pond import WatchedPond

__all__ = ["LoggedRun", "Logger", "WatchedPond", "find_logged", "run"]
