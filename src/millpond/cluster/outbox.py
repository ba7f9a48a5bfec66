"""`Outbox`: an actor's newest chunks, held until every learner has taken them.

A shard may die with what it was given. Then all that is held here is sent again, oldest first; the
chunks' ids make sure that nothing is stored twice.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from ..engine.shard_store import Chunk
from ..errors import ChannelClosed
from .links import RaySink
from .ray import Lost

_AGAIN_S = 0.2  # a shard that was lost is asked again after so long


class Outbox:
    """`outbox.put(chunk)` while not `full`; `tend` now and then. At most `most` are on their way.

    A shard that stays away for `patience` seconds raises ChannelClosed.
    """

    def __init__(self, sink: RaySink, most: int, patience: float) -> None:
        self._sink, self._most, self._patience = sink, most, patience
        self._held: deque[tuple[Chunk, Any]] = deque()
        self._lost_since: float | None = None
        self._lost_at = 0.0

    @property
    def full(self) -> bool:
        """Whether the next chunk must wait."""
        return len(self._held) >= self._most

    @property
    def empty(self) -> bool:
        """Whether all that was put in has been taken."""
        return not self._held

    def oldest(self, number: int) -> int:
        """The oldest chunk that is held, if `number` is the next one."""
        return self._held[0][0].id.number if self._held else number

    def put(self, chunk: Chunk) -> None:
        """Send a chunk, and hold it."""
        self._held.append((chunk, self._sink.append(chunk)))

    def tend(self, timeout: float) -> None:
        """Release what was taken, waiting for the oldest at most `timeout` seconds."""
        while self._held:
            chunk, ticket = self._held[0]
            try:
                found = self._sink.outcome(ticket, timeout)
            except Lost:
                self._wait_for_shard(timeout)
                return
            if found is None:
                return
            if found == "replaced":
                raise ChannelClosed(
                    f"actor {chunk.id.actor}: incarnation {chunk.id.incarnation} was replaced "
                    "while it lived; its rows are no longer taken"
                )
            self._lost_since = None
            if found == "gap":
                self._send_again()
                return
            self._held.popleft()
            timeout = 0.0

    def _wait_for_shard(self, timeout: float) -> None:
        now = time.monotonic()
        if self._lost_since is None:
            self._lost_since = now
        if now - self._lost_since > self._patience:
            raise ChannelClosed(
                f"actor {self._held[0][0].id.actor}: its shard has been away for "
                f"{self._patience:g} s; look at the cluster's nodes, or raise --crew.start-s"
            )
        if now - self._lost_at < _AGAIN_S:
            time.sleep(min(timeout, _AGAIN_S))
        self._lost_at = time.monotonic()
        self._send_again()

    def _send_again(self) -> None:
        oldest = self._held[0][0].id.number
        again = [chunk._replace(oldest=oldest) for chunk, _ in self._held]
        self._held = deque((chunk, self._sink.append(chunk)) for chunk in again)
