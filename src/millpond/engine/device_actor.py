"""`DeviceActor`: an actor whose envs run in JAX, a whole cycle at a time."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import EnvState, spec_of
from ..envs.checked import check_rows
from ..intake import Intake
from ..once import Once
from ..rows import Array, Rows
from .acting import Acting, Params, actor_key, all_policies
from .checkpoint import Arrays, named_leaves
from .episode_stats import EpisodeStats, Sums, count, new_stats, no_sums
from .keys import Role
from .player import Past
from .settings import Settings
from .stage import Fate, Stage


class ActorState(NamedTuple):
    """Everything that changes in a `DeviceActor`."""

    envs: EnvState
    history: Past
    tally: EpisodeStats
    sums: Sums
    turn: Array  # uint32, since the run began


class DeviceActor:
    """An actor whose envs run in JAX: a cycle is one jitted program."""

    def __init__(
        self,
        settings: Settings,
        index: int,
        incarnation: int,
        cycle: int,
        steps: np.ndarray | None,
    ) -> None:
        self._program = _program(settings)
        roles = (Role.RESET, Role.ACT, Role.ENV)
        begin, *self._keys = (actor_key(settings, role, index, incarnation) for role in roles)
        turn = np.uint32(cycle * self._program.turns)
        self.state: ActorState = self._program.init(jax.random.fold_in(begin, turn), turn)
        if steps is not None:
            tally = self.state.tally._replace(steps=jnp.asarray(steps, np.uint32))
            self.state = self.state._replace(tally=tally)

    def cycle(self, params: Params, versions: np.ndarray) -> Rows:
        """Act for one cycle; returns rows [time, policies, envs] on the host, with provenance."""
        versions = np.asarray(versions, np.uint32)
        self.state, rows = self._program.cycle(self.state, params, versions, self._keys)
        rows = jax.device_get(rows)
        self._program.check(rows)
        return rows

    def after(self, params: Params) -> np.ndarray | None:
        """The values of the current states, [policies, envs], for agents that learn from rollouts;
        None for others."""
        if not self._program.bootstraps:
            return None
        return np.asarray(self._program.worth(params, self.state.envs, self.state.history))

    def report(self) -> Sums:
        """What happened since the last report."""
        sums = jax.device_get(self.state.sums)
        blank = jax.tree.map(jnp.zeros_like, self.state.sums)
        self.state = self.state._replace(sums=blank)
        return sums

    @property
    def steps(self) -> np.ndarray:
        """Env steps of every policy here, since the run began: uint32[policies]."""
        return np.asarray(self.state.tally.steps)

    def export(self) -> Arrays:
        """The state, by name."""
        return {name: np.asarray(_plain(leaf)) for name, leaf in named_leaves(self.state)}

    def restore(self, arrays: Arrays) -> bool:
        """Continue from an exported state; False if the envs had to begin new episodes."""
        leaves = [_like(leaf, arrays[name]) for name, leaf in named_leaves(self.state)]
        self.state = jax.tree.unflatten(jax.tree.structure(self.state), leaves)
        return True

    def close(self) -> None:
        """Release the envs."""


class _Program(Acting):
    """The jitted functions of a run's actors: those in one process share them."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.stage = Stage(settings.world, self.player)
        self._intake = Intake(spec_of(settings.world))
        self.init = jax.jit(self._init)
        self.cycle = jax.jit(self._cycle, donate_argnums=0)
        self.worth = jax.jit(
            lambda params, envs, history: self.stage.worth(all_policies(params), envs, history)
        )

    def check(self, rows: Rows) -> None:
        """Raise if the env gave what it does not declare; inside jit nothing can raise."""
        declared = {name: rows.extras[name] for name in self.settings.world.extras}
        lead = np.shape(rows.reward)
        plain = rows._replace(extras=declared)
        check_rows(self.settings.world, self._intake, plain, lead, "time, policies, envs")

    def _init(self, key: jax.Array, turn: Array) -> ActorState:
        policies = self.population.policies
        state = ActorState(
            self.stage.envs.reset(key),
            self.player.init(),
            new_stats(policies, self.population.envs),
            no_sums(policies),
            turn,
        )
        return jax.tree.map(jnp.asarray, state)

    def _cycle(
        self, state: ActorState, params: Params, versions: Array, keys: Sequence[jax.Array]
    ) -> tuple[ActorState, Rows]:
        together = all_policies(params)
        fates = self.stage.fate(
            state.turn, self.turns, *(functools.partial(jax.random.fold_in, key) for key in keys)
        )
        now = self.now(state.tally.steps, jnp)

        def turn(state: ActorState, fate: Fate) -> tuple[ActorState, Rows]:
            envs, move, rows = self.stage.turn(together, state.envs, state.history, fate, now)
            extras = self.provenance(versions, now, move)
            state = state._replace(envs=envs, history=move.history, turn=state.turn + 1)
            return state, rows._replace(extras=extras)

        state, rows = jax.lax.scan(turn, state, fates)
        tally, sums = count(state.tally, state.sums, rows)
        return state._replace(tally=tally, sums=sums), rows


_program = Once(_Program, most=4)


def _plain(leaf: Array) -> Array:
    """A random key as the numbers it is made of; other arrays as they are."""
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _like(leaf: Array, data: np.ndarray) -> Array:
    is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.wrap_key_data(jnp.array(data)) if is_key else jnp.array(data)
