"""`Probe`: a run looked at from outside: what it saved, and its agents at play for some seconds.

`probe(Run.open(path))` gives verdicts; nothing of the run is changed.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..agents import QAgent
from ..engine.settings import Settings
from ..metrics import read_metrics
from ..train import Referee, Run
from ..train.evaluate import Scores
from ..window import Stacker
from .agent_play import AgentGame, play_agents
from .env_play import Game, played, sizes_for
from .saved import Saved


@dataclass
class Probe:
    """What the checks of a probe read; every part is made when it is first asked for.

    `examine_probe(Probe.of(Run.open(path)))`.
    """

    settings: Settings
    saved: Saved
    steps: int  # of every policy, when the state was saved
    train: list[dict[str, Any]] = field(default_factory=list)
    eval: list[dict[str, Any]] = field(default_factory=list)
    _played: dict[int, tuple[Any, Scores]] = field(default_factory=dict)

    @staticmethod
    def of(run: Run) -> Probe:
        """Of a run that may be going on."""
        lines = list(read_metrics(run.metrics))
        train = [line for line in lines if line["kind"] == "train"]
        played = [line for line in lines if line["kind"] == "eval"]
        steps = int(train[-1]["steps"]) if train else 0
        return Probe(run.settings, Saved.of(run), steps, train, played)

    @property
    def discrete(self) -> bool:
        """Whether actions are one of several, and values are known for each."""
        return isinstance(self.agent, QAgent) and not self.agent.continuous

    @property
    def agent(self) -> Any:
        return self.saved.agent

    @property
    def updates(self) -> int:
        """That every policy has had."""
        if self.saved.state is not None:
            return int(np.min(np.asarray(self.saved.state.updates)))
        return int(self.train[-1]["updates"]) if self.train else 0

    @cached_property
    def now(self) -> dict[str, np.ndarray]:
        """The agent's schedules where the run stands, of every policy."""
        policies = np.arange(self.settings.policies)
        steps = np.full(len(policies), self.steps, np.uint32)
        return {k: np.asarray(v, np.float32) for k, v in self.settings.now(steps, policies).items()}

    @cached_property
    def _games(self) -> list[AgentGame]:
        policies = self.settings.policies
        epsilons: list[Any] = [
            self.now.get("epsilon"),
            *(np.full(policies, e, np.float32) for e in (0.5, 0)),
        ]
        schedules: list[Any] = [
            self.now if "epsilon" not in self.now else {**self.now, "epsilon": epsilon}
            for epsilon in epsilons
        ]
        return play_agents(self.settings, self.saved.params, schedules)

    @property
    def game(self) -> AgentGame:
        """The agents at play, exploring as they do now."""
        return self._games[0]

    @property
    def curious(self) -> AgentGame:
        """The same with an epsilon of 0.5: every action is tried."""
        return self._games[1]

    @property
    def greedy(self) -> AgentGame:
        """The same without exploring, by the code that acts in training."""
        return self._games[2]

    @cached_property
    def referee(self) -> Referee:
        """Plays whole episodes as evaluation does."""
        return Referee(self.settings, min(64, self.settings.eval_episodes))

    @cached_property
    def random(self) -> Game:
        """A random player in fresh envs, and the states that it came to."""
        return played(self.settings.world, *sizes_for(self.settings.world))

    def scores(self, params: Any) -> Scores:
        """Whole greedy episodes, as evaluation plays them."""
        if id(params) not in self._played:
            self._played[id(params)] = params, self.referee.play(params)
        return self._played[id(params)][1]

    def policy(self, tree: Any, policy: int) -> Any:
        """One policy's part of a tree [policies]."""
        return jax.tree.map(lambda leaf: np.asarray(leaf)[policy], tree)

    @cached_property
    def update(self) -> Any:
        """The agent's `update(state, batch, now)`, compiled once for all checks."""
        return jax.jit(self.agent.update)

    @cached_property
    def _values(self) -> Any:
        return jax.jit(self.agent.values)

    def values(self, params: Any, stacks: Any, most: int = 4096) -> np.ndarray:
        """Values of all actions of a memoryless agent: [batch, actions]."""
        number = len(jax.tree.leaves(stacks)[0])
        size = min(most, 1 << max(0, number - 1).bit_length())
        found: list[np.ndarray] = []
        for begin in range(0, number, size):
            part = jax.tree.map(lambda leaf, b=begin: _padded(leaf[b : b + size], size), stacks)
            found.append(np.asarray(self._values(params, part)))
        return np.concatenate(found)[:number]

    @cached_property
    def stored_stacks(self) -> Any:
        """Of the newest stored rows the stacks, [time, policies * envs, stack, ...].

        Those of episodes that began before the first of these rows are not known.
        """
        play, settings = self.saved.play, self.settings
        assert play is not None
        assert self.saved.pond is not None
        spec = dataclasses.replace(self.saved.pond.spec, extras={})
        stacker = Stacker(spec, settings.sight)
        history = stacker.init(play.byte.shape[1])
        found: list[Any] = []
        for time in range(len(play.byte)):
            seen = jax.tree.map(lambda leaf, t=time: leaf[t], play.obs)
            history, stacks = stacker.push(history, seen, play.byte[time])
            found.append(jax.tree.map(np.array, stacks))
        return jax.tree.map(lambda *leaves: np.stack(leaves), *found)

    @cached_property
    def stored_known(self) -> np.ndarray:
        """Which of these stacks are whole: bool[time, streams]."""
        play = self.saved.play
        assert play
        known = np.maximum.accumulate(play.first, 0)
        known[self.settings.stack - 1 :] = True
        return known


def _padded(leaf: np.ndarray, size: int) -> np.ndarray:
    if len(leaf) == size:
        return leaf
    return np.concatenate([leaf, np.zeros((size - len(leaf), *leaf.shape[1:]), leaf.dtype)])
