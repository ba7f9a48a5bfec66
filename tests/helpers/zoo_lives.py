"""Parallel envs whose agents come and go at random, and who keep plain lists of all that happened.

Every observation is a number of its own, so a sample names the row that it claims to be.
"""

from __future__ import annotations

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import AECEnv, ParallelEnv

MADE: list = []  # every env there is, oldest first
_TAKEN = iter(range(1, 1 << 60))


class Episode:
    """One agent's life: `seen` is one longer than the others once it has ended, or goes on."""

    def __init__(self, first: int):
        self.seen, self.did, self.got, self.end = [first], [], [], (False, False)


class Lives(ParallelEnv):
    """Agents end alone or all together, are away, and come in the middle or with the next reset."""

    metadata = {"name": "lives"}

    def __init__(self, agents=3, dies=0.12, stops=0.08, comes=0.2, here=0.75, longest=15, first=0):
        self.possible_agents = [f"agent_{i}" for i in range(agents)]
        self.chances, self.longest, self.first_action = (dies, stops, comes, here), longest, first
        self.agents: list[str] = []
        self.log: dict[str, list[Episode]] = {agent: [] for agent in self.possible_agents}
        self.random = None
        self.closed = False
        MADE.append(self)

    def observation_space(self, agent):
        return Box(0, 2**31 - 1, (2,), np.int64)

    def action_space(self, agent):
        return Discrete(4, start=self.first_action)

    def see(self, agent, begins):
        number = next(_TAKEN)
        if begins:
            self.log[agent].append(Episode(number))
        else:
            self.log[agent][-1].seen.append(number)
        return np.array([number, self.possible_agents.index(agent)])

    def reset(self, seed=None, options=None):
        assert seed is not None
        self.random, self.turns = np.random.default_rng(seed), 0
        here = self.random.random(len(self.possible_agents)) < self.chances[3]
        here[self.random.integers(len(here))] = True
        self.agents = [a for a, yes in zip(self.possible_agents, here, strict=True) if yes]
        return {agent: self.see(agent, True) for agent in self.agents}, {}

    def step(self, actions):
        assert sorted(actions) == sorted(self.agents)
        self.turns += 1
        dies, stops, comes, _ = self.chances
        acted, away = self.agents, [a for a in self.possible_agents if a not in self.agents]
        seen, got, over, cut = {}, {}, {}, {}
        for agent in acted:
            seen[agent] = self.see(agent, False)
            got[agent] = float(self.random.integers(-3, 4))
            over[agent] = self.random.random() < dies
            cut[agent] = self.turns >= self.longest or (
                not over[agent] and self.random.random() < stops
            )
            life = self.log[agent][-1]
            life.did.append(actions[agent] - self.first_action)
            life.got.append(got[agent])
            life.end = over[agent], cut[agent]
        self.agents = [agent for agent in acted if not (over[agent] or cut[agent])]
        if self.agents:
            for agent in away:
                if self.random.random() < comes:
                    self.agents.append(agent)
                    seen[agent] = self.see(agent, True)
        return seen, got, over, cut, {}

    def render(self):
        return np.full((4, 4, 3), self.turns, np.uint8)

    def close(self):
        self.closed = True


def lives(render_mode=None, **options):
    return Lives(**options)


parallel_env = lives


class Broken(Lives):
    """Breaks one rule after three turns."""

    def __init__(self, how, **options):
        super().__init__(agents=2, dies=0, stops=0, comes=0, here=1, longest=99)
        self.how = how

    def reset(self, seed=None, options=None):
        seen, infos = super().reset(seed)
        if self.how == "nobody":
            self.agents = []
        return seen, infos

    def step(self, actions):
        seen, got, over, cut, infos = super().step(actions)
        if self.turns < 3:
            return seen, got, over, cut, infos
        if self.how == "vanishes":
            self.agents.remove("agent_1")
        elif self.how == "stays":
            over["agent_1"] = True
        elif self.how == "blind":
            del seen["agent_1"]
        elif self.how == "comes blind":
            over["agent_1"] = True
            self.agents = ["agent_0"] if self.turns == 3 else ["agent_0", "agent_1"]
        elif self.how == "stray":
            over["agent_1"], self.agents = True, ["agent_0"]
            got["agent_1"] = 1.0
        elif self.how == "shape":
            seen["agent_1"] = seen["agent_1"][:1]
        elif self.how == "float":
            seen["agent_1"] = seen["agent_1"] + 0.5
        elif self.how == "below":
            seen["agent_1"] = -seen["agent_1"]
        elif self.how == "reward":
            got["agent_1"] = float("nan")
        return seen, got, over, cut, infos

    @staticmethod
    def made(how):
        return Broken(how)


class Unequal(Lives):
    def observation_space(self, agent):
        return Box(0, 255, (2 + self.possible_agents.index(agent),), np.uint8)


class Steered(Lives):
    def action_space(self, agent):
        return Box(-1, 1, (2,), np.float32)


class Nameless(Lives):
    def __init__(self):
        super().__init__()
        self.possible_agents = []


class Turns(AECEnv):
    """Agents that act one after the other."""

    def __init__(self, render_mode=None):
        super().__init__()
        self.possible_agents = ["agent_0", "agent_1"]
