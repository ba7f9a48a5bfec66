"""`Programs`: the compiled programs of a mixture; `MixState`: the state they act on."""

from __future__ import annotations

from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..replay import Pond
from ..train.evaluate import Referee
from .agents import Agents, AgentsState
from .big import BigAgent, BigState
from .host_agents import HostAgents
from .live import Live
from .measure import Measures
from .reset import clone, of_each_agent
from .settings import MixSettings

# Episodes by which candidates are chosen must differ from those by which a mixture is scored.
CHOOSING_SEED = 2_000_003


class MixState(NamedTuple):
    """The whole state of a mixture between two rounds. Only arrays, so that it can be saved."""

    agents: AgentsState
    big: BigState
    pond: Any  # BigPond [members] with transfer live, else None


def make_agents(settings: MixSettings) -> Agents:
    """The agents in one program, turn by turn with envs on the host, or on Ray."""
    if settings.mode == "ray":
        from .ray_workers import ray_agents  # Ray is not needed by every mixture

        return ray_agents(settings)
    return HostAgents(settings) if settings.hosted else Agents(settings)


class Programs:
    """The compiled programs. They hold no state, so several sessions can share them."""

    def __init__(self, settings: MixSettings) -> None:
        self.settings = settings
        self.live = settings.transfer == "live"
        self.agents = make_agents(settings)
        self.big = BigAgent(settings)
        self.live_loop = Live(settings, self.agents, self.big) if self.live else None
        source: Pond = self.big.pond if self.live else self.agents.pond
        self.measures = Measures(settings, source, self.agents.agent)
        self.referee = Referee(settings.judged, settings.eval_episodes)
        self._clone = jax.jit(self._clone_where)
        self._first = jax.jit(self._init)

    @cached_property
    def chooser(self) -> Referee:
        """Plays the episodes by which the mixture chooses between agents and BigAgent."""
        return Referee(self.settings.judged, self.settings.eval_episodes, CHOOSING_SEED)

    def init(self) -> MixState:
        """The initial state of a mixture."""
        return self._first()

    def shapes(self) -> MixState:
        """The shapes and dtypes of a state."""
        return jax.eval_shape(self._init)

    def episodes(self, referee: Referee, state: MixState) -> tuple[np.ndarray, np.ndarray]:
        """Greedy returns: the agents' [members, agents, episodes], the BigAgents' [members,
        episodes]."""
        ours, theirs = state.agents.agent.params, state.big.agent.params
        everyone = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ours, theirs)
        returns = referee.play(everyone).returns
        agents = returns[: self.settings.policies]
        return agents.reshape(-1, self.settings.agents, returns.shape[1]), returns[len(agents) :]

    def scores(self, referee: Referee, state: MixState) -> tuple[np.ndarray, np.ndarray]:
        """Mean greedy returns: the agents' [members, agents], the BigAgents' [members]."""
        agents, big = self.episodes(referee, state)
        return agents.mean(-1), big.mean(-1)

    def clone(self, state: MixState, members: np.ndarray) -> MixState:
        """Copy BigAgents to the agents of `members`, bool[members]; restart everyone's epsilon."""
        which = np.repeat(members, self.settings.agents)
        return state._replace(agents=self._clone(state.agents, state.big.agent.params, which))

    def _init(self) -> MixState:
        pond = self.big.pond.init_many(self.settings.members) if self.live else None
        return MixState(self.agents.init(ponds=not self.live), self.big.init(), pond)

    def _clone_where(self, agents: AgentsState, params: Any, which: Any) -> AgentsState:
        settings = self.settings
        copies = of_each_agent(params, settings.agents)
        reset = settings.clone.reset_optimizer
        agent = clone(self.agents.agent, agents.agent, copies, which, reset)
        return agents._replace(agent=agent, acting=self.agents.acting.restart(agents.acting))
