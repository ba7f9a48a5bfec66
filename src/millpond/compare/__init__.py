"""Comparisons: arms over seeds, with statistics that say how sure they are."""

from .arms import PRESETS, Arm, make_arms
from .grid import Grid
from .study import Study

__all__ = ["PRESETS", "Arm", "Grid", "Study", "make_arms"]
