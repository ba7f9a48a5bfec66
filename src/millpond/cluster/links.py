"""What stands between actors, shards and learners on a cluster.

Actors append to a `RaySink`, learners take from a `RaySource`, and parameters go by `RayWeights`.
Who is at the other end may be lost and come back; then a call raises `Lost` and may be made again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..engine.chunk_dedup import Judgement
from ..engine.shard import Collected
from ..engine.shard_store import Chunk
from ..engine.team import CALL_S
from ..engine.trace import digest
from ..errors import WeightsBroken
from ..rows import Draw
from ..sequence import Sample
from .ray import Lost, import_ray, result_of

_WAIT_S = 0.5  # how long a shard lets a learner wait before it answers that there is nothing


class RaySink:
    """Where one actor's rows go: chunks to one shard."""

    def __init__(self, shard: Any) -> None:
        self._ray, self._shard = import_ray(), shard

    def append(self, chunk: Chunk) -> Any:
        """Begin to send a chunk; a ticket for `outcome`."""
        return self._shard.deliver.remote(chunk)

    def outcome(self, ticket: Any, timeout: float) -> Judgement | None:
        """What became of a chunk once every learner has taken it; None if that is not yet so.

        Raises `Lost`: send it again.
        """
        done, _ = self._ray.wait([ticket], timeout=timeout)
        return result_of(self._ray, ticket, CALL_S) if done else None


class RaySource:
    """Where one learner's rows and batches come from: all shards, asked at the same time."""

    def __init__(self, learner: int, policies: range, shards: Sequence[Any]) -> None:
        self._ray, self._shards = import_ray(), shards
        self._learner, self._policies = learner, policies
        self._loose: list[tuple[int, Any]] = []

    def collect(self, first: int, most: int, timeout: float) -> list[Collected] | None:
        """Of every shard at most `most` cycles from `first` on; None if not all have any yet."""
        self._settle()
        wait_s = min(timeout, _WAIT_S)
        asked = [shard.fetch.remote(self._learner, first, most, wait_s) for shard in self._shards]
        found: list[Collected] = self._results(asked)
        return found if all(one.cycles for one in found) else None

    def took(self, first: int) -> None:
        """All rows before `first` have come; the next `collect` says so too."""
        for place, shard in enumerate(self._shards):
            self._loose.append((place, shard.took.remote(self._learner, first)))

    def draw(self, counts: np.ndarray, turn: int) -> list[Sample]:
        """Of every shard its share, counts int64[updates, shards, policies]."""
        asked = [
            shard.draw.remote(self._policies, counts[:, place], turn)
            for place, shard in enumerate(self._shards)
        ]
        return self._results(asked)

    def rank(self, draw: Draw, errors: np.ndarray) -> None:
        """Priorities on their way back to their shards."""
        self._settle()
        for place, shard in enumerate(self._shards):
            self._loose.append((place, shard.rank.remote(self._policies, draw, errors)))

    def _settle(self) -> None:
        """Check calls that no one waited for: at most one round is in flight."""
        before, self._loose = self._loose, []
        for place, one in before:
            self._result(place, one)

    def cut(self, actor: int, cycle: int) -> None:
        """An actor's envs begin again after `cycle`."""
        place = actor % len(self._shards)
        self._result(place, self._shards[place].cut.remote(actor, cycle))

    def export(self) -> list[list[dict[str, np.ndarray]]]:
        """Of every shard the whole store of each policy."""
        return self._results([shard.export.remote(self._policies) for shard in self._shards])

    def restore(self, cycle: int, parts: Sequence[Sequence[Mapping[str, np.ndarray]]]) -> None:
        """Every shard continues from what it exported, at `cycle`."""
        pairs = zip(self._shards, parts, strict=True)
        self._results([s.go_on.remote(self._policies, cycle, list(part)) for s, part in pairs])

    def _results(self, asked: Sequence[Any]) -> list[Any]:
        """Of every shard its answer."""
        return [self._result(place, one) for place, one in enumerate(asked)]

    def _result(self, place: int, asked: Any) -> Any:
        try:
            return result_of(self._ray, asked, CALL_S)
        except Lost as lost:
            raise Lost(f"shard {place}: {lost}") from lost


class Published(NamedTuple):
    """One learner's parameters."""

    version: int
    params: Any


class RayWeights:
    """Parameters of all learners: whole, versioned, hashed."""

    def __init__(self, host: Any) -> None:
        self._ray, self._host = import_ray(), host

    def publish(self, learner: int, version: int, params: Any) -> None:
        """Give parameters to the actors; raises `Lost`."""
        result_of(self._ray, self._host.publish.remote(learner, version, params), CALL_S)

    def pull(self, have: Sequence[int]) -> list[Published | None]:
        """Of every learner its parameters, if they are newer than those at hand; else None."""
        found: list[Published | None] = []
        for one in result_of(self._ray, self._host.pull.remote(list(have)), CALL_S):
            if one is None:
                found.append(None)
                continue
            version, (reference,), wanted = one
            params = result_of(self._ray, reference, CALL_S)
            if digest(params) != wanted:
                raise WeightsBroken(
                    f"weights: version {version} is not what was published; look for faulty "
                    "memory or network between the machines"
                )
            found.append(Published(version, params))
        return found
