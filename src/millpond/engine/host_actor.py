"""`HostActor`: an actor whose envs are stepped on the host, one turn at a time."""

from __future__ import annotations

import jax
import numpy as np

from ..agents import Now
from ..envs import HostEnv, HostVector, checked_vector
from ..rows import Array, Rows
from .acting import Acting, Params, actor_key, all_policies
from .checkpoint import Arrays
from .episode_stats import Sums, count, new_stats, no_sums
from .keys import Role
from .player import Past
from .settings import Settings


class HostActor:
    """Acts in a `HostVector`. Every actor and incarnation, and every resume, has its own seed."""

    def __init__(
        self,
        settings: Settings,
        index: int,
        incarnation: int,
        cycle: int,
        steps: np.ndarray | None,
    ) -> None:
        self._acting = acting = Acting(settings)
        self._key = actor_key(settings, Role.ACT, index, incarnation)
        self._who = (settings.seed, index, incarnation)
        self.turn = cycle * acting.turns  # since the run began
        self.vector = self._begin_envs()
        self.history = acting.player.init()
        self.tally = new_stats(settings.policies, acting.population.envs)
        if steps is not None:
            self.tally = self.tally._replace(steps=np.asarray(steps, np.uint32))
        self.sums = no_sums(settings.policies)
        self._move = jax.jit(self._look_and_choose)
        self._worth = jax.jit(
            lambda params, *seen: acting.player.worth(all_policies(params), *seen)
        )

    def _begin_envs(self) -> HostVector:
        """Envs whose first episodes differ from those of all envs before."""
        acting = self._acting
        assert isinstance(acting.settings.world, HostEnv)
        words = np.random.SeedSequence((*self._who, self.turn)).generate_state(1)
        number, seed = acting.population.all_envs, int(words[0]) >> 1
        return checked_vector(acting.settings.world, number, seed)

    def cycle(self, params: Params, versions: np.ndarray) -> Rows:
        versions = np.asarray(versions, np.uint32)
        now = self._acting.now(self.tally.steps)  # of the cycle's first turn
        population, turns = self._acting.population, list[Rows]()
        for _ in range(self._acting.turns):
            seen, turn = population.seen(self.vector), np.uint32(self.turn)
            self.history, action, extras = self._move(
                params, self.history, *seen, self._key, turn, now, versions
            )
            rows = self.vector.step(np.asarray(population.by_env(action)))
            rows = jax.tree.map(np.asarray, population.by_policy(rows))
            turns.append(rows._replace(extras={**rows.extras, **jax.device_get(extras)}))
            self.turn += 1
        rows = jax.tree.map(lambda *leaves: np.stack(leaves), *turns)
        self.tally, self.sums = count(self.tally, self.sums, rows, np)
        return rows

    def after(self, params: Params) -> np.ndarray | None:
        if not self._acting.bootstraps:
            return None
        return np.asarray(
            self._worth(params, self.history, *self._acting.population.seen(self.vector))
        )

    def _look_and_choose(
        self,
        params: Params,
        history: Past,
        obs: Array,
        flags: Array,
        key: jax.Array,
        turn: Array,
        now: Now,
        versions: Array,
    ) -> tuple[Past, Array, dict[str, Array]]:
        player = self._acting.player
        chance = player.chance(jax.random.fold_in(key, turn))
        move = player.move(all_policies(params), history, obs, flags, chance, now)
        return move.history, move.action, self._acting.provenance(versions, now, move)

    def report(self) -> Sums:
        sums, self.sums = self.sums, no_sums(len(self.tally.steps))
        return sums

    @property
    def steps(self) -> np.ndarray:
        return np.asarray(self.tally.steps)

    def export(self) -> Arrays:
        tally = {f"tally/{name}": np.asarray(a) for name, a in self.tally._asdict().items()}
        return {"turn": np.array(self.turn, np.int64), **tally}

    def restore(self, arrays: Arrays) -> bool:
        """Restore the counts only: these envs cannot be saved, so they begin new episodes."""
        self.turn = int(arrays["turn"])
        self.vector.close()
        self.vector = self._begin_envs()
        self.tally = self.tally._replace(steps=arrays["tally/steps"])
        return False

    def close(self) -> None:
        self.vector.close()
