"""Training: settings, runs, loops, evaluation."""

from ..engine.settings import Settings
from .evaluate import Referee, Scores
from .run import Run, find_runs
from .session import train

__all__ = ["Referee", "Run", "Scores", "Settings", "find_runs", "train"]
