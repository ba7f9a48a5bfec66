"""flashbax: item, flat and trajectory buffers, jitted with a donated state, and inside `scan`."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import flashbax as fbx
import jax
import jax.numpy as jnp

from . import scan
from . import workload as work
from .stopwatch import Card, cpu_us

Tree = dict[str, jax.Array]


def transitions(number: int, obs: int, whole: bool) -> Tree:
    """A block of steps on the device; `whole` ones carry their next observation."""
    one = work.steps(number, obs)._asdict()
    if not whole:
        del one["next_obs"]
    return jax.device_put(one)


def keys(number: int = 64) -> Any:
    """Random keys made beforehand: splitting is the caller's work."""
    return cycle(list(jax.random.split(jax.random.key(0), number)))


class Ways:
    """One kind of buffer with its add and sample in the form that `scan` times.

    An item buffer holds whole transitions; a flat buffer holds steps and samples pairs of them.
    """

    def __init__(self, buffer: Any, block: Tree, whole: bool) -> None:
        self.buffer, self.block, self.whole = buffer, block, whole

    def add(self, state: Any, scale: jax.Array) -> Any:
        return self.buffer.add(state, {**self.block, "obs": self.block["obs"] * scale})

    def sample(self, state: Any, key: jax.Array) -> tuple[Any, Any]:
        return state, self.fields(self.buffer.sample(state, key).experience)

    def fields(self, experience: Any) -> Any:
        if self.whole:
            return experience
        return {**experience.first, "next_obs": experience.second["obs"]}

    def full(self, capacity: int) -> Any:
        rows = len(self.block["reward"])
        state = self.buffer.init(jax.tree.map(lambda leaf: leaf[0], self.block))
        return scan.fill(self.add, state, capacity // rows)


def vector_ways() -> dict[str, Ways]:
    item = fbx.make_item_buffer(work.VECTOR_CAPACITY, 1, work.VECTOR_BATCH, add_batches=True)
    flat = fbx.make_flat_buffer(
        work.VECTOR_CAPACITY, 1, work.VECTOR_BATCH, add_batch_size=work.VECTOR_ENVS
    )
    return {
        "item": Ways(item, transitions(work.VECTOR_ENVS, work.OBS, True), True),
        "flat": Ways(flat, transitions(work.VECTOR_ENVS, work.OBS, False), False),
    }


def calls(buffer: Any, block: Tree, state: Any) -> tuple[float, float]:
    """µs of a jitted add with donated state, and of a jitted sample."""
    jitted = jax.jit(buffer.add, donate_argnums=0)
    draw, key = jax.jit(buffer.sample), keys()

    def add() -> None:
        nonlocal state
        state = jax.block_until_ready(jitted(state, block))

    return cpu_us(add), cpu_us(lambda: jax.block_until_ready(draw(state, next(key))))


def vector(card: Card) -> None:
    """Each row with the faster of the two buffers."""
    timed = {
        name: calls(way.buffer, way.block, way.full(work.VECTOR_CAPACITY))
        for name, way in vector_ways().items()
    }
    card.best("vector_add", {name: add for name, (add, _) in timed.items()})
    card.best("vector_sample", {name: sample for name, (_, sample) in timed.items()})


def vector_scan(card: Card) -> None:
    """The same inside `scan`, in both orders."""
    timed: dict[str, dict[str, float]] = {}
    for name, way in vector_ways().items():
        both = way.add, way.sample
        for key, us in (
            ("vector_add_scan", scan.add_only(way.add, way.full(work.VECTOR_CAPACITY))),
            ("scan_add_first", scan.add_first(*both, way.full(work.VECTOR_CAPACITY))),
            ("scan_sample_first", scan.sample_first(*both, way.full(work.VECTOR_CAPACITY))),
        ):
            timed.setdefault(key, {})[name] = us
    for key, ways in timed.items():
        card.best(key, ways)


def single(card: Card) -> None:
    """One env: an item buffer, one transition per call."""
    buffer = fbx.make_item_buffer(work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH)
    one = jax.tree.map(lambda leaf: leaf[0], transitions(1, work.OBS, True))
    many = fbx.make_item_buffer(work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH, add_batches=True)
    state = Ways(many, transitions(1000, work.OBS, True), True).full(work.SINGLE_CAPACITY)
    add, sample = calls(buffer, one, state)
    card.put("single_add", add)
    card.put("single_sample", sample)


def pixels(card: Card) -> None:
    """Sequences of stack + n-step frames, cut into the two stacks; borders are not looked at."""
    note = "not border-safe"
    length = work.STACK + work.N_STEP
    buffer = fbx.make_trajectory_buffer(
        add_batch_size=work.PIXEL_ENVS,
        sample_batch_size=work.PIXEL_BATCH,
        sample_sequence_length=length,
        period=1,
        min_length_time_axis=length,
        max_length_time_axis=work.PIXEL_CAPACITY // work.PIXEL_ENVS,
    )
    envs, time = work.PIXEL_ENVS, 100
    block = jax.device_put(
        {
            "obs": work.frames(envs * time).reshape(envs, time, *work.FRAME),
            "action": jnp.zeros((envs, time), jnp.int32),
            "reward": jnp.ones((envs, time)),
            "done": jax.random.bernoulli(jax.random.key(1), 1 / work.EPISODE, (envs, time)),
        }
    )
    state = buffer.init(jax.tree.map(lambda leaf: leaf[0, 0], block))
    add = jax.jit(buffer.add, donate_argnums=0)
    for _ in range(work.PIXEL_CAPACITY // (envs * time)):
        state = add(state, block)
    powers = work.GAMMA ** jnp.arange(work.N_STEP)

    @jax.jit
    def sample(state: Any, key: jax.Array) -> Any:
        rows = buffer.sample(state, key).experience
        here = work.STACK - 1
        return {
            "obs": rows["obs"][:, : work.STACK],
            "next_obs": rows["obs"][:, work.N_STEP :],
            "action": rows["action"][:, here],
            "reward": (rows["reward"][:, here:-1] * powers).sum(1),
            "done": rows["done"][:, here:-1].any(1),
        }

    held = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    card.put("pixels_bytes", held / work.PIXEL_CAPACITY, note)
    key = keys()
    us = cpu_us(lambda: jax.block_until_ready(sample(state, next(key))))
    card.put("pixels_sample", us, note)


def prioritised(card: Card) -> None:
    """The cycle as three jitted calls and inside `scan`, with the faster of two buffers."""
    size, batch = work.CYCLE_CAPACITY, work.CYCLE_BATCH
    item = fbx.make_prioritised_item_buffer(size, 1, batch, add_batches=True)
    flat = fbx.make_prioritised_flat_buffer(size, 1, batch, add_batch_size=work.CYCLE_ADD)
    ways = {
        "item": Ways(item, transitions(work.CYCLE_ADD, work.CYCLE_OBS, True), True),
        "flat": Ways(flat, transitions(work.CYCLE_ADD, work.CYCLE_OBS, False), False),
    }
    three = {name: three_calls(way) for name, way in ways.items()}
    card.best("prioritised_host", three, "three jitted calls")
    card.best("prioritised_calls", three)
    card.best("prioritised_scan", {name: cycle_scan(way) for name, way in ways.items()})


def three_calls(way: Ways) -> float:
    buffer = way.buffer
    add = jax.jit(buffer.add, donate_argnums=0)
    sample = jax.jit(buffer.sample)
    update = jax.jit(buffer.set_priorities, donate_argnums=0)
    errors, key = cycle(jax.device_put(work.priorities())), keys()
    state = way.full(work.CYCLE_CAPACITY)

    def once() -> None:
        nonlocal state
        state = add(state, way.block)
        drawn = sample(state, next(key))
        state = jax.block_until_ready(update(state, drawn.indices, next(errors)))

    return cpu_us(once)


def cycle_scan(way: Ways) -> float:
    errors = jax.device_put(work.priorities()[0])

    def step(state: Any, scale: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        state = way.add(state, scale)
        drawn = way.buffer.sample(state, key)
        state = way.buffer.set_priorities(state, drawn.indices, errors * scale)
        return state, (way.fields(drawn.experience), drawn.probabilities)

    return scan.scan_us(step, way.full(work.CYCLE_CAPACITY))


def main() -> None:
    card = Card("flashbax", "jax", "jaxlib", "numpy")
    with card.section("vector_add", "vector_sample"):
        vector(card)
    with card.section("vector_add_scan", "scan_add_first", "scan_sample_first"):
        vector_scan(card)
    with card.section("single_add", "single_sample"):
        single(card)
    with card.section("pixels_sample", "pixels_bytes"):
        pixels(card)
    with card.section("prioritised_host", "prioritised_calls", "prioritised_scan"):
        prioritised(card)
    card.show()


if __name__ == "__main__":
    main()
