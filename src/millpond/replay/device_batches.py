"""`DeviceBatches`: judges starts in a device ring and builds batches from them. Pure functions."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from ..rows import LIFE_LOST, TERMINATED, TRUNCATED, Array, Batch, Draw
from ..spec import Spec, walk
from ..window import Judgement, Window
from .bits import around, finished, settle
from .device_ring import DeviceRing, PondState


class DeviceBatches:
    """Builds the batches of one `Window` from the rows of one ring."""

    def __init__(self, spec: Spec, window: Window, ring: DeviceRing) -> None:
        self.spec, self.window, self.ring = spec, window, ring
        self._obs = [path for path, _ in walk(spec.obs, "obs")]

    def judge(self, state: PondState, stream: Array, position: Array) -> Judgement:
        """Judge these rows as starts, by the flags around them."""
        return self.window.judge(self.flags(state, stream, position), jnp)

    def flags(self, state: PondState, stream: Array, position: Array) -> Array:
        """The flags bytes [rows, ...] of all rows that matter for whether starts are valid."""
        window = self.window
        if window.before + window.n_step == 1:
            return self.ring.flags_at(state, stream, position)[None]
        reach = np.arange(-window.before, window.n_step).reshape(-1, *(1,) * stream.ndim)
        return self.ring.flags_at(state, stream, around(position + reach, self.ring.length))

    def fill(
        self,
        state: PondState,
        stream: Array,
        position: Array,
        verdict: Judgement,
        mask: Array,
    ) -> tuple[Batch, Array]:
        """The transitions that start at position[batch] of stream[batch], with weight 1.

        Also returns `zero`, now dependent on everything that was read (see `finished`).
        """
        window = self.window
        stream, position, verdict, mask = settle((stream, position, verdict, mask), state.zero)

        def at(path: str, where: Array, stream: Array = stream, padded: Any = None) -> Array:
            return self.ring.take(state, path, stream, around(where, self.ring.length), padded)

        def stack(start: Array, depth: Array, prefix: str = "") -> Any:
            if window.stack == 1:  # nothing to pad
                columns = {path: at(prefix + path, start)[:, None] for path in self._obs}
                return self.spec.obs_tree(columns)
            back, padded = window.lookback(depth, jnp)
            columns = {
                path: at(prefix + path, start[:, None] - back, stream[:, None], padded)
                for path in self._obs
            }
            return self.spec.obs_tree(columns)

        ahead = np.arange(window.n_step)[:, None]
        reward, discount = window.returns(at("reward", position + ahead), verdict, jnp)
        if self.ring.layout.whole:
            next_obs = stack(position, verdict.depth, "next_")
        else:
            next_obs = stack(position + verdict.steps, verdict.depth + verdict.steps)
        extras = {
            name: (verdict.first & LIFE_LOST) != 0
            if name == "life_lost"
            else at(f"extras/{name}", position)
            for name in self.spec.extras
        }
        batch = Batch(
            obs=stack(position, verdict.depth),
            action=at("action", position),
            reward=reward,
            next_obs=next_obs,
            discount=discount,
            terminated=(verdict.last & TERMINATED) != 0,
            truncated=(verdict.last & TRUNCATED) != 0,
            steps=verdict.steps,
            mask=mask,
            weight=jnp.ones_like(reward),
            draw=Draw(stream, self.ring.ids(state, stream, position)),
            extras=extras,
        )
        return finished(batch, state.zero)
