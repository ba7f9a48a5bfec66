"""millpond's `Pond`, jitted with a donated state and inside `scan`."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import jax

from millpond import Pond, Rows, prioritized

from . import scan
from . import workload as work
from .ours_rows import spec, stream
from .stopwatch import Card, cpu_us


class Ways:
    """A Pond with its add and sample in the form that `scan` times."""

    def __init__(self, layout: str, capacity: int, envs: int, obs: int, **sampler: Any) -> None:
        self.pond = Pond(spec(obs), capacity, envs, layout=layout, **sampler)
        one = work.steps(envs, obs)
        rows = stream(one)
        self.first, self.rows = jax.device_put((next(rows), next(rows)))
        self.more = (jax.device_put(one.next_obs),) if layout == "shared" else ()
        self.adds = capacity // envs

    def add(self, state: Any, scale: jax.Array) -> Any:
        rows: Rows = self.rows._replace(obs=self.rows.obs * scale)
        return self.pond.add(state, rows, *self.more)

    def add_same(self, state: Any, rows: Rows) -> Any:
        return self.pond.add(state, rows, *self.more)

    def sampler(self, number: int) -> scan.Sample:
        def sample(state: Any, key: jax.Array) -> tuple[Any, Any]:
            state, batch = self.pond.sample(state, key, number)
            return state, (batch.obs, batch.next_obs, batch.action, batch.reward, batch.discount)

        return sample

    def full(self) -> Any:
        """A full ring, its first rows marked FIRST."""
        state = jax.jit(self.add_same, donate_argnums=0)(self.pond.init(), self.first)
        state = scan.fill(self.add, state, self.adds)
        self.pond.check(state)
        return state


def vector_scan(card: Card) -> None:
    """The default layout inside `scan`: adds alone, and both orders of add and sample."""
    ways = Ways("stream", work.VECTOR_CAPACITY, work.VECTOR_ENVS, spec().obs.size)
    card.put("vector_add_scan", scan.add_only(ways.add, ways.full()))
    orders(card, "scan_add_first", "scan_sample_first", "stream")


def orders(card: Card, add_first: str, sample_first: str, layout: str) -> None:
    """Add and sample inside `scan`, in both orders."""
    ways = Ways(layout, work.VECTOR_CAPACITY, work.VECTOR_ENVS, spec().obs.size)
    sample = ways.sampler(work.VECTOR_BATCH)
    card.put(add_first, scan.add_first(ways.add, sample, ways.full()))
    card.put(sample_first, scan.sample_first(ways.add, sample, ways.full()))


def prioritised(card: Card, layout: str, suffix: str) -> None:
    """The cycle as three jitted calls, and inside `scan`."""
    ways = Ways(layout, work.CYCLE_CAPACITY, work.CYCLE_ADD, work.CYCLE_OBS, sampler=prioritized())
    card.put(f"prioritised_calls{suffix}", three_calls(ways))
    errors = jax.device_put(work.priorities()[0])

    def step(state: Any, scale: jax.Array, key: jax.Array) -> tuple[Any, Any]:
        state = ways.add(state, scale)
        state, batch = ways.pond.sample(state, key, work.CYCLE_BATCH)
        state = ways.pond.update_priorities(state, batch.draw, errors * scale)
        return state, (batch.obs, batch.next_obs, batch.action, batch.reward, batch.weight)

    card.put(f"prioritised_scan{suffix}", scan.scan_us(step, ways.full()))


def three_calls(ways: Ways) -> float:
    pond = ways.pond
    add = jax.jit(ways.add_same, donate_argnums=0)
    sample = jax.jit(pond.sample, static_argnums=2, donate_argnums=0)
    update = jax.jit(pond.update_priorities, donate_argnums=0)
    errors = cycle(jax.device_put(work.priorities()))
    keys = cycle(list(jax.random.split(jax.random.key(0), 64)))
    state = ways.full()

    def once() -> None:
        nonlocal state
        state = add(state, ways.rows)
        state, batch = sample(state, next(keys), work.CYCLE_BATCH)
        state = jax.block_until_ready(update(state, batch.draw, next(errors)))

    return cpu_us(once)
