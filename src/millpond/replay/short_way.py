"""`ShortWay`: the fast path for adding clearly valid rows to a host ring."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ..intake import KNOWN_FLAGS
from ..rows import BORDER, CONTEXT, CUT, ENDED, FIRST, Rows, pack_flags
from ..spec import Field, Spec
from .entrance import INTEGERS, MOST, Entrance
from .host_ring import FOLLOWS, HostRing
from .packed_step import PackedStep

_ANY = FOLLOWS[CUT]
_PLAIN = np.uint8(0)
# By flags byte: which `due` a packed row matches (254: never, such as border rows), and whether it
# ends an episode.
_ENTRY = bytes(254 if byte & ~(FIRST | CONTEXT | ENDED) else byte & FIRST for byte in range(256))
_ENDS = bytes((byte & ENDED) != 0 for byte in range(256))
_BOOL, _UINT8 = np.dtype(bool), np.dtype(np.uint8)
_BOOLS = {bool, np.bool_}
NUMBERS = {float, np.float32, np.float64, int}
_ndarray, _frombuffer = np.ndarray, np.frombuffer


class ShortWay:
    """Writes one step of all envs, of those in a mask, or one row of one env.

    It declines, and changes nothing, unless rows are certainly valid: the slow path (`HostGate`)
    takes up to ten times as long, and raises an error that names the fault.
    """

    def __init__(self, ring: HostRing) -> None:
        self._ring, self._streams, self._length = ring, ring.streams, ring.length
        stores = ring.stores
        self._obs, self._action = (
            Entrance(stores[path], ring.streams) for path in ("obs", "action")
        )
        self._reward = Entrance(stores["reward"], ring.streams, reward=True)
        self._columns = self._obs, self._action, self._reward
        self._lead, self._none = (ring.streams,), bytes(ring.streams)
        # A short step in the columns' own dtypes is written as bytes.
        self._pack_obs, self._pack_action, self._pack_reward = (
            column.pack_step for column in self._columns
        )
        self._pack_rows = self._obs.pack_row, self._action.pack_row
        self._steps: list[Any] = [column.steps for column in self._columns]
        self._packs = all(steps is not None for steps in self._steps)
        self._lowest = np.asarray(stores["action"].field.lowest())

    @staticmethod
    def of(spec: Spec, ring: HostRing) -> ShortWay | None:
        """The fast path into a ring, if rows of this spec can take it."""
        plain = isinstance(spec.obs, Field) and not spec.extras and not ring.layout.whole
        packed = any(field.binary for field in spec.columns.values())
        return ShortWay(ring) if plain and not packed else None

    def step(self, rows: Rows) -> bool:
        """Write rows[env]; False if declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring, none = self._ring, self._none
        if (
            self._packs
            and (at := ring.plain) >= 0
            and not extras
            and terminated.__class__ is truncated.__class__ is flags.__class__ is _ndarray
            and terminated.dtype is truncated.dtype is _BOOL
            and flags.dtype is _UINT8
            and terminated.ndim == truncated.ndim == flags.ndim == 1
            and terminated.tobytes() == truncated.tobytes() == flags.tobytes() == none
            and (first := self._pack_obs(obs))
            and (second := self._pack_action(action))
            and (third := self._pack_reward(reward))
        ):
            steps = self._steps
            steps[0][at], steps[1][at], steps[2][at] = first, second, third
            ring.stepped_plainly(at)
            return True
        if not (self._obs.fits(obs) and self._action.fits(action) and self._reward.fits(reward)):
            return False
        return self._enter(rows, None, self._lead, none, ring.due)

    def packed(self, step: PackedStep) -> bool:
        """Write a step of all envs, and border rows where episodes end; False if declined."""
        obs, action, reward, flags, final = step
        first, second, third = self._columns
        ring, none = self._ring, self._none
        if not (
            len(obs) == first.step_bytes
            and len(action) == second.step_bytes
            and len(reward) == third.step_bytes
            and flags.translate(_ENTRY) == ring.due
            and first.inside(obs)
            and second.inside(action)
            and third.inside(reward)
        ):
            return False
        plain = flags == none and not final
        if plain and self._packs and (at := ring.plain) >= 0:
            steps = self._steps
            steps[0][at], steps[1][at], steps[2][at] = obs, action, reward
            ring.stepped_plainly(at)
            return True
        if not plain and not self._closed(flags, final):
            return False
        slots, turned = ring.heads(None)
        first.rows[turned if first.turned else slots] = _frombuffer(obs, first.item)
        second.rows[turned if second.turned else slots] = _frombuffer(action, second.item)
        third.rows[turned if third.turned else slots] = _frombuffer(reward, third.item)
        stored = _PLAIN if plain else _frombuffer(flags, _UINT8)
        ring.stepped_each(None, slots, stored, None if final else none)
        for env, packed in final.items():
            self._write_border(env, packed)
        return True

    def _closed(self, flags: bytes, final: Mapping[int, bytes]) -> bool:
        """Whether exactly the envs whose episodes end have a valid final observation."""
        column = self._obs
        return flags.translate(_ENDS).count(1) == len(final) and all(
            0 <= env < self._streams
            and flags[env] & ENDED
            and len(packed) == column.row_bytes
            and column.inside_row(packed)
            for env, packed in final.items()
        )

    def _write_border(self, env: int, final: bytes) -> None:
        slot, turned = self._head(env)
        self._obs.write_row(turned if self._obs.turned else slot, None, final)
        self._action.write_row(turned if self._action.turned else slot, self._lowest)
        self._reward.write_row(turned if self._reward.turned else slot, 0.0)
        self._ring.stepped_one(env, slot, BORDER)

    def _head(self, env: int) -> tuple[int, int]:
        """Where the next row of an env goes: its slot, and its stream-major slot."""
        if self._streams == 1:
            at = self._ring.each % self._length
            return at, at
        at = self._ring.added.item(env) % self._length
        turned = env * self._length + at
        return turned if self._ring.layout.own_heads else at * self._streams + env, turned

    def some(self, rows: Rows, mask: Any) -> bool:
        """Write the rows[env] in mask[env]; False if declined."""
        given, ring = rows[:6], self._ring
        if mask.__class__ is not _ndarray or mask.dtype is not _BOOL or mask.shape != self._lead:
            return False
        leads = *(column.lead for column in self._columns), *(self._lead,) * 3
        for value, lead in zip(given, leads, strict=True):
            if value.__class__ is not _ndarray or value.shape != lead:
                return False
        stream = mask.nonzero()[0]
        number = len(stream)
        if not number or not ring.layout.own_heads:
            return False
        kept = [value.take(stream, axis=0) for value in given]
        if not all(
            column.between(value) for column, value in zip(self._columns, kept, strict=False)
        ):
            return False
        due = ring.last.take(stream).tobytes().translate(FOLLOWS)
        return self._enter(Rows._make([*kept, rows.extras]), stream, (number,), bytes(number), due)

    def _enter(
        self,
        rows: Rows,
        stream: np.ndarray | None,
        lead: tuple[int],
        none: bytes,
        due: bytes,
    ) -> bool:
        """Check the flags of rows whose values are valid, and write them; False if declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        if (
            extras
            or not (terminated.__class__ is truncated.__class__ is flags.__class__ is _ndarray)
            or not (terminated.dtype is truncated.dtype is _BOOL)
            or flags.dtype is not _UINT8
            or not terminated.shape == truncated.shape == flags.shape == lead
            or flags.tobytes() != due
        ):
            return False
        ring, due_next = self._ring, none if due == none else None
        border = flags == BORDER if BORDER in due else None
        if terminated.tobytes() != none or truncated.tobytes() != none:
            flags, due_next = pack_flags(flags, terminated, truncated, None), None
        if border is not None and (
            np.count_nonzero(reward[border]) or np.count_nonzero(flags[border] & ENDED)
        ):
            return False
        if stream is None and (each := ring.each) >= 0:
            at = each % self._length
            self._obs.write(at, obs)
            self._action.write(at, action)
            self._reward.write(at, reward)
            ring.stepped(flags, due_next)
            return True
        slots, turned = ring.heads(stream)
        for column, value in zip(self._columns, rows, strict=False):
            column.write_each(turned if column.turned else slots, value)
        ring.stepped_each(stream, slots, flags, due_next)
        return True

    def closing(self, rows: Rows, final_obs: Any) -> bool:
        """Write rows[env], and border rows where episodes ended; False if declined."""
        obs, terminated, truncated, ring = rows.obs, rows.terminated, rows.truncated, self._ring
        if (
            not (obs.__class__ is final_obs.__class__ is _ndarray)
            or not (terminated.__class__ is truncated.__class__ is _ndarray)
            or final_obs.dtype is not obs.dtype
            or final_obs.shape != self._obs.lead
            or not (terminated.dtype is truncated.dtype is _BOOL)
            or not terminated.shape == truncated.shape == self._lead
        ):
            return False
        ended: Any = terminated | truncated
        stream = ended.nonzero()[0]
        number = len(stream)
        if not number:
            return self.step(rows)
        final = final_obs.take(stream, axis=0)
        if not (self._obs.between(final) and self.step(rows)):
            return False
        slots, turned = ring.heads(stream)
        for column, value in zip(self._columns, (final, *self._border(number)), strict=True):
            column.write_each(turned if column.turned else slots, value)
        ring.stepped_each(stream, slots, np.uint8(BORDER))
        return True

    def _border(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Actions and rewards of `number` border rows."""
        lowest = self._lowest
        return np.broadcast_to(lowest, (number, *lowest.shape)), np.zeros(number, np.float32)

    def row(self, rows: Rows, env: int | None) -> bool:
        """Write one row of `env` (None: the only env); False if declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring, streams = self._ring, self._streams
        if env is None:
            env = 0 if streams == 1 else -1
        if (
            env.__class__ not in INTEGERS
            or not 0 <= env < streams
            or extras
            or terminated.__class__ not in _BOOLS
            or truncated.__class__ not in _BOOLS
            or flags.__class__ not in INTEGERS
            or not 0 <= (byte := int(flags)) <= KNOWN_FLAGS
            or not -MOST <= reward <= MOST
        ):
            return False
        byte |= terminated << 4 | truncated << 5
        if byte & BORDER and (reward or byte & ENDED):
            return False
        due = ring.due[0] if streams == 1 else FOLLOWS[ring.last.item(env)]
        if byte & (FIRST | BORDER) != due != _ANY:
            return False
        first, second = self._pack_rows[0](obs), self._pack_rows[1](action)
        if not (first or self._obs.fits_row(obs)):
            return False
        if not (second or self._action.fits_row(action)):
            return False
        slot, turned = self._head(env)
        self._obs.write_row(turned if self._obs.turned else slot, obs, first)
        self._action.write_row(turned if self._action.turned else slot, action, second)
        self._reward.write_row(turned if self._reward.turned else slot, reward)
        ring.stepped_one(env, slot, byte)
        return True
