"""Comparisons: arms over seeds, with confidence intervals."""

from .arms import PRESETS, Arm, make_arms
from .grid import Grid
from .study import Study

__all__ = ["PRESETS", "Arm", "Grid", "Study", "make_arms"]
