"""`PettingZooEnv`: a PettingZoo parallel env whose agents see and do the same kinds of things."""

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

_AWAY = BORDER | CUT  # the flags of a row in which its agent is not there: no sample may use it


@dataclass(frozen=True)
class PettingZooEnv(PlainFacts):
    """The env that `parallel_env(**options)` of a module makes, or `package.module:Name(...)`.

    `options` are its keyword arguments, such as `N=2,max_cycles=25`; values are JSON, or text.
    Every agent has its own policy and its own stream of rows. One that ends before the others,
    or is not there, leaves rows that no sample uses, until it is back. `film` builds the env so
    that it can be rendered. `PettingZooEnv("mpe2.simple_spread_v3", "N=2")`.
    """

    module: str
    options: str = ""
    film: bool = False

    def __post_init__(self) -> None:
        _keywords(self)

    @property
    def name(self) -> str:
        """`pettingzoo:mpe2.simple_spread_v3`"""
        return f"pettingzoo:{self.module}"

    @property
    def num_agents(self) -> int:
        """Every agent that the env can have."""
        return len(_facts(self).agents)

    @property
    def num_actions(self) -> int:
        """Of every agent's Discrete action space."""
        return _facts(self).num_actions

    @property
    def observation(self) -> Field:
        """Every agent's observation space as a field."""
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
        """Act int32[agents, env]; return the finished rows [agents, env]."""
        obs, flags = self.obs, self.flags
        step = (flags & BORDER) == 0
        action = np.where(step, action, 0).astype(np.int32)
        turns = [game.turn(action[:, i]) for i, game in enumerate(self._games)]
        reward, terminated, truncated = (np.stack(part, 1) for part in zip(*turns, strict=True))
        self._show()
        # An agent's border row is followed by its next episode, or by rows without it.
        stays_away = ~step & ((self.flags & FIRST) == 0)
        flags = flags | stays_away * np.uint8(CUT)
        return Rows(obs, action, reward, terminated, truncated, flags)

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]; needs `film=True`."""
        if not self._env.film:
            raise BadConfig(
                f"{self._env.name}: it was not built to be rendered; "
                f"make it with PettingZooEnv({self._env.module!r}, film=True)"
            )
        return np.array(self._games[0].env.render())

    def export(self) -> None:
        """None: PettingZoo has no way to save an env's state."""
        return

    def restore(self, arrays: Mapping[str, np.ndarray]) -> NoReturn:
        """Refused: there is nothing to restore from."""
        raise BadState(
            f"{self._env.name}: PettingZoo cannot restore an env's state, and export() gives none; "
            "start fresh episodes and cut the stream there"
        )

    def close(self) -> None:
        """Free the envs."""
        games, self._games = self._games, []
        for game in games:
            game.env.close()

    def _show(self) -> None:
        self.obs = np.stack([game.obs for game in self._games], 1)
        self.flags = np.stack([game.flags for game in self._games], 1)


class _ZooGame:
    """One env, and of every agent the observation and the flags of its row to come."""

    def __init__(self, env: PettingZooEnv, seeds: np.random.SeedSequence) -> None:
        self._facts, self._name = _facts(env), env.name
        self._random = np.random.default_rng(seeds)
        number, field = len(self._facts.agents), self._facts.observation
        self.obs = np.stack([field.lowest()] * number)
        self.flags = np.full(number, _AWAY, np.uint8)
        self.env = _make(env)
        self._begin()

    def _begin(self) -> None:
        """A new episode. Its seed is always given: an env may draw another of its own."""
        seen, _ = self.env.reset(seed=int(self._random.integers(2**31)))
        self.flags[:] = _AWAY
        self._arrive(seen)
        if not self._playing().any():
            raise BrokenEpisode(
                f"{self._name}: reset left no agent in env.agents, one at least was expected; "
                "correct the env's reset"
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
                    f"{self._name}: {agent} acted, and step gave no {' and no '.join(missing)} "
                    "for it; give every agent that acted all of them, those that end included"
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
        """Episodes of the agents that are here now and did not act in this turn."""
        for i, agent in enumerate(self._facts.agents):
            if (but is not None and but[i]) or agent not in self.env.agents:
                continue
            if agent not in seen:
                raise BrokenEpisode(
                    f"{self._name}: {agent} is in env.agents and was given no observation; "
                    "an agent that joins needs one"
                )
            self.obs[i] = self._fitting(agent, seen[agent])
            self.flags[i] = FIRST

    def _check_roll(self, playing: np.ndarray, ended: np.ndarray) -> None:
        """Whoever ended has left, and no one left otherwise."""
        here = np.array([agent in self.env.agents for agent in self._facts.agents])
        if (playing & ~ended & ~here).any():
            agent = self._facts.agents[int(np.argmax(playing & ~ended & ~here))]
            raise BrokenEpisode(
                f"{self._name}: {agent} left env.agents and was neither terminated nor truncated; "
                "say which in the step in which it leaves"
            )
        if (playing & ended & here).any() and (playing & ~ended).any():
            agent = self._facts.agents[int(np.argmax(playing & ended & here))]
            raise BrokenEpisode(
                f"{self._name}: {agent} ended and is still in env.agents while others play on; "
                "take it out in the step in which it ends, and back in a later one"
            )

    def _stray(self, acted: list[str], gains: Mapping[str, Any]) -> None:
        """A reward without an action would belong to no row."""
        for agent, gain in gains.items():
            if agent not in acted and np.any(np.asarray(gain) != 0):
                raise BrokenEpisode(
                    f"{self._name}: step gave {agent} a reward of {gain}, but it did not act; "
                    "give a reward in the step that ends an agent, or to one that acts"
                )

    def _fitting(self, agent: str, seen: Any) -> np.ndarray:
        """The observation in the field's dtype, unless that would change what it says."""
        field, seen = self._facts.observation, np.asarray(seen)
        if seen.shape != field.shape or not field.accepts(seen.dtype):
            raise SpecMismatch(
                f"env {self._name} contradicts what it declares: {agent} observes "
                f"{field.describe()}, got {seen.dtype} {seen.shape}; correct the env, or its space"
            )
        return seen.astype(field.dtype)


class _ZooFacts(NamedTuple):
    """What the spaces say."""

    agents: tuple[str, ...]
    observation: Field
    num_actions: int
    first_action: int


@lru_cache(maxsize=64)
def _facts(env: PettingZooEnv) -> _ZooFacts:
    """Builds one env to ask it for its agents and their spaces, and closes it."""
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
                    f"{env.name}: agents must all {what} in the same space, but {agents[0]} has "
                    f"{spaces[0]} and {agent} {space}; pad them to one space with a wrapper, as "
                    "supersuit.pad_observations_v0 and pad_action_space_v0 do"
                )
    action = does[0]
    if type(action).__name__ != "Discrete":
        raise BadConfig(
            f"{env.name}: actions must be a Discrete space, got {action}; ask the env for "
            "discrete ones, or wrap it so that it offers a list of actions"
        )
    observation = Spec.from_env(_Spaces(sees[0], action)).obs
    if not isinstance(observation, Field):
        raise BadConfig(
            f"{env.name}: agents observe a dict {sorted(observation)}, one array was expected; "
            "flatten it with a wrapper"
        )
    return _ZooFacts(agents, observation, int(action.n), int(action.start))


class _Spaces(NamedTuple):
    """As `Spec.from_env` asks for them."""

    observation_space: Any
    action_space: Any


def _make(env: PettingZooEnv) -> Any:
    """The parallel env, with what cannot be used refused."""
    module, colon, attribute = env.module.partition(":")
    make: Any = find_part("env", f"{_known(module)}:{attribute if colon else 'parallel_env'}", {})
    options = _keywords(env) | ({"render_mode": "rgb_array"} if env.film else {})
    try:
        built = make(**options)
    except TypeError as error:
        given = options or "no options"
        raise BadConfig(f"{env.name}: could not be made with {given}: {error}") from error
    if hasattr(built, "agent_iter") or not hasattr(built, "reset"):
        raise BadConfig(
            f"{env.name}: a ParallelEnv was expected, got {type(built).__name__}; if its agents "
            "act in turn, wrap it with pettingzoo.utils.aec_to_parallel where that is possible"
        )
    if not getattr(built, "possible_agents", None):
        built.close()
        raise BadConfig(
            f"{env.name}: it does not say which agents it can have; give it possible_agents"
        )
    return built


def _known(module: str) -> str:
    """`butterfly.pistonball_v6` stands for `pettingzoo.butterfly.pistonball_v6`."""
    top = module.partition(".")[0]
    if not top.isidentifier() or importlib.util.find_spec(top):
        return module
    try:
        inside = importlib.util.find_spec(f"pettingzoo.{top}")
    except ModuleNotFoundError:
        inside = None
    return f"pettingzoo.{module}" if inside else module


def _keywords(env: PettingZooEnv) -> dict[str, Any]:
    """`N=2,name=red,sizes=[1,2]` as keyword arguments."""
    found: dict[str, Any] = {}
    # A comma inside a value is followed by no name.
    for part in re.split(r",(?=\s*[^\W\d]\w*\s*=)", env.options) if env.options else []:
        key, equals, text = (word.strip() for word in part.partition("="))
        if not equals or not key.isidentifier() or key in found:
            raise BadConfig(
                f"{env.name}: options are key=value,key=value with each key once, "
                f"got {env.options!r}"
            )
        try:
            found[key] = json.loads(text)
        except ValueError:
            found[key] = text
    return found
