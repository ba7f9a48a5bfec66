"""`Agent`: the interface of an agent, for training, evaluation, mixture, doctor and page.

An agent is a class of pure functions over an `AgentState`, made from its own settings. Callers do
not ask which agent it is; they ask what it learns from (`settings.learns`), which numbers change
over a run (`settings.schedules`) and what an update reports (`reports`).
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

# The current values of the schedules, by name: {"epsilon": ..., "rate": ...}.
Now = Mapping[str, Array]


class AgentState(NamedTuple):
    """Everything that learning changes. `target` is None for agents without a target network.

    Agents act with `params`. `updates` counts gradient steps, `synced` changes of the target
    network. `bad` becomes true at the first gradient that is not finite; the state then stays as it
    was before.
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
    """Actions, and the agent's values of the states: [batch] each.

    `action, worth = agent.act(params, obs, chance, now)`.
    """

    action: Array
    worth: Array  # float32


@dataclass(frozen=True)
class Replayed:
    """The agent learns from batches of replayed rows, by `update`.

    A cycle is `turns` turns of all envs and then, once `min_fill` rows are stored, `updates`
    updates of `batch` samples each.
    `Replayed(Window(n_step=3), batch=64, capacity=100_000, min_fill=2_000, turns=1, updates=1)`.
    """

    window: Any  # a Window, or a Sequence
    batch: int  # samples: transitions, or sequences
    capacity: int  # rows, per policy
    min_fill: int  # rows, per policy
    turns: int
    updates: int
    reward_scale: float = 1.0  # the loss multiplies rewards by this

    def begins_at(self, envs: int) -> int:
        """Rows stored before the first update: `min_fill`, but at least one sample of every env."""
        return max(self.min_fill, envs * (self.window.n_step + 1))

    def rows(self, envs: int) -> int:
        """Rows in one minibatch; the number of envs does not matter."""
        return self.batch * (self.window.length if isinstance(self.window, Sequence) else 1)


@dataclass(frozen=True)
class Rollouts:
    """The agent learns from the newest rollout, by `learn`, and needs no replay.

    A cycle is a rollout of `turns` turns of all envs, then `updates` gradient steps on its `parts`
    equal minibatches; with `whole_envs`, all rows of an env are in the same minibatch.
    `Rollouts(Window(gamma=0.99), turns=32, updates=64, parts=32)`.
    """

    window: Window
    turns: int
    updates: int
    parts: int
    reward_scale: float = 1.0  # the loss multiplies rewards by this
    whole_envs: bool = False

    def rows(self, envs: int) -> int:
        """Rows in one minibatch."""
        return envs * self.turns // self.parts


class Rollout(NamedTuple):
    """What one agent saw and did, [time, env, ...]; `value` is [time + 1, env].

    `agent.learn(state, rollout, now, key)`.
    """

    obs: Array  # stacks [time, env, stack, ...]
    action: Array
    reward: Array
    terminated: Array
    truncated: Array
    flags: Array
    value: Array  # the states' values by the parameters that acted
    memory: Any = None  # [1, env, units]: the memory before the first row, if the agent has one


class AgentSettings(Protocol):
    """A frozen dataclass; its fields are options of the command line, `--NAME.FIELD`.

    Settings of an agent with a target network may have `syncs(updates) -> int`, how often it has
    changed after `updates` updates; the doctor then checks that.
    """

    def learns(self, stack: int) -> Replayed | Rollouts:
        """What the agent learns from, and how often; a state is `stack` observations."""
        ...

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """Numbers that change over a run's env steps; `epsilon` and `rate` are usual names."""
        ...

    def tiny(self) -> AgentSettings:
        """The same settings, as small as possible, for `--debug`."""
        ...


@runtime_checkable
class Agent(Protocol):
    """Pure functions for one policy; vmap them for several.

    `agent = MyAgent(MyAgent.Settings(), network, spec, stack)`. If its settings' `learns` returns
    `Replayed`, it also has `update(state, batch, now)`; if it returns `Rollouts`, it has
    `learn(state, rollout, now, key)`. See `ReplayAgent`, `RolloutAgent` and, for recurrent agents,
    `MemoryAgent`.
    """

    Settings: ClassVar[type]
    continuous: ClassVar[bool]  # whether its actions are real vectors
    reports: ClassVar[tuple[str, ...]]  # names of the numbers in `Learned`

    def __init__(self, settings: Any, network: Network, spec: Spec, stack: int) -> None: ...

    def init(self, key: jax.Array) -> AgentState:
        """A freshly initialised agent."""
        ...

    def chance(self, key: jax.Array, envs: int) -> Any:
        """The random numbers of one turn, [envs]; independent of the state, so drawn in advance."""
        ...

    def act(self, params: Any, obs: Array, chance: Any, now: Now) -> Act:
        """Actions with exploration, in states obs[batch, stack, ...]."""
        ...

    def best(self, params: Any, obs: Array) -> Array:
        """Actions without exploration, as in evaluation."""
        ...

    def worth(self, params: Any, obs: Array) -> Array:
        """The values of states: float32[batch]."""
        ...

    def adopt(self, state: AgentState, params: Any, reset: bool) -> AgentState:
        """Take over another agent's `params`, also as target; with `reset`, a new optimizer."""
        ...


class MemoryAgent(Protocol):
    """What differs for an agent with a recurrent memory of `memory` numbers.

    The memory is float32[batch, memory] and all 0 at the beginning of an episode; `memory` 0 means
    none. Replayed sequences hold the memory before each row in `extras["memory"]`. The settings
    have `learns(stack, memory)`.
    """

    remembers: ClassVar[bool]  # True: it can have a memory
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
        """The same; returns no memory, because no step is taken."""
        ...


class ReplayAgent(Agent, Protocol):
    """An agent that learns from replay: DQN is one."""

    def update(
        self, state: AgentState, batch: Batch | SequenceBatch, now: Now
    ) -> tuple[AgentState, Learned]:
        """One gradient step; `batch.weight` are importance weights, `batch.mask` valid samples."""
        ...


class RolloutAgent(Agent, Protocol):
    """An agent that learns from rollouts: PQN is one."""

    def learn(
        self, state: AgentState, rollout: Rollout, now: Now, key: jax.Array
    ) -> tuple[AgentState, Learned, Any]:
        """All gradient steps on one rollout; the third result is the bad minibatch, if any."""
        ...
