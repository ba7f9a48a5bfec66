"""`ChunkDedup`: which chunks of rows were taken: none is taken twice or out of order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Judgement = Literal["new", "known", "gap", "replaced"]


class ChunkId(NamedTuple):
    """The `number`th chunk of an incarnation of an actor: 0, 1, 2, ..."""

    actor: int
    incarnation: int
    number: int


class ChunkDedup:
    """`ledger.judge(id, oldest) == "new"` once for every chunk: then store it and `took(id)`.

    An actor sends a chunk again when it does not know whether it arrived. `oldest` is the number
    of the oldest chunk that it still holds: a ledger that knows nothing of the actor, because its
    shard is new, begins there and nowhere later.
    """

    def __init__(self, known: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._next = dict(known or {})  # actor: incarnation, the next number

    def judge(self, chunk: ChunkId, oldest: int) -> Judgement:
        """`new`: take it. `known`: it was taken. `gap`: an older one must come first.

        `replaced`: a later incarnation of its actor has begun, so nothing more of it is taken.
        """
        incarnation, number = self._next.get(chunk.actor, (-1, 0))
        if chunk.incarnation < incarnation:
            return "replaced"
        if chunk.incarnation > incarnation:
            return "new" if chunk.number == oldest else "gap"
        if chunk.number < number:
            return "known"
        return "new" if chunk.number == number else "gap"

    def took(self, chunk: ChunkId) -> None:
        """A new chunk was stored."""
        self._next[chunk.actor] = (chunk.incarnation, chunk.number + 1)

    def incarnation(self, actor: int) -> int | None:
        """Of an actor's newest chunk; None if there is none."""
        found = self._next.get(actor)
        return None if found is None else found[0]
