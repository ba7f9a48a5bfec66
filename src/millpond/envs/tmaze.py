"""`TMaze`: the first observation says where to turn at the end, so the agent needs memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field
from . import grid
from .env import Outcome, PlainFacts, Policy
from .grid import AGENT, EMPTY, WALL

FORWARD, LEFT, RIGHT = 0, 1, 2
SIGN_LEFT, SIGN_RIGHT, CORRIDOR, JUNCTION = 0, 1, 2, 3  # entries of an observation
_GOAL = 3  # a kind of cell, for pictures


class TMazeState(NamedTuple):
    """The state of an episode between two turns."""

    length: Array  # int32: steps from the start to the junction
    side: Array  # int32: where to turn there, LEFT or RIGHT
    place: Array  # int32: steps taken forward
    turn: Array  # int32: turns played


@dataclass(frozen=True)
class TMaze(PlainFacts):
    """A corridor that ends at a junction; a sign at its beginning says where to turn there.

    The sign is visible in the first observation only, even if the agent stays. The length of the
    corridor is drawn uniformly for each episode, from `shortest` to `longest`. Turning in the
    corridor or going forward at the junction runs into a wall: it costs `bump` and changes nothing.
    A turn at the junction ends the episode, with `reward` if it follows the sign and 0 otherwise.
    The episode is truncated after `turns` turns. The best possible return is `reward`; without
    memory it is half of that, because the junction looks the same either way.
    `VectorEnv(TMaze(longest=20, turns=100), 128)`.
    """

    shortest: int = 4  # fewest steps to the junction
    longest: int = 10  # most steps to the junction
    turns: int = 50  # most turns per episode
    reward: float = 1.0  # reward for the correct turn at the junction
    bump: float = -0.1  # reward for walking into a wall

    def __post_init__(self) -> None:
        for field, low in (("shortest", 1), ("longest", self.shortest), ("turns", 1)):
            grid.check_whole("TMaze", field, getattr(self, field), low)
        grid.check_numbers("TMaze", {"reward": self.reward, "bump": self.bump})
        if self.turns <= self.longest:
            raise BadConfig(
                f"TMaze: turns must be more than longest, so that every episode can be solved, "
                f"got {self.turns} and {self.longest}"
            )

    @property
    def name(self) -> str:
        """`tmaze`"""
        return "tmaze"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def num_actions(self) -> int:
        """Forward, left, right."""
        return 3

    @property
    def observation(self) -> Field:
        """Sign to the left, sign to the right, corridor, junction."""
        return Field("bool", (4,))

    @property
    def references(self) -> Mapping[str, Policy]:
        """`guesser` goes to the junction and tosses a coin, the best policy without memory."""
        return {"guesser": _guess}

    def reset(self, key: jax.Array) -> TMazeState:
        """A corridor of random length, with a sign to a random side."""
        lengths, sides = jax.random.split(key)
        length = jax.random.randint(lengths, (), self.shortest, self.longest + 1, np.int32)
        side = jax.random.randint(sides, (), LEFT, RIGHT + 1, np.int32)
        return TMazeState(length, side, jnp.int32(0), jnp.int32(0))

    def step(self, state: TMazeState, action: Array, key: jax.Array) -> tuple[TMazeState, Outcome]:
        """One turn with action int32[1]."""
        action, turn = action[0], state.turn + 1
        there = state.place == state.length
        turned = action != FORWARD
        ended, right = there & turned, action == state.side
        reward = jnp.where(ended, right * np.float32(self.reward), 0)
        reward = jnp.where(there != turned, np.float32(self.bump), reward)
        place = state.place + (~turned & ~there)
        outcome = Outcome(reward[None], ended, ~ended & (turn >= self.turns))
        return state._replace(place=place, turn=turn), outcome

    def observe(self, state: TMazeState) -> Array:
        """bool[1, 4]: the sign (on the first turn only), corridor or junction."""
        begins, there = state.turn == 0, state.place == state.length
        sign = begins & (state.side == LEFT), begins & (state.side == RIGHT)
        return jnp.stack([*sign, ~there, there])[None]

    def render(self, state: Any) -> np.ndarray:
        """Host: the maze from above, uint8[h, w, 3]; a diamond marks where the sign points."""
        size, length = self.longest + 4, int(state.length)
        board, row, last = np.full((size, size), WALL, np.uint8), size // 2, length + 1
        board[row, 1 : last + 1] = EMPTY
        board[row - 1 : row + 2, last] = EMPTY
        board[row - 1 if int(state.side) == LEFT else row + 1, last] = _GOAL
        place = row * size + 1 + int(state.place)
        board.ravel()[place] = AGENT
        drawings = {_GOAL: grid.drawn((80, 220, 235), "diamond")}
        return grid.picture(board.ravel(), np.array([place]), drawings)


def _guess(obs: Array, key: jax.Array) -> Array:
    """Forward, and a random turn at the junction: obs[..., 4] -> int32[...]."""
    side = jax.random.randint(key, obs.shape[:-1], LEFT, RIGHT + 1, np.int32)
    return jnp.where(obs[..., JUNCTION], side, FORWARD)
