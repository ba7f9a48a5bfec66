"""Floors: the bare memory traffic of each row, in NumPy, without validity, episodes or checks.

In `scan` the floor is a plain JAX ring over time and env that checks nothing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from . import scan
from . import workload as work
from .stopwatch import Card, cpu_us

WIDTH = 2 * work.OBS + work.ACTION + 2  # a transition as one packed float32 row


def packed(card: Card, name: str, capacity: int, block: int, batch: int) -> None:
    """Write `block` packed rows at a moving head; draw and take `batch` of them."""
    rng = np.random.default_rng(0)
    ring = rng.random((capacity, WIDTH), np.float32)
    rows = rng.random((block, WIDTH), np.float32)
    out = np.empty((batch, WIDTH), np.float32)
    head = 0

    def add() -> None:
        nonlocal head
        ring[head : head + block] = rows
        head = (head + block) % capacity

    def sample() -> None:
        drawn = rng.integers(0, capacity, batch)
        np.take(ring, drawn, axis=0, out=out, mode="clip")

    card.put(f"{name}_add", cpu_us(add), "one packed row")
    card.put(f"{name}_sample", cpu_us(sample), "one packed row")


def pixels(card: Card) -> None:
    """Two stacks of consecutive frames per sample, out of one array of frames."""
    size = work.FRAME[0] * work.FRAME[1]
    rng = np.random.default_rng(0)
    ring = np.empty((work.PIXEL_CAPACITY, size), np.uint8)
    noise = work.frames(1000).reshape(-1, size)
    for start in range(0, work.PIXEL_CAPACITY, len(noise)):
        ring[start : start + len(noise)] = noise
    outs = [np.empty((work.PIXEL_BATCH * work.STACK, size), np.uint8) for _ in range(2)]
    stack = np.arange(work.STACK)
    starts = work.PIXEL_CAPACITY - work.STACK - work.N_STEP

    def sample() -> None:
        first = rng.integers(0, starts, work.PIXEL_BATCH)[:, None] + stack
        np.take(ring, first.reshape(-1), axis=0, out=outs[0], mode="clip")
        np.take(ring, (first + work.N_STEP).reshape(-1), axis=0, out=outs[1], mode="clip")

    card.put("pixels_sample", cpu_us(sample), "frames only")
    card.put("pixels_bytes", size + 4 + 4, "frame, action and reward")


class Ring(NamedTuple):
    """A plain ring [time, env, ...] without flags."""

    fields: Any
    head: jax.Array


def plain_scan(card: Card) -> None:
    """A JAX ring whose next observation is simply the next row's."""
    length = work.VECTOR_CAPACITY // work.VECTOR_ENVS
    one = work.steps(work.VECTOR_ENVS)
    block = jax.device_put({"obs": one.obs, "action": one.action, "reward": one.reward})

    def add(ring: Ring, scale: jax.Array) -> Ring:
        new = {**block, "obs": block["obs"] * scale}

        def write(field: jax.Array, rows: jax.Array) -> jax.Array:
            start = (ring.head, *(0,) * (field.ndim - 1))
            return jax.lax.dynamic_update_slice(field, rows[None], start)

        return Ring(jax.tree.map(write, ring.fields, new), (ring.head + 1) % length)

    def sample(ring: Ring, key: jax.Array) -> tuple[Ring, Any]:
        rows = length * work.VECTOR_ENVS
        drawn = jax.random.randint(key, (work.VECTOR_BATCH,), 0, rows)
        flat = jax.tree.map(lambda field: field.reshape(rows, *field.shape[2:]), ring.fields)

        def take(name: str, where: jax.Array) -> jax.Array:
            return flat[name].at[where].get(mode="promise_in_bounds")

        ahead = (drawn + work.VECTOR_ENVS) % rows
        return ring, (
            take("obs", drawn),
            take("obs", ahead),
            take("action", drawn),
            take("reward", drawn),
        )

    def full() -> Ring:
        empty = jax.tree.map(lambda rows: jnp.zeros((length, *rows.shape)), block)
        return scan.fill(add, Ring(empty, jnp.int32(0)), length)

    note = "plain JAX ring, checks nothing"
    card.put("vector_add_scan", scan.add_only(add, full()), note)
    floor = scan.add_first(add, sample, full())
    card.put("scan_add_first", floor, note)
    card.put("scan_sample_first", floor, f"{note}; taken from the other order")
    # In this order XLA copies the whole ring: what it costs, not a floor.
    card.put("scan_sample_first.plain ring", scan.sample_first(add, sample, full()), note)


def main() -> None:
    card = Card("numpy", "jax")
    with card.section("vector_add", "vector_sample"):
        packed(card, "vector", work.VECTOR_CAPACITY, work.VECTOR_ENVS, work.VECTOR_BATCH)
    with card.section("single_add", "single_sample"):
        packed(card, "single", work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH)
    with card.section("pixels_sample", "pixels_bytes"):
        pixels(card)
    with card.section("vector_add_scan", "scan_add_first", "scan_sample_first"):
        plain_scan(card)
    card.skip("no floor is defined", "prioritised_host", "prioritised_calls", "prioritised_scan")
    card.show()


if __name__ == "__main__":
    main()
