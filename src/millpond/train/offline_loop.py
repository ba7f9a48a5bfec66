"""`OfflineLoop`: DQN from a Lake alone. No env is stepped, so its steps are updates."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, AgentState
from ..envs import spec_of
from ..errors import NotEnoughData
from ..lake import Lake
from .device_loop import make_agent
from .keys import Role, key_of
from .settings import Settings
from .tally import Sums, learned, no_sums


class OfflineState(NamedTuple):
    """The agent, how many updates it has had, and the batch that went wrong, if one did."""

    agent: AgentState  # [1]
    updates: int
    evidence: Any


class OfflineLoop:
    """One cycle is one update. Every draw has its own generator, from the seed and its number."""

    turns_per_cycle = 1

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.agent: Any = make_agent(settings)
        assert isinstance(self.agent, DQN)
        self.lake = open_source(settings)
        self._update = jax.jit(jax.vmap(self.agent.update), donate_argnums=0)

    def init(self) -> OfflineState:
        keys = jax.random.split(key_of(self.settings.seed, Role.PARAMETERS), 1)
        return OfflineState(jax.jit(jax.vmap(self.agent.init))(keys), 0, None)

    def round(self, state: OfflineState, cycles: int) -> tuple[OfflineState, Sums]:
        settings, sums = self.settings, no_sums(1)
        window, sampler = settings.window, settings.sampler
        for _ in range(cycles):
            rng = np.random.default_rng((settings.seed, state.updates))
            batch = self.lake.sample(rng, settings.dqn.batch, window, sampler=sampler)
            batch = jax.tree.map(lambda leaf: leaf[None], batch)
            steps = self.steps(state)
            agent, found = self._update(
                state.agent, batch, self.rate(steps), np.ones(1, np.float32)
            )
            state = OfflineState(agent, state.updates + 1, None)
            if np.asarray(agent.bad).any():
                return state._replace(evidence=batch), sums
            sums = learned(sums, jax.device_get(found), 1)
        return state, sums

    def steps(self, state: OfflineState) -> np.ndarray:
        return np.array([state.updates], np.uint32)

    def bad(self, state: OfflineState) -> np.ndarray:
        return np.asarray(state.agent.bad)

    def epsilon(self, steps: np.ndarray) -> np.ndarray:
        return np.zeros(1, np.float32)

    def rate(self, steps: np.ndarray) -> np.ndarray:
        return self.settings.dqn.optimizer.rate.at(steps, self.settings.steps)

    def health(self) -> dict[str, Any]:
        """Nothing more than the lines say: rows do not travel here."""
        return {}

    def pace(self) -> dict[str, Any]:
        """One process does everything."""
        return {}

    def pack(self, state: OfflineState) -> Any:
        return state._replace(updates=np.uint32(state.updates), evidence=None)

    def like(self) -> Any:
        return self.pack(self.init())

    def unpack(self, tree: Any) -> OfflineState:
        agent = jax.tree.map(jnp.asarray, tree.agent)
        return OfflineState(agent, int(tree.updates), None)


def open_source(settings: Settings) -> Lake:
    """The Lake to learn from; one that is not there, of another spec or empty is refused."""
    lake = Lake.open(settings.from_lake, "r", spec_of(settings.world))
    settings.window.fits(lake.spec, 2**31)
    if not len(lake):
        raise NotEnoughData(
            f"from_lake: {settings.from_lake} holds no rows; write some to it first"
        )
    return lake
