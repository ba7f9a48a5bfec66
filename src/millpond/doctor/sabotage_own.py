"""Bugs as they come with an env, a wrapper or an agent of a user; see `sabotage`."""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp

from ..agents import DQN, Act, Optimizer, QAgent
from ..agents import dqn as dqn_module
from ..engine.player import Player
from ..envs import VectorEnv
from ..envs.treasurehunt import Treasurehunt
from ..rows import BORDER, Array
from ..train import evaluate
from ..window import Judgement, Stacker, Window
from .sabotage import patched
from .sabotage_env import changed_step

# --- environments and wrappers -------------------------------------------------------------------


@contextlib.contextmanager
def summed_rewards() -> Generator[None]:
    """The reward is the return so far."""
    reset, step, observe = Treasurehunt.reset, Treasurehunt.step, Treasurehunt.observe

    def begin(env: Treasurehunt, key: jax.Array) -> Any:
        return reset(env, key), jnp.zeros(env.agents)

    def go(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> Any:
        inner, outcome = step(env, state[0], action, key)
        total = state[1] + outcome.reward
        return (inner, total), outcome._replace(reward=total)

    def see(env: Treasurehunt, state: Any) -> Array:
        return observe(env, state[0])

    with (
        patched(Treasurehunt, "reset", begin),
        patched(Treasurehunt, "step", go),
        patched(Treasurehunt, "observe", see),
    ):
        yield


def rewards_of_the_other() -> Any:
    """Agents get each other's rewards."""
    return changed_step(lambda o: o._replace(reward=o.reward[::-1]))


def final_is_reset() -> Any:
    """The final observation of an episode is the first of the next."""
    step = VectorEnv.step

    def other(envs: VectorEnv, state: Any, action: Array, key: jax.Array) -> Any:
        state, rows = step(envs, state, action, key)
        fresh = jax.vmap(envs.env.reset)(jax.random.split(key, envs.num_envs))
        over = ((state.flags & BORDER) != 0).reshape(1, -1, *(1,) * (state.obs.ndim - 2))
        return state._replace(obs=jnp.where(over, envs._observe(fresh), state.obs)), rows

    return patched(VectorEnv, "step", other)


def rows_hold_what_came_next() -> Any:
    """A row holds the observation after its step."""
    step = VectorEnv.step

    def other(envs: VectorEnv, state: Any, action: Array, key: jax.Array) -> Any:
        after, rows = step(envs, state, action, key)
        return after, rows._replace(obs=after.obs)

    return patched(VectorEnv, "step", other)


def evaluation_remaps_actions() -> Any:
    """Evaluation's envs number their actions the other way round."""

    class Kind(VectorEnv):
        def step(self, state: Any, action: Array, key: jax.Array) -> Any:
            return super().step(state, 3 - action, key)

    return patched(evaluate, "VectorEnv", Kind)


def evaluation_sees_mirrored() -> Any:
    """Evaluation's envs show a mirrored picture."""

    class Kind(VectorEnv):
        def _observe(self, inner: Any) -> Array:
            return super()._observe(inner)[:, :, ::-1]

    return patched(evaluate, "VectorEnv", Kind)


def _before_step(change: Callable[..., Array]) -> Any:
    """Let actions go through `change(action, key)` on their way into the env's own step."""
    step = Treasurehunt.step
    return patched(
        Treasurehunt,
        "step",
        lambda env, state, action, key: step(env, state, change(action, key), key),
    )


def agents_move_each_other() -> Any:
    """Each agent's action moves another agent."""
    return _before_step(lambda action, key: action[::-1])


def noisy_rewards() -> Any:
    """Rewards drown in noise."""
    step = Treasurehunt.step

    def other(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> Any:
        state, outcome = step(env, state, action, key)
        noise = 30 * jax.random.normal(jax.random.fold_in(key, 1), outcome.reward.shape)
        return state, outcome._replace(reward=outcome.reward + noise)

    return patched(Treasurehunt, "step", other)


def one_view_for_all() -> Any:
    """All agents see what the first sees."""
    observe = Treasurehunt.observe

    def other(env: Treasurehunt, state: Any) -> Array:
        seen = observe(env, state)
        return jnp.broadcast_to(seen[:1], seen.shape)

    return patched(Treasurehunt, "observe", other)


def stands_still() -> Any:
    """After three turns of an episode nothing happens any more."""
    step = Treasurehunt.step

    def other(env: Treasurehunt, state: Any, action: Array, key: jax.Array) -> Any:
        after, outcome = step(env, state, action, key)
        late = state.turn >= 3
        kept = jax.tree.map(lambda new, old: jnp.where(late, old, new), after, state)
        paid = jnp.where(late, 0, outcome.reward)
        return kept._replace(turn=after.turn), outcome._replace(reward=paid)

    return patched(Treasurehunt, "step", other)


def half_of_evaluation_idle() -> Any:
    """In half of evaluation's envs the first action is taken, whatever is best."""

    class Kind(Player):
        def best(self, params: Any, history: Any, stacks: Array) -> Any:
            past, action = super().best(params, history, stacks)
            return past, jnp.where(jnp.arange(action.shape[1]) % 2 == 0, 0, action)

    return patched(evaluate, "Player", Kind)


# --- learning ------------------------------------------------------------------------------------


def _goal(make: Callable[..., Array]) -> Any:
    return patched(dqn_module, "td_target", make)


def gamma_twice() -> Any:
    """The future is discounted in the rows, and in the goal again."""
    right = dqn_module.td_target
    return _goal(lambda reward, discount, *others: right(reward, discount * 0.8, *others))


def worst_future() -> Any:
    """The goal takes the worst action's value."""
    return _goal(
        lambda reward, discount, online, target, double: reward + discount * target.min(-1)
    )


def rewards_normalised_by_batch() -> Any:
    """The goal has rewards less their mean, by their spread, in this batch."""
    right = dqn_module.td_target

    def make(reward: Array, *others: Any) -> Array:
        return right((reward - reward.mean()) / (reward.std() + 1e-6), *others)

    return _goal(make)


def next_is_not_seen() -> Any:
    """The future's value is that of the present."""
    loss = DQN._transition_loss
    return patched(
        DQN,
        "_transition_loss",
        lambda agent, state, batch, now: loss(
            agent, state, batch._replace(next_obs=batch.obs), now
        ),
    )


def optimizer_forgets() -> Any:
    """The optimizer begins again with every update."""
    update = DQN.update

    def other(agent: DQN, state: Any, batch: Any, now: Any) -> Any:
        begun = agent.settings.optimizer.init(state.params)
        return update(agent, state._replace(optimizer=begun), batch, now)

    return patched(DQN, "update", other)


def tiny_steps() -> Any:
    """Steps are clipped to next to nothing."""
    change = Optimizer.change

    def other(rule: Optimizer, *given: Any) -> Any:
        step, state = change(rule, *given)
        return jax.tree.map(lambda leaf: leaf * 1e-4, step), state

    return patched(Optimizer, "change", other)


def one_discount_more() -> Any:
    """The discount is that of one row more than is summed."""
    returns = Window.returns

    def other(window: Window, rewards: Array, verdict: Judgement, xp: Any) -> tuple[Array, Array]:
        total, discount = returns(window, rewards, verdict, xp)
        return total, discount * window.gamma

    return patched(Window, "returns", other)


# --- acting --------------------------------------------------------------------------------------


def _chance(change: Callable[[Any], Any]) -> Any:
    chance = QAgent.chance
    return patched(QAgent, "chance", lambda agent, key, envs: change(chance(agent, key, envs)))


def one_key_for_all_turns() -> Any:
    """What is left to chance is the same in every turn."""
    chance = QAgent.chance
    return patched(
        QAgent, "chance", lambda agent, key, envs: chance(agent, jax.random.key(0), envs)
    )


def envs_explore_together() -> Any:
    """All envs explore at once, by the same action."""
    return _chance(lambda found: jax.tree.map(lambda leaf: leaf * 0 + leaf[0], found))


def last_action_never() -> Any:
    """The last action is never taken."""
    act = QAgent.act

    def other(agent: QAgent, *given: Any) -> Any:
        found = act(agent, *given)
        return Act(jnp.minimum(found.action, agent.actions - 2), found.worth)

    return patched(QAgent, "act", other)


def memory_never_kept() -> Any:
    """A memory is emptied in every turn."""
    look = Player.look

    def other(player: Player, *given: Any) -> Any:
        past, stacks = look(player, *given)
        memory = None if past.memory is None else past.memory * 0
        return past._replace(memory=memory), stacks

    return patched(Player, "look", other)


def memory_never_emptied() -> Any:
    """A memory reaches into the episode before."""
    look = Player.look

    def other(player: Player, history: Any, *given: Any) -> Any:
        past, stacks = look(player, history, *given)
        return past._replace(memory=history.memory), stacks

    return patched(Player, "look", other)


def acts_on_reversed_stacks() -> Any:
    """Whoever acts sees the newest frame first."""
    push = Stacker.push

    def other(stacker: Stacker, *given: Any) -> Any:
        history, stacks = push(stacker, *given)
        return history, jax.tree.map(lambda leaf: leaf[:, ::-1], stacks)

    return patched(Stacker, "push", other)
