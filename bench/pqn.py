"""Speed of PQN on MinAtar against a bare one: `make bench ONLY=pqn`.

The bare PQN below is what one would write in a single file: pgx with its own auto-reset, no rows,
no stacks, no border rows, no counting, no guard, everything in one scan. Both do the same work per
update (128 envs x 32 turns, 32 minibatches x 2 epochs, the same network and optimizer); they run in
turns in one process and the medians are compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pgx
from pgx.experimental.wrappers import auto_reset

from millpond.engine.device_loop import DeviceLoop
from millpond.train.presets import settings_for

ENVS, TURNS, PARTS, EPOCHS, GAMMA, LAM = 128, 32, 32, 2, 0.99, 0.65


class Net(nn.Module):
    actions: int

    @nn.compact
    def __call__(self, x):
        x = x.astype(jnp.float32)
        x = jnp.concatenate([x[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], -1)
        x = nn.relu(nn.LayerNorm()(nn.Dense(16)(x)))
        x = nn.relu(nn.LayerNorm()(nn.Dense(128)(x.reshape(x.shape[0], -1))))
        return nn.Dense(self.actions)(x)


class Bare:
    """A PQN without anything around it, for `seeds` seeds in one vmapped program."""

    def __init__(self, game: str, seeds: int) -> None:
        env = pgx.make(f"minatar-{game}")
        self.step_env = jax.vmap(auto_reset(env.step, env.init))
        self.net = Net(env.num_actions)
        self.optimizer = optax.chain(optax.clip_by_global_norm(10.0), optax.radam(5e-4))
        self.actions = env.num_actions

        def init(key):
            state = jax.vmap(env.init)(jax.random.split(key, ENVS))
            params = self.net.init(key, state.observation[:1])
            return state, params, self.optimizer.init(params), key

        self.carry = jax.jit(jax.vmap(init))(jax.random.split(jax.random.key(0), seeds))
        self.run = jax.jit(jax.vmap(self._updates, in_axes=(0, None)), donate_argnums=0)

    def _updates(self, carry, number):
        return jax.lax.fori_loop(0, number, lambda _, c: self._update(c), carry)

    def _update(self, carry):
        state, params, opt, key = carry
        key, learning = jax.random.split(key)

        def turn(carry, key):
            state = carry
            act, coin, stepping = jax.random.split(key, 3)
            q = self.net.apply(params, state.observation)
            anything = jax.random.randint(act, (ENVS,), 0, self.actions)
            action = jnp.where(jax.random.uniform(coin, (ENVS,)) < 0.05, anything, q.argmax(-1))
            new = self.step_env(state, action, jax.random.split(stepping, ENVS))
            seen = (state.observation, action, new.rewards[:, 0], new.terminated, q.max(-1))
            return new, seen

        key, rolling = jax.random.split(key)
        state, seen = jax.lax.scan(turn, state, jax.random.split(rolling, TURNS))
        obs, action, reward, done, value = seen
        last = self.net.apply(params, state.observation).max(-1)
        after = jnp.concatenate([value[1:], last[None]])

        def back(target, row):
            reward, done, after = row
            here = reward + GAMMA * (1 - done) * ((1 - LAM) * after + LAM * target)
            return here, here

        _, goal = jax.lax.scan(back, last, (reward, done, after), reverse=True)
        flat = jax.tree.map(lambda x: x.reshape(ENVS * TURNS, *x.shape[2:]), (obs, action, goal))

        def loss_of(params, obs, action, goal):
            q = self.net.apply(params, obs)
            q = jnp.take_along_axis(q, action[:, None], 1)[:, 0]
            return 0.5 * ((q - goal) ** 2).mean()

        def learn(carry, rows):
            params, opt = carry
            grads = jax.grad(loss_of)(params, *rows)
            change, opt = self.optimizer.update(grads, opt, params)
            return (optax.apply_updates(params, change), opt), None

        def epoch(carry, key):
            order = jax.random.permutation(key, ENVS * TURNS)
            shuffled = jax.tree.map(lambda x: x[order].reshape(PARTS, -1, *x.shape[1:]), flat)
            return jax.lax.scan(learn, carry, shuffled)[0], None

        (params, opt), _ = jax.lax.scan(epoch, (params, opt), jax.random.split(learning, EPOCHS))
        return state, params, opt, key

    def go(self, updates: int) -> None:
        self.carry = jax.block_until_ready(self.run(self.carry, updates))


class Ours:
    """The loop that `millpond train` runs."""

    def __init__(self, game: str, seeds: int) -> None:
        import dataclasses

        preset = settings_for(f"minatar/{game}")
        self.loop = DeviceLoop(dataclasses.replace(preset, members=seeds))
        self.state = self.loop.init()

    def go(self, updates: int) -> None:
        self.state, _ = self.loop.round(self.state, updates)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=["breakout"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1])
    parser.add_argument("--updates", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    results = []
    print(f"{jax.devices()[0].device_kind}: env steps/s, PQN, MinAtar; target ours / bare >= 0.95")
    for game in options.games:
        for seeds in options.seeds:
            results.append(measure(game, seeds, options.updates, options.rounds))
    out = Path("bench/out")
    out.mkdir(parents=True, exist_ok=True)
    (out / "pqn.json").write_text(json.dumps(results, indent=2))


def measure(game: str, seeds: int, updates: int, rounds: int) -> dict:
    players = {"ours": Ours(game, seeds), "bare": Bare(game, seeds)}
    for player in players.values():
        player.go(updates)
        player.go(updates)
    taken: dict[str, list[float]] = {name: [] for name in players}
    for _ in range(rounds):
        for name, player in players.items():
            began = time.perf_counter()
            player.go(updates)
            taken[name].append(time.perf_counter() - began)
    steps = updates * ENVS * TURNS * seeds
    pace = {name: steps / statistics.median(times) for name, times in taken.items()}
    ratio = statistics.median(np.array(taken["bare"]) / np.array(taken["ours"]))
    verdict = "met" if ratio >= 0.95 else "MISSED"
    print(
        f"  {game:16} {seeds:3} seeds: ours {pace['ours']:>11,.0f}  bare {pace['bare']:>11,.0f}  "
        f"ratio {ratio:.3f}  {verdict}",
        flush=True,
    )
    return {"game": game, "seeds": seeds, **pace, "ratio": float(ratio)}


if __name__ == "__main__":
    main()
