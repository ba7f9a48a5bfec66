"""`Corridor`: walk right to the end. An environment is a frozen dataclass of its settings."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from millpond import Field
from millpond.envs import Outcome


@dataclass(frozen=True)
class Corridor:
    """State: int32[2], the place and the turns played."""

    length: int = 8
    turns: int = 30
    name = "corridor"
    num_agents, num_actions, frames_per_step = 1, 2, 1
    extras, references = {}, {}

    @property
    def observation(self):
        return Field("float32", (self.length,))

    def reset(self, key):
        return jnp.zeros(2, jnp.int32)

    def step(self, state, action, key):  # action: int32[agents]
        place = jnp.clip(state[0] + 2 * action[0] - 1, 0, self.length - 1)
        there = place == self.length - 1
        state = jnp.stack([place, state[1] + 1])
        late = (state[1] >= self.turns) & ~there  # a time limit: truncated, not terminated
        return state, Outcome(there[None].astype(jnp.float32), there, late)

    def observe(self, state):  # [agents, *shape]
        return jax.nn.one_hot(state[0], self.length)[None]

    def render(self, state):
        picture = np.zeros((8, 8 * self.length, 3), np.uint8)
        picture[:, 8 * int(state[0]) : 8 * int(state[0]) + 8] = 255
        return picture
