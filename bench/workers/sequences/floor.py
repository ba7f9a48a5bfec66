"""Floors: the same bytes from one array to another, drawn at random, without judging or masking."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import jax
import numpy as np

from ..stopwatch import Card, cpu_us
from . import task


def stored(kind: task.Kind) -> dict[str, np.ndarray]:
    """Columns [env * time, width]: every sequence lies in one stretch."""
    blocks = list(task.play(kind))

    def column(name: str) -> np.ndarray:
        whole = np.concatenate([getattr(block, name) for block in blocks])
        return np.ascontiguousarray(whole.swapaxes(0, 1).reshape(kind.capacity, -1))

    return {name: column(name) for name in ("obs", "action", "reward")}


def host(kind: task.Kind) -> dict[str, Callable[[], None]]:
    """In NumPy, row by row and stretch by stretch."""
    columns, rng = stored(kind), np.random.default_rng(1)
    rows = {"obs": task.ROWS, "action": task.LENGTH, "reward": task.LENGTH}
    outs = {
        name: np.empty((task.BATCH, rows[name], column.shape[1]), column.dtype)
        for name, column in columns.items()
    }
    reach = np.arange(task.ROWS)

    def starts() -> np.ndarray:
        env = rng.integers(0, kind.envs, task.BATCH)
        return env * kind.time + rng.integers(0, kind.time - task.ROWS, task.BATCH)

    def by_row() -> None:
        where = starts()[:, None] + reach
        for name, column in columns.items():
            out = outs[name]
            flat = where[:, : rows[name]].reshape(-1)
            column.take(flat, 0, out.reshape(len(flat), -1), "clip")

    def by_stretch() -> None:
        for place, start in enumerate(starts().tolist()):
            for name, column in columns.items():
                outs[name][place] = column[start : start + rows[name]]

    return {"row by row": by_row, "stretch by stretch": by_stretch}


def in_jit(kind: task.Kind) -> dict[str, Callable[[], None]]:
    """In JAX, as gathers of rows and as slices."""
    shaped = stored(kind)
    shaped["obs"] = shaped["obs"].reshape(-1, *kind.obs)
    columns = jax.device_put(shaped)
    rows = {"obs": task.ROWS, "action": task.LENGTH, "reward": task.LENGTH}
    keys = cycle(list(jax.random.split(jax.random.key(0), 64)))

    def starts(key: jax.Array) -> jax.Array:
        env, time = jax.random.split(key)
        env = jax.random.randint(env, (task.BATCH,), 0, kind.envs)
        return env * kind.time + jax.random.randint(time, (task.BATCH,), 0, kind.time - task.ROWS)

    @jax.jit
    def by_row(columns: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        where = starts(key)[:, None] + np.arange(task.ROWS)
        return {
            name: column.at[where[:, : rows[name]]].get(mode="promise_in_bounds")
            for name, column in columns.items()
        }

    @jax.jit
    def by_stretch(columns: dict[str, jax.Array], key: jax.Array) -> dict[str, jax.Array]:
        first = starts(key)
        return {
            name: jax.vmap(
                lambda at, c=column, n=rows[name]: jax.lax.dynamic_slice_in_dim(c, at, n)
            )(first)
            for name, column in columns.items()
        }

    return {
        name: lambda way=way: jax.block_until_ready(way(columns, next(keys)))
        for name, way in (("row by row", by_row), ("stretch by stretch", by_stretch))
    }


def main() -> None:
    card = Card("numpy", "jax")
    for kind in task.KINDS:
        for where, ways in (("host", host), ("jit", in_jit)):
            key = f"{kind.name}_{where}"
            with card.section(key):
                card.best(key, {name: cpu_us(way) for name, way in ways(kind).items()})
    card.show()


if __name__ == "__main__":
    main()
