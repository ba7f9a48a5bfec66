"""Runs so small that they end in a second, and two envs whose every return is known."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from millpond.agents import DQNSettings, Network, PQNSettings
from millpond.agents.optimizer import Optimizer
from millpond.envs import Outcome
from millpond.envs.hosted import HostedVector
from millpond.envs.treasurehunt import Treasurehunt
from millpond.schedule import constant
from millpond.spec import Field
from millpond.train import Run, Settings, train

WORLD = Treasurehunt(size=5, agents=2, turns=11, spawn=0.2, items=("gem",))


def settings(env: str = "treasurehunt-small", world: Any = WORLD, **changes: Any) -> Settings:
    """A DQN run of 480 steps whose ring of 32 rows wraps early."""
    learning = {
        "dqn": DQNSettings(batch=4, min_fill=16, capacity=32, update_every=2, n_step=2),
        "pqn": PQNSettings(rollout=4, minibatches=2, epochs=1),
    }
    base = dict(
        learning=learning.get(changes.get("agent", "dqn")),
        steps=480,
        envs=4,
        stack=2,
        network=Network(width=8),
        log_every=40,
        eval_every=120,
        eval_episodes=3,
        eval_turns=12,
        checkpoint_every=160,
        resume_every=80,
    )
    return Settings(env, world, **base | changes)


def dqn(of: Settings, sampler: str = "", **changes: Any) -> Settings:
    """The same with other settings of the DQN, or another sampler."""
    if sampler:
        of = dataclasses.replace(of, sampler=sampler, sampling=None)
    return dataclasses.replace(of, learning=dataclasses.replace(of.learning, **changes))


def at_rate(rate: float, kind: str = "adam") -> Optimizer:
    return Optimizer(kind, constant(rate))


class Crash(Exception):
    """What a test throws into a run."""


def crash_at(run: Run, steps: int, kind: str = "train") -> None:
    """Train until a line of that kind at `steps` or later, and crash there."""

    def told(line: dict[str, Any]) -> None:
        if line["kind"] == kind and line["steps"] >= steps:
            raise Crash

    try:
        train(run, told)
    except Crash:
        return
    raise AssertionError("the run ended before it could crash")


def files_of(run: Path) -> dict[str, bytes]:
    """What two equal runs have in common: metrics, the last state and every checkpoint."""
    names = ["metrics.jsonl", "resume.safetensors", "status.json", "config.json"]
    kept = sorted(path.relative_to(run).as_posix() for path in (run / "checkpoints").iterdir())
    return {name: (run / name).read_bytes() for name in [*names, *kept]}


class ArmsState(NamedTuple):
    """How many turns were played, and in which of the episodes to come this one is."""

    turn: Any
    length: Any


@dataclass(frozen=True)
class Arms:
    """Each agent pulls arms for `turns` turns; arm i pays `pay[i]`.

    The last agent gets `boost` times that. With `uneven` an episode lasts 1 ... turns turns by
    chance. The only reference, `best`, always pulls the last arm.
    """

    pay: tuple[float, ...] = (0.25, 1.0)
    agents: int = 1
    turns: int = 1
    boost: float = 2.0
    uneven: bool = False
    terminates: bool = True

    name = "arms"
    frames_per_step = 3
    extras: Any = dataclasses.field(default_factory=dict, init=False, compare=False)

    @property
    def num_agents(self) -> int:
        return self.agents

    @property
    def num_actions(self) -> int:
        return len(self.pay)

    @property
    def observation(self) -> Field:
        return Field("float32", (2,))

    @property
    def references(self) -> dict[str, Callable[..., Any]]:
        return {"best": lambda obs, key: jnp.full(obs.shape[:-1], len(self.pay) - 1, np.int32)}

    def reset(self, key: jax.Array) -> ArmsState:
        length = jax.random.randint(key, (), 1, self.turns + 1) if self.uneven else self.turns
        return ArmsState(jnp.int32(0), jnp.int32(length))

    def step(self, state: ArmsState, action: Any, key: jax.Array) -> tuple[ArmsState, Outcome]:
        factor = jnp.where(jnp.arange(self.agents) == self.agents - 1, self.boost, 1)
        reward = jnp.asarray(self.pay, np.float32)[action] * factor
        ended, never = state.turn + 1 >= state.length, jnp.zeros((), bool)
        terminated, truncated = (ended, never) if self.terminates else (never, ended)
        return state._replace(turn=state.turn + 1), Outcome(reward, terminated, truncated)

    def observe(self, state: ArmsState) -> Any:
        seen = jnp.stack([jnp.float32(1), state.turn.astype(np.float32)])
        return jnp.broadcast_to(seen, (self.agents, 2))

    def render(self, state: ArmsState) -> np.ndarray:
        return np.full((8, 8, 3), int(state.turn), np.uint8)


@dataclass(frozen=True)
class HostArms:
    """The same arms, stepped on the host only; their state can be saved."""

    arms: Arms = Arms()

    name = "host-arms"
    frames_per_step = 3
    num_agents = property(lambda self: self.arms.num_agents)
    num_actions = property(lambda self: self.arms.num_actions)
    observation = property(lambda self: self.arms.observation)
    extras = property(lambda self: {})
    references = property(lambda self: self.arms.references)

    def vector(self, num_envs: int, seed: int) -> HostedVector:
        return HostedVector(self.arms, num_envs, seed)
