"""Training: settings, runs, loops, evaluation."""

from .evaluate import Referee, Scores
from .run import Run, find_runs
from .session import train
from .settings import Settings

__all__ = ["Referee", "Run", "Scores", "Settings", "find_runs", "train"]
