"""`ActorCritic`: what SAC and TD3 share: two critics, an actor within bounds, and its warm-up."""

from __future__ import annotations

import abc
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array, Batch
from ..spec import Spec
from .action_box import ActionBox
from .actor_critic_networks import actor_network, critic_network
from .agent import Act, AgentState, Learned, Now
from .control import correlated, polyak
from .networks import Network
from .optimizer import Optimizer

CRITICS = 2
_SMALL = 2**14  # numbers of a leaf


class Params(NamedTuple):
    """What an actor-critic has learned; targets hold only what follows slowly.

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


class ActorCritic(abc.ABC):
    """Pure functions over an `AgentState`; a subclass adds `Settings` and `update`.

    It also defines its actions without noise (`_middle`) and with it (`_noisy`). Inside, actions
    are in [-1, 1]; rows hold them as the env takes them. `agent.best(params, obs)`.
    """

    continuous: ClassVar[bool] = True
    reports: ClassVar[tuple[str, ...]]
    name: ClassVar[str]
    target_actor: ClassVar[bool] = False  # whether the actor has a target too

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
        # Of correlated noise, that of the turn before: kept as an agent's memory is.
        self.memory = self.box.size if settings.correlation else 0

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
        target = jax.tree.map(jnp.copy, self._followers(params))
        return AgentState(params, target, rules, zero, zero, jnp.zeros((), bool))

    def adopt(self, state: AgentState, params: Params, reset: bool) -> AgentState:
        """The agent with parameters of another, its target too; `reset`: with new optimizers."""
        rules = self._rules(params, state.optimizer.key) if reset else state.optimizer
        bad = jnp.zeros_like(state.bad)
        target = jax.tree.map(jnp.copy, self._followers(params))
        return state._replace(params=params, target=target, optimizer=rules, bad=bad)

    def _first_temperature(self) -> Array | None:
        return None

    def _followers(self, params: Params) -> Params:
        """Those parameters that a target follows."""
        return Params(params.actor if self.target_actor else None, params.critics)

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

    def chance(self, key: jax.Array, envs: int) -> Array:
        """Noise for each env: float32[envs, n]."""
        return jax.random.normal(key, (envs, self.box.size), np.float32)

    def act(self, params: Params, obs: Array, chance: Array, now: Now, *noise: Array) -> Any:
        """Actions with noise; uniform ones until something has been learned."""
        if noise:
            chance = correlated(noise[0], chance, self.settings.correlation)
        uniform = jax.lax.erf(chance / math.sqrt(2))  # of a normal number, in [-1, 1]
        action = jnp.where(params.begun, self._noisy(params.actor, obs, chance, now), uniform)
        worth = self.values(params.critics, obs, action).min(0)
        act = Act(self.box.outward(action), worth)
        return (act, chance) if noise else act

    def best(self, params: Params, obs: Array, *noise: Array) -> Any:
        """The actions without noise, as the env takes them: float32[batch, n]."""
        action = self.box.outward(self._middle(params.actor, obs))
        return (action, *noise) if noise else action

    def worth(self, params: Params, obs: Array, *noise: Array) -> Array:
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

    @abc.abstractmethod
    def _middle(self, actor: Any, obs: Array) -> Array:
        """Actions in [-1, 1] without noise: [batch, n]."""

    @abc.abstractmethod
    def _noisy(self, actor: Any, obs: Array, normal: Array, now: Now) -> Array:
        """Actions in [-1, 1] to explore with: [batch, n]."""

    # --- learning ----------------------------------------------------------------------------

    @abc.abstractmethod
    def update(self, state: AgentState, batch: Batch, now: Now) -> tuple[AgentState, Learned]:
        """One gradient of each network."""

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

        `total` is a sum of all losses and norms: if it is not finite, nothing changes.
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
        return polyak(target, self._followers(params), tau)


def stepped(rule: Optimizer, params: Any, state: Any, gradient: Any, rate: Array) -> Any:
    """Parameters and the optimizer's state after one gradient, and how far it led."""
    change, state = rule.change(gradient, state, params, rate)
    return jax.tree.map(jnp.add, params, change), state, change


def norm(*trees: Any) -> Array:
    """Of all of them together.

    Small leaves are put into one vector, because on a CPU each sum is its own kernel; large
    ones are not worth a copy.
    """
    leaves = jax.tree.leaves(trees)
    small = [leaf.ravel() for leaf in leaves if leaf.size <= _SMALL]
    parts = [leaf for leaf in leaves if leaf.size > _SMALL]
    parts += [jnp.concatenate(small)] if small else []
    return jnp.sqrt(sum((part * part).sum() for part in parts))
