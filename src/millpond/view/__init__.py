"""Curves, reports and the live page of runs."""

from ..curve import save_curve, terminal_curve

__all__ = ["save_curve", "terminal_curve"]
