"""`SorrelEnv`: the treasurehunt of the package Sorrel, a grid world in Python."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

import numpy as np

from ..errors import BadConfig, BadState
from ..rows import BORDER, FIRST, Rows, Tree, next_flags
from ..spec import Field
from .env import HostVector, PlainFacts


@dataclass(frozen=True)
class SorrelEnv(PlainFacts):
    """Sorrel's treasurehunt with Sorrel's own settings; every agent has its own policy.

    In Sorrel, an agent sees the moves that earlier agents have made in the same turn. Here, all see
    the board as it is at the start of the turn, and then move in Sorrel's order; this matters only
    to agents near each other. An episode is truncated after `turns`.
    `SorrelEnv("treasurehunt")`.
    """

    world: str = "treasurehunt"  # name of the world; there is only one
    size: int = 21  # cells per side, walls included
    agents: int = 2  # agents per env, each with its own policy
    turns: int = 100  # turns per episode
    radius: int = 2  # an agent sees this many cells in every direction
    spawn: float = 0.005  # probability of an item per empty cell and turn
    gem: float = 10.0  # reward for a gem
    food: float = 5.0  # reward for food
    bone: float = -10.0  # reward for a bone
    view: Literal["rgb", "onehot"] = "rgb"  # cells are seen as colours, or as kinds one-hot

    def __post_init__(self) -> None:
        if self.world != "treasurehunt":
            raise BadConfig(f"{self.name}: there is only one world of Sorrel: sorrel:treasurehunt")
        for field in ("size", "agents", "turns", "radius"):
            if getattr(self, field) < (3 if field == "size" else 1):
                raise BadConfig(f"{self.name}: {field} is too small, got {getattr(self, field)}")
        if self.agents > (self.size - 2) ** 2:
            raise BadConfig(f"{self.name}: size {self.size} has no room for {self.agents} agents")
        if not 0 <= self.spawn <= 1:
            raise BadConfig(f"{self.name}: spawn is a probability from 0 to 1, got {self.spawn}")

    @property
    def name(self) -> str:
        """`sorrel:treasurehunt`"""
        return f"sorrel:{self.world}"

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
        """The cells in view, flattened as Sorrel does: [kinds or colours * cells]."""
        channels = 3 if self.view == "rgb" else 6
        return Field("float32", (channels * (2 * self.radius + 1) ** 2,))

    def vector(self, num_envs: int, seed: int) -> HostVector:
        """`num_envs` freshly reset envs, stepped one after the other."""
        return _SorrelVector(self, num_envs, seed)


class _SorrelVector:
    """A `HostVector` over Sorrel's envs; their state cannot be saved."""

    num_envs: int
    obs: Tree
    flags: np.ndarray

    def __init__(self, env: SorrelEnv, num_envs: int, seed: int) -> None:
        self.num_envs, self._env = num_envs, env
        seeds = np.random.SeedSequence(seed).spawn(num_envs)
        self._hunts = [_Hunt(env, one) for one in seeds]
        self.flags = np.full(num_envs, FIRST, np.uint8)
        self._show()

    def step(self, action: np.ndarray) -> Rows:
        """Take actions int32[agents, env]; returns the rows [agents, env]."""
        obs, flags = self.obs, self.flags
        step = (flags & BORDER) == 0
        action = np.where(step, action, 0).astype(np.int32)
        reward = np.zeros(action.shape, np.float32)
        truncated = np.zeros(self.num_envs, bool)
        for i, hunt in enumerate(self._hunts):
            if step[i]:
                reward[:, i], truncated[i] = hunt.turn(action[:, i])
            else:
                hunt.begin()
        self.flags = next_flags(flags, np.zeros_like(truncated), truncated)
        self._show()

        def every_agent(flag: np.ndarray) -> np.ndarray:
            return np.broadcast_to(flag, action.shape)

        never = np.zeros_like(truncated)
        ends = every_agent(never), every_agent(truncated)
        return Rows(obs, action, reward, *ends, every_agent(flags))

    def _show(self) -> None:
        self.obs = np.stack([hunt.see() for hunt in self._hunts], 1)

    def render(self) -> np.ndarray:
        """The board of the first env, uint8[16 * size, 16 * size, 3], a colour for each kind."""
        return self._hunts[0].picture()

    def export(self) -> None:
        """None, because Sorrel cannot save an env's state."""
        return

    def restore(self, arrays: Mapping[str, np.ndarray]) -> NoReturn:
        """Raises BadState, because there is nothing to restore from."""
        raise BadState(
            f"{self._env.name}: Sorrel cannot save or restore an env's state; start new episodes "
            "and cut the stream there"
        )

    def close(self) -> None:
        """Nothing to close."""


class _Hunt:
    """One of Sorrel's envs, with random numbers of its own."""

    def __init__(self, env: SorrelEnv, seeds: np.random.SeedSequence) -> None:
        self._turns = env.turns
        self._chance = np.random.RandomState(seeds.generate_state(4)).get_state()
        with self._drawing():
            self._game: Any = _make(env)
        self.begin()

    def begin(self) -> None:
        """Begin an episode, up to the observations of its first turn."""
        with self._drawing():
            self._game.reset()
            self._items()

    def turn(self, action: np.ndarray) -> tuple[list[float], bool]:
        """All agents act in Sorrel's order; returns rewards and whether the episode is over."""
        world = self._game.world
        with self._drawing():
            agents = zip(self._game.agents, action, strict=True)
            reward = [float(agent.act(world, int(act))) for agent, act in agents]
            over = self._game.turn >= self._turns
            self._items()
        return reward, over

    def see(self) -> np.ndarray:
        """Every agent's observation: float32[agents, size]."""
        world = self._game.world
        views = [agent.pov(world).reshape(-1) for agent in self._game.agents]
        return np.stack(views).astype(np.float32)

    def picture(self) -> np.ndarray:
        """The board as a picture, uint8[16 * size, 16 * size, 3]."""
        kinds = [[entity.kind for entity in row] for row in self._game.world.map[:, :, 1]]
        cells = np.array([[_COLOURS.get(kind, (190, 90, 220)) for kind in row] for row in kinds])
        return cells.astype(np.uint8).repeat(16, 0).repeat(16, 1)

    def _items(self) -> None:
        """Begin a turn as Sorrel does: entities that change by themselves do so first."""
        game = self._game
        game.turn += 1
        for _, entity in np.ndenumerate(game.world.map):
            if entity.has_transitions and entity not in game.agents:
                entity.transition(game.world)

    @contextlib.contextmanager
    def _drawing(self) -> Generator[None]:
        """Swap in this env's state of NumPy's global generator, from which Sorrel draws."""
        outside = np.random.get_state()
        np.random.set_state(self._chance)
        try:
            yield
        finally:
            self._chance = np.random.get_state()
            np.random.set_state(outside)


_COLOURS = {
    "EmptyEntity": (32, 34, 40),
    "Wall": (120, 124, 132),
    "Gem": (80, 220, 235),
    "Food": (226, 64, 72),
    "Bone": (235, 228, 205),
    "TreasurehuntAgent": (66, 135, 245),
}


def _make(env: SorrelEnv) -> Any:
    """Build Sorrel's env, with agents whose models are never used."""
    try:
        from sorrel.examples.treasurehunt.entities import (  # pyright: ignore[reportMissingImports]
            EmptyEntity,
        )
        from sorrel.examples.treasurehunt.env import (  # pyright: ignore[reportMissingImports]
            TreasurehuntEnv,
        )
        from sorrel.examples.treasurehunt.world import (  # pyright: ignore[reportMissingImports]
            TreasurehuntWorld,
        )
    except (ImportError, SyntaxError) as error:
        raise BadConfig(
            f"{env.name} needs Sorrel, which cannot be imported: {error}; with Python 3.12 or "
            "newer, run: pip install 'millpond[sorrel]'"
        ) from error
    values = {"gem_value": env.gem, "food_value": env.food, "bone_value": env.bone}
    config = {
        "experiment": {"epochs": 1, "max_turns": env.turns, "record_period": 1},
        "model": {
            "agent_vision_radius": env.radius,
            "num_agents": env.agents,
            "observation_spec": env.view,
        },
        "world": {"height": env.size, "width": env.size, "spawn_prob": env.spawn, **values},
    }
    game = TreasurehuntEnv(TreasurehuntWorld(config, EmptyEntity()), config)
    for agent in game.agents:
        agent.model = _NoModel()  # instead of two networks and a memory that nobody would use
    return game


class _NoModel:
    """The part of a model that an agent's reset needs."""

    def reset(self) -> None:
        """Nothing to reset."""
