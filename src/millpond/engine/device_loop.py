"""`DeviceLoop`: env -> rows -> pond -> agent as one jitted program, for envs that run in JAX."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState, Learned, Replayed, Rollout
from ..envs import EnvState
from ..envs.checked import check_seen
from ..errors import FaultsFound
from ..replay import Pond
from ..rows import Array, Rows
from .acting import Acting
from .device_update import DeviceUpdate
from .episode_stats import EpisodeStats, Sums, count, learned, new_stats, no_sums, numbers_of
from .keys import Role, key_of
from .over_policies import bare, dressed
from .player import Past
from .provenance import stored_spec
from .settings import Settings
from .stage import Fate, Stage


class LoopState(NamedTuple):
    """Everything a run knows between two rounds: a tree of arrays, so saving it saves the run."""

    envs: EnvState
    history: Past
    agent: AgentState  # [policies]
    replay: Any  # PondState [policies], or None
    tally: EpisodeStats
    turn: Array  # uint32: turns since the run began
    evidence: Any  # the batch of the first update that was not finite

    @property
    def steps(self) -> Array:
        """Env steps of every policy so far: uint32[policies]."""
        return self.tally.steps


class DeviceLoop:
    """Rounds of a run: `state, sums = loop.round(state, cycles)`.

    A cycle is some turns of all envs, then updates from the Pond, or from those turns themselves.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.acting = Acting(settings)
        self.population, self.agent = self.acting.population, self.acting.player.agent
        self.stage = Stage(settings.world, self.acting.player)
        self.learns, self.pond = settings.learns, None
        if isinstance(self.learns, Replayed):
            sizes = (self.learns.capacity, settings.envs, self.learns.window, settings.sampling)
            self.pond = Pond(stored_spec(settings), *sizes)
            self.update = DeviceUpdate(self.agent, self.pond, self.learns.batch, settings.ranked)
        self._begin = jax.jit(self._init)
        self._round = jax.jit(self._run, static_argnames="learning", donate_argnums=0)

    @property
    def turns_per_cycle(self) -> int:
        """Turns of all envs in one cycle."""
        return self.learns.turns

    @property
    def warm_up(self) -> int:
        """Cycles before learning begins, in which the Pond fills."""
        if not isinstance(self.learns, Replayed):
            return 0
        envs = self.settings.envs
        return -(-self.learns.begins_at(envs) // (envs * self.turns_per_cycle))

    def init(self) -> LoopState:
        """The run's first state."""
        return self._begin()

    def check(self, state: LoopState) -> None:
        """Raise if the env gave what it does not declare; inside jit that was only counted."""
        if self.pond is None:
            return
        try:
            self.pond.check(state.replay)
        except FaultsFound as error:
            world, lead = self.settings.world, np.shape(state.envs.obs)[:2]
            # Its current observations are probably wrong in the same way, and can be shown.
            check_seen(world, np.asarray(state.envs.obs), lead, "agents, envs")
            raise FaultsFound(
                f"env {world.name} contradicts what it declares: {error}; mode sequential names "
                "the value"
            ) from error

    def health(self) -> dict[str, Any]:
        """No evidence: rows never leave the program."""
        return {}

    def pace(self) -> dict[str, Any]:
        """Nothing to add: one process does everything."""
        return {}

    def pack(self, state: LoopState) -> Any:
        """The tree of arrays to save."""
        return state

    def like(self) -> Any:
        """Shapes and dtypes of what `pack` returns."""
        return jax.eval_shape(self._begin)

    def unpack(self, tree: Any) -> LoopState:
        """Continue from what `pack` returned."""
        return jax.tree.map(jnp.asarray, tree)

    def round(self, state: LoopState, cycles: int) -> tuple[LoopState, Sums]:
        """Run that many cycles; `state` is used up."""
        turn = int(state.turn)
        sums = no_sums(self.population.policies, len(self.agent.reports))
        idle = min(cycles, max(0, self.warm_up - turn // self.turns_per_cycle))
        if idle:
            state, sums = self._round(state, sums, idle, learning=False)
        if cycles > idle:
            state, sums = self._round(state, sums, cycles - idle, learning=True)
        return state, jax.device_get(sums)

    def _init(self) -> LoopState:
        seed, policies = self.settings.seed, self.population.policies
        keys = jax.random.split(key_of(seed, Role.PARAMETERS), policies)
        agent = jax.vmap(self.agent.init)(keys)
        envs = self.stage.envs.reset(key_of(seed, Role.RESET))
        replay = self.pond and self.pond.init_many(policies)
        tally = new_stats(policies, self.settings.envs)
        history = self.stage.player.init()
        state = LoopState(envs, history, agent, replay, tally, jnp.uint32(0), None)
        blank = jax.eval_shape(self._first_evidence, state)
        blank = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), blank)
        return jax.tree.map(jnp.asarray, state._replace(evidence=blank))

    def _first_evidence(self, state: LoopState) -> Any:
        state = state._replace(agent=bare(state.agent))
        if self.pond is None:
            return self._learn_rollout(state, self._rollout(state)[1])[1]
        return self._update(state, key_of(0, Role.DRAW))[0].evidence

    def _run(
        self, state: LoopState, sums: Sums, cycles: Array, learning: bool
    ) -> tuple[LoopState, Sums]:
        cycle = self._rollout_cycle if self.pond is None else self._replay_cycle

        def body(_: Array, carry: tuple[LoopState, Sums]) -> tuple[LoopState, Sums]:
            return cycle(*carry, learning)

        state = state._replace(agent=bare(state.agent))
        state, sums = jax.lax.fori_loop(0, cycles, body, (state, sums))
        return state._replace(agent=self._dressed(state.agent)), sums

    def _dressed(self, agent: Any) -> Any:
        """The agent with its axis of policies, which a single policy does not have inside the loop.

        XLA on CPU would copy the loop's state if an axis of length 1 were removed and put back.
        """
        return dressed(agent) if self.population.policies == 1 else agent

    def _fates(self, state: LoopState) -> Fate:
        """The random numbers of one cycle's turns."""
        seed = self.settings.seed
        return self.stage.fate(
            state.turn,
            self.turns_per_cycle,
            lambda turn: key_of(seed, Role.ACT, turn),
            lambda turn: key_of(seed, Role.ENV, turn),
        )

    def _now(self, state: LoopState) -> dict[str, Array]:
        """The agent's schedules at each policy's own steps: [policies]."""
        return self.acting.now(state.tally.steps, jnp)

    # --- rows into the pond, batches out of it --------------------------------------------------

    def _replay_cycle(self, state: LoopState, sums: Sums, learning: bool) -> tuple[LoopState, Sums]:
        assert self.pond
        add = jax.vmap(self.pond.add, in_axes=(self.pond.axes, 0), out_axes=self.pond.axes)
        now = self._now(state)

        def turn(state: LoopState, fate: Fate) -> tuple[LoopState, Rows]:
            params = self._dressed(state.agent.params)
            envs, move, rows = self.stage.turn(params, state.envs, state.history, fate, now)
            state = state._replace(envs=envs, history=move.history, turn=state.turn + 1)
            seen = rows._replace(obs=None, action=None, extras={})
            rows = rows._replace(extras={**rows.extras, **move.extras})
            return state._replace(replay=add(state.replay, rows)), seen

        state, seen = jax.lax.scan(turn, state, self._fates(state))
        tally, sums = count(state.tally, sums, seen)
        state = state._replace(tally=tally)
        if not learning:
            return state, sums
        updates = self.learns.updates
        keys = jax.random.split(key_of(self.settings.seed, Role.DRAW, state.turn), updates)
        state, found = jax.lax.scan(self._update, state, keys)
        return state, learned(sums, found.mean(0), updates)

    def _update(self, state: LoopState, key: jax.Array) -> tuple[LoopState, Array]:
        keys = jax.random.split(key, self.population.policies)
        agent = self._dressed(state.agent)
        done = self.update.all(agent, state.replay, keys, self._now(state))
        evidence = _first(agent.bad, state.evidence, done.batch)
        state = state._replace(agent=bare(done.agent), replay=done.pond, evidence=evidence)
        return state, self._numbers(done.learned)

    def _numbers(self, found: Learned) -> Array:
        return numbers_of(found, self.agent.reports)

    # --- a rollout, then passes over it ---------------------------------------------------------

    def _rollout_cycle(
        self, state: LoopState, sums: Sums, learning: bool
    ) -> tuple[LoopState, Sums]:
        state, rollout = self._rollout(state)
        tally, sums = count(state.tally, sums, rollout)
        state, evidence, found = self._learn_rollout(state, rollout)
        state = state._replace(tally=tally, evidence=evidence)
        return state, learned(sums, found, self.learns.updates)

    def _rollout(self, state: LoopState) -> tuple[LoopState, Rollout]:
        fates, now = self._fates(state), self._now(state)
        envs, history, rollout = self.stage.rollout(
            self._dressed(state.agent.params), state.envs, state.history, fates, now
        )
        turn = state.turn + np.uint32(self.turns_per_cycle)
        return state._replace(envs=envs, history=history, turn=turn), rollout

    def _learn_rollout(self, state: LoopState, rollout: Rollout) -> tuple[LoopState, Any, Array]:
        key = key_of(self.settings.seed, Role.LEARN, state.turn)
        keys = jax.random.split(key, self.population.policies)
        learn = jax.vmap(self.agent.learn, in_axes=(0, 1, 0, 0))
        before = self._dressed(state.agent)
        agent, found, evidence = learn(before, rollout, self._now(state), keys)
        evidence = _first(before.bad, state.evidence, evidence)
        return state._replace(agent=bare(agent)), evidence, self._numbers(found)


def _first(bad: Array, old: Any, new: Any) -> Any:
    """For each policy the old evidence if it was bad before, else the new."""
    if old is None:
        return new

    def pick(o: Array, n: Array) -> Array:
        return jnp.where(bad.reshape(-1, *(1,) * (n.ndim - 1)), o, n)

    return jax.tree.map(pick, old, new)
