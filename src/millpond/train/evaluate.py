"""`Referee`: the returns of greedy episodes, in envs of their own and from fixed seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.episode_stats import steps_of
from ..engine.keys import Role, key_of
from ..engine.player import Past, make_player
from ..engine.settings import Settings
from ..envs import (
    Counting,
    Env,
    HostVector,
    VectorEnv,
    action_of,
    any_action,
    checked_vector,
)
from ..rows import Array

# Evaluation must not share random numbers with training, whatever the run's seed.
EVALUATION_SEED = 1_000_003

# choose(params, past, stacks[policies, envs, stack, ...], key) -> past, actions[policies, envs]
Choose = Callable[[Any, Past, Array, jax.Array], tuple[Past, Array]]


class Scores(NamedTuple):
    """Returns and lengths, [policies, episodes]; `unfinished` episodes count as far as they went.

    `counts` are the events that the env counts, by name: int32[members, episodes].
    `Referee(settings, 100).play(params).mean()`.
    """

    returns: np.ndarray
    lengths: np.ndarray
    unfinished: int
    counts: Mapping[str, np.ndarray] = {}

    def mean(self) -> np.ndarray:
        """Mean return of each policy."""
        return self.returns.mean(1)

    def error(self) -> np.ndarray:
        """Standard error of each mean; infinite for a single episode."""
        episodes = self.returns.shape[1]
        if episodes == 1:
            return np.full(len(self.returns), np.inf)
        return self.returns.astype(np.float64).std(1, ddof=1) / np.sqrt(episodes)

    def events(self) -> dict[str, list[float]]:
        """How often each event happened per episode, for each member."""
        return {name: number.mean(1).tolist() for name, number in self.counts.items()}


class Referee:
    """Plays `episodes` whole episodes with every policy; the agents of an env play together.

    `referee.play(params)` plays greedily, `referee.watch(name)` a scripted reference or `random`.
    To choose between policies, use another `seed` than for the returns that you report.
    """

    def __init__(self, settings: Settings, episodes: int, seed: int = EVALUATION_SEED) -> None:
        self.settings, self.episodes, self.seed = settings, episodes, seed
        self.player = make_player(settings, episodes)
        self.population = self.player.population
        self._greedy = self._make(self._best)

    def play(self, params: Any) -> Scores:
        """Play greedily with params [policies, ...]."""
        return self._greedy(params)

    def watch(self, name: str) -> Scores:
        """Play the same episodes with a reference policy of the env."""
        return self._make(reference(self.settings, name))(None)

    def _best(self, params: Any, past: Past, stacks: Array, _: jax.Array) -> tuple[Past, Array]:
        return self.player.best(params, past, stacks)

    def _make(self, choose: Choose) -> Callable[[Any], Scores]:
        world: Any = self.settings.world
        if isinstance(world, Env):
            run = jax.jit(lambda params: self._on_device(params, choose))

            def play(params: Any) -> Scores:
                returns, lengths, unfinished, counts = jax.device_get(run(params))
                return Scores(returns, lengths, int(unfinished), counts)

            return play
        move, number = jax.jit(choose), self.population.all_envs
        return lambda params: self._in(checked_vector(world, number, self.seed), params, move)

    def _on_device(self, params: Any, choose: Choose) -> tuple[Array, ...]:
        population, seed = self.population, self.seed
        vector = VectorEnv(self.settings.world, population.all_envs)
        shape = (population.policies, population.envs)
        nothing = jnp.zeros(shape, np.float32), jnp.zeros(shape, np.int32), jnp.ones(shape, bool)

        def going(carry: Any) -> Array:
            return carry[-1].any() & (carry[0] < self.settings.eval_turns)

        def turn(carry: Any) -> Any:
            time, envs, history, counts, total, length, alive = carry
            history, stacks = self.player.look(history, *population.seen(envs, jnp))
            acting, stepping = jax.random.split(key_of(seed, Role.EVALUATE, time))
            history, action = choose(params, history, stacks, acting)
            after, rows = vector.step(envs, population.by_env(action), stepping)
            rows = population.by_policy(rows)
            events = self._events(envs.inner, after.inner, alive)
            total, length = total + rows.reward * alive, length + alive
            return (
                time + 1,
                after,
                history,
                jax.tree.map(jnp.add, counts, events),
                total,
                length,
                alive & ~(rows.terminated | rows.truncated),
            )

        envs = vector.reset(key_of(seed, Role.RESET))
        history = jax.tree.map(jnp.asarray, self.player.init())
        counts = jax.tree.map(jnp.zeros_like, self._events(envs.inner, envs.inner, nothing[-1]))
        begin = (jnp.int32(0), envs, history, counts, *nothing)
        *_, counts, total, length, alive = jax.lax.while_loop(going, turn, begin)
        return total, length, alive.sum(), counts

    def _events(self, before: Any, after: Any, alive: Array) -> dict[str, Array]:
        """What the env counts in one turn, in episodes still running: [members, episodes]."""
        world, population = self.settings.world, self.population
        if not isinstance(world, Counting):
            return {}
        shape = (population.members, population.envs)
        going = alive[:: population.agents]  # the agents of one env end together
        found = jax.vmap(world.counts)(before, after)
        return {name: number.reshape(shape) * going for name, number in found.items()}

    def follow(self, vector: HostVector, params: Any, seen: Callable[[], object]) -> Scores:
        """Play greedily in the given envs and close them; calls `seen()` after each turn."""
        return self._in(vector, params, jax.jit(self._best), seen)

    def _in(
        self,
        vector: HostVector,
        params: Any,
        choose: Choose,
        seen: Callable[[], object] = lambda: None,
    ) -> Scores:
        """One episode per env, so that short episodes do not count more often than long ones."""
        look = jax.jit(self.player.look)
        history: Any = self.player.init()
        shape = (self.population.policies, self.population.envs)
        total, length = np.zeros(shape, np.float32), np.zeros(shape, np.int32)
        alive = np.ones(shape, bool)
        try:
            for time in range(self.settings.eval_turns):
                history, stacks = look(history, *self.population.seen(vector))
                key = key_of(self.seed, Role.EVALUATE, time)
                history, action = choose(params, history, stacks, key)
                rows = vector.step(np.asarray(self.population.by_env(action)))
                rows = jax.device_get(self.population.by_policy(rows))
                seen()
                total += rows.reward * alive
                length += alive & steps_of(rows.flags)  # an agent may come later than others
                alive &= ~(rows.terminated | rows.truncated)
                if not alive.any():
                    break
        finally:
            vector.close()
        return Scores(total, length, int(alive.sum()))


def reference(settings: Settings, name: str) -> Choose:
    """A policy that needs no parameters: `random`, or one of the env's references."""
    world: Any = settings.world
    policies = world.references
    if name != "random" and name not in policies:
        known = ", ".join(["random", *policies])
        raise KeyError(f"{settings.env} has no reference '{name}'; it has {known}")

    def choose(_: Any, past: Past, stacks: Array, key: jax.Array) -> tuple[Past, Array]:
        if name == "random":
            return past, any_action(action_of(world), key, stacks.shape[:2])
        newest = stacks[:, :, -1]
        return past, policies[name](newest, key)

    return choose
