"""`GymEnv`: a Gymnasium env that observes one array, with discrete or continuous actions."""

from __future__ import annotations

import difflib
import importlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal, NoReturn

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode

from ..config import nearest
from ..errors import BadConfig, BadState, NotInstalled, RunFailed, SpecMismatch
from ..plugins import add_cwd_to_path, failure, find_part
from ..rows import BORDER, FIRST, Rows, Tree, next_flags
from ..spec import Field, Spec
from .actions import is_real
from .atari import atari_name
from .env import HostVector, PlainFacts
from .gym_checks import GymChecks

_STATES = 65_536  # largest Discrete observation space that is encoded one-hot


@dataclass(frozen=True)
class GymEnv(PlainFacts):
    """A Gymnasium env by its id, or by `module:Class` if it is not registered.

    Its action space must be Discrete, or a Box of floats, which is flattened. 64-bit observations
    are narrowed to 32 bits, those of a Discrete space become one-hot. `options` go to the env's
    constructor; `wrappers`, innermost first, are names of `gymnasium.wrappers` or `module:Name`.
    `film` builds it with `render_mode="rgb_array"`.
    `GymEnv("FrozenLake-v1", options=("is_slippery=false", "map_name=8x8"))`.
    """

    id: str  # the id that it is registered with, or module:Class
    vectorization: Literal["sync", "async"] = "sync"  # async: each env in its own process
    max_episode_steps: int = 0  # time limit in steps; 0: the env's own
    film: bool = False  # build it so that it can be rendered
    options: tuple[str, ...] = ()  # KEY=VALUE each, for the env's constructor
    wrappers: tuple[str, ...] = ()  # names of gymnasium.wrappers, or module:Name

    def __post_init__(self) -> None:
        if self.vectorization not in ("sync", "async"):
            raise BadConfig(
                f"{self.name}: vectorization must be 'sync' or 'async', got {self.vectorization!r}"
            )
        if self.max_episode_steps < 0:
            raise BadConfig(
                f"{self.name}: max_episode_steps must be 0 (the env's own limit) or more, "
                f"got {self.max_episode_steps}"
            )
        for text in self.options:
            if not text.partition("=")[0].isidentifier() or "=" not in text:
                raise BadConfig(
                    f"{self.name}: options are KEY=VALUE, such as is_slippery=false, got {text!r}"
                )
        # Gymnasium itself imports the module of `module:Name-v0`, which registers the env.
        if ":" not in self.id and self.id not in gymnasium.registry:
            near = difflib.get_close_matches(self.id, gymnasium.registry, 1, 0.0)
            meant = atari_name(self.id) or (f"gym:{near[0]}" if near else "")
            raise BadConfig(
                f"{self.name}: Gymnasium has no env registered with this id; "
                + (f"did you mean '{meant}'? " if meant else "")
                + "If a package provides it, name the package: 'gym:package:Env-v0'"
            )

    @property
    def name(self) -> str:
        """`gym:CartPole-v1`"""
        return f"gym:{self.id}"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def action(self) -> Field:
        """The env's action space as a field; discrete actions begin at 0."""
        return _facts(self).action

    @property
    def num_actions(self) -> int:
        """The size of the Discrete action space; BadConfig if it is not Discrete."""
        if is_real(self.action):
            raise BadConfig(
                f"{self.name}: num_actions needs a Discrete action space, got "
                f"{_facts(self).space}; use its `action`"
            )
        return int(self.action.high) + 1

    @property
    def observation(self) -> Field:
        """The env's observation space as a field."""
        return _facts(self).observation

    @property
    def note(self) -> str:
        """A note for users about its observations; "" if there is nothing to say."""
        facts = _facts(self)
        if facts.states is None:
            return ""
        size = facts.observation.shape[0]
        return f"observations are one of {size} states, encoded one-hot as bool[{size}]"

    def vector(self, num_envs: int, seed: int) -> HostVector:
        """`num_envs` freshly reset envs."""
        return _GymVector(self, num_envs, seed)


class _GymVector:
    """A `HostVector` over Gymnasium's own vector env; its state cannot be saved."""

    num_envs: int
    obs: Tree
    flags: np.ndarray

    def __init__(self, env: GymEnv, num_envs: int, seed: int) -> None:
        facts = _facts(env)
        self.num_envs, self._env = num_envs, env
        self._states = facts.states
        self._dtype, self._space = facts.observation.dtype, facts.space
        self._dummy = facts.action.lowest()  # recorded in border rows, which have no action
        self._vector: Any = _make(env, num_envs)
        # Gymnasium would seed env i with seed + i, so env 1 of seed 0 would equal env 0 of seed 1.
        seeds = np.random.SeedSequence(seed).generate_state(num_envs) >> 1
        self.obs = self._own(self._vector.reset(seed=seeds.tolist())[0])
        self.flags = np.full(num_envs, FIRST, np.uint8)

    def step(self, action: np.ndarray) -> Rows:
        """Take actions [1, env] or [1, env, n]; returns the rows [1, env]."""
        obs, flags = self.obs, self.flags
        step = (flags & BORDER) == 0  # at a border Gymnasium ignores the action and resets
        each = step.reshape(-1, *(1,) * self._dummy.ndim)
        action = np.where(each, action, self._dummy).astype(self._dummy.dtype)
        try:
            seen, reward, terminated, truncated, _ = self._vector.step(self._theirs(action[0]))
        except (EOFError, ConnectionError) as error:
            self._check_processes(error)
            raise
        terminated, truncated = terminated & step, truncated & step
        self.obs, self.flags = self._own(seen), next_flags(flags, terminated, truncated)
        return Rows(
            obs=obs,
            action=action,
            reward=np.where(step, reward, 0).astype(np.float32)[None],
            terminated=terminated[None],
            truncated=truncated[None],
            flags=flags[None],
        )

    def render(self) -> np.ndarray:
        """A picture of the first env, uint8[height, width, 3]; needs `film=True`."""
        if not self._env.film:
            raise BadConfig(
                f"{self._env.name}: it was not built for rendering; "
                f"make it with GymEnv({self._env.id!r}, film=True)"
            )
        try:
            return np.array(self._vector.render()[0])
        except gymnasium.error.DependencyNotInstalled as error:
            raise NotInstalled(f"{self._env.name} cannot be rendered: {error}") from error

    def export(self) -> None:
        """None, because Gymnasium cannot save an env's state."""
        return

    def restore(self, arrays: Mapping[str, np.ndarray]) -> NoReturn:
        """Raises BadState, because there is nothing to restore from."""
        raise BadState(
            f"{self._env.name}: Gymnasium cannot save or restore an env's state; start new "
            "episodes and cut the stream there"
        )

    def close(self) -> None:
        """Close the envs and end their processes."""
        if self._vector is not None:
            self._vector.close()
            self._vector = None

    def _check_processes(self, error: Exception) -> None:
        """Raise RunFailed if an env's process died without an exception, as from a crash in C."""
        for number, process in enumerate(getattr(self._vector, "processes", ())):
            process.join(timeout=1)  # its pipe closes before it exits
            if code := process.exitcode:
                for one in self._vector.processes:
                    one.terminate()
                self._vector.closed, self._vector = True, None  # Gymnasium's close would hang
                how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
                raise RunFailed(
                    f"{self._env.name}: the process of env {number} ended {how} and left no "
                    "traceback; --world.vectorization sync, under python -X faulthandler -m "
                    "millpond, may show where"
                ) from error

    def _theirs(self, action: np.ndarray) -> np.ndarray:
        """Our actions [env, ...] as values of the env's own action space."""
        if isinstance(self._space, Discrete):
            return action + int(self._space.start)
        lost = np.flatnonzero(~np.isfinite(action).all(-1))
        if lost.size:
            raise SpecMismatch(
                f"{self._env.name}: the action of env {lost[0]} must be finite, got "
                f"{action[lost[0]].tolist()}; nothing was stepped. Check the agent that chose it: "
                "its parameters or observations may not be finite"
            )
        own = action.reshape(-1, *self._space.shape).astype(self._space.dtype)
        return np.clip(own, self._space.low, self._space.high)  # float32 may round past a bound

    def _own(self, seen: np.ndarray) -> np.ndarray:
        """[env, *shape] -> [1, env, *shape] with the field's dtype; always a copy."""
        if self._states is not None:
            return self._one_hot(np.asarray(seen))[None]
        return np.array(seen, self._dtype)[None]

    def _one_hot(self, seen: np.ndarray) -> np.ndarray:
        """[env] -> bool[env, states]; SpecMismatch for a state outside the space."""
        assert self._states is not None
        states = np.arange(self._states.n) + self._states.start
        found = seen[:, None] == states
        if not found.any(-1).all():
            raise SpecMismatch(
                f"{self._env.name}: the env gave the observation "
                f"{seen[~found.any(-1)][0]}, but its space is {self._states}; correct the env or "
                "its space"
            )
        return found


@dataclass(frozen=True)
class _Facts:
    """An env's spaces, as fields and as Gymnasium has them."""

    observation: Field
    action: Field
    space: Discrete | Box  # Gymnasium's action space
    states: Discrete | None  # of observations that are encoded one-hot


@lru_cache(maxsize=64)
def _facts(env: GymEnv) -> _Facts:
    """Build one env, read its spaces, and close it."""
    built = _build(env, lambda options, wrappers: _wrapped(env, options, wrappers))
    try:
        acts, seen = built.action_space, built.observation_space
        action = _action_of(env, acts)
        if isinstance(seen, Discrete):
            return _Facts(_one_hot(env, seen), action, acts, seen)
        observation = Spec.from_env(built).obs
        if not isinstance(observation, Field):
            raise BadConfig(
                f"{env.name}: expected one array as observation, got a dict {sorted(observation)}; "
                "flatten it with --world.wrappers FlattenObservation, or add rows from your own "
                "loop, where a Spec may hold a dict"
            )
        return _Facts(observation, action, acts, None)
    except AttributeError as error:
        raise BadConfig(
            f"{env.name}: it does not declare its observation or action space: {error}"
        ) from error
    except BadConfig as error:
        said = str(error).removeprefix(f"{env.name}: ")
        raise BadConfig(f"{env.name}: {said}") from error
    finally:
        built.close()


def _action_of(env: GymEnv, space: Any) -> Field:
    """A Gymnasium action space as a field."""
    if isinstance(space, Discrete):
        return Field("int32", (), 0, int(space.n) - 1)
    if isinstance(space, Box) and space.dtype.kind == "f":
        size = int(np.prod(space.shape, dtype=np.int64))
        return Field("float32", (size,), space.low.ravel(), space.high.ravel())
    raise BadConfig(
        f"{env.name}: actions must be a Discrete space or a Box of floats, got {space}; wrap the "
        "env so that it has one of the two "
        "(gymnasium.wrappers.TransformAction)"
    )


def _make(env: GymEnv, num_envs: int) -> Any:
    """Gymnasium's vector env, with next-step autoreset."""
    settings: dict[str, Any] = {"autoreset_mode": AutoresetMode.NEXT_STEP}
    if env.vectorization == "async":
        settings["context"] = "spawn"  # JAX runs threads, so forking is not safe
    return _build(
        env,
        lambda options, wrappers: gymnasium.make_vec(
            _spec(env.id),
            num_envs,
            wrappers=[*wrappers, partial(GymChecks, name=env.name)],
            vectorization_mode=env.vectorization,
            vector_kwargs=settings,
            **options,
        ),
    )


def _spec(name: str) -> str | EnvSpec:
    """What Gymnasium makes an env from: its id, or `module:Class` of one that is not registered."""
    module, _, own = name.rpartition(":")
    if not module or own in gymnasium.registry:
        return name
    kind = getattr(importlib.import_module(module), own, None)  # which may register the id
    is_env = isinstance(kind, type) and issubclass(kind, gymnasium.Env)
    return EnvSpec(own, entry_point=name) if is_env and own not in gymnasium.registry else name


def _wrapped(env: GymEnv, options: dict[str, Any], wrappers: list[Any]) -> Any:
    built: Any = gymnasium.make(_spec(env.id), **options)
    for wrapper in wrappers:
        built = wrapper(built)
    return built


def _one_hot(env: GymEnv, space: Any) -> Field:
    """A Discrete observation space as a field: one-hot, one bit per state."""
    if space.n > _STATES:
        raise BadConfig(
            f"{env.name}: it observes one of {space.n:,} states, too many to encode one-hot (at "
            f"most {_STATES:,}); wrap the env so that it observes an array"
        )
    return Field("bool", (int(space.n),))


def _build(env: GymEnv, make: Any) -> Any:
    """Call `make(options, wrappers)`; what goes wrong is raised as BadConfig."""
    options: dict[str, Any] = {"render_mode": "rgb_array"} if env.film else {}
    if env.max_episode_steps:
        options["max_episode_steps"] = env.max_episode_steps
    own = dict(text.split("=", 1) for text in env.options)
    add_cwd_to_path()  # the env, or a wrapper, may be a module of the current folder
    wrappers = [_wrapper(env, name) for name in env.wrappers]
    try:
        return make(options | {key: _value(text) for key, text in own.items()}, wrappers)
    except (gymnasium.error.Error, ModuleNotFoundError) as error:
        raise BadConfig(f"{env.name}: Gymnasium could not build it: {error}") from error
    except Exception as error:
        if not isinstance(error, TypeError) or not (env.options or env.wrappers):
            raise BadConfig(f"{env.name}: it could not be built: {failure(error)}") from error
        asked = ", ".join([*env.options, *env.wrappers])
        wrapped = ", and every wrapper must need no argument but the env" if env.wrappers else ""
        raise BadConfig(
            f"{env.name}: it could not be built with {asked}: {error}; the env's constructor must "
            f"accept every option{wrapped}"
        ) from error


def _wrapper(env: GymEnv, name: str) -> Any:
    """A wrapper class by name, of `gymnasium.wrappers` or `module:Name`."""
    if ":" in name:
        return find_part("wrapper", name, {})
    if name not in gymnasium.wrappers.__all__:
        raise BadConfig(
            f"{env.name}: there is no wrapper '{name}'; "
            f"{nearest(name, gymnasium.wrappers.__all__)} (your own: module:Name)"
        )
    try:
        return getattr(gymnasium.wrappers, name)
    except ImportError as error:
        raise BadConfig(f"{env.name}: wrapper {name} cannot be imported: {error}") from error


def _value(text: str) -> Any:
    """The text as JSON (`8`, `0.5`, `true`, `[1, 2]`), or itself if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError:
        return text
