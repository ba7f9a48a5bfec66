"""Does a shared ring hurt learning? The three layouts side by side: `make bench ONLY=layouts`.

SAC on Pendulum with many envs in one jitted program, the same seeds, envs, network and updates for
each layout of the ring; only the layout differs. Seeds are trained side by side. Greedy return is
taken in the same episodes for all. Prints means with 95% intervals, paired differences by seed, and
CPU seconds per turn.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from millpond import Pond, Window
from millpond.agents import Network, Optimizer, find_agent
from millpond.engine.device_update import DeviceUpdate
from millpond.envs import Pendulum, VectorEnv, spec_of
from millpond.schedule import constant

LAYOUTS = ("stream", "shared", "per_env")
EPISODES, TURNS = 32, 200
RATES = ("rate", "actor_rate", "temperature_rate")


class Study:
    """One layout, all seeds: `study.go(turns)`, then `study.returns()`."""

    def __init__(self, layout: str, options: argparse.Namespace) -> None:
        sac, rule = find_agent("sac"), Optimizer(rate=constant(1e-3), clip=0.0)
        rules = dict.fromkeys(("optimizer", "actor_optimizer", "temperature_optimizer"), rule)
        spec, network = spec_of(Pendulum()), Network(width=64, depth=2, norm=False)
        self.members, self.envs = options.members, options.envs
        self.agent = sac(sac.Settings(gamma=0.98, **rules), network, spec, 1)
        window = Window(gamma=0.98)
        self.pond = Pond(spec, options.capacity, self.envs, window, layout=layout)
        self.vector = VectorEnv(Pendulum(turns=TURNS), self.members * self.envs)
        self.judged = VectorEnv(Pendulum(turns=TURNS), self.members * EPISODES)
        self.update = DeviceUpdate(self.agent, self.pond, options.batch, ranked=False)
        self.updates = options.updates
        keys = jax.random.split(jax.random.key(options.seed), self.members)
        agents = jax.jit(jax.vmap(self.agent.init))(keys)
        envs = jax.jit(self.vector.reset)(jax.random.key(options.seed + 1))
        self.state = (agents, envs, self.pond.init_many(self.members))
        self.now = {name: jnp.full(self.members, 1e-3) for name in RATES}
        self.now["beta"] = jnp.ones(self.members)
        self._run = jax.jit(self._turns, donate_argnums=0, static_argnames="learning")
        self._judge = jax.jit(self._play)

    def go(self, keys: jax.Array, learning: bool = True) -> float:
        """One turn for each key; the CPU seconds that it took."""
        began = time.process_time()
        self.state = jax.block_until_ready(self._run(self.state, keys, learning=learning))
        return time.process_time() - began

    def returns(self) -> list[float]:
        """Greedy returns of every seed, the means of the same episodes."""
        return self._judge(self.state[0].params).tolist()

    def _turns(self, state, keys, learning):
        return jax.lax.scan(lambda s, key: (self._turn(s, key, learning), None), state, keys)[0]

    def _turn(self, state, key, learning):
        agents, envs, pond = state
        acting, stepping, drawing = jax.random.split(key, 3)
        each = jax.random.split(acting, self.members)
        chance = jax.vmap(lambda key: self.agent.chance(key, self.envs))(each)
        seen = self._by_member(envs.obs)
        action = jax.vmap(self.agent.act)(agents.params, seen[:, :, None], chance, self.now).action
        envs, rows = self.vector.step(envs, action.reshape(1, -1, 1), stepping)
        rows = jax.tree.map(self._by_member, rows)
        after = self._by_member(envs.obs)
        add = jax.vmap(self._add, (self.pond.axes, 0, 0), self.pond.axes)
        pond = add(pond, rows, after)
        if not learning:
            return agents, envs, pond

        def learn(state, key):
            done = self.update.all(*state, jax.random.split(key, self.members), self.now)
            return (done.agent, done.pond), None

        draws = jax.random.split(drawing, self.updates)
        (agents, pond), _ = jax.lax.scan(learn, (agents, pond), draws)
        return agents, envs, pond

    def _add(self, pond, rows, after):
        return self.pond.add(pond, rows, after if self.pond.layout.whole else None)

    def _by_member(self, leaf):
        return leaf[0].reshape(self.members, -1, *leaf.shape[2:])

    def _play(self, params):
        def turn(carry, key):
            envs, total = carry
            action = jax.vmap(self.agent.best)(params, self._by_member(envs.obs)[:, :, None])
            envs, rows = self.judged.step(envs, action.reshape(1, -1, 1), key)
            return (envs, total + self._by_member(rows.reward)), None

        key = jax.random.key(77)
        begin = self.judged.reset(key), jnp.zeros((self.members, EPISODES))
        return jax.lax.scan(turn, begin, jax.random.split(key, TURNS))[0][1].mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, size in dict(envs=256, capacity=102_400, batch=128, updates=4).items():
        parser.add_argument(f"--{name}", type=int, default=size)
    parser.add_argument("--members", type=int, default=10, help="seeds, side by side")
    parser.add_argument("--warm", type=int, default=8, help="turns before the first update")
    parser.add_argument("--turns", type=int, default=2_000)
    parser.add_argument("--every", type=int, default=250, help="turns between two evaluations")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    studies = {layout: Study(layout, options) for layout in LAYOUTS}
    curves = {layout: [] for layout in LAYOUTS}
    spent = {layout: [] for layout in LAYOUTS}
    warm, last = options.warm, options.warm + options.turns
    keys = jax.random.split(jax.random.key(options.seed + 2), last)
    for study in studies.values():
        study.go(keys[:warm], learning=False)
    for at in range(warm, last, options.every):
        for layout, study in studies.items():
            spent[layout].append(study.go(keys[at : at + options.every]))
            curves[layout].append(study.returns())
        now = "  ".join(f"{name} {np.mean(curves[name][-1]):8.1f}" for name in LAYOUTS)
        print(f"turn {at + options.every - warm:5}: {now}", flush=True)
    show(options, curves, spent)


def show(options: argparse.Namespace, curves: dict, spent: dict) -> None:
    """Means, intervals and paired differences, and JSON."""
    print(f"{options.envs} envs, ring of {options.capacity} rows, {options.members} seeds")
    found = {name: np.array(values) for name, values in curves.items()}
    best = found["stream"]
    for name, values in found.items():
        last, whole = values[-1], values.mean(0)
        # The first stretch compiles.
        cost = np.median(spent[name][1:] or spent[name]) / options.every * 1e3
        print(
            f"  {name:8} last {interval(last)}   mean of the curve {interval(whole)}   "
            f"{cost:.1f} CPU ms a turn"
        )
        if name != "stream":
            print(
                f"           less stream, by seed: last {interval(last - best[-1])}   "
                f"curve {interval(whole - best.mean(0))}"
            )
    out = Path(__file__).parent / "out" / "layouts.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    plain = {"options": vars(options), "returns": curves, "cpu_s": spent}
    out.write_text(json.dumps(plain, indent=1) + "\n")
    print(f"written to {os.path.relpath(out)}")


def interval(values: np.ndarray) -> str:
    """Mean and half the width of its 95% interval, by Student's t."""
    half = stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():7.1f} ± {half:5.1f}"


if __name__ == "__main__":
    main()
