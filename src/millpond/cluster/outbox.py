"""`Outbox`: an actor's newest chunks, held until every learner has taken them.

A shard may die with what it was given. Then all chunks held here are sent again, oldest first; the
ids of the chunks make sure that nothing is stored twice.
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from ..engine.chunk_dedup import Judgement
from ..engine.shard_store import Chunk
from ..engine.team import CALL_S
from ..errors import ChannelClosed
from .ray import AGAIN_S, Lost, import_ray, result_of


class RaySink:
    """The shard that one actor's chunks go to."""

    def __init__(self, shard: Any) -> None:
        self._ray, self._shard = import_ray(), shard

    def append(self, chunk: Chunk) -> Any:
        """Start to send a chunk; returns a ticket for `outcome`."""
        return self._shard.deliver.remote(chunk)

    def outcome(self, ticket: Any, timeout: float) -> Judgement | None:
        """The shard's judgement once every learner has taken the chunk; None until then.

        Raises `Lost` if the shard is gone: send the chunk again.
        """
        done, _ = self._ray.wait([ticket], timeout=timeout)
        return result_of(self._ray, ticket, CALL_S) if done else None


class Outbox:
    """`outbox.put(chunk)` while not `full`; `tend` now and then. Holds at most `most` chunks.

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
                    "although it was alive; its rows are no longer taken"
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
        if now - self._lost_at < AGAIN_S:
            time.sleep(min(timeout, AGAIN_S))
        self._lost_at = time.monotonic()
        self._send_again()

    def _send_again(self) -> None:
        oldest = self._held[0][0].id.number
        again = [chunk._replace(oldest=oldest) for chunk, _ in self._held]
        self._held = deque((chunk, self._sink.append(chunk)) for chunk in again)
