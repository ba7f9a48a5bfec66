"""`Window` turns raw rows into transitions; `Stacker` builds the frame stacks to act on.

All index arithmetic of stacks and n-step sums is in this file, written once for NumPy and
`jax.numpy`. Rows of a stream are i = 0, 1, 2, ...; "here" is a start i, "back" counts rows before
it, "steps" rows after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .errors import BadConfig
from .rows import BORDER, CONTEXT, CUT, ENDED, FIRST, LIFE_LOST, TERMINATED, Array, Tree
from .spec import Spec


class Judgement(NamedTuple):
    """What the flags around a start imply; every field has the shape of the starts."""

    valid: Array  # bool: may be sampled
    depth: Array  # int32: earlier rows of the episode in its stack, at most stack - 1
    steps: Array  # int32: k, the number of rewards summed
    first: Array  # uint8: flags byte of row i
    last: Array  # uint8: flags byte of row i + k - 1


@dataclass(frozen=True)
class Window:
    """Defines a transition: how many frames are stacked, and how many rewards are summed.

    From start i: k = min(n_step, steps to the episode's end), reward = sum of gamma^j reward[i+j]
    for j < k, discount = gamma^k (0 if row i+k-1 terminated), next_obs = the stack at row i+k.
    With `life_loss_ends`, a lost life also ends the sum and zeroes the discount. `pad` fills stack
    positions before the episode's first row: with zeros or with its first frame. `reward_clip`
    clips each reward to [-reward_clip, reward_clip] before it is summed (0: no clipping); stored
    rewards stay raw.
    `Window(stack=4, n_step=3, gamma=0.99)`.
    """

    stack: int = 1
    n_step: int = 1
    gamma: float = 0.99
    life_loss_ends: bool = False
    pad: Literal["zeros", "first"] = "zeros"
    reward_clip: float = 0.0

    def __post_init__(self) -> None:
        for name in ("stack", "n_step"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise BadConfig(f"Window: {name} must be a whole number >= 1, got {value!r}")
        if not 0.0 <= self.gamma <= 1.0:
            raise BadConfig(f"Window: gamma must lie in [0, 1], got {self.gamma!r}")
        if self.pad not in ("zeros", "first"):
            raise BadConfig(f"Window: pad must be 'zeros' or 'first', got {self.pad!r}")
        if not self.reward_clip >= 0:
            raise BadConfig(f"Window: reward_clip must be 0 or more, got {self.reward_clip!r}")

    def fits(self, spec: Spec, length: int) -> None:
        """Raise BadConfig if a ring of `length` rows per stream can never serve this window."""
        if length < self.stack + self.n_step:
            raise BadConfig(
                f"Window: stack {self.stack} and n_step {self.n_step} span "
                f"{self.stack + self.n_step} rows, the ring keeps {length} per stream; "
                "raise capacity or shorten the window"
            )
        if self.life_loss_ends and "life_lost" not in spec.extras:
            raise BadConfig(
                "Window: life_loss_ends needs the extra 'life_lost', which this Spec does not "
                'declare; add extras={"life_lost": Field("bool")}'
            )

    @property
    def ranked(self) -> Window:
        """The window that judges starts in a prioritised ring: this one."""
        return self

    @property
    def every(self) -> int:
        """Starts are the rows whose ids are multiples of this: for a Window, all rows."""
        return 1

    @property
    def before(self) -> int:
        """How many rows before a start matter for whether it is valid."""
        return self.stack - 1

    def eligible(self, size: Array, length: int) -> tuple[Array, Array]:
        """(first, count): the possible starts by age, of `size` rows in a ring of `length`.

        Rows are counted from the oldest. The newest n_step rows lack the rows that follow them
        and, once the ring is full, the oldest stack - 1 those before them. Flags decide the rest.
        """
        first = (size == length) * (self.stack - 1)
        count = size - self.n_step - first
        return first, count * (count > 0)

    def judge(self, flags: Array, xp: Any) -> Judgement:
        """Judge starts i by the flags bytes of rows i - before ... i + n_step - 1 (first axis)."""
        here = self.stack - 1
        start = past = flags[here]  # past: bits of all rows back to the episode's first
        depth = xp.zeros(start.shape, np.int32)
        for back in range(1, self.stack):
            inside = (past & FIRST) == 0  # this row belongs to the same episode
            depth = depth + inside
            past = past | flags[here - back] * inside
        ends = ENDED | LIFE_LOST if self.life_loss_ends else ENDED
        summed = last = start  # bits of all rows summed, and of the last of them
        steps = xp.ones(start.shape, np.int32)
        for ahead in range(1, self.n_step):
            going = (summed & ends) == 0  # the sum reaches this row
            steps = steps + going
            last = xp.where(going, flags[here + ahead], last)
            summed = summed | last
        valid = ((start & (BORDER | CONTEXT)) | ((past | summed) & CUT)) == 0
        return Judgement(valid, depth, steps, start, last)

    def lookback(self, depth: Array, xp: Any) -> tuple[Array, Array]:
        """(back, padded): how many rows back each frame of a stack is, and which are padding.

        Oldest first: int32[..., stack] and bool[..., stack], for depth[...] earlier rows of the
        episode.
        """
        back = xp.arange(self.stack, dtype=np.int32)[::-1]
        padded = back > depth[..., None]
        back = xp.minimum(back, depth[..., None])  # padding points at the episode's first row
        return back, padded if self.pad == "zeros" else xp.zeros_like(padded)

    def returns(self, rewards: Array, verdict: Judgement, xp: Any) -> tuple[Array, Array]:
        """n-step sum and discount, float32[...], from float32[n_step, ...] of rows i, i+1, ..."""
        if self.reward_clip:
            rewards = xp.clip(rewards, -self.reward_clip, self.reward_clip)
        total = rewards[0]
        for ahead in range(1, self.n_step):
            term = np.float32(self.gamma**ahead) * rewards[ahead]
            total = total + xp.where(ahead < verdict.steps, term, np.float32(0))
        stops = TERMINATED | LIFE_LOST if self.life_loss_ends else TERMINATED
        powers = xp.asarray([self.gamma**k for k in range(self.n_step + 1)], dtype=np.float32)
        discount = xp.where((verdict.last & stops) != 0, np.float32(0), powers[verdict.steps])
        return total, discount


class History(NamedTuple):
    """The newest frames of every env, oldest first; `depth` of those before the newest belong to
    its episode.

    `history = stacker.init(num_envs)`.
    """

    frames: Tree
    depth: Array


class Stacker:
    """Builds the stack an actor acts on: the same stack `Window` builds for training.

    Pure: `history, stacked = stacker.push(history, obs, flags)`, under NumPy or inside jit.
    """

    def __init__(self, spec: Spec, window: Window) -> None:
        self.spec, self.window = spec, window
        self._single = window.stack == 1  # no history needed

    def init(self, num_envs: int) -> History:
        """An empty history."""
        shapes = {
            path: np.zeros((num_envs, self.window.stack, *field.shape), field.dtype)
            for path, field in self.spec.columns.items()
        }
        return History(self.spec.obs_tree(shapes), np.full(num_envs, -1, np.int32))

    def push(self, history: History, obs: Tree, flags: Array) -> tuple[History, Tree]:
        """Add obs[env, ...] and the flags of its rows; return the new history and the stacks,
        obs[env, stack, ...]."""
        leaves = jax.tree.leaves((history, obs, flags))
        xp: Any = jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np
        newest = self.window.stack - 1
        if self._single:
            frames = jax.tree.map(lambda new: new[:, None], obs)
            return History(frames, xp.zeros(flags.shape, np.int32)), frames
        deeper = xp.minimum(history.depth + 1, newest)
        depth = xp.where((flags & FIRST) != 0, 0, deeper).astype(np.int32)
        back, padded = self.window.lookback(depth, xp)

        def shift(frames: Array, new: Array) -> Array:
            return xp.concatenate([frames[:, 1:], new[:, None].astype(frames.dtype)], axis=1)

        def pick(frames: Array) -> Array:
            tail = (1,) * (frames.ndim - 2)
            chosen = xp.take_along_axis(frames, (newest - back).reshape(*back.shape, *tail), axis=1)
            return xp.where(padded.reshape(*padded.shape, *tail), chosen.dtype.type(0), chosen)

        frames = jax.tree.map(shift, history.frames, obs)
        return History(frames, depth), jax.tree.map(pick, frames)
