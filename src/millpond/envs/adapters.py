"""Adapters from an `Env` in JAX, such as a grid world, to other libraries.

`GridGymnasium` plays one of its agents, `GridPettingZoo` all of them. They step one env on the
host, one call at a time; to train inside millpond, use `VectorEnv`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import gymnasium
import jax
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.spaces import Box, Discrete

from ..errors import BadConfig, SpecMismatch
from ..extras import import_extra
from ..rows import Array
from ..spec import Field
from .actions import action_of, any_action, bounds, is_real
from .env import Env, Outcome, Policy

_MODES = (None, "rgb_array")


class _Game:
    """One env stepped on the host; the seed determines all random numbers."""

    def __init__(self, env: Env, render_mode: str | None, who: str) -> None:
        if render_mode not in _MODES:
            raise BadConfig(f"{who}: render_mode must be None or 'rgb_array', got {render_mode!r}")
        self.env, self.who = env, who
        self.state: Any = None  # None before the first reset

    def reset(self, seed: int) -> np.ndarray:
        """Begin an episode; returns all agents' observations."""
        self._key = jax.random.key(seed)
        self.state, obs = _reset(self.env, self.next_key())
        self.over = False
        return np.array(obs)

    def step(self, actions: list[Any]) -> tuple[np.ndarray, np.ndarray, bool, bool]:
        """One turn; returns observations, rewards, terminated, truncated."""
        self.check_playing()
        field = action_of(self.env)
        for agent, action in enumerate(actions):
            if not _fits(field, action):
                raise SpecMismatch(
                    f"{self.who}: the action of agent {agent} must be {_wanted(field)}, "
                    f"got {action!r}"
                )
        action, key = np.array(actions, field.dtype), self.next_key()
        self.state, outcome, obs = _step(self.env, self.state, action, key)
        terminated, truncated = bool(outcome.terminated), bool(outcome.truncated)
        self.over = terminated or truncated
        return np.array(obs), np.array(outcome.reward), terminated, truncated

    def next_key(self) -> jax.Array:
        """A new random key."""
        self._key, key = jax.random.split(self._key)
        return key

    def draw(self) -> np.ndarray:
        """A picture of the env, also after the end of an episode."""
        if self.state is None:
            raise ResetNeeded(f"{self.who}: call reset before render")
        return self.env.render(self.state)

    def check_playing(self) -> None:
        """ResetNeeded unless an episode is in progress."""
        if self.state is None or self.over:
            raise ResetNeeded(f"{self.who}: no episode is in progress; call reset before step")

    def spaces(self) -> tuple[Box, Discrete | Box]:
        """One agent's observation and action space."""
        field, action = self.env.observation, action_of(self.env)
        low, high = bounds(field) if is_real(field) else (0, 1)
        seen = Box(low, high, field.shape, field.dtype.type)
        if is_real(action):
            return seen, Box(*bounds(action), dtype=np.float32)
        return seen, Discrete(int(action.high) + 1)


class GridGymnasium(gymnasium.Env[np.ndarray, Any]):
    """Agent 0 of an env as a Gymnasium env; the others follow `others`, or act at random.

    `others` gets obs[agents - 1, *shape]. `gym = GridGymnasium(Staghunt(), others=script)`.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 8}  # noqa: RUF012

    def __init__(
        self, env: Env, others: Policy | None = None, render_mode: str | None = None
    ) -> None:
        self._game = _Game(env, render_mode, "GridGymnasium")
        self.render_mode = render_mode
        self.observation_space, self.action_space = self._game.spaces()
        self._others = jax.jit(others or partial(_at_random, action_of(env)))

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode, reproducible by its seed; `options` is ignored."""
        super().reset(seed=seed)
        self._obs = self._game.reset(int(self.np_random.integers(2**31)))
        return self._obs[0].copy(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One turn of all agents; returns agent 0's results."""
        self._game.check_playing()
        actions = [action]
        if self._game.env.num_agents > 1:
            chosen = self._others(self._obs[1:], self._game.next_key())
            actions += list(np.asarray(chosen))
        self._obs, reward, terminated, truncated = self._game.step(actions)
        return self._obs[0].copy(), float(reward[0]), terminated, truncated, {}

    def render(self) -> Any:
        """uint8[height, width, 3] with render_mode `rgb_array`, else None."""
        return self._game.draw() if self.render_mode else None


class GridPettingZoo:
    """All agents of an env as a PettingZoo `ParallelEnv`: `agent_0`, `agent_1`, ...

    Needs the extra `pettingzoo`. An episode ends for all agents at the same time.
    `zoo = GridPettingZoo(Treasurehunt()); obs, infos = zoo.reset(seed=1)`.
    """

    def __new__(cls, *args: Any, **settings: Any) -> GridPettingZoo:
        """An object that also is a `ParallelEnv`; PettingZoo is imported only here."""
        return object.__new__(_with_pettingzoo(cls))

    def __init__(self, env: Env, render_mode: str | None = None) -> None:
        self._game = _Game(env, render_mode, "GridPettingZoo")
        self.metadata = {"name": env.name, "render_modes": ["rgb_array"], "render_fps": 8}
        self.render_mode = render_mode
        self.possible_agents = [f"agent_{i}" for i in range(env.num_agents)]
        self.agents: list[str] = []
        # New spaces for each agent, because every space has its own random generator.
        spaces = {agent: self._game.spaces() for agent in self.possible_agents}
        self.observation_spaces = {agent: sees for agent, (sees, _) in spaces.items()}
        self.action_spaces = {agent: does for agent, (_, does) in spaces.items()}
        self._random = np.random.default_rng()

    def observation_space(self, agent: str) -> Box:
        """This agent's observation space."""
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> Discrete | Box:
        """This agent's action space."""
        return self.action_spaces[agent]

    def reset(
        self, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, np.ndarray], dict[str, dict[str, Any]]]:
        """Begin an episode, reproducible by its seed; `options` is ignored."""
        if seed is not None:
            self._random = np.random.default_rng(seed)
        obs = self._game.reset(int(self._random.integers(2**31)))
        self.agents = list(self.possible_agents)
        return dict(zip(self.agents, obs, strict=True)), {agent: {} for agent in self.agents}

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """One turn; returns observations, rewards, terminated, truncated, infos, each by agent."""
        self._game.check_playing()
        if set(actions) != set(self.agents):
            raise SpecMismatch(
                f"GridPettingZoo: step needs one action for each of {self.agents}, "
                f"got {list(actions)}"
            )
        agents = self.agents
        obs, reward, terminated, truncated = self._game.step([actions[a] for a in agents])
        if terminated or truncated:
            self.agents = []
        return (
            dict(zip(agents, obs, strict=True)),
            dict(zip(agents, reward.tolist(), strict=True)),
            dict.fromkeys(agents, terminated),
            dict.fromkeys(agents, truncated),
            {agent: {} for agent in agents},
        )

    def render(self) -> np.ndarray | None:
        """uint8[height, width, 3] with render_mode `rgb_array`, else None."""
        return self._game.draw() if self.render_mode else None

    def close(self) -> None:
        """Nothing to close."""


@cache
def _with_pettingzoo(cls: type) -> type:
    """The class with `ParallelEnv` as a second base."""
    ParallelEnv = import_extra(cls.__name__, "pettingzoo", "pettingzoo").ParallelEnv  # noqa: N806
    return type(cls.__name__, (cls, ParallelEnv), {"__doc__": cls.__doc__})


def _at_random(action: Field, obs: Array, key: jax.Array) -> Array:
    return any_action(action, key, obs.shape[:1])


def _fits(field: Field, action: Any) -> bool:
    if not is_real(field):
        return isinstance(action, int | np.integer) and bool(0 <= action <= field.high)
    given, (low, high) = np.asarray(action), bounds(field)
    if given.shape != field.shape or given.dtype.kind not in "fiu":
        return False
    return bool(((low <= given) & (given <= high)).all())  # NaN is neither


def _wanted(field: Field) -> str:
    if not is_real(field):
        return f"an integer from 0 to {int(field.high)}"
    low, high = (bound.tolist() for bound in bounds(field))
    return f"{field.size} numbers from {low} to {high}"


# Jitted once per setting of an env, however many adapters there are.
@partial(jax.jit, static_argnums=0)
def _reset(env: Env, key: jax.Array) -> tuple[Any, Array]:
    state = env.reset(key)
    return state, env.observe(state)


@partial(jax.jit, static_argnums=0)
def _step(env: Env, state: Any, action: Array, key: jax.Array) -> tuple[Any, Outcome, Array]:
    state, outcome = env.step(state, action, key)
    return state, outcome, env.observe(state)
