"""`Layout`: how streams share the rows of a ring, on the device and on the host.

- `stream`: all envs step together; a ring by time and env, [length, env, ...], with one head.
- `per_env`: every env has its own head and count, [env, length, ...]; adds may be masked.
- `shared`: complete transitions with their next observations, in one flat ring, in any number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..borders import close_episodes, final_observations
from ..errors import BadConfig
from ..intake import Intake
from ..rows import Array, Rows, Tree
from ..sequence import AnyWindow, Sequence
from ..spec import Field, Spec, mismatch, walk

LayoutName = Literal["stream", "per_env", "shared"]


@dataclass(frozen=True)
class Layout:
    """`streams` rings of `length` rows each, exactly `capacity` rows in total."""

    name: str
    capacity: int
    streams: int

    @property
    def length(self) -> int:
        """Rows per stream."""
        return self.capacity // self.streams

    @property
    def own_heads(self) -> bool:
        """Whether every stream has its own head and count."""
        return self.name == "per_env"

    @property
    def whole(self) -> bool:
        """Whether a row is a complete transition, with its next observation."""
        return self.name == "shared"

    @property
    def lead(self) -> tuple[int, int]:
        """The leading axes of every column."""
        if self.own_heads:
            return self.streams, self.length
        return self.length, self.streams

    def slot(self, stream: Array, position: Array) -> Array:
        """The index of a row in a column whose leading axes are flattened."""
        if self.own_heads:
            return stream * self.length + position
        if self.streams == 1:
            return position + stream  # stream is 0; saves a multiplication
        return position * self.streams + stream

    def place(self, slot: Array) -> tuple[Array, Array]:
        """(stream, position) of a slot."""
        if self.own_heads:
            return slot // self.length, slot % self.length
        return slot % self.streams, slot // self.streams

    def columns(self, spec: Spec) -> dict[str, Field]:
        """The fields stored per row; complete transitions include the next observation."""
        columns = spec.columns
        if self.whole:
            columns |= {f"next_{path}": field for path, field in walk(spec.obs, "obs")}
        return columns

    def eligible(self, window: AnyWindow, size: Array) -> tuple[Array, Array]:
        """(first, count): the possible starts by age, of `size` rows counted from the oldest."""
        if self.whole:
            return size * 0, size
        return window.eligible(size, self.length)

    def blocks(
        self, intake: Intake, rows: Rows, next_obs: Tree | None, mask: Array | None
    ) -> tuple[dict[str, Array], Array | None]:
        """Values by path and the mask, if there is one, with leading axes [time, stream].

        Takes rows [env] or [time, env]; in layout `shared`, [batch] or [time, env].
        """
        shape: tuple[int, ...] = np.shape(getattr(rows, "reward", 0))
        if self.whole:
            lead = shape if len(shape) in (1, 2) else (1,)
            values = intake.arrange(rows, lead, "[batch]", next_obs)
            number = int(np.prod(lead))
            values = {
                path: value.reshape(number, 1, *value.shape[len(lead) :])
                for path, value in values.items()
            }
        else:
            time = shape[:1] if len(shape) == 2 else ()
            lead = (*time, self.streams)
            values = intake.arrange(rows, lead, "[time, env]" if time else "[env]", next_obs)
            if not time:
                values = {path: value[None] for path, value in values.items()}
        return values, self.mask_of(mask, lead, () if len(lead) == 2 else 0)

    def mask_of(self, mask: Any, lead: tuple[int, ...], axes: Any) -> Array | None:
        """Check a mask of rows[lead], and insert `axes` to make it [time, stream]."""
        if mask is None:
            return None
        if not self.own_heads:
            raise BadConfig(
                f"add: layout '{self.name}' keeps all streams in step and takes no mask; "
                "use layout 'per_env'"
            )
        dtype = getattr(mask, "dtype", type(mask).__name__)
        if np.shape(mask) != lead or str(dtype) != "bool":
            raise mismatch("mask", f"bool {lead}", f"{dtype} {np.shape(mask)}", "one per row")
        return mask if axes == () else np.expand_dims(mask, axes) if axes else mask[None]

    def with_final(
        self,
        intake: Intake,
        values: dict[str, Array],
        final: dict[str, Array],
        keep: Array | None,
        xp: Any,
    ) -> tuple[dict[str, Array], Array | None]:
        """Values and mask of `blocks`, with the final observations of episodes that ended."""
        final = {path: final[path] for path in intake.obs}
        if self.whole:
            return final_observations(values, final, xp), keep
        return close_episodes(intake.fields, values, final, keep, xp)


def make_layout(
    name: str, spec: Spec, capacity: Any, num_envs: Any, window: AnyWindow, who: str
) -> Layout:
    """The layout of a ring of exactly `capacity` rows; BadConfig rather than rounding it."""
    if name not in ("stream", "per_env", "shared"):
        raise BadConfig(
            f"{who}: layout must be 'stream', 'per_env' or 'shared', got {name!r}; "
            "docs/replay.md explains which to use"
        )
    for what, number in (("num_envs", num_envs), ("capacity", capacity)):
        if not isinstance(number, (int, np.integer)) or number < 1:
            raise BadConfig(f"{who}: {what} must be a whole number >= 1, got {number!r}")
    capacity, num_envs = int(capacity), int(num_envs)
    if name == "shared" and isinstance(window, Sequence):
        raise BadConfig(
            f"{who}: layout 'shared' holds single transitions in no order, so it has no sequences; "
            "use layout 'stream' or 'per_env'"
        )
    if name == "shared":
        if (window.stack, window.n_step) != (1, 1):
            raise BadConfig(
                f"{who}: layout 'shared' holds single transitions, so stack and n_step must be 1, "
                f"got {window.stack} and {window.n_step}; use layout 'stream'"
            )
        window.fits(spec, capacity + 1)
        return Layout(name, capacity, 1)
    if capacity % num_envs:
        lower = capacity - capacity % num_envs
        raise BadConfig(
            f"{who}: capacity {capacity} does not divide among {num_envs} envs and is never "
            f"rounded; use {lower or num_envs} or {lower + num_envs}"
        )
    window.fits(spec, capacity // num_envs)
    return Layout(name, capacity, num_envs)


def which_envs(envs: Any, num_envs: int, xp: Any) -> Array:
    """The argument of `cut` as bool[env]: None for all, an env's index, or bool[env]."""
    if envs is None:
        return xp.ones(num_envs, bool)
    remedy = "pass an env's index, or one bool per env"
    given = envs if hasattr(envs, "dtype") else np.asarray(envs)
    if given.dtype == bool:
        if given.shape != (num_envs,):
            raise mismatch("envs", f"bool ({num_envs},)", f"bool {given.shape}", remedy)
        return xp.asarray(given)
    if given.shape or given.dtype.kind not in "iu":
        raise mismatch("envs", "one whole number", f"{given.dtype} {given.shape}", remedy)
    if isinstance(envs, (int, np.integer)) and not 0 <= envs < num_envs:
        raise mismatch("envs", f"an index in [0, {num_envs - 1}]", f"{envs}", remedy)
    return xp.arange(num_envs) == given
