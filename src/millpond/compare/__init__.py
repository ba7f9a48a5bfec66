"""Comparisons: arms over seeds, with statistics that say how sure they are."""

from .arms import PRESETS, Arm, make_arms
from .study import Study

__all__ = ["PRESETS", "Arm", "Study", "make_arms"]
