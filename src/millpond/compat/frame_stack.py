"""`FrameStack`: split observations that an env has stacked into single frames, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import BadConfig, SpecMismatch


class FrameStack:
    """Stacks of `number` frames along the first or last axis of an observation.

    `FrameStack((4, 84, 84), 4, True, "zeros").newest(obs)`: obs[env, 4, 84, 84] ->
    [env, 1, 84, 84].
    """

    def __init__(self, shape: tuple[int, ...], number: int, first: bool, pad: str) -> None:
        if not isinstance(number, int) or number < 1:
            raise BadConfig(f"frame_stack must be a whole number of at least 1, got {number!r}")
        self.number, self.shape, self._pad = number, shape, pad
        self.frame = shape
        if number == 1:
            return
        axis = 0 if first else len(shape) - 1
        if not shape or shape[axis] % number:
            raise BadConfig(
                f"frame_stack={number}: axis {axis} of observations {shape} cannot be divided into "
                f"{number} frames; give the number that the env stacks"
            )
        self._axis, self._wide = axis, shape[axis] // number  # channels of one frame
        self.frame = (*shape[:axis], self._wide, *shape[axis + 1 :])

    def newest(self, obs: np.ndarray) -> np.ndarray:
        """The newest frame of obs[env, *shape]: a view [env, *frame]."""
        return obs if self.number == 1 else self._part(obs, -self._wide, None)

    def joined(self, frames: np.ndarray) -> np.ndarray:
        """Turn stacks [batch, number, *frame], oldest first, into observations [batch, *shape]."""
        if self.number == 1:
            return frames[:, 0]
        moved = np.moveaxis(frames, 1, 1 + self._axis)
        return moved.reshape(len(frames), *self.shape)

    def check(self, obs: np.ndarray, next_obs: np.ndarray, first: list[int]) -> None:
        """SpecMismatch unless the observations can be rebuilt from their newest frames."""
        if self.number == 1:
            return
        older, moved = self._part(next_obs, None, -self._wide), self._part(obs, self._wide, None)
        if not np.array_equal(older, moved):
            raise SpecMismatch(
                "add: the older frames of next_obs are not those of obs, shifted by one; "
                f"frame_stack={self.number} needs observations that stack their own last frames, "
                "as VecFrameStack does, including the terminal observation"
            )
        if first:
            past = self._part(obs[first], None, -self._wide)
            if self._pad == "zeros":
                wrong = past.any()
            else:
                frame = self.newest(obs[first])
                wrong = (self._frames(past) != np.expand_dims(frame, 1)).any()
            if wrong:
                other = "first" if self._pad == "zeros" else "zeros"
                raise SpecMismatch(
                    f"add: an episode's first stack is not padded with {self._pad}; try "
                    f"frame_pad='{other}'"
                )

    def _part(self, obs: np.ndarray, start: int | None, stop: int | None) -> np.ndarray:
        index: list[Any] = [slice(None)] * obs.ndim
        index[1 + self._axis] = slice(start, stop)
        return obs[tuple(index)]

    def _frames(self, obs: np.ndarray) -> np.ndarray:
        """Split stacks [env, ...] into frames: [env, frames, *frame]."""
        axis = 1 + self._axis
        return np.stack(np.split(obs, obs.shape[axis] // self._wide, axis), 1)
