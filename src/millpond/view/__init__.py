"""Seeing a run: curves in the terminal and as pictures."""

from ..curve import save_curve, terminal_curve

__all__ = ["save_curve", "terminal_curve"]
