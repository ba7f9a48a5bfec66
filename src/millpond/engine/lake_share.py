"""`LakeShare`: a fixed part of every minibatch comes from a given Lake, the rest from replay.

Exactly `Settings.lake_rows` rows of a batch come from the Lake, drawn uniformly. A draw depends on
seed, policy and update only, so a resumed run continues exactly if the Lake has not changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import NotEnoughData
from ..sequence import Sample
from .host_replay import open_source, without_trace
from .provenance import stored_spec
from .settings import Settings
from .trees import stacked

_APART = 0x1A4E  # so that `from_lake` draws other rows


class LakeShare:
    """`share.draw(policies, first, updates)` and then `blend(played, drawn)`."""

    def __init__(self, settings: Settings) -> None:
        self._settings, self.rows = settings, settings.lake_rows
        self._lake = open_source(settings, settings.lake, "lake")
        self._extras = list(stored_spec(settings).extras)
        try:
            self._sample(0, 0)
        except NotEnoughData as error:
            raise NotEnoughData(
                f"lake: no transition starts in {settings.lake} ({error}); write longer episodes "
                "to it, or omit --lake"
            ) from error

    def draw(self, policies: Sequence[int], turn: int) -> Sample:
        """Samples [policies, rows, ...] for update `turn`, counted since the run began."""
        return stacked([self._sample(int(policy), turn) for policy in policies])

    def draw_many(self, policies: Sequence[int], first: int, updates: int) -> Sample:
        """Samples [policies, updates, rows, ...] for updates from `first` on."""
        return stacked([self.draw(policies, first + number) for number in range(updates)], 1)

    def _sample(self, policy: int, turn: int) -> Sample:
        rng = np.random.default_rng((self._settings.seed, _APART, policy, turn))
        found: Any = self._lake.sample(rng, self.rows, self._settings.window)
        return without_trace(found, self._extras)._replace(draw=None)


def blend(played: Any, drawn: Any, xp: Any = jnp) -> Any:
    """One batch: the rows that were played, then those from the Lake. `draw` is of the former."""
    if drawn is None:
        return played
    extras = {name: played.extras[name] for name in drawn.extras}
    first, second = (one._replace(draw=None) for one in (played._replace(extras=extras), drawn))
    whole = jax.tree.map(lambda *parts: xp.concatenate(parts), first, second)
    return whole._replace(draw=played.draw)
