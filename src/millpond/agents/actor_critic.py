"""`ActorCritic`: what SAC and TD3 share: two critics, an actor within bounds, and its warm-up."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from ..errors import BadConfig
from ..rows import Array
from ..spec import Spec
from .action_box import ActionBox
from .actor_critic_networks import actor_network, critic_network
from .agent import Act, AgentState, Now
from .control import polyak
from .networks import Network
from .optimizer import Optimizer

CRITICS = 2


class Chance(NamedTuple):
    """What of an action is left to chance."""

    normal: Array  # float32[envs, n]
    uniform: Array  # float32[envs, n] in [-1, 1]: the action until something was learned


class Params(NamedTuple):
    """What an actor-critic has learned; the target has the same form, without what it needs not.

    `agent.init(key).params.actor`.
    """

    actor: Any
    critics: Any  # leaves [2, ...]
    log_temperature: Any = None  # float32[], of SAC
    begun: Any = None  # bool[]: whether anything was learned; before that actions are uniform


class Rules(NamedTuple):
    """States of the optimizers, and the key from which every update draws its own."""

    actor: Any
    critics: Any
    temperature: Any
    key: Array  # uint32: of an update's noise, with the number of updates


class ActorCritic:
    """Pure functions over an `AgentState`; a subclass adds `Settings`, `act`, `best`, `update`.

    Inside, actions are in [-1, 1]; rows hold them as the env takes them.
    """

    continuous: ClassVar[bool] = True
    # The critics' loss and value; mean gradient norm and change of all that is learned.
    reports: ClassVar[tuple[str, ...]]
    name: ClassVar[str]

    def __init__(
        self, settings: Any, network: Network, spec: Spec, stack: int, outputs: int
    ) -> None:
        if network.dueling:
            raise BadConfig(
                f"agent {self.name}: a dueling network values each of several actions, and here "
                "actions are real vectors; leave network.dueling off"
            )
        self.settings, self.network, self.spec, self.stack = settings, network, spec, stack
        self.box = ActionBox(spec.action, self.name)
        self._actor = actor_network(network, outputs * self.box.size)
        self._critic = critic_network(network)

    # --- a fresh agent, or another's ---------------------------------------------------------

    def init(self, key: jax.Array) -> AgentState:
        """A fresh agent: actions are uniform until its first update."""
        acting, *valuing, noise = jax.random.split(key, CRITICS + 2)
        field: Any = self.spec.obs
        obs = jnp.zeros((1, self.stack, *field.shape), field.dtype)
        action = jnp.zeros((1, self.box.size), np.float32)
        actor: Any = self._actor.init(acting, obs)["params"]
        critics: list[Any] = [self._critic.init(one, obs, action)["params"] for one in valuing]
        together = jax.tree.map(lambda *each: jnp.stack(each), *critics)
        params = Params(actor, together, self._first_temperature(), jnp.zeros((), bool))
        rules = self._rules(params, jax.random.key_data(noise))
        zero = jnp.zeros((), np.uint32)
        return AgentState(params, self._target(params), rules, zero, zero, jnp.zeros((), bool))

    def adopt(self, state: AgentState, params: Params, reset: bool) -> AgentState:
        """The agent with parameters of another, its target too; `reset`: with new optimizers."""
        rules = self._rules(params, state.optimizer.key) if reset else state.optimizer
        bad = jnp.zeros_like(state.bad)
        target = self._target(params)
        return state._replace(params=params, target=target, optimizer=rules, bad=bad)

    def _first_temperature(self) -> Array | None:
        return None

    def _target(self, params: Params) -> Params:
        """The parameters as a target; copies, because an update gives each its own place."""
        return jax.tree.map(jnp.copy, params._replace(log_temperature=None, begun=None))

    def _rules(self, params: Params, key: Array) -> Rules:
        settings = self.settings
        temperature = None
        if params.log_temperature is not None:
            temperature = settings.temperature_optimizer.init(params.log_temperature)
        return Rules(
            settings.actor_optimizer.init(params.actor),
            settings.optimizer.init(params.critics),
            temperature,
            key,
        )

    # --- acting ------------------------------------------------------------------------------

    def chance(self, key: jax.Array, envs: int) -> Chance:
        """Noise, and an action at random, for each env."""
        noise, anywhere = jax.random.split(key)
        shape = (envs, self.box.size)
        uniform = jax.random.uniform(anywhere, shape, np.float32, -1, 1)
        return Chance(jax.random.normal(noise, shape, np.float32), uniform)

    def best(self, params: Params, obs: Array) -> Array:
        """The actions without noise, as the env takes them: float32[batch, n]."""
        return self.box.outward(self._middle(params.actor, obs))

    def worth(self, params: Params, obs: Array) -> Array:
        """The lower of the critics' values of those actions: float32[batch]."""
        return self.values(params.critics, obs, self._middle(params.actor, obs)).min(0)

    def values(self, critics: Any, obs: Array, action: Array) -> Array:
        """obs[batch, stack, ...], action [batch, n] in [-1, 1] -> float32[critics, batch]"""

        def value(critic: Any) -> Any:
            return self._critic.apply({"params": critic}, obs, action)

        return jax.vmap(value)(critics)

    def _out(self, actor: Any, obs: Array) -> Array:
        """What the actor's network gives, without bounds: [batch, outputs]."""
        found: Any = self._actor.apply({"params": actor}, obs)
        return found

    def _middle(self, actor: Any, obs: Array) -> Array:
        """Actions in [-1, 1] without noise: [batch, n]."""
        raise NotImplementedError

    def _acted(self, params: Params, obs: Array, action: Array, chance: Chance) -> Act:
        """The action in [-1, 1], or one at random until something was learned."""
        action = jnp.where(params.begun, action, chance.uniform)
        return Act(self.box.outward(action), self.values(params.critics, obs, action).min(0))

    # --- learning ----------------------------------------------------------------------------

    def _keys(self, state: AgentState, number: int) -> Array:
        """Keys of this update alone."""
        key = jax.random.wrap_key_data(state.optimizer.key)
        return jax.random.split(jax.random.fold_in(key, state.updates), number)

    def _regress(self, critics: Any, batch: Any, goal: Array, now: Now) -> tuple[Array, Any, Any]:
        """One gradient of the critics towards a goal: loss, gradient, and (values, errors)."""
        action = self.box.inward(batch.action)
        weight = batch.weight ** now["beta"] * batch.mask

        def loss_of(critics: Any) -> tuple[Array, tuple[Array, Array]]:
            q = self.values(critics, batch.obs, action)
            error = q - goal
            return (0.5 * error**2 * weight).mean(1).sum(), (q, error)

        (loss, found), gradient = jax.value_and_grad(loss_of, has_aux=True)(critics)
        return loss, gradient, found

    def _finish(
        self,
        state: AgentState,
        learned: tuple[Params, Params, Rules],
        total: Array,
        due: Array | bool = True,
    ) -> AgentState:
        """The state with parameters, target and optimizers as learned; `due`: the target followed.

        `total` is a sum of all losses and gradient norms: if it is not finite, nothing changes.
        """
        good = jnp.isfinite(total) & ~state.bad
        params, target, rules = learned
        learned = params._replace(begun=jnp.ones((), bool)), target, rules
        before = (state.params, state.target, state.optimizer)
        after: Any = jax.tree.map(lambda new, old: jnp.where(good, new, old), learned, before)
        params, target, rules = after
        return AgentState(
            params, target, rules, state.updates + good, state.synced + (good & due), ~good
        )

    def _followed(self, target: Params, params: Params, due: Array | bool = True) -> Params:
        """The target after one step towards the parameters, if that is due."""
        tau = jnp.where(due, self.settings.tau, 0.0)
        return polyak(target, params._replace(log_temperature=None, begun=None), tau)


def stepped(rule: Optimizer, params: Any, state: Any, gradient: Any, rate: Array) -> Any:
    """Parameters and the optimizer's state after one gradient."""
    change, state = rule.change(gradient, state, params, rate)
    return jax.tree.map(jnp.add, params, change), state


def norm(*gradients: Any) -> Array:
    """Of all gradients together."""
    return optax.tree.norm(gradients)
