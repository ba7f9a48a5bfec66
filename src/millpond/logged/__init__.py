"""Log runs of a user's own training loop: metrics, status and replay checks."""

from .folder import LoggedRun, find_logged
from .logger import Logger, run
from .watched_pond import WatchedPond

__all__ = ["LoggedRun", "Logger", "WatchedPond", "find_logged", "run"]
