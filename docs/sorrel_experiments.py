"""Sorrel's own memory against ours, on its own treasurehunt: wrong samples, and learning curves.

    python docs/sorrel_experiments.py samples
    python docs/sorrel_experiments.py curves --epochs 300 --seeds 2

Needs Sorrel, which needs Python 3.12. The judge of `samples` keeps plain lists of what happened and
knows neither memory: a sample is right if its frames are the last five of its epoch (zeros where
there were fewer, which is what the agent acted on in a fresh memory), its action and reward are
those of the newest of them, and its next frames end with what was seen next.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections import Counter
from types import MethodType

import numpy as np
import torch
from sorrel.examples.treasurehunt.entities import EmptyEntity
from sorrel.examples.treasurehunt.env import TreasurehuntEnv
from sorrel.examples.treasurehunt.world import TreasurehuntWorld

from millpond.compat.sorrel import SorrelBuffer

FRAMES, BATCH, TURNS = 5, 64, 100  # Sorrel's own


def make(epochs: int, ours: bool, seed: int) -> TreasurehuntEnv:
    """Its example as its `main.py` configures it, with its memory or with ours."""
    random.seed(seed)
    np.random.seed(seed)  # Sorrel draws from the global generator
    config = {
        "experiment": {"epochs": epochs - 1, "max_turns": TURNS, "record_period": epochs + 1},
        "model": {
            "agent_vision_radius": 2,
            "epsilon_decay": 0.0005,
            "observation_spec": "rgb",
        },
        "world": {
            "height": 21,
            "width": 21,
            "gem_value": 10,
            "food_value": 5,
            "bone_value": -10,
            "spawn_prob": 0.005,
        },
    }
    seeds = iter(range(1000 * seed, 1000 * seed + 9))
    torch.random.seed = lambda: next(seeds)  # where its example seeds each agent by chance
    env = TreasurehuntEnv(TreasurehuntWorld(config, EmptyEntity()), config)
    for number, agent in enumerate(env.agents):
        if ours:
            agent.model.memory = SorrelBuffer.like(agent.model.memory, seed + number)
    return env


class Judge:
    """Sees what one agent sees, does and gets, and counts what its memory makes of it."""

    def __init__(self, agent) -> None:
        self.epochs: list[list[tuple[int, int, float]]] = []
        self.where: dict[int, tuple[int, int]] = {}
        self.count: Counter[str] = Counter()
        size, model, add = agent.observation_spec.input_size[0], agent.model, agent.add_memory
        begin = model.start_epoch_action

        def pov(agent, world) -> np.ndarray:
            seen = np.zeros((1, size))
            seen[0, 0] = 1 + sum(map(len, self.epochs))  # a number of its own
            return seen

        def keep(agent, state, action, reward, done) -> None:
            number = int(state[0, 0])
            self.where[number] = len(self.epochs) - 1, len(self.epochs[-1])
            self.epochs[-1].append((number, action, reward))
            add(state, action, reward, done)

        def start(model, **given) -> None:
            self.epochs.append([])
            begin(**given)

        agent.pov, agent.add_memory = MethodType(pov, agent), MethodType(keep, agent)
        model.start_epoch_action = MethodType(start, model)
        model.take_action = MethodType(lambda model, state: random.randrange(4), model)
        model.train_step = MethodType(lambda model: self.judge(model.memory), model)

    def judge(self, memory) -> float:
        if len(memory) < BATCH + FRAMES + 1:
            return 0.0
        for state, action, reward, after, _, valid in zip(*memory.sample(BATCH), strict=True):
            self.count["samples"] += 1
            self.count["valid"] += int(valid[0] != 0)
            frames = state.reshape(FRAMES, -1)[:, 0].astype(int).tolist()
            then = after.reshape(FRAMES, -1)[:, 0].astype(int).tolist()
            wrong = self.wrong(frames, int(action[0]), float(reward[0]), then)
            if wrong and valid[0] != 0:
                self.count["wrong and valid"] += 1
                self.count[f"  {wrong}"] += 1
        return 0.0

    def wrong(self, frames: list[int], action: int, reward: float, then: list[int]) -> str:
        if frames[-1] not in self.where:
            return "a row that never was"
        epoch, at = self.where[frames[-1]]
        steps = self.epochs[epoch]
        padded = [0] * FRAMES + [number for number, _, _ in steps]
        if frames != padded[at + 1 : at + 1 + FRAMES]:
            return "frames of another epoch or time"
        if (action, reward) != steps[at][1:]:
            return "action or reward of another step"
        if at + 1 == len(steps):
            return "a next observation that never was"
        return "" if then == padded[at + 2 : at + 2 + FRAMES] else "next frames of another time"


def samples(epochs: int, seed: int) -> None:
    for name, ours in (("sorrel", False), ("millpond", True)):
        env = make(epochs, ours, seed)
        judges = [Judge(agent) for agent in env.agents]
        env.run_experiment(animate=False, logging=False)
        count = sum((judge.count for judge in judges), Counter())
        share = count["wrong and valid"] / count["valid"]
        print(f"{name}: {count['samples']:,} samples, {count['valid']:,} marked valid, of these")
        print(f"  {count['wrong and valid']:,} wrong: {100 * share:.1f}%")
        for why, number in sorted(count.items()):
            if why.startswith(" "):
                print(f"    {number:,}{why[1:]}")


class Rewards:
    """What Sorrel's loop tells its logger."""

    def __init__(self) -> None:
        self.rewards: list[float] = []
        self.began = time.process_time()

    def record_epoch(self, epoch, loss, reward, epsilon=0, **more) -> None:
        self.rewards.append(float(reward))

    def record_step(self, stats) -> None:
        pass


def curves(epochs: int, seeds: int) -> None:
    torch.set_num_threads(1)
    for seed in range(seeds):
        for name, ours in (("sorrel", False), ("millpond", True)):
            env, log = make(epochs, ours, seed), Rewards()
            env.run_experiment(animate=False, logging=True, logger=log)
            tenth = max(1, epochs // 6)
            means = [float(np.mean(log.rewards[i : i + tenth])) for i in range(0, epochs, tenth)]
            line = {"memory": name, "seed": seed, "means": [round(mean, 1) for mean in means]}
            print(json.dumps(line | {"cpu_s": round(time.process_time() - log.began)}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("samples", "curves"))
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=1)
    options = parser.parse_args()
    if options.what == "samples":
        samples(options.epochs, seed=0)
    else:
        curves(options.epochs, options.seeds)


if __name__ == "__main__":
    main()
