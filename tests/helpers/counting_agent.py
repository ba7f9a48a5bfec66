"""A DQN that says how many rows of its minibatch have a reward that no env of ours gives."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from millpond.agents import DQN

FOREIGN = 500.0


class CountingDQN(DQN):
    """`foreign` rows, in each minibatch; their rewards weigh nothing."""

    reports: ClassVar[tuple[str, ...]] = (*DQN.reports, "foreign")

    def update(self, state, batch, now):
        foreign = (batch.reward >= FOREIGN) & batch.mask
        count = foreign.sum(dtype=jnp.float32)
        new, found = super().update(state, batch._replace(reward=batch.reward * 1e-3), now)
        return new, found._replace(numbers={**found.numbers, "foreign": count})
