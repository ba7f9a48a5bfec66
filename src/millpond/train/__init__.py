"""Training: settings, runs, evaluation."""

from ..engine.settings import CrewSettings, Settings
from ..metrics import read_metrics
from .evaluate import Referee, Scores
from .presets import settings_for
from .run import Run, find_runs
from .session import train

__all__ = [
    "CrewSettings",
    "Referee",
    "Run",
    "Scores",
    "Settings",
    "find_runs",
    "read_metrics",
    "settings_for",
    "train",
]
