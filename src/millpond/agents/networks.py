"""Q-networks: from stacks of observations to one value per action."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

from ..errors import BadConfig
from ..rows import Array

Torso = Literal["mlp", "grid", "nature"]
_INIT = nn.initializers.he_normal()


@dataclass(frozen=True)
class Network:
    """The architecture of a Q-network.

    Torso `mlp` flattens the observation; `grid` applies a 3x3 convolution (for small grids such as
    MinAtar's), then flattens; `nature` is the three convolutions of the Atari papers. `depth`
    layers of `width` follow and, if `memory` is not 0, a GRU of that many units, which carries
    information through an episode. With `norm`, LayerNorm follows every layer.
    `Network(torso="grid", width=128, dueling=True, memory=64)`.
    """

    torso: Torso = "mlp"  # mlp: flatten; grid: for small grids; nature: for 84x84 pixels
    width: int = 128  # units per layer
    depth: int = 1  # layers after the torso
    norm: bool = True  # LayerNorm after every layer
    dueling: bool = False  # value and advantages in separate heads
    memory: int = 0  # units of a GRU that remembers the episode; 0: none

    def __post_init__(self) -> None:
        if self.torso not in ("mlp", "grid", "nature"):
            raise BadConfig(f"Network: torso must be mlp, grid or nature, got {self.torso!r}")
        if self.width < 1 or self.depth < 0 or self.memory < 0:
            raise BadConfig(
                "Network: width must be at least 1, depth and memory at least 0, got "
                f"{self.width}, {self.depth} and {self.memory}"
            )

    def build(self, actions: int) -> QNetwork:
        """The Flax module: `network.build(6).init(key, obs)`."""
        shape = (self.torso, self.width, self.depth, self.norm, self.dueling, self.memory)
        return QNetwork(actions, *shape)


class QNetwork(nn.Module):
    """obs[batch, stack, *shape] -> float32[batch, actions]

    With memory it takes obs[batch, time, stack, *shape], the memory before the first observation
    float32[batch, units], and `first` and `held`, both bool[batch, time]; it returns float32[batch,
    time, actions] and the memory after the last. The memory is reset where `first` is true, at the
    beginning of an episode, and left unchanged where `held` is true, at rows that do not exist.
    `network.build(actions).apply({"params": params}, obs)`.
    """

    actions: int
    torso: Torso
    width: int
    depth: int
    norm: bool
    dueling: bool
    memory: int

    @nn.compact
    def __call__(self, obs: Array, *past: Array) -> Any:
        if not self.memory:
            return self._values(self._seen(obs))
        flat = obs.reshape(-1, *obs.shape[2:])  # only the GRU needs to go step by step
        seen = self._seen(flat).reshape(*obs.shape[:2], -1)
        x, memory = self._remembered(seen, *past)
        return self._values(x), memory

    def _seen(self, obs: Array) -> Array:
        """Torso and dense layers: obs[batch, stack, *shape] -> [batch, features]"""
        return self._deeper(self._torso(obs))

    def _torso(self, obs: Array) -> Array:
        """The torso's features, flat: obs[batch, stack, *shape] -> [batch, features]"""
        check_torso(self.torso, obs.shape[2:])
        x = as_float(obs)
        if self.torso == "grid":
            x = self._layer(patches(channels_last(x), 3, 1), 16)
        elif self.torso == "nature":
            x = jnp.moveaxis(x, 1, -1) if x.ndim == 4 else channels_last(x)
            for features, size, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
                x = self._layer(patches(x, size, stride), features)
        return x.reshape(x.shape[0], -1)

    def _deeper(self, x: Array) -> Array:
        """The dense layers of `width`: [batch, features] -> [batch, features]"""
        for _ in range(self.depth):
            x = self._layer(x, self.width)
        return x

    def _remembered(
        self, x: Array, memory: Array, first: Array, held: Array
    ) -> tuple[Array, Array]:
        """The GRU: [batch, time, features] -> [batch, time, units], and the memory at the end."""

        def step(cell: nn.GRUCell, memory: Array, now: tuple[Array, ...]) -> tuple[Array, Array]:
            x, first, held = now
            before = jnp.where(first[:, None], 0, memory)
            after, out = cell(before, x)
            return jnp.where(held[:, None], memory, after), out

        through_time = nn.scan(
            step, variable_broadcast="params", split_rngs={"params": False}, in_axes=1, out_axes=1
        )
        memory, out = through_time(nn.GRUCell(self.memory, name="gru"), memory, (x, first, held))
        return out, memory

    def _values(self, x: Array) -> Array:
        value = nn.Dense(self.actions, name="values")(x)
        if not self.dueling:
            return value
        return nn.Dense(1, name="state_value")(x) + value - value.mean(-1, keepdims=True)

    def _layer(self, x: Array, features: int) -> Array:
        return self._after(nn.Dense(features, kernel_init=_INIT)(x))

    def _after(self, x: Array) -> Array:
        return nn.relu(nn.LayerNorm()(x) if self.norm else x)


_SMALLEST = {"grid": 3, "nature": 36}  # smallest image that a torso takes, in pixels per side


def check_torso(torso: str, shape: tuple[int, ...]) -> None:
    """Raise BadConfig unless the torso takes observations of that shape."""
    least = _SMALLEST.get(torso)
    fits = {"grid": (3,), "nature": (2, 3)}.get(torso, ())
    if least is not None and (len(shape) not in fits or min(shape[:2]) < least):
        raise BadConfig(
            f"network.torso {torso}: expected an image of at least {least}x{least} pixels, "
            f"got observations of shape {shape}; use --network.torso "
            f"{'grid, or mlp' if len(shape) == 3 and torso == 'nature' else 'mlp'}"
        )


def as_float(obs: Array) -> Array:
    """As float32: uint8 is divided by 255, bool becomes 0 and 1."""
    x = obs.astype(jnp.float32)
    return x / 255 if obs.dtype == np.uint8 else x


def channels_last(x: Array) -> Array:
    """[batch, stack, h, w, c] -> [batch, h, w, stack * c]"""
    x = jnp.moveaxis(x, 1, -2)
    return x.reshape(*x.shape[:-2], -1)


def patches(x: Array, size: int, stride: int) -> Array:
    """All size x size patches, so that a matmul does a convolution: [b, h', w', size^2 * c].

    On CPU, XLA's `lax.conv` is slow with few channels, above all inside a scan, where training
    happens: `make bench ONLY=patches`, docs/scores.md. `size` must be a multiple of `stride`:
    squares of stride x stride pixels first become channels, so that fewer, larger pieces are
    concatenated.
    """
    batch, height, width, channels = x.shape
    if stride > 1:
        high, wide = height // stride, width // stride
        x = x[:, : high * stride, : wide * stride]
        x = x.reshape(batch, high, stride, wide, stride, channels).swapaxes(2, 3)
        x = x.reshape(batch, high, wide, stride * stride * channels)
    reach = range(size // stride)
    high, wide = x.shape[1] - len(reach) + 1, x.shape[2] - len(reach) + 1
    parts = [x[:, i : i + high, j : j + wide] for i in reach for j in reach]
    return jnp.concatenate(parts, axis=-1)


def init_params(module: QNetwork, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> Any:
    """New parameters for one agent's observations [stack, *shape]."""
    if not module.memory:
        return module.init(key, jnp.zeros((1, *shape), dtype))["params"]
    never = jnp.zeros((1, 1), bool)
    past = jnp.zeros((1, module.memory)), never, never
    return module.init(key, jnp.zeros((1, 1, *shape), dtype), *past)["params"]
