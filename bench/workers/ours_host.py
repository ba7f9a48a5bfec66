"""millpond's `HostPond`."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from millpond import Field, Flag, HostPond, Rows, Spec, Window, border_row, prioritized

from . import workload as work
from .ours_rows import spec, stream, timeline
from .stopwatch import Card, allocated, cpu_us


def extra(layout: str, next_obs: np.ndarray) -> dict[str, Any]:
    """What `add` takes besides rows: whole transitions bring their next observation."""
    return {"next_obs": next_obs} if layout == "shared" else {}


def vector(
    card: Card,
    add: str,
    sample: str,
    layout: str = "stream",
    ends: float = 0.0,
    bounded: bool = False,
) -> None:
    """Add one step of all envs; sample from a full ring into the last batch's arrays."""
    one = work.steps(work.VECTOR_ENVS)
    more = extra(layout, one.next_obs)
    fields = spec(bounded=bounded)
    pond = HostPond(fields, work.VECTOR_CAPACITY, work.VECTOR_ENVS, layout=layout, seed=1)
    rows = stream(one, ends)
    for _ in range(work.VECTOR_CAPACITY // work.VECTOR_ENVS):
        pond.add(next(rows), **more)
    batch = pond.sample(work.VECTOR_BATCH)
    card.put(add, cpu_us(lambda: pond.add(next(rows), **more)))
    card.put(sample, cpu_us(lambda: pond.sample(work.VECTOR_BATCH, out=batch)))


def single(card: Card) -> None:
    """One env, one row without an env axis per call, with the types that `env.step` returns."""
    one = work.steps(1, ends=0.0)
    row = next(stream(one))._replace(flags=np.zeros(1, np.uint8))
    obs, action, flags = one.obs[0], one.action[0], np.uint8(0)
    plain = Rows(obs, action, float(one.reward[0]), False, False, flags)
    pond = HostPond(spec(), work.SINGLE_CAPACITY, 1, seed=1)
    checked = HostPond(spec(bounded=True), work.SINGLE_CAPACITY, 1, seed=1)
    for _ in range(work.SINGLE_CAPACITY):
        pond.add(plain)
        checked.add(plain)
    batch = pond.sample(work.SINGLE_BATCH)
    card.put("single_add", cpu_us(lambda: pond.add(plain)))
    card.put("single_add.with env axis", cpu_us(lambda: pond.add(row)))
    card.put("single_add.bounds checked", cpu_us(lambda: checked.add(plain)))
    card.put("single_sample", cpu_us(lambda: pond.sample(work.SINGLE_BATCH, out=batch)))


def small(card: Card, envs: int) -> None:
    """One step of a small vector, all checks on, bounds of the action among them."""
    one = work.steps(envs)
    for key, bounded, ends in (
        (f"small_{envs}_add", True, 0.0),
        (f"small_{envs}_add.no bounds", False, 0.0),
        (f"small_{envs}_add.1% ends", True, 0.01),
    ):
        pond = HostPond(spec(bounded=bounded), work.SMALL_CAPACITY, envs, seed=1)
        rows = stream(one, ends)
        for _ in range(work.SMALL_CAPACITY // envs):
            pond.add(next(rows))
        card.put(key, cpu_us(lambda pond=pond, rows=rows: pond.add(next(rows))))
    one = one._replace(reward=one.reward.astype(np.float64))  # what Gymnasium's vectors give
    rows = stream(one)
    pond = HostPond(spec(bounded=True), work.SMALL_CAPACITY, envs, seed=1)
    card.put(f"small_{envs}_add.float64 rewards", cpu_us(lambda: pond.add(next(rows))))


def lockstep(card: Card) -> None:
    """Prioritised: all envs in step, one of them a row ahead, and some left out by a mask."""
    one = work.steps(work.VECTOR_ENVS)
    all_but_one = np.arange(work.VECTOR_ENVS) != 7
    for key, layout in (
        ("ranked_add", "stream"),
        ("ranked_uneven_add", "stream"),
        ("ranked_per_env_add", "per_env"),
        ("ranked_masked_add", "per_env"),
    ):
        pond = HostPond(
            spec(), work.VECTOR_CAPACITY, work.VECTOR_ENVS, layout=layout, sampler=prioritized()
        )
        rows = stream(one)
        for _ in range(work.VECTOR_CAPACITY // work.VECTOR_ENVS):
            pond.add(next(rows))
        more: dict[str, Any] = {}
        if key == "ranked_uneven_add":
            pond.cut(7)
            pond.add(border_row(spec(), one.obs[7]), env=7)
            pond.cut(7)
        elif key == "ranked_masked_add":
            more = {"mask": all_but_one}
        card.put(key, cpu_us(lambda pond=pond, rows=rows, more=more: pond.add(next(rows), **more)))


def pixels(card: Card) -> None:
    """Frames stored once; bytes per transition count border rows as overhead."""
    atari = Spec(obs=Field("uint8", work.FRAME), action=Field("int32", (), 0, 17))
    window = Window(stack=work.STACK, n_step=work.N_STEP, gamma=work.GAMMA)
    with allocated() as held:
        pond = HostPond(atari, work.PIXEL_CAPACITY, work.PIXEL_ENVS, window, seed=1)
        size = held()
    time = work.PIXEL_CAPACITY // work.PIXEL_ENVS
    terminated, truncated, flags = timeline(time, work.PIXEL_ENVS, 1 / work.EPISODE)
    block = 100
    noise = work.frames(block * work.PIXEL_ENVS).reshape(block, work.PIXEL_ENVS, *work.FRAME)
    for start in range(0, time, block):
        part = slice(start, start + block)
        pond.add(
            Rows(
                obs=noise,
                action=np.zeros((block, work.PIXEL_ENVS), np.int32),
                reward=((flags[part] & Flag.BORDER) == 0).astype(np.float32),
                terminated=terminated[part],
                truncated=truncated[part],
                flags=flags[part],
            )
        )
    transitions = int(((flags & Flag.BORDER) == 0).sum())
    card.put("pixels_bytes", size / transitions)
    batch = pond.sample(work.PIXEL_BATCH)
    card.put("pixels_sample", cpu_us(lambda: pond.sample(work.PIXEL_BATCH, out=batch)))


def prioritised(card: Card, key: str, layout: str) -> None:
    """One cycle on a full ring: add, sample, update."""
    one = work.steps(work.CYCLE_ADD, work.CYCLE_OBS)
    more = extra(layout, one.next_obs)
    pond = HostPond(
        spec(work.CYCLE_OBS),
        work.CYCLE_CAPACITY,
        work.CYCLE_ADD,
        sampler=prioritized(),
        layout=layout,
        seed=1,
    )
    rows = stream(one)
    for _ in range(work.CYCLE_CAPACITY // work.CYCLE_ADD):
        pond.add(next(rows), **more)
    batch = pond.sample(work.CYCLE_BATCH)
    errors = cycle(work.priorities())

    def once() -> None:
        pond.add(next(rows), **more)
        drawn = pond.sample(work.CYCLE_BATCH, out=batch)
        pond.update_priorities(drawn.draw, next(errors))

    card.put(key, cpu_us(once))
