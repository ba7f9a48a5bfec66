"""`Staghunt`: one agent can catch a hare; a stag takes several, and is worth more to each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..rows import Array
from ..spec import Field
from . import grid
from .env import Outcome, PlainFacts, Policy
from .foragers import hunter
from .grid import AGENT, EMPTY, NOWHERE

HARE, STAG = 3, 4
KINDS = 5  # empty, wall, agent, hare, stag: the last axis of an observation
ATTACK = 4


class StagState(NamedTuple):
    """The state of an episode between two turns."""

    places: Array  # int32[agents]
    prey: Array  # int32[hares + stags]: places, hares first; NOWHERE if dead
    turn: Array  # int32: turns played


@dataclass(frozen=True)
class Staghunt(PlainFacts):
    """A walled grid with prey that does not move; `attack` hits all prey in the four cells around.

    Agents and prey start in distinct random cells. In a turn, agents first move, in list order;
    walls, prey and agents block at no cost. Then all attacks happen at once: every attacker of a
    hare gets `hare`; every attacker of a stag gets `stag` if at least `hunters` agents attack it,
    otherwise it lives and nobody is rewarded. Caught prey disappears. Finally, each prey that was
    dead before this turn returns with probability `respawn`, in a random empty cell. The episode is
    truncated after `turns` turns and never terminates. `VectorEnv(Staghunt(), 128)`.
    """

    size: int = 11  # cells per side, walls included
    agents: int = 2  # agents per env, each with its own policy
    turns: int = 100  # turns per episode
    radius: int = 2  # an agent sees this many cells in every direction
    hares: int = 4  # hares in the grid
    stags: int = 2  # stags in the grid
    hare: float = 1.0  # reward for a hare
    stag: float = 5.0  # reward for a stag, to each hunter
    hunters: int = 2  # attackers needed for a stag
    respawn: float = 0.1  # probability per dead prey and turn

    def __post_init__(self) -> None:
        grid.check_world(
            "Staghunt",
            self.size,
            self.turns,
            self.radius,
            {"agents": self.agents, "hares": self.hares, "stags": self.stags},
            {"respawn": self.respawn},
        )
        grid.check_numbers("Staghunt", {"hare": self.hare, "stag": self.stag})
        grid.check_whole("Staghunt", "hunters", self.hunters, 1)

    @property
    def name(self) -> str:
        """The same for every size."""
        return "staghunt"

    @property
    def num_agents(self) -> int:
        """Agents per env."""
        return self.agents

    @property
    def num_actions(self) -> int:
        """Up, down, left, right, attack."""
        return 5

    @property
    def observation(self) -> Field:
        """One kind per cell in view: empty, wall, agent (itself too), hare, stag."""
        side = 2 * self.radius + 1
        return Field("bool", (side, side, KINDS))

    @property
    def references(self) -> Mapping[str, Policy]:
        """`hare` hunts hares only; `stag` prefers stags while another agent is in view."""
        return {"hare": hunter(HARE), "stag": hunter(HARE, together=STAG)}

    def reset(self, key: jax.Array) -> StagState:
        """Agents and prey in distinct random cells."""
        board = jnp.asarray(grid.walled(self.size))
        cells = grid.random_cells(key, board, self.agents + self.hares + self.stags)
        return StagState(cells[: self.agents], cells[self.agents :], jnp.zeros((), np.int32))

    def step(self, state: StagState, action: Array, key: jax.Array) -> tuple[StagState, Outcome]:
        """One turn with actions int32[agents]: moves in list order, attacks at once, respawns."""
        around = jnp.asarray(grid.steps(self.size))
        targets = state.places + jnp.append(around, 0)[action]  # an attacker stays
        met = self._board(state)[targets]
        places = grid.move(state.places, targets, (met == EMPTY) | (met == AGENT))

        reach = places[:, None] + around
        hits = (reach[:, :, None] == state.prey).any(1) & (action == ATTACK)[:, None]
        falls = hits.sum(0) >= self._per_prey(1, self.hunters)
        # A sum instead of a matrix product, whose factors a GPU may round.
        reward = jnp.where(hits & falls, self._per_prey(self.hare, self.stag), 0).sum(1)

        left = StagState(places, jnp.where(falls, NOWHERE, state.prey), state.turn + 1)
        prey = self._respawn(left, state.prey == NOWHERE, key)
        ended = Outcome(reward, jnp.zeros((), bool), left.turn >= self.turns)
        return left._replace(prey=prey), ended

    def counts(self, before: StagState, after: StagState) -> Mapping[str, Array]:
        """`stags`: how many were caught in the turn."""
        fell = (before.prey != NOWHERE) & (after.prey == NOWHERE)
        return {"stags": fell[self.hares :].sum(dtype=np.int32)}

    def observe(self, state: StagState) -> Array:
        """Every agent's view: bool[agents, side, side, 5]."""
        return grid.views(self._board(state), state.places, self.radius, KINDS)

    def render(self, state: Any) -> np.ndarray:
        """Host: the whole board, uint8[16 * size, 16 * size, 3]."""
        drawings = {
            HARE: grid.drawn((240, 214, 92), "disc"),
            STAG: grid.drawn((196, 120, 66), "head"),
        }
        return grid.picture(np.asarray(self._board(state)), np.asarray(state.places), drawings)

    def _respawn(self, state: StagState, dead: Array, key: jax.Array) -> Array:
        """The places of the prey after those among `dead` had their chance to return."""
        chance, where = jax.random.split(key)
        back = dead & grid.happens(grid.words(chance, len(dead)), self.respawn)
        cells = grid.random_cells(where, self._board(state), len(dead))
        # At least as many cells are empty as prey is dead, and empty cells come first.
        return jnp.where(back, cells[jnp.cumsum(back) - 1], state.prey)

    def _board(self, state: StagState) -> Array:
        """The board with walls, prey and agents: uint8[size * size]."""
        board = jnp.asarray(grid.walled(self.size))
        board = grid.paint(board, state.prey[: self.hares], HARE)
        board = grid.paint(board, state.prey[self.hares :], STAG)
        return grid.paint(board, state.places, AGENT)

    def _per_prey(self, hare: float, stag: float) -> np.ndarray:
        """A value for each prey, by its kind: float32[hares + stags]."""
        return np.array([hare] * self.hares + [stag] * self.stags, np.float32)
