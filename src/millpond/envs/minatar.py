"""`MinAtar`: the five MinAtar games of pgx as pure functions, for use inside jit."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import jax
import numpy as np

from ..errors import BadConfig
from ..extras import import_extra
from ..rows import Array
from ..spec import Field
from .env import Outcome, PlainFacts

GAMES = {
    "asterix": "MinAtarAsterix",
    "breakout": "MinAtarBreakout",
    "freeway": "MinAtarFreeway",
    "seaquest": "MinAtarSeaquest",
    "space_invaders": "MinAtarSpaceInvaders",
}
_CELL = 24  # pixels
_BACKGROUND = (16, 18, 24)
_COLOURS = np.array(
    [
        (86, 180, 233),
        (230, 159, 0),
        (120, 128, 140),
        (0, 158, 115),
        (240, 228, 66),
        (213, 94, 0),
        (204, 121, 167),
        (0, 114, 178),
        (245, 245, 245),
        (150, 90, 200),
    ],
    np.uint8,
)


@dataclass(frozen=True)
class MinAtar(PlainFacts):
    """A MinAtar game with one agent: observations bool[10, 10, channels], raw rewards.

    Episodes only terminate, also by Freeway's time limit, which is part of its rules.
    `MinAtar("breakout")`.
    """

    game: str  # the game's name
    sticky: float = 0.1  # probability that the last action is repeated
    minimal_actions: bool = True  # only the actions that have an effect in this game

    def __post_init__(self) -> None:
        game = self.game.lower().replace("-", "_")
        if game not in GAMES:
            near = difflib.get_close_matches(game, GAMES, 1, 0.0)[0]
            raise BadConfig(
                f"minatar: there is no game {self.game!r}; did you mean {near!r}? "
                f"The games are {', '.join(GAMES)}"
            )
        if not 0 <= self.sticky <= 1:
            raise BadConfig(f"minatar: sticky is a probability from 0 to 1, got {self.sticky}")
        object.__setattr__(self, "game", game)

    @property
    def name(self) -> str:
        """`minatar/breakout`"""
        return f"minatar/{self.game}"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def num_actions(self) -> int:
        """All 6, or only those that have an effect in this game."""
        return _shapes(self)[1]

    @property
    def observation(self) -> Field:
        """bool[10, 10, channels], with one channel per kind of object."""
        return Field("bool", _shapes(self)[0])

    def reset(self, key: jax.Array) -> Any:
        """The pgx state of a new episode."""
        return _game(self).init(key)

    def step(self, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome]:
        """One turn with action int32[1]. A terminal state does not change and gives no reward."""
        state = _game(self).step(state, action[0], key)
        return state, Outcome(state.rewards, state.terminated, state.truncated)

    def observe(self, state: Any) -> Array:
        """bool[1, 10, 10, channels]; at a terminal state this is the true final observation."""
        return state.observation[None]  # pgx has already computed it

    def render(self, state: Any) -> np.ndarray:
        """Host: uint8[240, 240, 3], one colour per channel; a higher channel covers a lower one."""
        return draw_channels(np.asarray(state.observation))


def draw_channels(seen: np.ndarray) -> np.ndarray:
    """Draw bool[h, w, channels] as a picture uint8[24 h, 24 w, 3]."""
    picture = np.empty((*seen.shape[:2], 3), np.uint8)
    picture[:] = _BACKGROUND
    for channel in range(seen.shape[2]):
        picture[seen[:, :, channel]] = _COLOURS[channel]
    return picture.repeat(_CELL, 0).repeat(_CELL, 1)


@lru_cache(maxsize=64)
def _game(env: MinAtar) -> Any:
    """The pgx env of these settings, without autoreset, which `VectorEnv` does."""
    # Importing and building pgx envs makes arrays, which inside jit would be tracers.
    with jax.ensure_compile_time_eval():
        module = import_extra("minatar", "minatar", f"pgx.minatar.{env.game}")
        return getattr(module, GAMES[env.game])(
            use_minimal_action_set=env.minimal_actions, sticky_action_prob=env.sticky
        )


@lru_cache(maxsize=64)
def _shapes(env: MinAtar) -> tuple[tuple[int, ...], int]:
    """The shape of an observation and the number of actions, without computing anything."""
    state = jax.eval_shape(_game(env).init, jax.eval_shape(lambda: jax.random.key(0)))
    return state.observation.shape, state.legal_action_mask.shape[0]
