"""What stands between actors, shards and learners on a cluster: three small interfaces.

Actors append to a `Sink`, learners take from a `Source`, and parameters go by `Weights`. Who is at
the other end may be lost and come back; then a call raises `Lost` and may be made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ..engine.chunk_dedup import Judgement
from ..engine.shard import Collected
from ..engine.shard_store import Chunk
from ..rows import Batch, Draw


class Lost(Exception):
    """The other end is gone for now, with all that was on its way to it."""


class Sink(Protocol):
    """Where one actor's rows go."""

    def append(self, chunk: Chunk) -> Any:
        """Begin to send a chunk; a ticket for `outcome`."""
        ...

    def outcome(self, ticket: Any, timeout: float) -> Judgement | None:
        """What became of a chunk once every learner has taken it; None if that is not yet so.

        Raises `Lost`: send it again.
        """
        ...


class Source(Protocol):
    """Where one learner's rows and batches come from: all shards together."""

    def collect(self, first: int, most: int, timeout: float) -> list[Collected] | None:
        """Of every shard at most so many cycles from `first` on; None if not all have any yet."""
        ...

    def took(self, first: int) -> None:
        """All rows before `first` have come; the next `collect` says so too."""
        ...

    def draw(self, counts: np.ndarray, turn: int) -> list[Batch]:
        """Of every shard its share, counts int64[updates, shards, policies]."""
        ...

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        """Priorities on their way back to their shards."""
        ...

    def cut(self, actor: int, cycle: int) -> None:
        """An actor goes on anew after `cycle`."""
        ...

    def export(self) -> list[list[dict[str, np.ndarray]]]:
        """Of every shard the whole store of each policy."""
        ...

    def restore(self, cycle: int, parts: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> None:
        """Every shard goes on from what it exported, at `cycle`."""
        ...


class Published(NamedTuple):
    """One learner's parameters."""

    version: int
    params: Any


class Weights(Protocol):
    """Parameters of all learners; an actor has one, and each learner one."""

    def publish(self, learner: int, version: int, params: Any) -> None:
        """Give parameters to the actors; raises `Lost`."""
        ...

    def pull(self, have: Sequence[int]) -> list[Published | None]:
        """Of every learner its parameters, if they are newer than those at hand; else None."""
        ...
