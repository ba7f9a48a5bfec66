"""Lake → Pond on a CUDA GPU: how fast rows on disk become rows on the device, beside training.

    python bench/fill_gpu.py --frames bench/out/frames.npz   # table, bench/out/fill_gpu.json

`--frames` is an .npz with uint8[time, stream, 84, 84] arrays by game, such as bench/lake.py
records; without it noise and a moving square stand in, and the table says so. The Lake is in the
page cache, as it is beside training. GB/s count the bytes of decoded frames.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import millpond.lake.codec as codec
from millpond import Field, Flag, Pond, Rows, Spec, Window
from millpond.flow import Fill
from millpond.flow.pinned import pinned_array
from millpond.lake import Lake

OUT = Path(__file__).parent / "out"
SPEC = Spec(obs=Field("uint8", (84, 84)), action=Field("int32", (), 0, 17))
WINDOW = Window(stack=4, n_step=3)
FRAME = 84 * 84
Table = list[tuple[str, float, str, float | None]]


def make_lake(folder: Path, frames: np.ndarray, rows: int, threads: int) -> Lake:
    """`rows` rows of frames[time, stream], the streams repeated from other times."""
    time_, streams = frames.shape[:2]
    envs = 512
    lake = Lake.create(folder, SPEC, capacity=2 * rows)
    order = [np.roll(np.arange(time_), -37 * (env // streams)) for env in range(envs)]
    with lake.writer("bench", envs, threads=threads) as writer:
        for step in range(rows // envs // 8):
            at = (step * 8 + np.arange(8)) % time_
            obs = np.stack([frames[order[e][at], e % streams] for e in range(envs)], axis=1)
            flags = np.zeros((8, envs), np.uint8)
            flags[0] = Flag.FIRST if step == 0 else 0
            none = np.zeros((8, envs), bool)
            zero = np.zeros((8, envs))
            writer.append(
                Rows(obs, zero.astype(np.int32), zero.astype(np.float32), none, none, flags)
            )
            writer.commit()
    lake.refresh()
    return lake


def trainer(pond: Pond) -> Any:
    """A DQN update on a batch of 1024 from the pond, with a network of the usual size."""
    optimizer = optax.adam(1e-4)
    sizes = [(8, 4, 32, 4), (4, 32, 64, 2), (3, 64, 64, 1)]

    def init(key: jax.Array) -> Any:
        keys = jax.random.split(key, 5)
        convs = [
            jax.random.normal(k, (out, inner, size, size)) * (inner * size * size) ** -0.5
            for k, (size, inner, out, _) in zip(keys, sizes, strict=False)
        ]
        dense = [
            jax.random.normal(k, s) * s[0] ** -0.5
            for k, s in zip(keys[3:], [(3136, 512), (512, 18)], strict=True)
        ]
        params = (convs, dense)
        return params, optimizer.init(params)

    def values(params: Any, obs: jax.Array) -> jax.Array:
        x = obs.astype(jnp.float32) / 255
        for kernel, (_, _, _, stride) in zip(params[0], sizes, strict=True):
            x = jax.nn.relu(jax.lax.conv(x, kernel, (stride, stride), "VALID"))
        x = jax.nn.relu(x.reshape(len(x), -1) @ params[1][0])
        return x @ params[1][1]

    def update(learner: Any, state: Any, key: jax.Array) -> Any:
        params, opt = learner
        state, batch = pond.sample(state, key, 1024)

        def loss(params: Any) -> jax.Array:
            q = jnp.take_along_axis(values(params, batch.obs), batch.action[:, None], 1)[:, 0]
            target = batch.reward + batch.discount * values(params, batch.next_obs).max(1)
            return jnp.mean(batch.mask * (q - jax.lax.stop_gradient(target)) ** 2)

        grads = jax.grad(loss)(params)
        updates, opt = optimizer.update(grads, opt)
        return (optax.apply_updates(params, updates), opt), state

    def many(learner: Any, state: Any, key: jax.Array) -> Any:
        def one(carry: Any, key: jax.Array) -> Any:
            return update(*carry, key), None

        return jax.lax.scan(one, (learner, state), jax.random.split(key, 50))[0]

    return init(jax.random.key(0)), jax.jit(many, donate_argnums=(0, 1))


def whole_fills(lake: Lake, pond: Pond, times: int = 4) -> tuple[Any, float]:
    """GB/s of filling the whole pond, the median of those after the first."""
    with Fill(lake, pond, core=121, seed=1) as fill:
        state, speeds = pond.init(), []
        for turn in range(times):
            start = time.perf_counter()
            for _ in range(fill.blocks):
                state = fill(state)
            jax.block_until_ready(state)
            seconds = time.perf_counter() - start
            moved = fill.blocks * fill.runs.length * pond.streams * FRAME
            if turn:
                speeds.append(moved / seconds / 1e9)
    pond.check(state)
    return state, statistics.median(speeds)


def first_reads(lake: Lake, pond: Pond) -> float:
    """GB/s of gathering blocks into host memory that were not read before: checksums included."""
    fill = Fill(lake, pond, core=121, seed=2)
    out = {"obs": pinned_array((pond.streams, fill.runs.length, FRAME))}
    start, blocks = time.perf_counter(), 6
    for _ in range(blocks):
        fill.runs.rows_of(fill.runs.next_cores(), out)
    moved = blocks * fill.runs.length * pond.streams * FRAME
    return moved / (time.perf_counter() - start) / 1e9


def device_limit() -> float:
    """GB/s of `device_put` from registered memory."""
    array = pinned_array((1 << 29,))
    jax.block_until_ready(jax.device_put(array))
    start = time.perf_counter()
    for _ in range(5):
        jax.block_until_ready(jax.device_put(array))
    return 5 * array.nbytes / (time.perf_counter() - start) / 1e9


def beside(lake: Lake, pond: Pond, state: Any, every: int) -> tuple[float, float]:
    """Milliseconds per update alone, and while a block is filled in every `every` x 50 updates."""
    learner, many = trainer(pond)
    keys = jax.random.split(jax.random.key(3), 64)
    learner, state = many(learner, state, keys[0])
    jax.block_until_ready(learner)

    def run(fill: Fill | None, turns: int = 24) -> float:
        nonlocal learner, state
        start = time.perf_counter()
        for turn in range(turns):
            learner, state = many(learner, state, keys[turn])
            if fill is not None and turn % every == every - 1:
                state = fill(state)
        jax.block_until_ready((learner, state))
        return (time.perf_counter() - start) / turns / 50 * 1e3

    alone = [run(None) for _ in range(3)]
    with Fill(lake, pond, core=121, seed=4) as fill:
        state = fill(state)
        run(fill)
        both = [run(fill) for _ in range(3)]
    alone += [run(None) for _ in range(3)]
    return statistics.median(alone), statistics.median(both)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--frames", type=Path)
    parser.add_argument("--rows", type=int, default=1 << 20)
    parser.add_argument("--envs", type=int, default=256)
    args = parser.parse_args()
    threads = len(os.sched_getaffinity(0))
    games = (
        dict(np.load(args.frames))
        if args.frames
        else {"noise": np.random.default_rng(0).integers(0, 255, (256, 16, 84, 84), np.uint8)}
    )
    run_rows = 3 + 121 + 3
    pond = Pond(SPEC, run_rows * 32 * args.envs, args.envs, WINDOW)
    table: Table = [("device_put from registered memory, GB/s", device_limit(), "limit", None)]
    folder = Path(tempfile.mkdtemp(prefix="millpond-"))
    try:
        worth = codec.WORTH
        for kind, wanted in (("raw", 40.0), ("compressed", 15.0)):
            codec.WORTH = float("inf") if kind == "raw" else worth
            for game, frames in list(games.items())[: 1 if kind == "raw" else None]:
                begin = time.perf_counter()
                lake = make_lake(folder / f"{kind}-{game}", frames, args.rows, threads)
                stats = lake.stats()
                print(
                    f"{kind} {game}: {stats.rows} rows, {stats.bytes_on_disk / stats.rows:.0f} "
                    f"B/row, made in {time.perf_counter() - begin:.0f} s",
                    flush=True,
                )
                name = f"{kind} ({game})"
                table.append(
                    (
                        f"{name}: first reads on the host, GB/s",
                        first_reads(lake, pond),
                        "",
                        None,
                    )
                )
                state, speed = whole_fills(lake, pond)
                table.append((f"{name}: Lake to Pond, GB/s", speed, f">= {wanted:.0f}", wanted))
                alone, both = beside(lake, pond, state, every=1)
                table.append((f"{name}: update alone, ms", alone, "", None))
                table.append(
                    (f"{name}: update beside a block per 50, ratio", both / alone, "<= 1.05", None)
                )
                del lake, state
                shutil.rmtree(folder / f"{kind}-{game}")
                for row in table[-4:]:
                    print(row, flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    report(table)


def report(table: Table) -> None:
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10
    ).stdout.strip()
    where = f"{jax.devices()[0].device_kind}, {os.cpu_count()} cores, jax {jax.__version__}"
    print(f"\n{where}, {date.today()}, commit {commit or 'unknown'}")
    for name, value, target, _ in table:
        print(f"{name:58} {value:10.2f}   {target}")
    OUT.mkdir(exist_ok=True)
    found = {
        "machine": where,
        "date": str(date.today()),
        "commit": commit,
        "rows": [{"name": n, "value": v, "target": t} for n, v, t, _ in table],
    }
    (OUT / "fill_gpu.json").write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
