"""`BigAgent`: one agent per member that learns from BigPond in every cycle."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Learned, Now
from ..agents.q_agent import unrolled
from ..engine.episode_stats import count, no_sums, numbers_of
from ..engine.keys import Role
from ..replay import Pond, PondState
from ..rows import Array, Batch, Rows
from ..schedule import constant
from ..sequence import SequenceBatch
from .acting import ActingState, MixActing
from .settings import MixSettings


class BigState(NamedTuple):
    """The state of the BigAgents between two steps; only arrays. BigPond is not part of it."""

    agent: AgentState  # [members]
    acting: ActingState | None  # of their own envs, if any
    taken: Array  # uint32: minibatches so far
    begun: Array  # uint32: minibatches before this phase
    goal: Array  # uint32: minibatches of this phase, over which schedules run


class BigAgent:
    """`state, pond, found = big.step(state, pond)` is one pure step; `big.round` takes many.

    A step adds `own_turns` turns of its own envs to BigPond, then learns as many minibatches from
    it as one update of the agents has.
    """

    def __init__(self, settings: MixSettings) -> None:
        self.settings = settings
        playing = settings.big_playing
        horizon = max(1, settings.big_steps * settings.own_turns * settings.own_envs)
        epsilon = settings.big_learning.schedules.get("epsilon", constant(0.0))
        self.acting = MixActing(playing, epsilon, horizon, siblings=1, salt=1)
        self.agent = self.acting.agent
        self.pond = Pond(
            self.acting.spec,
            settings.big.capacity,
            settings.big_streams,
            playing.window,
            playing.sampling,
        )
        self._round = jax.jit(self._run, donate_argnums=(0, 1))
        self._begin = jax.jit(self._begin_phase)
        self._reset_optimizer = jax.jit(jax.vmap(self._with_new_optimizer))

    def init(self) -> BigState:
        """Freshly initialised BigAgents."""
        acting = self.acting.init() if self.settings.own_envs else None
        goal = jnp.uint32(self.settings.big_steps * self.settings.minibatches)
        return BigState(self._fresh(0), acting, jnp.uint32(0), jnp.uint32(0), goal)

    def begin(self, state: BigState, cycle: int, best: Any, steps: int) -> BigState:
        """Begin a phase of `steps` steps: parameters as `big.init` says, schedules restarted.

        `best` holds the parameters [members] that were chosen by score, if `big.init` needs them.
        """
        goal = jnp.uint32(steps * self.settings.minibatches)
        return self._begin(state, cycle, best)._replace(begun=state.taken, goal=goal)

    def round(
        self,
        state: BigState,
        pond: PondState,
        steps: int,
        share: float = 1.0,
        teachers: Any = None,
    ) -> tuple[BigState, PondState, Array]:
        """Take `steps` steps with `share` of the learning rate; donates `state` and `pond`.

        With `teachers`, parameters [members, agents], it learns the mean of their values instead of
        returns. The third result holds mean reports, [members, reports].
        """
        state, pond, found = self._round(state, pond, steps, share, teachers)
        return state, pond, jax.device_get(found)

    def reset_optimizer(self, state: BigState) -> BigState:
        """Reset optimizer and target network, between learning values and learning returns."""
        return state._replace(agent=self._reset_optimizer(state.agent))

    def step(
        self, state: BigState, pond: PondState, share: Array = 1.0, teachers: Any = None
    ) -> tuple[BigState, PondState, Array]:
        """One step: play in its own envs, then learn."""
        state, pond = self._play(state, pond)
        return self.learn(state, pond, share, teachers)

    def learn(
        self, state: BigState, pond: PondState, share: Array = 1.0, teachers: Any = None
    ) -> tuple[BigState, PondState, Array]:
        """Learn as many minibatches as one update of the agents has."""
        pond, batches = self._draw(state, pond)
        number, members = self.settings.minibatches, self.settings.members
        # Everything except the gradients is computed for all minibatches at once: on a GPU each
        # small kernel in this loop would cost as much as a layer.
        since = state.taken - state.begun + jnp.arange(number, dtype=np.uint32)
        schedules = self.now(since, state.goal)
        schedules["rate"] = schedules["rate"] * share

        def one(agent: AgentState, part: tuple[Batch, Now]) -> tuple[AgentState, Array]:
            batch, now = part
            now = {name: jnp.broadcast_to(value, members) for name, value in now.items()}
            if teachers is None:
                agent, found = jax.vmap(self.agent.update)(agent, batch, now)
            else:
                agent, found = jax.vmap(self._imitate)(agent, batch, now, teachers)
            return agent, numbers_of(found, self.agent.reports)

        agent, found = jax.lax.scan(one, state.agent, (batches, schedules), unroll=unrolled(4))
        state = state._replace(agent=agent, taken=state.taken + np.uint32(number))
        return state, pond, found.mean(0)

    def _imitate(
        self, agent: AgentState, batch: Batch | SequenceBatch, now: Now, teachers: Any
    ) -> tuple[AgentState, Learned]:
        """One gradient step towards the mean of the teachers' values of a batch's states."""
        obs, mask = batch.obs, batch.mask
        if isinstance(batch, SequenceBatch):  # all rows, without the observation after the last
            obs, mask = obs[:, :-1].reshape(-1, *obs.shape[2:]), mask.reshape(-1)
        values = jax.vmap(self.agent.values, in_axes=(0, None))(teachers, obs).mean(0)
        return self.agent.imitate(agent, obs, values, mask, now)

    def _draw(self, state: BigState, pond: PondState) -> tuple[PondState, Batch]:
        """Draw all minibatches of a step at once, [minibatch, members, batch]: fewer kernels."""
        axes, settings = self.pond.axes, self.settings
        number, size, members = settings.minibatches, settings.big_learns.batch, settings.members
        draw = functools.partial(self.pond.sample, batch_size=number * size)
        keys = jax.random.split(self.acting.key(Role.DRAW, state.taken), members)
        pond, drawn = jax.vmap(draw, in_axes=(axes, 0), out_axes=(axes, 0))(pond, keys)

        def apart(leaf: Array) -> Array:  # dealt in turn, so that strata spread over each
            return jnp.moveaxis(leaf.reshape(members, size, number, *leaf.shape[2:]), 2, 0)

        return pond, jax.tree.map(apart, drawn)

    @property
    def nothing(self) -> Array:
        """Sums [members, reports] over no minibatches."""
        return jnp.zeros((self.settings.members, len(self.agent.reports)))

    def numbers(self, found: Array) -> dict[str, np.ndarray]:
        """Reports [members, reports] by name, [members] each."""
        return dict(zip(self.agent.reports, np.asarray(found).T, strict=True))

    def now(self, since: Array, goal: Array) -> dict[str, Array]:
        """The schedules' values after `since` of a phase's `goal` minibatches."""
        schedules = self.settings.big_learning.schedules
        now = {name: one.at(since, goal, xp=jnp) for name, one in schedules.items()}
        return now | {"beta": jnp.ones_like(now["rate"])}  # BigPond has no priorities

    def own_rows(self, state: BigState) -> tuple[BigState, Rows]:
        """Play `own_turns` turns in its own envs; returns rows [time, members, env]."""
        params = state.agent.params
        assert state.acting is not None
        schedules = self.acting.now(state.acting)

        def turn(now: ActingState, fate: Any) -> tuple[ActingState, Rows]:
            now, rows = self.acting.turn(params, now, fate, schedules)
            return now, rows

        fate = self.acting.fates(state.acting, self.settings.own_turns)
        acting, rows = jax.lax.scan(turn, state.acting, fate)
        tally, _ = count(acting.tally, no_sums(self.settings.members), rows)
        return state._replace(acting=acting._replace(tally=tally)), rows

    def add(self, pond: PondState, rows: Rows) -> PondState:
        """Add rows [time, members, env] to every member's BigPond."""
        axes = self.pond.axes
        return jax.vmap(self.pond.add, in_axes=(axes, 1), out_axes=axes)(pond, rows)

    def stack_ponds(self, ponds: list[PondState]) -> PondState:
        """Stack one PondState per member into the state of all members."""
        axes = self.pond.axes

        def join(axis: int | None, *leaves: Array) -> Array:
            return leaves[0] if axis is None else jnp.stack(leaves)

        return jax.tree.map(join, axes, *ponds, is_leaf=lambda leaf: leaf is None)

    def _play(self, state: BigState, pond: PondState) -> tuple[BigState, PondState]:
        if not self.settings.own_turns:
            return state, pond
        state, rows = self.own_rows(state)
        return state, self.add(pond, rows)

    def _run(
        self, state: BigState, pond: PondState, steps: Array, share: Array, teachers: Any
    ) -> tuple[BigState, PondState, Array]:
        def body(_: Array, carry: Any) -> Any:
            state, pond, total = carry
            state, pond, found = self.step(state, pond, share, teachers)
            return state, pond, total + found

        state, pond, total = jax.lax.fori_loop(0, steps, body, (state, pond, self.nothing))
        return state, pond, total / steps

    def _with_new_optimizer(self, agent: AgentState) -> AgentState:
        return self.agent.adopt(agent, agent.params, True)._replace(bad=agent.bad)

    def _fresh(self, cycle: Array) -> AgentState:
        keys = jax.random.split(self.acting.key(Role.PARAMETERS, cycle), self.settings.members)
        return jax.vmap(self.agent.init)(keys)

    def _begin_phase(self, state: BigState, cycle: Array, best: Any) -> BigState:
        settings, old = self.settings, state.agent
        fresh, share = self._fresh(cycle), settings.big.shrink
        params = {
            "scratch": lambda: fresh.params,
            "previous": lambda: old.params,
            "best_agent": lambda: best,
            "best_or_average": lambda: best,
            "shrink_perturb": lambda: jax.tree.map(
                lambda was, new: share * was + (1 - share) * new, old.params, fresh.params
            ),
        }[settings.init]()
        keep = settings.init == "previous" and not settings.big.reset_optimizer
        agent = jax.vmap(lambda state, params: self.agent.adopt(state, params, not keep))(
            old, params
        )
        acting = state.acting and self.acting.restart(state.acting)
        return state._replace(agent=agent, acting=acting)
