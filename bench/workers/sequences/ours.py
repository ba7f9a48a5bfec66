"""millpond: `HostPond` and `Pond` with `window=Sequence(64)`."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import Any

import jax
import numpy as np

from millpond import Field, Flag, HostPond, Pond, Rows, Sequence, Spec, next_flags

from ..stopwatch import Card, cpu_us
from . import task

WINDOW = Sequence(task.LENGTH)


def spec(kind: task.Kind) -> Spec:
    action = Field("float32", kind.action) if kind.action else Field("int32", (), 0, 17)
    return Spec(obs=Field(kind.dtype, kind.obs), action=action)


def rows(kind: task.Kind) -> Iterator[Rows]:
    """The play with border rows in their places."""
    flags, no = np.full(kind.envs, Flag.FIRST, np.uint8), np.zeros(kind.envs, bool)
    for block in task.play(kind):
        marks, ended = np.empty(block.done.shape, np.uint8), np.empty(block.done.shape, bool)
        for t, done in enumerate(block.done):
            marks[t] = flags
            ended[t] = done & ((flags & Flag.BORDER) == 0)
            flags = next_flags(flags, ended[t], no)
        step = (marks & Flag.BORDER) == 0
        truncated = np.zeros_like(ended)
        yield Rows(block.obs, block.action, block.reward * step, ended, truncated, marks)


def host(card: Card, kind: task.Kind) -> None:
    """Into the arrays of the last batch."""
    for variant, window in (("", WINDOW), (".end=stop", Sequence(task.LENGTH, end="stop"))):
        pond = HostPond(spec(kind), kind.capacity, kind.envs, window=window, seed=1)
        for block in rows(kind):
            pond.add(block)
        batch = pond.sample(task.BATCH)
        key = f"{kind.name}_host{variant}"
        card.put(key, cpu_us(lambda p=pond, b=batch: p.sample(task.BATCH, out=b)))


def in_jit(card: Card, kind: task.Kind) -> None:
    """One jitted call with a donated state."""
    pond = Pond(spec(kind), kind.capacity, kind.envs, window=WINDOW)
    state: Any = pond.init()
    add = jax.jit(pond.add, donate_argnums=0)
    for block in rows(kind):
        state = add(state, block)
    pond.check(state)
    sample = jax.jit(pond.sample, static_argnums=2, donate_argnums=0)
    keys = cycle(list(jax.random.split(jax.random.key(0), 64)))

    def once() -> None:
        nonlocal state
        state, batch = sample(state, next(keys), task.BATCH)
        jax.block_until_ready(batch)

    card.put(f"{kind.name}_jit", cpu_us(once))


def main() -> None:
    card = Card("millpond", "jax", "jaxlib", "numpy")
    for kind in task.KINDS:
        with card.section(f"{kind.name}_host"):
            host(card, kind)
        with card.section(f"{kind.name}_jit"):
            in_jit(card, kind)
    card.show()


if __name__ == "__main__":
    main()
