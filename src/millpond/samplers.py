"""Samplers decide which starts are drawn. They are values: `Pond(..., sampler=uniform())`."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import BadConfig


@dataclass(frozen=True)
class Uniform:
    """Every valid start is equally likely.

    Inside jit `tries` candidates are drawn per sample and the first valid one is taken, which is
    exactly uniform over valid starts; where none is valid, the batch's mask is false. The host
    redraws until every draw is valid.
    """

    tries: int = 4

    def __post_init__(self) -> None:
        if self.tries < 1:
            raise BadConfig(f"uniform: tries must be at least 1, got {self.tries}")


Sampler = Uniform


def uniform(tries: int = 4) -> Uniform:
    """Every valid start is equally likely: `Pond(spec, 1000, sampler=uniform())`."""
    return Uniform(tries)
