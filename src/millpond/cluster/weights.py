"""A run's parameters on a cluster: `WeightsHost` keeps the newest, `RayWeights` sends and fetches.

The other end may be lost and come back; a call then raises `Lost` and may be repeated.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..engine.team import CALL_S
from ..engine.trace import digest
from ..errors import WeightsBroken
from .ray import import_ray, result_of


class WeightsHost:
    """Keeps each learner's newest parameters. Actors on one machine share one copy of them."""

    def __init__(self, learners: int) -> None:
        self._ray = import_ray()
        self._newest: list[tuple[int, Any, int] | None] = [None] * learners

    async def publish(self, learner: int, version: int, params: Any) -> None:
        """Replace a learner's parameters by newer ones."""
        before = self._newest[learner]
        if before is None or version != before[0]:
            # `put` makes them ours, so they outlive the learner; the argument is only a view.
            self._newest[learner] = (version, self._ray.put(params), digest(params))

    async def pull(self, have: list[int]) -> list[tuple[int, list[Any], int] | None]:
        """For each learner version, reference and hash; None if the caller has that version."""
        return [
            (one[0], [one[1]], one[2]) if one is not None and one[0] != mine else None
            for one, mine in zip(self._newest, have, strict=True)
        ]

    async def beat(self) -> dict[str, Any]:
        """An answer shows that it does not hang."""
        return {"pid": os.getpid()}


class RayWeights:
    """The parameters of all learners, versioned and checked by hash."""

    def __init__(self, host: Any) -> None:
        self._ray, self._host = import_ray(), host

    def publish(self, learner: int, version: int, params: Any) -> None:
        """Send a learner's parameters to the actors; may raise `Lost`."""
        result_of(self._ray, self._host.publish.remote(learner, version, params), CALL_S)

    def pull(self, have: Sequence[int]) -> list[tuple[int, Any] | None]:
        """Each learner's newest version and parameters; None where `have` is that version."""
        found: list[tuple[int, Any] | None] = []
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
            found.append((version, params))
        return found
