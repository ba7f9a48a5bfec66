"""Pond on a CUDA GPU: gathers against the copy bandwidth, windows, scans against flashbax, trees.

    python bench/pond_gpu.py            # prints a table, writes bench/out/pond_gpu.json

Times are wall-clock over loops inside one jitted program, median of five, after a warm-up. Every
ratio is to something measured in the same run.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from millpond import Field, Flag, Pond, Rows, Spec, Window, prioritized

OUT = Path(__file__).parent / "out"
FRAME = Spec(obs=Field("uint8", (84, 84)), action=Field("int32", (), 0, 17))
VECTOR = Spec(obs=Field("float32", (50,)), action=Field("float32", (8,)))  # 440 B with next_obs
SMALL = Spec(obs=Field("float32", (4,)), action=Field("int32", (), 0, 3))
Row = dict[str, Any]


def seconds(program: Callable[..., Any], state: Any, turns: int) -> tuple[float, Any]:
    """Seconds per turn of a jitted `program(state) -> state` that loops `turns` times."""
    state = jax.block_until_ready(program(state))
    times = []
    for _ in range(5):
        start = time.perf_counter()
        state = jax.block_until_ready(program(state))
        times.append((time.perf_counter() - start) / turns)
    return statistics.median(times), state


def looped(step: Callable[[Any, jax.Array], tuple[Any, Any]], turns: int) -> Callable[..., Any]:
    """step(state, key) -> (state, value), `turns` times in one donated program."""

    def program(carry: Any) -> Any:
        def turn(carry: Any, key: jax.Array) -> tuple[Any, None]:
            state, seen = carry
            state, value = step(state, key)
            return (state, seen + value), None

        keys = jax.random.split(jax.random.key(1), turns)
        return jax.lax.scan(turn, carry, keys)[0]

    return jax.jit(program, donate_argnums=0)


def rows(spec: Spec, envs: int) -> Rows:
    """One ordinary step of every env."""
    return Rows(
        jnp.ones((envs, *spec.obs.shape), spec.obs.dtype),
        jnp.ones((envs, *spec.action.shape), spec.action.dtype),
        jnp.ones(envs),
        jnp.zeros(envs, bool),
        jnp.zeros(envs, bool),
        jnp.zeros(envs, jnp.uint8),
    )


def filled(pond: Pond, new: Rows) -> Any:
    """A full ring; its first rows start their episodes."""
    first = new._replace(flags=jnp.full(new.flags.shape, Flag.FIRST, jnp.uint8))

    def fill(state: Any) -> Any:
        state = pond.add(state, first)
        turns = pond.length + 5
        return jax.lax.fori_loop(0, turns, lambda _, state: pond.add(state, new), state)

    return jax.jit(fill, donate_argnums=0)(pond.init())


def use(batch: Any) -> jax.Array:
    """A number that needs every field of the batch."""
    leaves = (batch.obs, batch.next_obs, batch.action, batch.reward, batch.discount, batch.weight)
    return sum(jnp.sum(leaf.astype(np.float32)) for leaf in jax.tree.leaves(leaves))


def kernels(program: Any, carry: Any) -> int:
    """Device operations in one turn of a looped program."""
    text = program.lower(carry).compile().as_text()
    bodies = re.findall(r"body=%?([\w.\-]+)", text)
    counts = []
    for body in bodies:
        inside = re.search(rf"^%?{re.escape(body)} .*?^}}", text, re.S | re.M)
        if inside:
            counts.append(len(re.findall(r" (fusion|custom-call|copy|sort|call)\(", inside[0])))
    return max(counts, default=0)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a plain copy of 4 GB."""
    block = jnp.zeros(1 << 30, np.float32)
    program = jax.jit(
        lambda x: jax.lax.fori_loop(0, 20, lambda i, x: x + i.astype(np.float32), x),
        donate_argnums=0,
    )
    taken, _ = seconds(program, block, 20)
    return 2 * block.nbytes / taken


def frames(limit: float) -> list[Row]:
    """Sample single frames and whole windows of noise from a ring of 1M frames (7 GB)."""
    found = []
    for stack, size in ((1, 1 << 16), (4, 4096), (4, 32768)):
        pond = Pond(FRAME, 1 << 20, 64, Window(stack=stack))
        state = filled(pond, rows(FRAME, 64))
        noise = jax.jit(lambda key: jax.random.bits(key, (1 << 20, 1764), np.uint32))
        shape = state.columns["obs"].shape
        state.columns["obs"] = noise(jax.random.key(2)).reshape(shape)

        def step(carry: Any, key: jax.Array, pond: Pond = pond, size: int = size) -> Any:
            state, _ = carry
            state, drawn = pond.sample(state, key, size)
            kept = (drawn.obs, drawn.next_obs)  # written out whole, as a learner would get them
            return (state, kept), drawn.reward.sum()

        empty = [jnp.zeros((size, stack, 84, 84), np.uint8) for _ in range(2)]
        carry = ((state, tuple(empty)), jnp.float32(0))
        taken, _ = seconds(looped(step, 20), carry, 20)
        speed = 2 * 2 * stack * size * 7056 / taken  # every frame of obs and next_obs, in and out
        what = "gather of 84x84 frames" if stack == 1 else "windows: stack 4 and next, five frames"
        found.append(
            {
                "row": f"sample {size}, {what}, TB/s",
                "ours": speed / 1e12,
                "reference": limit / 1e12,
                "of": "device copy",
                "ratio": speed / limit,
                "samples_per_s": size / taken,
                **({"target": ">= 0.8", "met": speed >= 0.8 * limit} if stack == 1 else {}),
            }
        )
        del state, carry
    return found


def scans() -> list[Row]:
    """Add 2048 x 440 B and sample 4096 in one scan, in both orders, beside flashbax."""
    envs, batch, turns, capacity = 2048, 4096, 400, 2048 * 244
    new, found = rows(VECTOR, envs), []
    times: dict[tuple[str, ...], float] = {}
    for layout in ("stream", "shared", "per_env"):
        pond = Pond(VECTOR, capacity, envs, layout=layout)
        extra = (new.obs,) if layout == "shared" else ()

        def add_first(state: Any, key: jax.Array, pond: Pond = pond, extra: Any = extra) -> Any:
            state, drawn = pond.sample(pond.add(state, new, *extra), key, batch)
            return state, use(drawn)

        def sample_first(state: Any, key: jax.Array, pond: Pond = pond, extra: Any = extra) -> Any:
            state, drawn = pond.sample(state, key, batch)
            return pond.add(state, new, *extra), use(drawn)

        for name, step in (("add first", add_first), ("sample first", sample_first)):
            carry = (pond.init(), jnp.float32(0))
            program = looped(step, turns)
            times[layout, name, "kernels"] = kernels(program, carry)
            times[layout, name] = seconds(program, carry, turns)[0] * 1e6
    peer = flashbax_scan(envs, batch, turns, capacity)
    for name in ("add first", "sample first"):
        ours, theirs = times["stream", name], peer.get(name)
        found.append(
            {
                "row": f"in scan, {name}: add 2048 x 440 B + sample 4096, us",
                "ours": ours,
                "reference": theirs,
                "of": "flashbax",
                "target": "faster than flashbax",
                "ratio": theirs / ours if theirs else None,
                "met": ours < theirs if theirs else None,
                "kernels": times["stream", name, "kernels"],
                "shared": times["shared", name],
                "per_env": times["per_env", name],
            }
        )
    return found


def flashbax_scan(envs: int, batch: int, turns: int, capacity: int) -> dict[str, float]:
    """The same work with flashbax's item buffer, or nothing where it is not installed."""
    try:
        import flashbax
    except ImportError as error:
        print(f"flashbax: not available ({error})", file=sys.stderr)
        return {}
    buffer = flashbax.make_item_buffer(capacity, 1, batch, add_batches=True)
    item = {
        "obs": jnp.zeros((envs, 50)),
        "next_obs": jnp.zeros((envs, 50)),
        "action": jnp.zeros((envs, 8)),
        "reward": jnp.zeros(envs),
        "discount": jnp.zeros(envs),
    }

    def value(drawn: Any) -> jax.Array:
        return sum(jnp.sum(leaf) for leaf in jax.tree.leaves(drawn.experience))

    def add_first(state: Any, key: jax.Array) -> Any:
        state = buffer.add(state, item)
        return state, value(buffer.sample(state, key))

    def sample_first(state: Any, key: jax.Array) -> Any:
        seen = value(buffer.sample(state, key))
        return buffer.add(state, item), seen

    found = {}
    for name, step in (("add first", add_first), ("sample first", sample_first)):
        state = buffer.init(jax.tree.map(lambda leaf: leaf[0], item))
        state = buffer.add(state, item)
        carry = (state, jnp.float32(0))
        found[name] = seconds(looped(step, turns), carry, turns)[0] * 1e6
    return found


def cycles() -> list[Row]:
    """The prioritised cycle at 1M and 10M rows, by fan-out of the tree."""
    found = []
    for capacity in (1 << 20, 10 * (1 << 20)):
        times = {}
        for fan in (8, 16, 32, 64, 128):
            pond = Pond(SMALL, capacity, 256, sampler=prioritized(fan=fan))
            new, turns = rows(SMALL, 256), 200

            def step(state: Any, key: jax.Array, pond: Pond = pond, new: Rows = new) -> Any:
                one, two = jax.random.split(key)
                state, drawn = pond.sample(pond.add(state, new), one, 512)
                errors = jax.random.uniform(two, (512,))
                return pond.update_priorities(state, drawn.draw, errors), use(drawn)

            carry = (pond.init(), jnp.float32(0))
            times[fan] = seconds(looped(step, turns), carry, turns)[0] * 1e6
        found.append(
            {
                "row": f"prioritised cycle at {capacity:,} rows, us",
                "ours": times[16],
                "by_fan": times,
            }
        )
    return found


def main() -> None:
    device = jax.devices()[0]
    limit = copy_bandwidth()
    found = [*frames(limit), *scans(), *cycles()]
    for row in found:
        extra = {k: v for k, v in row.items() if k not in ("row", "ours")}
        shown = {k: round(v, 3) if isinstance(v, float) else v for k, v in extra.items()}
        print(f"{row['row']:62} {row['ours']:10.3f}   {shown}")
    OUT.mkdir(exist_ok=True)
    about = {
        "device": device.device_kind,
        "jax": jax.__version__,
        "numpy": np.__version__,
        "date": date.today().isoformat(),
        "copy_TB_per_s": limit / 1e12,
    }
    print(about)
    (OUT / "pond_gpu.json").write_text(
        json.dumps({**about, "rows": found}, indent=1, default=float)
    )


if __name__ == "__main__":
    main()
