"""`Treasurehunt`: agents on a grid collect items: gems, food and, at a loss, bones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array
from ..spec import Field
from . import grid
from .env import Outcome, PlainFacts, Policy
from .foragers import treasure_forager
from .grid import AGENT, EMPTY, WALL

GEM, FOOD, BONE = 3, 4, 5
KINDS = 6  # empty, wall, agent, gem, food, bone: the last axis of an observation
Item = Literal["gem", "food", "bone"]


class TreasureState(NamedTuple):
    """The state of an episode between two turns."""

    board: Array  # uint8[size * size], agents included
    places: Array  # int32[agents]
    turn: Array  # int32: turns played


@dataclass(frozen=True)
class Treasurehunt(PlainFacts):
    """A walled grid where items appear; an agent that steps on one takes it and gets its value.

    Agents start in distinct random cells of a grid without items. In a turn they move in list order
    (up, down, left, right), each on the board as earlier movers left it. A wall blocks and costs
    `wall`; an agent blocks at no cost. Then an item appears in each empty cell with probability
    `spawn`, all `items` equally likely. The episode is truncated after `turns` turns and never
    terminates. `VectorEnv(Treasurehunt(agents=4), 128)`.
    """

    size: int = 21  # cells per side, walls included
    agents: int = 2  # agents per env, each with its own policy
    turns: int = 100  # turns per episode
    radius: int = 2  # an agent sees this many cells in every direction
    spawn: float = 0.005  # probability of an item per empty cell and turn
    items: tuple[Item, ...] = ("gem", "food", "bone")  # the kinds of items that appear
    gem: float = 10.0  # reward for a gem
    food: float = 5.0  # reward for food
    bone: float = -10.0  # reward for a bone
    wall: float = -1.0  # reward for walking into a wall

    def __post_init__(self) -> None:
        grid.check_world(
            "Treasurehunt",
            self.size,
            self.turns,
            self.radius,
            {"agents": self.agents},
            {"spawn": self.spawn},
        )
        rewards = {name: getattr(self, name) for name in ("gem", "food", "bone", "wall")}
        grid.check_numbers("Treasurehunt", rewards)
        known = get_args(Item)
        if not self.items or len(set(self.items)) < len(self.items) or {*self.items} - {*known}:
            raise BadConfig(
                f"Treasurehunt: items must be some of {', '.join(known)}, each at most once, "
                f"got {self.items!r}; for no items set spawn = 0"
            )

    @classmethod
    def small(cls) -> Treasurehunt:
        """The preset `treasurehunt-small`: five agents in a small grid with gems, 50 turns."""
        return cls(size=10, agents=5, turns=50, spawn=0.02, items=("gem",))

    @property
    def name(self) -> str:
        """The same for every size."""
        return "treasurehunt"

    @property
    def num_agents(self) -> int:
        """Agents per env."""
        return self.agents

    @property
    def num_actions(self) -> int:
        """Up, down, left, right."""
        return 4

    @property
    def observation(self) -> Field:
        """One kind per cell in view: empty, wall, agent (itself too), gem, food, bone."""
        side = 2 * self.radius + 1
        return Field("bool", (side, side, KINDS))

    @property
    def references(self) -> Mapping[str, Policy]:
        """`forager` walks to the best item in view."""
        return {"forager": treasure_forager(self._values())}

    def reset(self, key: jax.Array) -> TreasureState:
        """A board without items, with agents in distinct random cells."""
        board = jnp.asarray(grid.walled(self.size))
        places = grid.random_cells(key, board, self.agents)
        return TreasureState(grid.paint(board, places, AGENT), places, jnp.zeros((), np.int32))

    def step(
        self, state: TreasureState, action: Array, key: jax.Array
    ) -> tuple[TreasureState, Outcome]:
        """One turn with actions int32[agents]: moves in list order, then items appear."""
        targets = state.places + jnp.asarray(grid.steps(self.size))[action]
        met = state.board[targets]
        places = grid.move(state.places, targets, met != WALL)
        # An agent whose target was taken by an earlier mover did not move, and gets nothing.
        counts = (places != state.places) | (met == WALL)
        reward = jnp.where(counts, jnp.asarray(self._values())[met], 0)

        board = grid.paint(state.board, state.places, EMPTY)
        board = grid.paint(board, places, AGENT)
        board, turn = self._spawn(board, key), state.turn + 1
        ended = Outcome(reward, jnp.zeros((), bool), turn >= self.turns)
        return TreasureState(board, places, turn), ended

    def observe(self, state: TreasureState) -> Array:
        """Every agent's view: bool[agents, side, side, 6]."""
        return grid.views(state.board, state.places, self.radius, KINDS)

    def render(self, state: Any) -> np.ndarray:
        """Host: the whole board, uint8[16 * size, 16 * size, 3]."""
        drawings = {
            GEM: grid.drawn((80, 220, 235), "diamond"),
            FOOD: grid.drawn((226, 64, 72), "disc"),
            BONE: grid.drawn((235, 228, 205), "bar"),
        }
        return grid.picture(np.asarray(state.board), np.asarray(state.places), drawings)

    def _spawn(self, board: Array, key: jax.Array) -> Array:
        kinds = np.array([GEM + get_args(Item).index(item) for item in self.items], np.uint8)
        # One random word decides both whether an item appears and which, because drawing words is
        # most of a turn's cost; words below the bound have nearly uniform remainders.
        words = grid.words(key, board.size)
        item = jnp.asarray(kinds)[words % np.uint32(len(kinds))]
        return jnp.where((board == EMPTY) & grid.happens(words, self.spawn), item, board)

    def _values(self) -> np.ndarray:
        """The reward for stepping on each kind: float32[6]."""
        return np.array([0, self.wall, 0, self.gem, self.food, self.bone], np.float32)
