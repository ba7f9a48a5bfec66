"""`QAgent`: what agents with a Q-network share: epsilon-greedy actions and gradient steps."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..rows import Array
from ..sequence import SequenceBatch
from ..spec import Spec
from .agent import Act, AgentState, Learned, Now
from .losses import masked_mean, squared
from .networks import Network, init_params
from .optimizer import Optimizer


class Chance(NamedTuple):
    """The random numbers of one epsilon-greedy turn."""

    coin: Array  # float32[envs] in [0, 1): below epsilon, the random action is taken
    action: Array  # int32[envs]: random actions


class QAgent:
    """An agent with a Q-network. Methods are pure functions; vmap them for several agents.

    `agent.best(params, obs)`. A subclass adds `Settings`, `__init__` and `update`. One that learns
    from sequences or rollouts may have a recurrent memory (`MemoryAgent`) and sets `remembers`.
    """

    continuous: ClassVar[bool] = False
    remembers: ClassVar[bool] = False
    reports: ClassVar[tuple[str, ...]] = ("loss", "q", "gradient", "change")

    def __init__(self, network: Network, optimizer: Optimizer, spec: Spec, stack: int) -> None:
        self.spec, self.stack, self.network, self._optimizer = spec, stack, network, optimizer
        self.actions, self.memory = int(spec.action.high) + 1, network.memory
        self._module = network.build(self.actions)

    def init(self, key: jax.Array) -> AgentState:
        """A freshly initialised agent, without a target network."""
        field: Any = self.spec.obs
        params = init_params(self._module, key, (self.stack, *field.shape), field.dtype)
        zero = jnp.zeros((), np.uint32)
        state = self._optimizer.init(params)
        return AgentState(params, None, state, zero, zero, jnp.zeros((), bool))

    def adopt(self, state: AgentState, params: Any, reset: bool) -> AgentState:
        """Take over another agent's `params`, also as target; with `reset`, a new optimizer."""
        target = None if state.target is None else params
        optimizer = self._optimizer.init(params) if reset else state.optimizer
        bad = jnp.zeros_like(state.bad)
        return state._replace(params=params, target=target, optimizer=optimizer, bad=bad)

    def activity(self, params: Any, obs: Array) -> list[Array]:
        """Without memory: each layer's mean activations over obs, [units] each."""
        _, seen = self._module.apply(
            {"params": params}, obs, capture_intermediates=True, mutable=["intermediates"]
        )
        wanted = "LayerNorm" if self.network.norm else "Dense"
        layers: Any = seen["intermediates"]
        active = [layers[name]["__call__"][0] for name in sorted(layers) if name.startswith(wanted)]
        return [jax.nn.relu(one).mean(tuple(range(one.ndim - 1))) for one in active]

    def values(self, params: Any, obs: Array) -> Array:
        """Without memory: obs[batch, stack, ...] -> float32[batch, actions]"""
        return self._module.apply({"params": params}, obs)

    def unroll(
        self, params: Any, obs: Array, memory: Array, first: Array, held: Array | None = None
    ) -> tuple[Array, Array]:
        """With memory: obs[batch, time, stack, ...] -> float32[batch, time, actions], new memory.

        `memory` [batch, units] is the one before the first observation. It is reset where `first`
        is true and left unchanged where `held` is true, both bool[batch, time].
        """
        held = jnp.zeros(first.shape, bool) if held is None else held
        return self._module.apply({"params": params}, obs, memory, first, held)

    def values_of(self, params: Any, batch: SequenceBatch, burn_in: int) -> Array:
        """Values of every observation after the burn-in: float32[batch, time, actions].

        With memory, the burn-in first brings the stored memory up to date, without gradients.
        """
        obs, behind = batch.obs, batch.obs[:, burn_in:]
        if not self.memory:
            flat = behind.reshape(-1, *behind.shape[2:])
            return self.values(params, flat).reshape(*behind.shape[:2], self.actions)
        memory = batch.extras["memory"][:, 0]
        if burn_in:
            begun = batch.mask[:, :burn_in]  # false before the stored rows begin
            past = memory, batch.first[:, :burn_in], ~begun
            memory = jax.lax.stop_gradient(self.unroll(params, obs[:, :burn_in], *past)[1])
        first = batch.first[:, burn_in:]
        # If the observation after the last row begins an episode, the last row is a border row,
        # which is masked: its next value is not used.
        first = jnp.pad(first, ((0, 0), (0, behind.shape[1] - first.shape[1])))
        return self.unroll(params, behind, memory, first)[0]

    def imitate(
        self, state: AgentState, obs: Array, values: Array, mask: Array, now: Now
    ) -> tuple[AgentState, Learned]:
        """Without memory: one gradient step towards values[batch, actions] of other agents.

        `mask` says which states count. The target network does not change.
        """

        def loss_of(params: Any) -> tuple[Array, Array]:
            own = self.values(params, obs)
            return masked_mean(squared(own - values).mean(-1), mask), own.max(-1)

        (loss, q), gradient = jax.value_and_grad(loss_of, has_aux=True)(state.params)
        done = apply_gradient(self._optimizer, state, loss, gradient, now["rate"])
        new = state._replace(
            params=done.params, optimizer=done.optimizer, updates=done.updates, bad=~done.good
        )
        return new, Learned(report_of(state, done, loss, q, mask), jnp.zeros(()))

    def chance(self, key: jax.Array, envs: int) -> Chance:
        """Random numbers for one turn of each env."""
        coin, choice = jax.random.split(key)
        anything = jax.random.randint(choice, (envs,), 0, self.actions, np.int32)
        return Chance(jax.random.uniform(coin, (envs,)), anything)

    def act(self, params: Any, obs: Array, chance: Chance, now: Now, *memory: Array) -> Any:
        """Epsilon-greedy actions."""
        values, *after = self._step(params, obs, *memory)
        greedy = values.argmax(-1).astype(np.int32)
        action = jnp.where(chance.coin < now["epsilon"], chance.action, greedy)
        return _with(Act(action, values.max(-1)), after)

    def best(self, params: Any, obs: Array, *memory: Array) -> Any:
        """The greedy actions: int32[batch]."""
        values, *after = self._step(params, obs, *memory)
        return _with(values.argmax(-1).astype(np.int32), after)

    def worth(self, params: Any, obs: Array, *memory: Array) -> Array:
        """The values of the greedy actions: float32[batch]."""
        return self._step(params, obs, *memory)[0].max(-1)

    def _step(self, params: Any, obs: Array, *memory: Array) -> tuple[Array, ...]:
        """Values [batch, actions] and, with memory, the new memory."""
        if not memory:
            return (self.values(params, obs),)
        first = jnp.zeros((len(obs), 1), bool)  # the caller resets the memory between episodes
        values, after = self.unroll(params, obs[:, None], memory[0], first)
        return values[:, 0], after


def _with(found: Any, after: list[Array]) -> Any:
    """`found`, followed by the new memory if the agent has one."""
    return (found, *after) if after else found


def unrolled(turns: int) -> int:
    """The `unroll` of a scan: `turns` on a GPU, where every iteration of a loop has a cost.

    A CPU gains nothing from it and takes longer to compile.
    """
    return 1 if jax.default_backend() == "cpu" else turns


def without_burn_in(batch: SequenceBatch, burn_in: int) -> SequenceBatch:
    """The sequences without their burn-in: the rows to learn from."""
    rows = {
        name: jax.tree.map(lambda leaf: leaf[:, burn_in:], getattr(batch, name))
        for name in batch._fields
        if name not in ("weight", "draw")
    }
    return batch._replace(**rows) if burn_in else batch


class Applied(NamedTuple):
    """A gradient made into a change of parameters, if it is finite.

    `done = apply_gradient(...)`; then `state._replace(params=done.params)`.
    """

    params: Any
    optimizer: Any
    updates: Array
    good: Array  # bool: false means that nothing changed
    gradient: Array  # its norm


def apply_gradient(
    rule: Optimizer, state: AgentState, loss: Array, gradient: Any, rate: Array
) -> Applied:
    """Take one step along a gradient, unless it or what came before was not finite.

    The norm of a tree is finite only if every number in it is. It is judged before anything is
    changed, so choosing between old and new needs no extra pass over the parameters.
    `done = apply_gradient(settings.optimizer, state, loss, gradient, now["rate"])`.
    """
    change, optimizer = rule.change(gradient, state.optimizer, state.params, rate)
    steepness = optax.tree.norm(gradient)
    good = jnp.isfinite(loss + steepness) & ~state.bad

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(good, new, old)

    params = jax.tree.map(lambda p, c: keep(p + c, p), state.params, change)
    optimizer = jax.tree.map(keep, optimizer, state.optimizer)
    return Applied(params, optimizer, state.updates + good, good, steepness)


def report_of(
    before: AgentState, done: Applied, loss: Array, q: Array, mask: Array
) -> dict[str, Array]:
    """The values of a `QAgent`'s `reports` for one update."""
    return {
        "loss": loss,
        "q": masked_mean(q, mask),
        "gradient": done.gradient,
        "change": relative_change(before.params, done.params),
    }


def relative_change(before: Any, after: Any) -> Array:
    """How far parameters moved, as a share of their size.

    `relative_change(state.params, done.params)`.
    """
    moved = jax.tree.map(jnp.subtract, after, before)
    return optax.tree.norm(moved) / (optax.tree.norm(before) + 1e-12)
