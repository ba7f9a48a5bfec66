"""Agent `qlambda` against a bare program: updates from the same kind of minibatches, in turns.

The bare one is what one would write in a single file: a ring [env, time] of which nothing is
judged, slices of it, Peng's returns by a scan backwards, the same network, target network and
optimizer. Both draw and learn inside one `scan`; ours also masks border rows, guards against
numbers that are not finite, and reports.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from millpond import Field, Flag, Pond, Rows, Spec, next_flags
from millpond.agents import QLambda
from millpond.engine.device_update import DeviceUpdate
from millpond.train.presets import settings_for

from ..stopwatch import Card
from . import task

ENVS, TIME, OBS, ACTIONS = 128, 1000, (10, 10, 4), 3  # as in MinAtar's Breakout
UPDATES, ROUNDS = 20, 9


class Played:
    """Random play, [time, env]."""

    def __init__(self) -> None:
        rng, lead = np.random.default_rng(0), (TIME, ENVS)
        self.obs = rng.random((*lead, *OBS)) < 0.1
        self.action = rng.integers(0, ACTIONS, lead, np.int32)
        self.reward = (rng.random(lead) < 0.05).astype(np.float32)
        self.done = rng.random(lead) < 1 / task.EPISODE


class Ours:
    """`Pond` and `QLambda`, as mode fused has them."""

    def __init__(self, played: Played) -> None:
        settings = settings_for("minatar/breakout", agent="qlambda")
        self.learning = settings.learning
        spec = Spec(Field("bool", OBS), Field("int32", (), 0, ACTIONS - 1))
        agent = QLambda(self.learning, settings.network, spec, 1)
        window = self.learning.learns(1).window
        pond = Pond(spec, ENVS * TIME, ENVS, window=window)
        flags, no = np.full(ENVS, Flag.FIRST, np.uint8), np.zeros(ENVS, bool)
        marks, ended = np.empty((TIME, ENVS), np.uint8), np.empty((TIME, ENVS), bool)
        for t, done in enumerate(played.done):
            marks[t], ended[t] = flags, done & ((flags & Flag.BORDER) == 0)
            flags = next_flags(flags, ended[t], no)
        reward = played.reward * ((marks & Flag.BORDER) == 0)
        rows = Rows(played.obs, played.action, reward, ended, np.zeros_like(ended), marks)
        state = jax.jit(pond.add, donate_argnums=0)(pond.init(), rows)
        pond.check(state)
        self.carry = jax.jit(agent.init)(jax.random.key(0)), state
        update = DeviceUpdate(agent, pond, self.learning.batch, ranked=False)
        now = {"rate": jnp.float32(1e-3), "beta": jnp.float32(1), "epsilon": jnp.float32(0.05)}

        def one(carry: Any, key: jax.Array) -> Any:
            done = update.one(*carry, key, now)
            return (done.agent, done.pond), done.learned.numbers

        self.run = jax.jit(lambda carry, keys: jax.lax.scan(one, carry, keys), donate_argnums=0)

    def go(self, keys: jax.Array) -> None:
        self.carry, _ = jax.block_until_ready(self.run(self.carry, keys))


class Net(nn.Module):
    """The network of the preset."""

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        x = x.astype(jnp.float32)
        x = jnp.concatenate([x[:, i : i + 8, j : j + 8] for i in range(3) for j in range(3)], -1)
        x = nn.relu(nn.LayerNorm()(nn.Dense(16)(x)))
        x = nn.relu(nn.LayerNorm()(nn.Dense(128)(x.reshape(x.shape[0], -1))))
        return nn.Dense(ACTIONS)(x)


class Bare:
    """Nothing but the arithmetic."""

    def __init__(self, played: Played, learning: Any) -> None:
        self.learning, self.net = learning, Net()
        turned = {name: leaf.swapaxes(0, 1) for name, leaf in vars(played).items()}
        self.ring = jax.device_put({name: np.ascontiguousarray(x) for name, x in turned.items()})
        rule = learning.optimizer
        self.optimizer = optax.chain(optax.clip_by_global_norm(rule.clip), optax.radam(1e-3))
        params = self.net.init(jax.random.key(0), jnp.zeros((1, *OBS)))
        copy = jax.tree.map(jnp.copy, params)
        self.carry = params, copy, self.optimizer.init(params), jnp.int32(0)
        scan = lambda carry, ring, keys: jax.lax.scan(  # noqa: E731
            lambda carry, key: (self._update(carry, ring, key), None), carry, keys
        )
        self.run = jax.jit(scan, donate_argnums=0)

    def _update(self, carry: Any, ring: Any, key: jax.Array) -> Any:
        params, target, optimizer, number = carry
        learning, length = self.learning, self.learning.length
        where, when = jax.random.split(key)
        env = jax.random.randint(where, (learning.batch, 1), 0, ENVS)
        first = jax.random.randint(when, (learning.batch, 1), 0, TIME - length)
        rows = first + np.arange(length + 1)
        obs = ring["obs"][env, rows]
        action, reward, done = (
            ring[name][env, rows[:, :-1]] for name in ("action", "reward", "done")
        )
        flat = lambda x: x.reshape(-1, *OBS)  # noqa: E731
        after = self.net.apply(target, flat(obs)).max(-1).reshape(obs.shape[:2])[:, 1:]

        def back(goal: jax.Array, row: Any) -> Any:
            reward, done, after = row
            mixed = (1 - learning.lam) * after + learning.lam * goal
            goal = reward + learning.gamma * (1 - done) * mixed
            return goal, goal

        turned = jax.tree.map(jnp.transpose, (reward, done, after))
        _, goal = jax.lax.scan(back, after[:, -1], turned, reverse=True)

        def loss_of(params: Any) -> jax.Array:
            q = self.net.apply(params, flat(obs[:, :-1]))
            q = jnp.take_along_axis(q, action.reshape(-1, 1), 1)[:, 0]
            return ((q - goal.T.reshape(-1)) ** 2).mean()

        grads = jax.grad(loss_of)(params)
        change, optimizer = self.optimizer.update(grads, optimizer, params)
        params, number = optax.apply_updates(params, change), number + 1
        due = number % learning.target_every == 0
        target = jax.tree.map(lambda p, t: jnp.where(due, p, t), params, target)
        return params, target, optimizer, number

    def go(self, keys: jax.Array) -> None:
        self.carry, _ = jax.block_until_ready(self.run(self.carry, self.ring, keys))


def main() -> None:
    card, played = Card("millpond", "jax", "jaxlib", "optax", "flax"), Played()
    ours = Ours(played)
    both = {"ours": ours, "bare": Bare(played, ours.learning)}
    taken: dict[str, list[float]] = {name: [] for name in both}
    for number in range(2 + ROUNDS):
        keys = jax.random.split(jax.random.key(number), UPDATES)
        for name, one in both.items():
            began = time.process_time()
            one.go(keys)
            if number >= 2:  # compiled, and warm
                taken[name].append(time.process_time() - began)
    note = f"batch {ours.learning.batch} x {ours.learning.length} rows"
    for name, seconds in taken.items():
        card.put(f"qlambda_{name}", statistics.median(seconds) / UPDATES * 1e6, note)
    card.show()


if __name__ == "__main__":
    main()
