"""`PettingZooEnv`: a PettingZoo parallel env whose agents have the same spaces."""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn

import numpy as np

from ..errors import BadConfig, BadState, BrokenEpisode, SpecMismatch
from ..plugins import find_part
from ..rows import BORDER, CUT, FIRST, Rows, Tree
from ..spec import Field, Spec
from .env import HostVector, PlainFacts

_AWAY = BORDER | CUT  # flags of a row whose agent is absent; no sample may use it


@dataclass(frozen=True)
class PettingZooEnv(PlainFacts):
    """The env made by a module's `parallel_env(**options)`, or by `package.module:Name(...)`.

    `options` are its keyword arguments, such as `N=2,max_cycles=25`; values are JSON or text.
    Every agent has its own policy and its own stream of rows. While an agent is absent, for example
    because it ended before the others, its stream gets rows that no sample uses.
    `PettingZooEnv("mpe2.simple_spread_v3", "N=2")`.
    """

    module: str  # the module, or package.module:Name
    options: str = ""  # KEY=VALUE,KEY=VALUE for the env's constructor
    film: bool = False  # build it so that it can be rendered

    def __post_init__(self) -> None:
        _keywords(self)

    @property
    def name(self) -> str:
        """`pettingzoo:mpe2.simple_spread_v3`"""
        return f"pettingzoo:{self.module}"

    @property
    def num_agents(self) -> int:
        """The number of agents that the env can have."""
        return len(_facts(self).agents)

    @property
    def num_actions(self) -> int:
        """The size of the agents' Discrete action space."""
        return _facts(self).num_actions

    @property
    def observation(self) -> Field:
        """The agents' observation space as a field."""
        return _facts(self).observation

    def vector(self, num_envs: int, seed: int) -> HostVector:
        """`num_envs` freshly reset envs, stepped one after the other."""
        return _ZooVector(self, num_envs, seed)


class _ZooVector:
    """A `HostVector` over parallel envs; their state cannot be saved."""

    num_envs: int
    obs: Tree
    flags: np.ndarray  # uint8[agents, env]: agents need not end together

    def __init__(self, env: PettingZooEnv, num_envs: int, seed: int) -> None:
        self.num_envs, self._env = num_envs, env
        seeds = np.random.SeedSequence(seed).spawn(num_envs)
        self._games = [_ZooGame(env, one) for one in seeds]
        self._show()

    def step(self, action: np.ndarray) -> Rows:
        """Take actions int32[agents, env]; returns the rows [agents, env]."""
        obs, flags = self.obs, self.flags
        step = (flags & BORDER) == 0
        action = np.where(step, action, 0).astype(np.int32)
        turns = [game.turn(action[:, i]) for i, game in enumerate(self._games)]
        reward, terminated, truncated = (np.stack(part, 1) for part in zip(*turns, strict=True))
        self._show()
        # Cut after a border row that is not followed by the agent's next episode.
        stays_away = ~step & ((self.flags & FIRST) == 0)
        flags = flags | stays_away * np.uint8(CUT)
        return Rows(obs, action, reward, terminated, truncated, flags)

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]; needs `film=True`."""
        if not self._env.film:
            raise BadConfig(
                f"{self._env.name}: it was not built for rendering; "
                f"make it with PettingZooEnv({self._env.module!r}, film=True)"
            )
        return np.array(self._games[0].env.render())

    def export(self) -> None:
        """None, because PettingZoo cannot save an env's state."""
        return

    def restore(self, arrays: Mapping[str, np.ndarray]) -> NoReturn:
        """Raises BadState, because there is nothing to restore from."""
        raise BadState(
            f"{self._env.name}: PettingZoo cannot save or restore an env's state; start new "
            "episodes and cut the stream there"
        )

    def close(self) -> None:
        """Close the envs."""
        games, self._games = self._games, []
        for game in games:
            game.env.close()

    def _show(self) -> None:
        self.obs = np.stack([game.obs for game in self._games], 1)
        self.flags = np.stack([game.flags for game in self._games], 1)


class _ZooGame:
    """One env, with the observation and flags of every agent's next row."""

    def __init__(self, env: PettingZooEnv, seeds: np.random.SeedSequence) -> None:
        self._facts, self._name = _facts(env), env.name
        self._random = np.random.default_rng(seeds)
        number, field = len(self._facts.agents), self._facts.observation
        self.obs = np.stack([field.lowest()] * number)
        self.flags = np.full(number, _AWAY, np.uint8)
        self.env = _make(env)
        self._begin()

    def _begin(self) -> None:
        """Begin an episode. It always gets a seed; otherwise envs may pick a random one."""
        seen, _ = self.env.reset(seed=int(self._random.integers(2**31)))
        self.flags[:] = _AWAY
        self._arrive(seen)
        if not self._playing().any():
            raise BrokenEpisode(
                f"{self._name}: env.agents is empty after reset, but an episode needs at least one "
                "agent; correct the env's reset"
            )

    def turn(self, action: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Reward, terminated and truncated of every agent: [agents] each."""
        number = len(self.flags)
        reward = np.zeros(number, np.float32)
        terminated, truncated = np.zeros((2, number), bool)
        playing = self._playing()
        if not playing.any():
            self._begin()
            return reward, terminated, truncated
        named = [self._facts.agents[i] for i in np.flatnonzero(playing)]
        chosen = action[playing] + self._facts.first_action
        seen, gains, over, cut, _ = self.env.step(
            {agent: int(act) for agent, act in zip(named, chosen, strict=True)}
        )
        self._stray(named, gains)
        for i, agent in zip(np.flatnonzero(playing), named, strict=True):
            parts = {"observation": seen, "reward": gains, "terminated": over, "truncated": cut}
            missing = [what for what, given in parts.items() if agent not in given]
            if missing:
                raise BrokenEpisode(
                    f"{self._name}: {agent} acted, but step returned no "
                    f"{' and no '.join(missing)} for it; return all of them for every agent that "
                    "acted, also for those that end"
                )
            reward[i], terminated[i], truncated[i] = gains[agent], over[agent], cut[agent]
            self.obs[i] = self._fitting(agent, seen[agent])
        ended = terminated | truncated
        self._check_roll(playing, ended)
        self.flags[:] = np.where(playing, np.where(ended, BORDER, 0), _AWAY)
        self._arrive(seen, but=playing)
        return reward, terminated, truncated

    def _playing(self) -> np.ndarray:
        return (self.flags & BORDER) == 0

    def _arrive(self, seen: Mapping[str, Any], but: np.ndarray | None = None) -> None:
        """Begin the episodes of agents that are now in the env but did not act in this turn."""
        for i, agent in enumerate(self._facts.agents):
            if (but is not None and but[i]) or agent not in self.env.agents:
                continue
            if agent not in seen:
                raise BrokenEpisode(
                    f"{self._name}: {agent} is in env.agents but got no observation; return one "
                    "for every agent that joins"
                )
            self.obs[i] = self._fitting(agent, seen[agent])
            self.flags[i] = FIRST

    def _check_roll(self, playing: np.ndarray, ended: np.ndarray) -> None:
        """BrokenEpisode unless exactly the agents that ended have left env.agents."""
        here = np.array([agent in self.env.agents for agent in self._facts.agents])
        if (playing & ~ended & ~here).any():
            agent = self._facts.agents[int(np.argmax(playing & ~ended & ~here))]
            raise BrokenEpisode(
                f"{self._name}: {agent} left env.agents without being terminated or truncated; "
                "set one of the two in the step in which it leaves"
            )
        if (playing & ended & here).any() and (playing & ~ended).any():
            agent = self._facts.agents[int(np.argmax(playing & ended & here))]
            raise BrokenEpisode(
                f"{self._name}: {agent} ended but is still in env.agents while others play on; "
                "remove it in the step in which it ends, and add it again in a later one"
            )

    def _stray(self, acted: list[str], gains: Mapping[str, Any]) -> None:
        """BrokenEpisode for rewards of agents that did not act, which would belong to no row."""
        for agent, gain in gains.items():
            if agent not in acted and np.any(np.asarray(gain) != 0):
                raise BrokenEpisode(
                    f"{self._name}: step gave {agent} a reward of {gain}, but it did not act; give "
                    "rewards only to agents that act, at the latest in the step that ends them"
                )

    def _fitting(self, agent: str, seen: Any) -> np.ndarray:
        """The observation cast to the field's dtype; SpecMismatch if that would change values."""
        field, seen = self._facts.observation, np.asarray(seen)
        if seen.shape != field.shape or not field.accepts(seen.dtype):
            raise SpecMismatch(
                f"env {self._name} contradicts what it declares: {agent} observes "
                f"{field.describe()}, got {seen.dtype} {seen.shape}; correct the env or its space"
            )
        return seen.astype(field.dtype)


class _ZooFacts(NamedTuple):
    """The agents and their spaces."""

    agents: tuple[str, ...]
    observation: Field
    num_actions: int
    first_action: int


@lru_cache(maxsize=64)
def _facts(env: PettingZooEnv) -> _ZooFacts:
    """Build one env, read its agents and their spaces, and close it."""
    built = _make(env)
    try:
        agents: tuple[str, ...] = tuple(built.possible_agents)
        sees = [built.observation_space(agent) for agent in agents]
        does = [built.action_space(agent) for agent in agents]
    finally:
        built.close()
    for what, spaces in (("observe", sees), ("act", does)):
        for agent, space in zip(agents, spaces, strict=True):
            if space != spaces[0]:
                raise BadConfig(
                    f"{env.name}: all agents must {what} in the same space, but {agents[0]} has "
                    f"{spaces[0]} and {agent} {space}; pad them with a wrapper such as "
                    "supersuit.pad_observations_v0 or pad_action_space_v0"
                )
    action = does[0]
    if type(action).__name__ != "Discrete":
        raise BadConfig(
            f"{env.name}: the action space must be Discrete, got {action}; choose discrete actions "
            "in its options if it has them, or wrap it"
        )
    observation = Spec.from_env(_Spaces(sees[0], action)).obs
    if not isinstance(observation, Field):
        raise BadConfig(
            f"{env.name}: expected one array as observation, got a dict {sorted(observation)}; "
            "flatten it with a wrapper"
        )
    return _ZooFacts(agents, observation, int(action.n), int(action.start))


class _Spaces(NamedTuple):
    """One agent's spaces, as an env for `Spec.from_env`."""

    observation_space: Any
    action_space: Any


def _make(env: PettingZooEnv) -> Any:
    """Build the parallel env; BadConfig if it cannot be built or is not one."""
    module, colon, attribute = env.module.partition(":")
    make: Any = find_part("env", f"{_known(module)}:{attribute if colon else 'parallel_env'}", {})
    options = _keywords(env) | ({"render_mode": "rgb_array"} if env.film else {})
    try:
        built = make(**options)
    except TypeError as error:
        given = options or "no options"
        raise BadConfig(f"{env.name}: could not be built with {given}: {error}") from error
    if hasattr(built, "agent_iter") or not hasattr(built, "reset"):
        raise BadConfig(
            f"{env.name}: expected a ParallelEnv, got {type(built).__name__}; if its agents act in "
            "turn, try to wrap it with pettingzoo.utils.aec_to_parallel"
        )
    if not getattr(built, "possible_agents", None):
        built.close()
        raise BadConfig(
            f"{env.name}: it does not declare its agents; give it the attribute possible_agents"
        )
    return built


def _known(module: str) -> str:
    """The module's full name: `butterfly.pistonball_v6` means `pettingzoo.butterfly...`."""
    top = module.partition(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top):
        return module
    try:
        inside = importlib.util.find_spec(f"pettingzoo.{top}")
    except ModuleNotFoundError:
        inside = None
    return f"pettingzoo.{module}" if inside else module


def _keywords(env: PettingZooEnv) -> dict[str, Any]:
    """Parse options such as `N=2,name=red,sizes=[1,2]` into keyword arguments."""
    found: dict[str, Any] = {}
    # Split only at commas followed by `name=`: others belong to a value.
    for part in re.split(r",(?=\s*[^\W\d]\w*\s*=)", env.options) if env.options else []:
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or not key.isidentifier() or key in found:
            raise BadConfig(
                f"{env.name}: options must be key=value,key=value with each key once, "
                f"got {env.options!r}"
            )
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
