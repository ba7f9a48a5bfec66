"""`SorrelBuffer`: the memory of a Sorrel agent, on top of a HostPond.

Sorrel's agents act one after the other within a turn, and each fills its own memory. `add_empty`
begins a new epoch; the final observation of an epoch is never given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig, SpecMismatch
from ..replay import HostPond
from ..rows import BORDER, FIRST, Batch, Rows, border_row
from ..spec import Field, Spec
from ..window import Window

Sampled = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


class SorrelBuffer:
    """A drop-in for `sorrel.buffers.Buffer` whose samples are all real transitions.

    Stacks never reach into another epoch or beyond the oldest row; at the beginning of an epoch
    they are padded with zeros, in `current_state` as in `sample`. The last step of an epoch is
    sampled only if `done`, since otherwise it has no next observation. All samples are `valid`.
    `capacity` counts rows, of which each done epoch takes one more.

        agent.model.memory = SorrelBuffer.like(agent.model.memory)
    """

    def __init__(
        self,
        capacity: int,
        obs_shape: Sequence[int],
        n_frames: int = 1,
        seed: int = 0,
        **extras: int | tuple[int, ...],
    ) -> None:
        self.capacity, self.obs_shape = int(capacity), tuple(int(n) for n in obs_shape)
        self.n_frames = int(n_frames)
        big = 2**31 - 1
        self._spec = Spec(Field("float32", self.obs_shape), Field("int32", (), -big, big))
        self._seed = seed
        self.pond = self._empty()
        shapes = {name: n if isinstance(n, tuple) else () for name, n in extras.items()}
        self.extra_data = {
            name: np.zeros((self.capacity, *shape), np.int64) for name, shape in shapes.items()
        }
        self._begin()
        self.idx = self.size = 0  # in steps, as Sorrel counts

    @classmethod
    def like(cls, buffer: Any, seed: int = 0) -> SorrelBuffer:
        """An empty buffer with the sizes of another one."""
        made = cls(buffer.capacity, buffer.obs_shape, int(buffer.n_frames), seed)
        made.extra_data = {name: np.zeros_like(old) for name, old in buffer.extra_data.items()}
        return made

    def _empty(self) -> HostPond[Batch]:
        window = Window(stack=self.n_frames)
        return HostPond(self._spec, self.capacity, window=window, seed=self._seed)

    def _begin(self) -> None:
        """Start a new epoch."""
        self._frames = np.zeros((self.n_frames, *self.obs_shape), np.float32)
        self._first = True

    def add(self, obs: np.ndarray, action: Any, reward: float, done: bool, **extras: Any) -> None:
        """Add a step; if it does not fit, an error is raised and nothing stored."""
        unknown = extras.keys() - self.extra_data.keys()
        if unknown:
            raise SpecMismatch(
                f"SorrelBuffer.add: expected extras {sorted(self.extra_data)}, also got "
                f"{sorted(unknown)}; declare them when you make the buffer"
            )
        if np.ndim(action):
            raise SpecMismatch(
                f"SorrelBuffer.add: expected a single number as action, got {action!r}; it cannot "
                "replace PPO's buffers, which also keep a probability"
            )
        seen = np.asarray(obs, np.float32)
        if seen.size != int(np.prod(self.obs_shape)):
            raise SpecMismatch(
                f"SorrelBuffer.add: expected an observation of shape {self.obs_shape}, got "
                f"{np.shape(obs)}; make the buffer with the shape of the agent's observations"
            )
        seen = seen.reshape(self.obs_shape)
        flags = np.uint8(FIRST if self._first else 0)
        number, gain, over = np.int32(action), np.float32(reward), np.bool_(done)
        self.pond.add(Rows(seen, number, gain, over, np.False_, flags), env=0)
        for name, value in extras.items():
            self.extra_data[name][self.idx] = value
        self.idx = (self.idx + 1) % self.capacity
        self.size = min(self.size + 1, self.capacity)
        self._first = False
        self._frames = np.concatenate([self._frames[1:], seen[None]])
        if done:
            # Sorrel gives no final observation, and after a termination none is needed.
            self.pond.add(border_row(self._spec, np.zeros(self.obs_shape, np.float32)), env=0)
            self._begin()

    def add_empty(self) -> None:
        """Begin a new epoch; no sample reaches from earlier rows to later ones."""
        if not self._first:
            self.pond.cut()
        self._begin()

    def current_state(self) -> np.ndarray:
        """The last n_frames - 1 observations of this epoch, padded with zeros."""
        return self._frames[1:].copy()

    def sample(self, batch_size: int) -> Sampled:
        """States, actions, rewards, next states, dones and valid: [batch, ...] each."""
        batch = self.pond.sample(batch_size)

        def column(values: np.ndarray, dtype: type = np.float32) -> np.ndarray:
            return values.astype(dtype).reshape(batch_size, 1)

        return (
            batch.obs.reshape(batch_size, -1),
            column(batch.action, np.int64),
            column(batch.reward),
            batch.next_obs.reshape(batch_size, -1),
            column(batch.terminated),
            np.ones((batch_size, 1)),
        )

    def clear(self) -> None:
        """Forget everything."""
        self.pond = self._empty()
        self._begin()
        self.idx = self.size = 0

    def add_from_buffer(self, buffer: Any) -> None:
        """Raises BadConfig, because another buffer does not say where its epochs begin."""
        raise BadConfig(
            "SorrelBuffer.add_from_buffer: another buffer does not say where its epochs begin; "
            "add its steps one by one, with add_empty between epochs"
        )

    def _steps(self) -> Rows:
        """All stored steps, oldest first, without border rows."""
        added = int(self.pond.added[0])
        ids = np.arange(max(0, added - self.pond.length), added)
        rows = self.pond.read(np.zeros_like(ids), ids)
        real = (rows.flags & BORDER) == 0
        fields = (rows.obs, rows.action, rows.reward, rows.terminated, rows.truncated, rows.flags)
        return Rows(*(field[real] for field in fields))

    @property
    def states(self) -> np.ndarray:
        """A copy of the observations, float32[steps, *obs_shape], oldest first."""
        return self._steps().obs

    @property
    def actions(self) -> np.ndarray:
        """A copy of the actions, int64[steps]."""
        return self._steps().action.astype(np.int64)

    @property
    def rewards(self) -> np.ndarray:
        """A copy of the rewards, float32[steps]."""
        return self._steps().reward

    @property
    def dones(self) -> np.ndarray:
        """A copy of the dones, float32[steps]."""
        return self._steps().terminated.astype(np.float32)

    def getidx(self) -> int:
        """The index that Sorrel's own ring would write to next."""
        return self.idx

    def last_transition(self, offset: int = 0) -> tuple[int, float, bool] | None:
        """Action, reward and done of the newest step, or of the one `offset` steps before it."""
        steps = self._steps()
        if offset >= len(steps.reward):
            return None
        at = len(steps.reward) - 1 - offset
        return int(steps.action[at]), float(steps.reward[at]), bool(steps.terminated[at])

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int | slice) -> tuple[Any, Any, Any, Any]:
        steps = self._steps()
        dones = steps.terminated.astype(np.float32)
        parts = (steps.obs, steps.action.astype(np.int64), steps.reward, dones)
        return parts[0][index], parts[1][index], parts[2][index], parts[3][index]

    def save(self, output_file: str | Path) -> None:
        """Write the buffer to a .npz file for `load`."""
        arrays: dict[str, Any] = {
            f"pond/{name}": array for name, array in self.pond.export().items()
        }
        arrays |= {f"extra/{name}": array for name, array in self.extra_data.items()}
        about = [self.capacity, self.n_frames, self._seed, self.idx, self.size]
        np.savez_compressed(output_file, about=about, shape=self.obs_shape, **arrays)

    @classmethod
    def load(cls, input_file: str | Path) -> SorrelBuffer:
        """Read a buffer that `save` wrote; the next row begins an epoch."""
        with np.load(input_file) as data:
            if "about" not in data:
                raise BadConfig(
                    f"{input_file} was not written by SorrelBuffer.save; files of Sorrel's own "
                    "buffers cannot be used, because they do not say where epochs begin"
                )
            capacity, frames, seed, idx, size = (int(n) for n in data["about"])
            made = cls(capacity, tuple(data["shape"]), frames, seed)
            parts = {name: data[name] for name in data.files if "/" in name}
        within = {name.removeprefix("pond/"): parts[name] for name in parts if name[0] == "p"}
        made.pond.restore(within)
        made.extra_data = {name[6:]: parts[name] for name in parts if name.startswith("extra/")}
        made.idx, made.size = idx, size
        made.pond.cut()
        return made

    def __repr__(self) -> str:
        return f"SorrelBuffer(capacity={self.capacity}, obs_shape={self.obs_shape})"
