"""`Programs`: everything of a mixture that is compiled, and the state it passes on."""

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

# Choosing by evaluation must not look at the episodes by which a mixture is judged.
CHOOSING_SEED = 2_000_003


class MixState(NamedTuple):
    """Everything a mixture knows between two rounds: arrays only, so saving it is saving it all."""

    agents: AgentsState
    big: BigState
    pond: Any  # BigPond [members] where it lives on (transfer live), else None


def make_agents(settings: MixSettings) -> Agents:
    """All agents here, in one program or turn by turn, or each elsewhere."""
    if settings.mode == "ray":
        from .ray_workers import spread  # Ray is not needed by every mixture

        return spread(settings)
    return HostAgents(settings) if settings.hosted else Agents(settings)


class Programs:
    """One set serves every session of a run: nothing in it changes."""

    def __init__(self, settings: MixSettings) -> None:
        self.settings = settings
        self.live = settings.transfer == "live"
        self.agents = make_agents(settings)
        self.big = BigAgent(settings)
        self.together = Live(settings, self.agents, self.big) if self.live else None
        source: Pond = self.big.pond if self.live else self.agents.pond
        self.measures = Measures(settings, source, self.agents.agent)
        self.referee = Referee(settings.judged, settings.eval_episodes)
        self._clone = jax.jit(self._clone_where)
        self._first = jax.jit(self._init)

    @cached_property
    def chooser(self) -> Referee:
        """Episodes by which the mixture itself chooses, if it does."""
        return Referee(self.settings.judged, self.settings.eval_episodes, CHOOSING_SEED)

    def init(self) -> MixState:
        """A mixture's first state."""
        return self._first()

    def like(self) -> MixState:
        """Shapes and dtypes of a state."""
        return jax.eval_shape(self._init)

    def episodes(self, referee: Referee, state: MixState) -> tuple[np.ndarray, np.ndarray]:
        """Greedy returns: of the agents [members, agents, episodes], of the BigAgents [members,
        episodes]."""
        ours, theirs = state.agents.agent.params, state.big.agent.params
        everyone = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), ours, theirs)
        returns = referee.play(everyone).returns
        agents = returns[: self.settings.policies]
        return agents.reshape(-1, self.settings.agents, returns.shape[1]), returns[len(agents) :]

    def scores(self, referee: Referee, state: MixState) -> tuple[np.ndarray, np.ndarray]:
        """Mean greedy returns: of the agents [members, agents], of the BigAgents [members]."""
        agents, big = self.episodes(referee, state)
        return agents.mean(-1), big.mean(-1)

    def clone(self, state: MixState, members: np.ndarray) -> MixState:
        """Agents of those members become copies of their BigAgent; epsilon restarts for all."""
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
