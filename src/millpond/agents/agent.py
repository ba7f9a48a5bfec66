"""`Agent`: what every loop, evaluation, mixture, doctor and page asks of an agent.

An agent is a class of pure functions over an `AgentState`, made from its own settings. No one asks
which one it is: they ask what it learns from (`settings.learns`), which numbers change over a run
(`settings.schedules`) and what an update reports (`reports`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol, runtime_checkable

import jax

from ..rows import Array, Batch
from ..schedule import Schedule
from ..sequence import Sequence, SequenceBatch
from ..spec import Spec
from ..window import Window
from .networks import Network

# The values of the schedules at this moment, by name: {"epsilon": ..., "rate": ...}.
Now = Mapping[str, Array]


class AgentState(NamedTuple):
    """Everything an agent has learned. `target` is None for agents without a target network.

    `params` is what is acted with. `updates` counts gradients; `synced` counts changes of the
    target network. Once `bad` is true a gradient was not finite and the state has stayed as it was
    before it.
    `state = agent.init(key)`; `agent.best(state.params, obs)`.
    """

    params: Any
    target: Any
    optimizer: Any
    updates: Array  # uint32
    synced: Array  # uint32
    bad: Array  # bool


class Learned(NamedTuple):
    """The results of one update: a float32 for each of the agent's `reports`, and priorities.

    `state, learned = agent.update(state, batch, now)`; `learned.priority` is float32[batch].
    """

    numbers: dict[str, Array]
    priority: Array  # zeros(()) for agents that learn from rollouts


class Act(NamedTuple):
    """Actions, and what the agent thinks the states are worth: [batch].

    `action, worth = agent.act(params, obs, chance, now)`.
    """

    action: Array
    worth: Array  # float32


@dataclass(frozen=True)
class Replayed:
    """The agent learns from batches of replayed rows, by `update`.

    A cycle is `turns` turns of all envs, then `updates` updates of `batch` samples each, once
    `min_fill` rows are stored.
    `Replayed(Window(n_step=3), batch=64, capacity=100_000, min_fill=2_000, turns=1, updates=1)`.
    """

    window: Any  # a Window, or a Sequence
    batch: int  # samples: transitions, or sequences
    capacity: int  # rows, per policy
    min_fill: int  # rows, per policy
    turns: int
    updates: int
    reward_scale: float = 1.0  # what the loss multiplies rewards with

    def begins_at(self, envs: int) -> int:
        """Rows stored before the first update: `min_fill`, and one whole sample of every env."""
        return max(self.min_fill, envs * (self.window.n_step + 1))

    def rows(self, envs: int) -> int:
        """Rows of one minibatch, whatever the number of envs."""
        return self.batch * (self.window.length if isinstance(self.window, Sequence) else 1)


@dataclass(frozen=True)
class Rollouts:
    """The agent learns from what was just played, by `learn`, and needs no replay.

    A cycle is `turns` turns of all envs, then `updates` gradient steps on them, in `parts` equal
    minibatches; with `whole_envs`, all rows of an env are in the same one.
    `Rollouts(Window(gamma=0.99), turns=32, updates=64, parts=32)`.
    """

    window: Window
    turns: int
    updates: int
    parts: int
    reward_scale: float = 1.0  # what the loss multiplies rewards with
    whole_envs: bool = False

    def rows(self, envs: int) -> int:
        """Rows of one minibatch."""
        return envs * self.turns // self.parts


class Rollout(NamedTuple):
    """What one agent saw and did: [time, env, ...]; `value` is [time + 1, env].

    `agent.learn(state, rollout, now, key)`.
    """

    obs: Array  # stacks [time, env, stack, ...]
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    flags: Array
    value: Array  # what each state was worth by the parameters that acted
    memory: Any = None  # [1, env, units]: of agents that have one, that before the first row


class AgentSettings(Protocol):
    """A frozen dataclass; its fields are options of the command line, `--NAME.FIELD`.

    One with a target network may also have `syncs(updates) -> int`: how often that has changed
    after that many updates. Then the doctor checks it.
    """

    def learns(self, stack: int) -> Replayed | Rollouts:
        """What the agent learns from, and how often, where a state is `stack` observations."""
        ...

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Numbers that change over a run, by env steps. `epsilon` and `rate` are usual names."""
        ...

    def tiny(self) -> AgentSettings:
        """The same settings, as small as possible, for `--debug`."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Pure functions for one policy; vmap them for several.

    `agent = MyAgent(MyAgent.Settings(), network, spec, stack)`. An agent that learns by `Replayed`
    has `update(state, batch, now)`, one that learns by `Rollouts` has
    `learn(state, rollout, now, key)`; see `ReplayAgent` and `RolloutAgent`. One that remembers what
    it saw before takes and returns that as well: `MemoryAgent`.
    """

    Settings: ClassVar[type]
    continuous: ClassVar[bool]  # whether its actions are real vectors
    reports: ClassVar[tuple[str, ...]]  # names of the numbers in `Learned`

    def __init__(self, settings: Any, network: Network, spec: Spec, stack: int) -> None: ...

    def init(self, key: jax.Array) -> AgentState:
        """A fresh agent."""
        ...

    def chance(self, key: jax.Array, envs: int) -> Any:
        """The random numbers of one turn, [envs]; they need no values, so they are drawn ahead."""
        ...

    def act(self, params: Any, obs: Array, chance: Any, now: Now) -> Act:
        """Explore: what to do in states obs[batch, stack, ...]."""
        ...

    def best(self, params: Any, obs: Array) -> Array:
        """The actions that evaluation plays."""
        ...

    def worth(self, params: Any, obs: Array) -> Array:
        """What states are worth: float32[batch]."""
        ...

    def adopt(self, state: AgentState, params: Any, reset: bool) -> AgentState:
        """The agent with parameters of another, its target too; `reset`: with a new optimizer."""
        ...


class MemoryAgent(Protocol):
    """What differs in an agent with a memory: `memory` numbers, carried from turn to turn.

    They are float32[batch, memory], all 0 where an episode begins, and 0 for `memory` means that
    there are none. Batches of replayed sequences have them as `extras["memory"]`: before each row.
    Its settings say by `learns(stack, memory)` what it then learns from.
    """

    remembers: ClassVar[bool]  # whether it can have one: True
    memory: int

    def act(
        self, params: Any, obs: Array, chance: Any, now: Now, memory: Array
    ) -> tuple[Act, Array]:
        """The same, and the memory after it."""
        ...

    def best(self, params: Any, obs: Array, memory: Array) -> tuple[Array, Array]:
        """The same, and the memory after it."""
        ...

    def worth(self, params: Any, obs: Array, memory: Array) -> Array:
        """The same; nothing is done, so there is nothing to continue with."""
        ...


class ReplayAgent(Agent, Protocol):
    """An agent that learns from replay: DQN is one."""

    def update(
        self, state: AgentState, batch: Batch | SequenceBatch, now: Now
    ) -> tuple[AgentState, Learned]:
        """One gradient; `batch.weight` are importance weights, `batch.mask` says what counts."""
        ...


class RolloutAgent(Agent, Protocol):
    """An agent that learns from what was just played: PQN is one."""

    def learn(
        self, state: AgentState, rollout: Rollout, now: Now, key: jax.Array
    ) -> tuple[AgentState, Learned, Any]:
        """All gradients from one rollout; also the minibatch that went wrong, if `state.bad`."""
        ...
