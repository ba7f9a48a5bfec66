"""`HostGate`: checks rows before any of them is written to a host ring."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import SpecMismatch
from ..intake import Intake, broken_episode, no_rows, pack_values
from ..rows import Rows, Tree, breaks
from ..spec import Spec
from .host_ring import HostRing
from .packed_step import PackedStep
from .short_way import NUMBERS, ShortWay

_BYTES = np.arange(128, dtype=np.uint8)
# _BREAKS[before << 7 | after]: whether two rows with these flags bytes cannot follow each other.
_BREAKS = breaks(_BYTES[:, None], _BYTES[None, :]).ravel()


class HostGate:
    """Adds rows to a ring, or raises and leaves the ring unchanged."""

    def __init__(self, spec: Spec, ring: HostRing) -> None:
        self._ring, self._layout = ring, ring.layout
        self._intake = Intake(spec, ring.layout.whole)
        self._short = ShortWay.of(spec, ring)
        if self._short is None:
            self.add = self._add

    def add(
        self,
        rows: Rows,
        next_obs: Tree | None,
        env: int | None,
        mask: np.ndarray | None,
        final_obs: Tree | None,
    ) -> None:
        """See `HostPond.add`."""
        if rows.__class__ is not Rows and not isinstance(rows, Rows):
            raise no_rows(rows)
        short = self._short
        if short and next_obs is None:
            kind = rows.reward.__class__
            if kind is not np.ndarray:
                if kind in NUMBERS and mask is None and final_obs is None and short.row(rows, env):
                    return
            elif env is None:
                if mask is None and final_obs is None and short.step(rows):
                    return
                if final_obs is None and short.some(rows, mask):
                    return
                if mask is None and short.closing(rows, final_obs):
                    return
        self._add(rows, next_obs, env, mask, final_obs)

    def add_packed(self, step: PackedStep) -> bool:
        """See `HostPond.add_packed`."""
        return self._short is not None and self._short.packed(step)

    def _add(
        self,
        rows: Rows,
        next_obs: Tree | None,
        env: int | None,
        mask: np.ndarray | None,
        final_obs: Tree | None,
    ) -> None:
        """The slow path: takes any rows, and raises an error that names the fault."""
        if not isinstance(rows, Rows):
            raise no_rows(rows)
        ring = self._ring
        if env is None and ring.streams == 1 and np.ndim(rows.reward) == 0:
            env = 0
        values, keep = self._arrange(rows, next_obs, env, mask)
        if final_obs is not None:
            values, keep = self._close(rows, final_obs, env, values, keep)
        self._intake.check_values(values, keep)
        flags = pack_values(values)
        if not flags.size:
            return  # no rows: nothing to add
        if not self._layout.whole:
            self._check_episodes(flags, env, keep)
        if keep is None and ring.lockstep and (env is None or ring.streams == 1):
            ring.write_block(values, flags)
        else:
            ring.write_rows(values, flags, env, keep)

    def _close(
        self,
        rows: Rows,
        final_obs: Tree,
        env: int | None,
        values: dict[str, np.ndarray],
        keep: np.ndarray | None,
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Values and mask, completed by the true final observations of the rows that ended."""
        next_obs = final_obs if self._layout.whole else None
        final, _ = self._arrange(rows._replace(obs=final_obs), next_obs, env, None)
        if not (values["terminated"].any() or values["truncated"].any()):
            return values, keep
        return self._layout.with_final(self._intake, values, final, keep, np)

    def _arrange(
        self, rows: Rows, next_obs: Tree | None, env: int | None, mask: np.ndarray | None
    ) -> tuple[dict[str, np.ndarray], np.ndarray | None]:
        """Checked values by path with leading axes [time, stream], and the mask."""
        if env is None:
            return self._layout.blocks(self._intake, rows, next_obs, mask)
        self._check_env(env)
        time = np.shape(rows.reward)[:1]
        values = self._intake.arrange(rows, time, "[time]" if time else "one row", next_obs)
        axes = 1 if time else (0, 1)
        values = {path: np.expand_dims(value, axes) for path, value in values.items()}
        return values, self._layout.mask_of(mask, time, axes)

    def _check_env(self, env: Any) -> None:
        """Raise SpecMismatch unless `env` is the index of an env."""
        whole = isinstance(env, (int, np.integer)) and not isinstance(env, bool)
        if not whole or not 0 <= env < self._ring.streams:
            raise SpecMismatch(
                f"add: env must lie in [0, {self._ring.streams - 1}], got {env!r}; "
                "pass the env's index in this ring"
            )

    def _check_episodes(self, flags: np.ndarray, env: int | None, keep: np.ndarray | None) -> None:
        """Raise BrokenEpisode for the first row that cannot follow the row before it."""
        begin = 0 if env is None else env
        last = self._ring.last[begin : begin + flags.shape[1]]
        if not (last.any() or flags.any()):
            return  # all are ordinary steps within episodes
        for time, now in enumerate(flags):
            code = np.left_shift(last, 7, dtype=np.int64)
            code |= now
            broken = _BREAKS.take(code, mode="clip")
            if keep is not None:
                broken = broken & keep[time]
            if broken.any():
                which = int(np.argmax(broken))
                where = f"add: env {begin + which}, row {time} of {len(flags)}"
                raise broken_episode(int(last[which]), int(now[which]), where)
            last = now if keep is None else np.where(keep[time], now, last)
