"""A run's own agents at play for the doctor: through the very code that acts in training.

`play_agents(settings, params, [now])` explores as the schedules say, in fresh envs of fixed seeds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..engine.make_agent import make_agent
from ..engine.player import Player
from ..engine.population import Population
from ..engine.settings import Settings
from ..engine.stage import Stage
from ..envs import Env, spec_of
from ..rows import Array, Rows
from ..window import Stacker
from .env_play import sizes_for
from .play import Play

_SEED = 11


class AgentGame(NamedTuple):
    """What agents did in some turns: [time, policies, envs, ...] each."""

    rows: Rows
    stacks: Any  # that were acted on
    chosen: np.ndarray  # the action that the agent chose: what the row should hold
    greedy: np.ndarray  # what it would have done without exploring
    play: Play


def play_agents(
    settings: Settings,
    params: Any,
    schedules: Sequence[dict[str, np.ndarray]],
    turns: int = 192,
    envs: int = 16,
) -> list[AgentGame]:
    """All policies, once with each of these schedules [policies]; compiled once for all."""
    world: Any = settings.world
    envs, turns = sizes_for(world, envs, turns)
    turns = max(32, turns // settings.members // max(1, settings.stack // 2))
    population = Population(settings.members, world.num_agents, envs)
    player = Player(make_agent(settings), Stacker(spec_of(world), settings.sight), population)
    play = _on_device if isinstance(world, Env) else _on_host
    games: list[AgentGame] = []
    for rows, stacks, chosen, greedy in play(world, player, params, schedules, turns):
        seen = Play.of(spec_of(world), rows, "its agents, playing now")
        games.append(AgentGame(rows, stacks, chosen, greedy, seen))
    return games


def _on_device(
    world: Any, player: Player, params: Any, schedules: Sequence[Any], turns: int
) -> Iterator[Any]:
    stage, population = Stage(world, player), player.population

    @jax.jit
    def run(params: Any, now: Any, key: jax.Array) -> Any:
        def turn(carry: Any, key: jax.Array) -> Any:
            envs, history = carry
            acting, stepping = jax.random.split(key)
            fate = player.chance(acting), stepping
            before, stacks = player.look(history, *population.seen(envs, jnp))
            best = player.best(params, before, stacks)[1]
            envs, move, rows = stage.turn(params, envs, history, fate, now)
            return (envs, move.history), (rows._replace(extras={}), move.stacks, move.action, best)

        begin, going = jax.random.split(key)
        start = stage.envs.reset(begin), jax.tree.map(jnp.asarray, player.init())
        return jax.lax.scan(turn, start, jax.random.split(going, turns))[1]

    for now in schedules:
        yield jax.device_get(run(params, now, jax.random.key(_SEED)))


def _on_host(
    world: Any, player: Player, params: Any, schedules: Sequence[Any], turns: int
) -> Iterator[Any]:
    population = player.population

    @jax.jit
    def choose(params: Any, now: Any, history: Any, obs: Array, flags: Array, key: Any) -> Any:
        before, stacks = player.look(history, obs, flags)
        best = player.best(params, before, stacks)[1]
        move = player.move(params, history, obs, flags, player.chance(key), now)
        return move.history, move.stacks, move.action, best

    for now in schedules:
        vector = world.vector(population.all_envs, _SEED)
        history: Any = player.init()
        taken: list[Any] = []
        try:
            for time in range(turns):
                key = jax.random.fold_in(jax.random.key(_SEED), time)
                seen = population.seen(vector)
                history, stacks, action, best = choose(params, now, history, *seen, key)
                rows = vector.step(np.asarray(population.by_env(action)))
                rows = jax.tree.map(np.array, population.by_policy(rows))._replace(extras={})
                taken.append((rows, *jax.device_get((stacks, action, best))))
        finally:
            vector.close()
        yield jax.tree.map(lambda *leaves: np.stack(leaves), *taken)
