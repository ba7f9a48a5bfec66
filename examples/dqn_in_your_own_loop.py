"""DQN on CartPole in your own loop: env -> rows -> replay -> agent; resumes exactly.

    python examples/dqn_in_your_own_loop.py --run runs/cartpole            # or --replay device
    python examples/dqn_in_your_own_loop.py --run runs/cartpole            # continues after a kill

CartPole's episodes end at 500 steps by *truncation*: the pole stands, so the value there must be
bootstrapped from the true final observation. Replay that forgets it learns that standing is bad.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
from pathlib import Path
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import optax
from rich.progress import Progress
from safetensors.numpy import load_file, save_file

from millpond import Flag, HostPond, Pond, Rows, Spec, Stacker, Window, next_flags
from millpond.view import save_curve, terminal_curve

ENVS, BATCH, SOLVED = 8, 128, 475.0
WINDOW = Window(stack=2, n_step=3, gamma=0.99)
RATE = optax.linear_schedule(1e-3, 1e-5, 16_000)
OPTIMIZER = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(RATE))


def new_agent(key: jax.Array, inputs: int, actions: int) -> Any:
    """Parameters, target parameters and optimizer state."""
    sizes = [inputs, 128, 128, actions]
    params = [
        {"w": jax.random.normal(jax.random.fold_in(key, i), (a, b)) * (2 / a) ** 0.5,
         "b": jnp.zeros(b)}
        for i, (a, b) in enumerate(zip(sizes[:-1], sizes[1:], strict=True))
    ]  # fmt: skip
    return params, params, OPTIMIZER.init(params)


def q_values(params: Any, obs: jax.Array) -> jax.Array:
    """float32[batch, stack, 4] -> float32[batch, actions]"""
    x = obs.reshape(obs.shape[0], -1)
    for layer in params[:-1]:
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return x @ params[-1]["w"] + params[-1]["b"]


@jax.jit
def act(params: Any, obs: jax.Array, key: jax.Array, epsilon: float) -> jax.Array:
    explore, choice = jax.random.split(key)
    greedy = q_values(params, obs).argmax(-1)
    uniform = jax.random.randint(choice, greedy.shape, 0, 2)
    return jnp.where(jax.random.uniform(explore, greedy.shape) < epsilon, uniform, greedy)


@jax.jit
def update(state: Any, batch: Any) -> tuple[Any, jax.Array]:
    params, target, optimizer = state

    def loss_of(params: Any) -> jax.Array:
        best = q_values(params, batch.next_obs).argmax(-1)  # double DQN
        next_q = jnp.take_along_axis(q_values(target, batch.next_obs), best[:, None], 1)[:, 0]
        goal = batch.reward + batch.discount * next_q
        q = jnp.take_along_axis(q_values(params, batch.obs), batch.action[:, None], 1)[:, 0]
        return (optax.huber_loss(q, jax.lax.stop_gradient(goal)) * batch.mask).mean()

    loss, gradient = jax.value_and_grad(loss_of)(params)
    change, optimizer = OPTIMIZER.update(gradient, optimizer, params)
    params = optax.apply_updates(params, change)
    target = jax.tree.map(lambda t, p: t + 0.01 * (p - t), target, params)
    return (params, target, optimizer), loss


class Replay:
    """The same loop over a ring in host memory or in device memory."""

    def __init__(self, spec: Spec, where: str, seed: int) -> None:
        self.where = where
        if where == "host":
            self.pond: Any = HostPond(spec, 40_000, ENVS, WINDOW, seed=seed)
        else:
            self.pond = Pond(spec, 40_000, ENVS, WINDOW)
            self.state = self.pond.init()
            self._add = jax.jit(self.pond.add, donate_argnums=0)
            self._sample = jax.jit(self.pond.sample, static_argnums=2, donate_argnums=0)

    def add(self, rows: Rows) -> None:
        if self.where == "host":
            self.pond.add(rows)
        else:
            self.state = self._add(self.state, rows)

    def sample(self, key: jax.Array) -> Any:
        if self.where == "host":
            return self.pond.sample(BATCH)
        self.state, batch = self._sample(self.state, key, BATCH)
        return batch

    def export(self) -> dict[str, np.ndarray]:
        return self.pond.export() if self.where == "host" else self.pond.export(self.state)

    def restore(self, arrays: dict[str, np.ndarray]) -> None:
        restored = self.pond.restore(arrays)
        if self.where == "device":
            self.pond.check(restored)
            self.state = restored


class Envs:
    """Eight CartPoles under next-step autoreset, whose state can be saved and put back."""

    def __init__(self, seed: int) -> None:
        self.vector: Any = gymnasium.make_vec(
            "CartPole-v1", ENVS, vectorization_mode="sync",
            vector_kwargs={"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP},
        )  # fmt: skip
        self.obs = self.vector.reset(seed=seed)[0]
        self.flags = np.full(ENVS, Flag.FIRST, np.uint8)

    def step(self, action: np.ndarray) -> Rows:
        obs, flags = self.obs, self.flags
        self.obs, reward, terminated, truncated, _ = self.vector.step(action)
        self.flags = next_flags(flags, terminated, truncated)
        return Rows(obs, action, reward, terminated, truncated, flags)

    def export(self) -> dict[str, Any]:
        return {
            "obs": self.obs.tolist(),
            "flags": self.flags.tolist(),
            "ended": self.vector._autoreset_envs.tolist(),
            "envs": [
                [np.asarray(e.unwrapped.state).tolist(), e.unwrapped.steps_beyond_terminated,
                 e.get_wrapper_attr("_elapsed_steps"), e.unwrapped.np_random.bit_generator.state]
                for e in self.vector.envs
            ],
        }  # fmt: skip

    def restore(self, saved: dict[str, Any]) -> None:
        self.obs, self.flags = np.float32(saved["obs"]), np.uint8(saved["flags"])
        self.vector._autoreset_envs[:] = saved["ended"]
        for e, (state, beyond, elapsed, rng) in zip(self.vector.envs, saved["envs"], strict=True):
            e.unwrapped.state, e.unwrapped.steps_beyond_terminated = tuple(state), beyond
            e.set_wrapper_attr("_elapsed_steps", elapsed)
            e.unwrapped.np_random.bit_generator.state = rng


def evaluate(params: Any, spec: Spec, seed: int) -> float:
    """Mean greedy return over the first episode of each of eight fresh envs."""
    envs, stacker = Envs(seed), Stacker(spec, WINDOW)
    history, total, alive = stacker.init(ENVS), np.zeros(ENVS), np.ones(ENVS, bool)
    while alive.any():
        history, stack = stacker.push(history, envs.obs, envs.flags)
        rows = envs.step(np.asarray(act(params, stack, jax.random.key(0), 0.0)))
        total += rows.reward * alive
        alive &= ~(rows.terminated | rows.truncated)
    return float(total.mean())


def train(run: Path, steps: int, seed: int, where: str, every: int) -> dict[str, Any]:
    key, envs = jax.random.key(seed), Envs(seed)
    spec = Spec.from_env(envs.vector)
    state, stacker = new_agent(key, 4 * WINDOW.stack, 2), Stacker(spec, WINDOW)
    history, replay = stacker.init(ENVS), Replay(spec, where, seed)
    curve: list[tuple[int, float]] = []
    start, saved = 0, run / "resume.safetensors"
    leaves, tree = jax.tree.flatten((state, history))
    if saved.exists():  # everything the loop knows is in this file
        arrays = load_file(saved)
        notes = json.loads(bytes(arrays.pop("notes")))
        start, curve = notes["step"], notes["curve"]
        envs.restore(notes["envs"])
        leaves = [arrays.pop(f"leaf/{i}") for i in range(len(leaves))]
        state, history = jax.tree.unflatten(tree, leaves)
        replay.restore(arrays)

    def save(step: int) -> None:
        notes = json.dumps({"step": step, "curve": curve, "envs": envs.export()})
        arrays = {
            f"leaf/{i}": np.asarray(x) for i, x in enumerate(jax.tree.leaves((state, history)))
        }
        arrays |= replay.export() | {"notes": np.frombuffer(notes.encode(), np.uint8)}
        run.mkdir(parents=True, exist_ok=True)
        save_file(arrays, run / "resume.tmp")
        os.replace(run / "resume.tmp", saved)  # whole or not at all

    with Progress(transient=True) as progress:
        bar = progress.add_task("training", total=steps, completed=start)
        for step in range(start, steps):
            acting, drawing = jax.random.split(jax.random.fold_in(key, step))
            history, stack = stacker.push(history, envs.obs, envs.flags)
            epsilon = max(0.05, 1.0 - step / 3000)
            rows = envs.step(np.asarray(act(state[0], stack, acting, epsilon), np.int32))
            replay.add(rows)
            if step >= 200:
                state, _ = update(state, replay.sample(drawing))
            if (step + 1) % every == 0 or step + 1 == steps:
                curve.append((ENVS * (step + 1), evaluate(state[0], spec, seed + 1000)))
                save(step + 1)
                progress.update(bar, completed=step + 1, description=f"return {curve[-1][1]:.0f}")
    digest = hashlib.sha256(b"".join(np.asarray(x).tobytes() for x in jax.tree.leaves(state)))
    return {"curve": curve, "hash": digest.hexdigest()[:16]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", type=Path, default=Path("runs/cartpole"))
    parser.add_argument("--steps", type=int, default=20_000, help="steps of the vector env")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--replay", choices=("host", "device"), default="host")
    parser.add_argument("--every", type=int, default=1000, help="evaluate and save so often")
    options = parser.parse_args()
    result = train(options.run, options.steps, options.seed, options.replay, options.every)
    frames, returns = zip(*result["curve"], strict=True)
    title = "CartPole-v1, greedy return by env steps"
    print(terminal_curve(frames, returns, title))
    save_curve(options.run / "curve.png", frames, returns, title, "env steps", "return")
    last = float(np.mean(returns[-3:]))
    verdict = "solved" if last >= SOLVED else "not solved"
    print(f"mean of the last 3 evaluations {last:.0f} ({verdict}, bar {SOLVED:.0f})")
    print(f"parameters {result['hash']}   picture {options.run / 'curve.png'}")


if __name__ == "__main__":
    main()
