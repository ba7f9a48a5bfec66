"""Replay that survives SIGKILL: collect, die, find every acknowledged row again, learn from disk.

    python examples/lake_survives_a_kill.py --lake runs/lake      # run it again: the Lake continues

A child process writes CartPole rows into a Lake, says after every commit which rows it may be held
to, and kills itself. Its parent checks these rows, goes on collecting, and trains a small DQN.
"""

import argparse
import hashlib
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax

from millpond import Flag, Lake, Rows, Spec, Window, next_flags

ENVS, EVERY = 8, 25  # a commit after that many steps of every env
OPTIMIZER = optax.adam(1e-3)


class Envs:
    """Eight CartPoles under next-step autoreset: step(actions) gives what a Lake stores."""

    def __init__(self, seed: int) -> None:
        self.vector: Any = gymnasium.make_vec("CartPole-v1", ENVS, vectorization_mode="sync")
        self.obs, self.flags = self.vector.reset(seed=seed)[0], np.full(ENVS, Flag.FIRST, np.uint8)

    def step(self, action: np.ndarray) -> Rows:
        obs, flags = self.obs, self.flags
        self.obs, reward, terminated, truncated, _ = self.vector.step(action)
        self.flags = next_flags(flags, terminated, truncated)
        return Rows(obs, action, reward, terminated, truncated, flags)


def collect_and_die(path: Path) -> None:
    """The child. Prints `first stop hash` after every commit: rows first ... stop - 1 are safe."""
    envs, rng = Envs(seed=0), np.random.default_rng(0)
    if not path.exists():
        Lake.create(path, Spec.from_env(envs.vector), capacity=200_000)
    writer = Lake.open(path, "a").writer("cartpole", streams=ENVS)
    first, digest = int(writer.next_row[0]), hashlib.sha256()
    for step in range(1, 40 * EVERY + EVERY // 2):
        rows = envs.step(rng.integers(0, 2, ENVS, np.int32))
        writer.append(rows)
        digest.update(rows.obs.tobytes())
        if step % EVERY == 0:
            writer.commit()
            print(first, first + step, digest.hexdigest(), flush=True)
    signal.raise_signal(signal.SIGKILL)  # the last dozen rows are appended and not committed


@jax.jit
def q_values(params: Any, obs: jax.Array) -> jax.Array:
    return jax.nn.relu(obs.reshape(len(obs), -1) @ params["a"] + params["bias"]) @ params["b"]


@jax.jit
def update(state: Any, obs: Any, action: Any, reward: Any, next_obs: Any, discount: Any) -> Any:
    params, target, optimizer = state
    goal = reward + discount * q_values(target, next_obs).max(-1)

    def loss(params: Any) -> jax.Array:
        q = jnp.take_along_axis(q_values(params, obs), action[:, None], 1)[:, 0]
        return optax.huber_loss(q, goal).mean()

    change, optimizer = OPTIMIZER.update(jax.grad(loss)(params), optimizer)
    params = optax.apply_updates(params, change)
    return params, jax.tree.map(lambda t, p: t + 0.01 * (p - t), target, params), optimizer


def collect_and_learn(lake: Lake, steps: int) -> None:
    a, b = jax.random.normal(jax.random.key(0), (2, 4, 256))
    params = {"a": a, "bias": jnp.zeros(256), "b": b[:2].T / 16}
    state = (params, params, OPTIMIZER.init(params))
    envs, rng, ended, lately = Envs(seed=1), np.random.default_rng(1), 0, max(1, steps // 5)
    with lake.writer("cartpole", streams=ENVS) as writer:  # follows the old rows after a cut
        for step in range(1, steps + 1):
            greedy = np.asarray(q_values(state[0], envs.obs).argmax(-1))
            explore = rng.random(ENVS) < max(0.05, 1 - 2 * step / steps)
            rows = envs.step(np.where(explore, rng.integers(0, 2, ENVS), greedy).astype(np.int32))
            writer.append(rows)
            if step % EVERY == 0:
                writer.commit()
                lake.refresh()  # this reader sees the new rows from here on
            batch = lake.sample(rng, 128, Window(n_step=3, gamma=0.99))
            state = update(state, *batch[:5])  # obs, action, reward, next_obs, discount
            ended += int((rows.terminated | rows.truncated).sum())
            if step % lately == 0:
                mean, ended = ENVS * lately / max(1, ended), 0
                print(f"  step {step:5}: {len(lake):6,} rows, {mean:4.0f} steps per episode lately")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lake", type=Path, default=Path("runs/lake"))
    parser.add_argument("--steps", type=int, default=4000, help="of the vector env, after the kill")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        collect_and_die(options.lake)
    child = subprocess.run(
        [sys.executable, *sys.argv, "--child"], stdout=subprocess.PIPE, text=True
    )
    assert child.returncode == -signal.SIGKILL, f"the child ended with {child.returncode}"
    first, stop, digest = child.stdout.splitlines()[-1].split()
    print(f"the child was killed; it had acknowledged rows {first} to {int(stop) - 1} of each env")
    lake = Lake.open(options.lake, "a")
    stored = [lake.read(env, int(first), int(stop)).obs for env in range(ENVS)]
    assert hashlib.sha256(np.stack(stored, axis=1).tobytes()).hexdigest() == digest
    print(f"every acknowledged row is there, byte for byte; the Lake holds {len(lake):,} rows")
    collect_and_learn(lake, options.steps)
    print(f"millpond lake info {options.lake} says what is in it now")
