"""`HostLoop`: env -> rows -> replay -> agent in Python, for envs or replay on the host."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, AgentState, Rollout
from ..envs import Env, HostEnv, HostVector, spec_of
from ..envs.hosted import HostedVector
from ..rows import Rows
from ..window import History, Stacker
from .device_loop import make_agent
from .keys import Role, key_of
from .player import Player
from .population import Population
from .replay import HostReplay, make_replay
from .settings import Settings
from .tally import Sums, Tally, count, learned, new_tally, no_sums


class HostState(NamedTuple):
    """What the loop knows besides envs and replay, which keep their own state."""

    history: History
    agent: AgentState  # [policies]
    tally: Tally
    turn: int
    evidence: Any


class HostLoop:
    """The same cycles as `DeviceLoop`, one turn at a time.

    with HostLoop.opened(settings, folder) as loop: state, sums = loop.round(loop.init(), 10)
    """

    def __init__(self, settings: Settings, replay: HostReplay | None) -> None:
        self.settings, self.replay = settings, replay
        world: Any = settings.world
        self.envs = self._begin_envs(0)
        self.population = Population(settings.members, world.num_agents, settings.envs)
        self.agent = make_agent(settings)
        stacker = Stacker(spec_of(world), settings.window)
        self.player = Player(self.agent, stacker, self.population)
        self._chance, self._move = jax.jit(self.player.chance), jax.jit(self.player.move)
        self._values = jax.jit(self._bootstrap)
        if isinstance(self.agent, DQN):
            self._update = jax.jit(jax.vmap(self.agent.update), donate_argnums=0)
        else:
            self._learn = jax.jit(jax.vmap(self.agent.learn, (0, 1, 0, 0)), donate_argnums=0)

    @staticmethod
    @contextlib.contextmanager
    def opened(settings: Settings, folder: Path) -> Generator[HostLoop]:
        """Open envs and replay, and close them at the end."""
        with contextlib.ExitStack() as stack:
            replay = None
            if settings.agent != "pqn":
                spec = spec_of(settings.world)
                replay = stack.enter_context(make_replay(settings, spec, folder / "lake"))
            yield stack.enter_context(contextlib.closing(HostLoop(settings, replay)))

    def _begin_envs(self, turn: int) -> HostVector:
        """Envs that begin at a turn of the run, not as those that began at another."""
        settings, number = self.settings, self.settings.members * self.settings.envs
        if isinstance(settings.world, Env):
            return HostedVector(settings.world, number, settings.seed)
        assert isinstance(settings.world, HostEnv)
        return settings.world.vector(number, settings.seed + (turn << 32))

    def close(self) -> None:
        """Close the envs."""
        self.envs.close()

    @property
    def turns_per_cycle(self) -> int:
        """Turns of all envs in one cycle."""
        return self.settings.pqn.rollout if self.replay is None else self.settings.dqn.update_every

    def init(self) -> HostState:
        """The run's first state."""
        policies = self.population.policies
        keys = jax.random.split(key_of(self.settings.seed, Role.PARAMETERS), policies)
        agent = jax.jit(jax.vmap(self.agent.init))(keys)
        tally = new_tally(policies, self.settings.envs)
        return HostState(self.player.init(), agent, tally, 0, None)

    def steps(self, state: HostState) -> np.ndarray:
        """Env steps of every policy so far: uint32[policies]."""
        return np.asarray(state.tally.steps)

    def bad(self, state: HostState) -> np.ndarray:
        """Which policies met a gradient that was not finite: bool[policies]."""
        return np.asarray(state.agent.bad)

    def health(self) -> dict[str, Any]:
        """Nothing more than the lines say: rows do not travel here."""
        return {}

    def pace(self) -> dict[str, Any]:
        """One process does everything."""
        return {}

    def pack(self, state: HostState) -> Any:
        """All that must be saved, as a tree of arrays."""
        loop = state._replace(turn=np.uint32(state.turn), evidence=None)
        envs, replay = self.envs.export(), self.replay.export() if self.replay else {}
        return {"loop": loop, "envs": envs or {}, "replay": replay}

    def like(self) -> Any:
        """Shapes and dtypes of what `pack` returns."""
        return self.pack(self.init())

    def unpack(self, tree: Any) -> HostState:
        """Go on from what `pack` returned; envs that cannot be saved begin anew, after a cut."""
        if self.replay:
            self.replay.restore(tree["replay"])
        state: HostState = tree["loop"]
        if tree["envs"]:
            self.envs.restore(tree["envs"])
        else:
            self.envs.close()
            self.envs = self._begin_envs(int(state.turn))
            if self.replay:
                self.replay.cut()
            tally = state.tally._replace(
                reward=np.zeros_like(state.tally.reward), length=np.zeros_like(state.tally.length)
            )
            state = state._replace(history=self.player.init(), tally=tally)
        agent = jax.tree.map(jnp.asarray, state.agent)
        return state._replace(agent=agent, turn=int(state.turn))

    def round(self, state: HostState, cycles: int) -> tuple[HostState, Sums]:
        """Run so many cycles; `state` is used up."""
        sums = no_sums(self.population.policies)
        for _ in range(cycles):
            cycle = self._pqn_cycle if self.replay is None else self._dqn_cycle
            state, sums = cycle(state, sums)
            if np.asarray(state.agent.bad).any():
                break
        return state, jax.device_get(sums)

    def _turn(self, state: HostState, sums: Sums) -> tuple[HostState, Sums, Any, Rows]:
        obs, flags = self._seen()
        key = key_of(self.settings.seed, Role.ACT, state.turn)
        epsilon = self.epsilon(state.tally.steps)
        chance = self._chance(key)
        move = self._move(state.agent.params, state.history, obs, flags, chance, epsilon)
        rows = self.envs.step(np.asarray(self.population.by_env(move.action)))
        rows = _to_host(self.population.by_policy(rows))
        seen = rows._replace(obs=None, action=None, extras={})
        tally, sums = count(state.tally, sums, jax.tree.map(lambda leaf: leaf[None], seen), np)
        state = state._replace(history=move.history, tally=tally, turn=state.turn + 1)
        return state, sums, move, rows

    def _seen(self) -> tuple[np.ndarray, np.ndarray]:
        obs = self.envs.obs
        return self.population.by_policy((obs, np.broadcast_to(self.envs.flags, obs.shape[:2])))

    def epsilon(self, steps: np.ndarray) -> np.ndarray:
        """float32[policies] by each policy's own steps."""
        agents = np.arange(self.population.policies)
        return self.settings.learning.epsilon.at(steps, self.settings.steps, agents)

    def rate(self, steps: np.ndarray) -> np.ndarray:
        """The learning rate, float32[policies]."""
        return self.settings.learning.optimizer.rate.at(steps, self.settings.steps)

    def _dqn_cycle(self, state: HostState, sums: Sums) -> tuple[HostState, Sums]:
        assert self.replay
        dqn = self.settings.dqn
        for _ in range(dqn.update_every):
            state, sums, _, rows = self._turn(state, sums)
            self.replay.add(rows)
        if state.turn * self.settings.envs < dqn.min_fill:
            return state, sums
        for number in range(dqn.updates):
            steps = state.tally.steps
            batch = self.replay.sample(state.turn * dqn.updates + number)
            beta = dqn.beta.at(steps, self.settings.steps)
            agent, found = self._update(state.agent, batch, self.rate(steps), beta)
            if dqn.sampler == "prioritized":
                self.replay.rank(batch.draw, np.asarray(found.error) + np.float32(1e-6))
            if np.asarray(agent.bad).any():
                return state._replace(agent=agent, evidence=batch), sums
            state = state._replace(agent=agent)
            sums = learned(sums, jax.device_get(found), 1)
        return state, sums

    def _pqn_cycle(self, state: HostState, sums: Sums) -> tuple[HostState, Sums]:
        seen: list[Any] = []
        for _ in range(self.settings.pqn.rollout):
            state, sums, move, rows = self._turn(state, sums)
            facts = (rows.action, rows.reward, rows.terminated, rows.truncated, rows.flags)
            seen.append((np.asarray(move.stacks), *facts, np.asarray(move.values.max(-1))))
        after = self._values(state.agent.params, state.history, *self._seen())
        rollout = Rollout(*(np.stack(column) for column in zip(*seen, strict=True)))
        value = np.concatenate([rollout.value, np.asarray(after)[None]])
        rollout = rollout._replace(value=value)
        keys = jax.random.split(
            key_of(self.settings.seed, Role.LEARN, state.turn), self.population.policies
        )
        agent, found, evidence = self._learn(
            state.agent, rollout, self.rate(state.tally.steps), keys
        )
        pqn = self.settings.pqn
        sums = learned(sums, jax.device_get(found), pqn.minibatches * pqn.epochs)
        return state._replace(agent=agent, evidence=evidence), sums

    def _bootstrap(self, params: Any, history: History, obs: Any, flags: Any) -> Any:
        _, stacks = self.player.look(history, obs, flags)
        return self.player.values(params, stacks).max(-1)


def _to_host(tree: Any) -> Any:
    return jax.tree.map(np.asarray, tree)
