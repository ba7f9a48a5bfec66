"""`ChunkDedup`: which chunks of rows were stored, so that none is stored twice or out of order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

Judgement = Literal["new", "known", "gap", "replaced"]


class ChunkId(NamedTuple):
    """Chunk `number` (0, 1, 2, ...) of an incarnation of an actor."""

    actor: int
    incarnation: int
    number: int


class ChunkDedup:
    """If `ledger.judge(id, oldest) == "new"`, store the chunk and call `ledger.took(id)`.

    An actor sends a chunk again if it does not know whether it arrived. `oldest` is the number of
    the oldest chunk that it still holds; the ledger of a new shard begins there and not later.
    """

    def __init__(self, known: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._next = dict(known or {})  # actor: (incarnation, number of the next chunk)

    def judge(self, chunk: ChunkId, oldest: int) -> Judgement:
        """`new`: store it. `known`: it was stored. `gap`: an older one must come first.

        `replaced`: a later incarnation of its actor has begun, so it is refused.
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
