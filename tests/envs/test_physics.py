"""`Physics` around a simulator of our own that takes the liberties that Brax's envs take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from millpond.envs import VectorEnv
from millpond.envs.physics import Physics


class Inner(NamedTuple):
    obs: Any
    reward: Any
    done: Any
    metrics: dict[str, Any]


class Careless:
    """Writes into the dict of the state that it is given, Python's own numbers among others."""

    action_size = 2

    def reset(self, key: jax.Array) -> Inner:
        zero = jnp.zeros(())
        return Inner(jax.random.uniform(key, (3,)), zero, zero, {"upright": zero, "speed": zero})

    def step(self, state: Inner, action: Any) -> Inner:
        state.metrics.update(upright=1.0, speed=state.obs.sum())
        return Inner(state.obs + action.sum(), 1.0, 0.0, state.metrics)


@dataclass(frozen=True)
class Fake(Physics):
    id: str = "fake"

    @property
    def name(self) -> str:
        return "fake:env"

    def game(self) -> Any:
        return _GAME

    def picture(self, inner: Any) -> np.ndarray:
        raise NotImplementedError


_GAME = Careless()


def test_a_simulator_may_write_into_the_state_that_it_is_given():
    envs = VectorEnv(Fake(episode_length=3, action_repeat=2, starts=4), 2)

    def turns(state: Any) -> Any:
        def turn(state: Any, key: jax.Array) -> Any:
            return envs.step(state, jnp.full((1, 2, 2), 0.5), key)

        return jax.lax.scan(turn, state, jax.random.split(jax.random.key(1), 4))

    begun = envs.reset(jax.random.key(0))
    state, rows = jax.jit(turns)(begun)
    # Two steps of 2 x 0.5 each a turn; after two turns the clock ends the episode.
    np.testing.assert_allclose(rows.obs[1, 0], begun.obs[0] + 2, rtol=1e-6)
    assert rows.reward[:, 0, 0].tolist() == [2, 2, 0, 2]
    assert rows.truncated[:, 0, 0].tolist() == [False, True, False, False]
    assert state.inner.inner.metrics["upright"].tolist() == [1, 1]
