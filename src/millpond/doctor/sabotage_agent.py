"""Bugs to plant in agents: their goals, gradients and target network, and how they act."""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, PQN, Act, Optimizer, QAgent
from ..agents import dqn as dqn_module
from ..agents import target_agent as target_agent_module
from ..agents.networks import QNetwork
from ..engine.keys import Role, key_of
from ..engine.stage import Stage
from ..rows import Array
from ..window import Stacker
from .sabotage import patched

OLD_SEED = 301  # of the run whose actors keep their first parameters

# --- learning ------------------------------------------------------------------------------------


def still_target() -> Any:
    """The target network never moves; it is counted as if it did."""
    return patched(
        DQN, "_follow", lambda agent, state, done: (state.target, state.synced + done.good)
    )


def target_is_online() -> Any:
    """The target network is the online one."""
    return patched(
        DQN, "_follow", lambda agent, state, done: (done.params, state.synced + done.good)
    )


def slow_target() -> Any:
    """The target network follows at a tenth of tau."""

    def follow(agent: DQN, state: Any, done: Any) -> Any:
        tau = agent.settings.tau / 10
        target = jax.tree.map(lambda p, t: t + tau * (p - t), done.params, state.target)
        return target, state.synced + done.good

    return patched(DQN, "_follow", follow)


def _goal(make: Any) -> Any:
    return patched(dqn_module, "td_target", make)


def no_bootstrap() -> Any:
    """The goal is the reward alone."""
    return _goal(lambda reward, discount, online, target, double: reward)


def rewards_left_out() -> Any:
    """The goal is the future alone."""
    right = dqn_module.td_target
    return _goal(lambda reward, *others: right(reward * 0, *others))


def rewards_negated() -> Any:
    """The goal has rewards with the wrong sign."""
    right = dqn_module.td_target
    return _goal(lambda reward, *others: right(-reward, *others))


def bootstrap_online() -> Any:
    """The goal is bootstrapped from the online network."""
    right = dqn_module.td_target
    return _goal(lambda r, d, online, target, double: right(r, d, online, online, double))


def terminations_ignored() -> Any:
    """The goal goes on behind the end."""
    right = dqn_module.td_target
    return _goal(lambda r, d, *others: right(r, jnp.full_like(d, 0.64), *others))


def first_action_learned() -> Any:
    """The first action's value is learned, whatever was done."""
    return patched(dqn_module, "chosen", lambda values, action: values[..., 0])


def uphill() -> Any:
    """Steps go up the gradient."""
    change = Optimizer.change

    def other(rule: Optimizer, gradient: Any, *others: Any) -> Any:
        return change(rule, jax.tree.map(jnp.negative, gradient), *others)

    return patched(Optimizer, "change", other)


def frozen_layer() -> Any:
    """The first layer never moves."""
    apply = target_agent_module.apply_gradient

    def other(rule: Any, state: Any, loss: Any, gradient: Any, rate: Any) -> Any:
        done = apply(rule, state, loss, gradient, rate)
        return done._replace(params={**done.params, "Dense_0": state.params["Dense_0"]})

    return patched(target_agent_module, "apply_gradient", other)


def updates_lost() -> Any:
    """What was learned is thrown away."""
    update = DQN.update

    def other(agent: DQN, state: Any, batch: Any, now: Any) -> Any:
        new, learned = update(agent, state, batch, now)
        return new._replace(params=state.params), learned

    return patched(DQN, "update", other)


def dead_units() -> Any:
    """Nearly all units of a layer are switched off."""

    def after(network: QNetwork, x: Array) -> Array:
        off = jnp.where(jnp.arange(x.shape[-1]) < x.shape[-1] * 0.8, -1e3, 0.0)
        return nn.relu(nn.LayerNorm()(x) + off)

    return patched(QNetwork, "_after", after)


def goals_without_future() -> Any:
    """A PQN's goals are rewards alone."""
    return patched(
        PQN, "goals", lambda agent, rollout: rollout.reward * agent.settings.reward_scale
    )


def goals_negated() -> Any:
    """A PQN's goals have the wrong sign."""
    goals = PQN.goals
    return patched(PQN, "goals", lambda agent, rollout: -goals(agent, rollout))


# --- acting --------------------------------------------------------------------------------------


def _act(make: Any) -> Any:
    act = QAgent.act

    def other(agent: QAgent, params: Any, obs: Array, chance: Any, now: Any, *memory: Any) -> Any:
        return make(agent, params, obs, chance, now, act(agent, params, obs, chance, now, *memory))

    return patched(QAgent, "act", other)


def always_greedy() -> Any:
    """Nobody explores."""
    act = QAgent.act
    return patched(
        QAgent,
        "act",
        lambda agent, params, obs, chance, now, *memory: act(
            agent, params, obs, chance, {**now, "epsilon": now["epsilon"] * 0}, *memory
        ),
    )


def explores_twice() -> Any:
    """Epsilon is applied twice as large."""
    act = QAgent.act
    return patched(
        QAgent,
        "act",
        lambda agent, params, obs, chance, now, *memory: act(
            agent, params, obs, chance, {**now, "epsilon": now["epsilon"] * 2}, *memory
        ),
    )


def worst_action() -> Any:
    """Whoever is greedy takes the worst action."""

    def make(agent: Any, params: Any, obs: Any, chance: Any, now: Any, found: Act) -> Act:
        worst = agent.values(params, obs).argmin(-1).astype(np.int32)
        return Act(jnp.where(chance.coin < now["epsilon"], chance.action, worst), found.worth)

    return _act(make)


def one_action() -> Any:
    """Whoever acts does the same."""
    return _act(lambda agent, params, obs, chance, now, found: Act(found.action * 0, found.worth))


def biased_exploration() -> Any:
    """Exploring means the first action."""

    def make(agent: Any, params: Any, obs: Any, chance: Any, now: Any, found: Act) -> Act:
        return Act(jnp.where(chance.coin < now["epsilon"], 0, found.action), found.worth)

    return _act(make)


def stacks_never_cleared() -> Any:
    """The stack acted on reaches into the episode before."""
    push = Stacker.push
    return patched(
        Stacker, "push", lambda stacker, history, obs, flags: push(stacker, history, obs, flags * 0)
    )


def first_parameters_act() -> Any:
    """In one program, too: acting goes on with the very first parameters."""
    turn = Stage.turn

    def other(stage: Stage, params: Any, *others: Any) -> Any:
        policies = stage.player.population.policies
        keys = jax.random.split(key_of(OLD_SEED, Role.PARAMETERS), policies)
        return turn(stage, jax.vmap(stage.player.agent.init)(keys).params, *others)

    return patched(Stage, "turn", other)


def first_policy_acts_for_all() -> Any:
    """The first policy's parameters act for all."""
    turn = Stage.turn

    def other(stage: Stage, params: Any, *others: Any) -> Any:
        first = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf[:1], leaf.shape), params)
        return turn(stage, first, *others)

    return patched(Stage, "turn", other)


def one_beginning_for_all() -> Any:
    """Every policy begins with the same parameters."""
    init = DQN.init
    return patched(DQN, "init", lambda agent, key: init(agent, jax.random.key(77)))


def one_env_explores() -> Any:
    """Only the first env explores."""
    chance = QAgent.chance

    def other(agent: QAgent, key: Any, envs: int) -> Any:
        found = chance(agent, key, envs)
        return found._replace(coin=jnp.where(jnp.arange(envs) == 0, found.coin, 2.0))

    return patched(QAgent, "chance", other)


def last_choice_never() -> Any:
    """The random action is never the last one."""
    right = QAgent.chance

    def other(agent: QAgent, key: jax.Array, envs: int) -> Any:
        found = right(agent, key, envs)
        return found._replace(action=found.action % (agent.actions - 1))

    return patched(QAgent, "chance", other)


def evaluated_in_another_scale() -> Any:
    """To evaluate, observations are scaled otherwise than to act."""
    return patched(
        QAgent, "best", lambda agent, params, obs, *memory: (
            agent.values(params, jnp.flip(obs, -1)).argmax(-1).astype(np.int32)))  # fmt: skip


def returns_across_ends() -> Any:
    """Lambda-returns run on into the next episode."""
    right = PQN.goals

    def other(agent: PQN, rollout: Any) -> Any:
        no = jnp.zeros_like(rollout.terminated)
        return right(agent, rollout._replace(terminated=no, truncated=no))

    return patched(PQN, "goals", other)
