"""`ShortWay`: rows that are right at first sight enter a host ring in a few microseconds."""

from __future__ import annotations

from math import inf, nan
from typing import Any

import numpy as np

from ..intake import KNOWN_FLAGS
from ..rows import BORDER, CUT, ENDED, FIRST, Flag, Rows, pack_flags
from ..spec import Field, Spec
from .host_ring import FOLLOWS, HostRing

_DUE = [bytes([flags]) for flags in FOLLOWS]  # for a single stream, by its newest flags byte
_ANY = FOLLOWS[CUT]
_BOOL, _UINT8 = np.dtype(bool), np.dtype(np.uint8)
_INTEGERS = {int, Flag, np.uint8, np.int32, np.int64}
_BOOLS = {bool, np.bool_}
_MOST = float(np.finfo(np.float32).max)  # a reward beyond it would be stored as infinite
_REFUSE = None, nan  # nothing is at most NaN
_ndarray = np.ndarray


class ShortWay:
    """Takes one step of all envs in lockstep, or one row of one env, and writes it.

    It declines whatever it is not sure of, and changes nothing then: the long way (`HostGate`)
    takes up to ten times as long, finds every fault, and names it.
    """

    def __init__(self, ring: HostRing) -> None:
        obs, action, reward = (ring.stores[path] for path in ("obs", "action", "reward"))
        self._ring, self._streams, self._length = ring, ring.streams, ring.length
        self._obs, self._action = obs.values_grid, action.values_grid
        self._reward = reward.values_grid
        # Of one stream without its axis: a number is written four times as fast.
        grids = (self._obs, self._action, self._reward)
        self._only_obs, self._only_action, self._only_reward = (grid[:, 0] for grid in grids)
        self._lead, self._none = (ring.streams,), bytes(ring.streams)
        rules = _Rules(obs.field), _Rules(action.field)
        self._rewards = _Rules(reward.field, finite=True)
        self._row = [(rule.field.shape, rule) for rule in rules]
        self._step = [((ring.streams, *shape), rule) for shape, rule in self._row]

    @staticmethod
    def of(spec: Spec, ring: HostRing) -> ShortWay | None:
        """The short way into a ring, if rows of this spec can take it."""
        plain = isinstance(spec.obs, Field) and not spec.extras and not ring.layout.whole
        packed = any(field.binary for field in spec.columns.values())
        return ShortWay(ring) if plain and not packed else None

    def step(self, rows: Rows) -> bool:
        """Write rows[env]; False if they were declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring, lead, none = self._ring, self._lead, self._none
        (obs_shape, obs_rules), (action_shape, action_rules) = self._step
        if (
            extras
            or (each := ring.each) < 0
            or not obs_rules.pass_(obs, obs_shape)
            or not action_rules.pass_(action, action_shape)
            or not self._rewards.pass_(reward, lead)
            or not (terminated.__class__ is truncated.__class__ is flags.__class__ is _ndarray)
            or not terminated.shape == truncated.shape == flags.shape == lead
            or not terminated.dtype == truncated.dtype == _BOOL
            or flags.dtype != _UINT8
            or flags.tobytes() != (due := ring.due)
        ):
            return False
        quiet = due == none
        byte, due_next = flags, none if quiet else None
        if terminated.tobytes() != none or truncated.tobytes() != none:
            byte, due_next = pack_flags(flags, terminated, truncated, None), None
        if not quiet and BORDER in due:
            border = flags == BORDER
            if np.count_nonzero(reward[border]) or np.count_nonzero(byte[border] & ENDED):
                return False
        at = each % self._length
        self._obs[at], self._action[at], self._reward[at] = obs, action, reward
        ring.stepped(byte, due_next)
        return True

    def row(self, rows: Rows, env: int | None) -> bool:
        """Write one row, of the only env or of `env`; False if it was declined."""
        obs, action, reward, terminated, truncated, flags, extras = rows
        ring = self._ring
        if env is None:
            env = 0 if self._streams == 1 else -1
        if (
            env.__class__ not in _INTEGERS
            or not 0 <= env < self._streams
            or extras
            or terminated.__class__ not in _BOOLS
            or truncated.__class__ not in _BOOLS
            or flags.__class__ not in _INTEGERS
            or not 0 <= (byte := int(flags)) <= KNOWN_FLAGS
            or not -_MOST <= reward <= _MOST
        ):
            return False
        byte |= terminated << 4 | truncated << 5
        if byte & BORDER and (reward or byte & ENDED):
            return False
        alone = self._streams == 1
        due = ring.due[0] if alone else FOLLOWS[ring.last.item(env)]
        if byte & (FIRST | BORDER) != due != _ANY:
            return False
        (obs_shape, obs_rules), (action_shape, action_rules) = self._row
        if not (obs_rules.pass_(obs, obs_shape) and action_rules.pass_(action, action_shape)):
            return False
        if alone:
            at = ring.each % self._length
            self._only_obs[at], self._only_action[at], self._only_reward[at] = obs, action, reward
            ring.stepped_alone(byte, _DUE[byte])
        else:
            at = ring.added.item(env) % self._length, env
            self._obs[at], self._action[at], self._reward[at] = obs, action, reward
            ring.stepped_one(env, at[0], byte)
        return True


class _Rules:
    """What the values of a field must lie between, by the dtype in which they come."""

    def __init__(self, field: Field, finite: bool = False) -> None:
        self.field, self._finite = field, finite
        self._known: dict[np.dtype, tuple[Any, Any]] = {}
        self._least, self._most = self._whole()

    def pass_(self, value: Any, shape: tuple[int, ...]) -> bool:
        """Whether a value is surely right."""
        if value.__class__ is not _ndarray:
            number = not shape and value.__class__ in _INTEGERS
            return number and self._least <= value <= self._most
        if value.shape != shape:
            return False
        low, high = self._known.get(value.dtype) or self._learn(value.dtype)
        # The first NaN counts as both the least and the largest, and compares with nothing.
        return (high is None or value.item(value.argmax()) <= high) and (
            low is None or value.item(value.argmin()) >= low
        )

    def _whole(self) -> tuple[float, float]:
        """Bounds of one whole number; none fits a field of floats or bools."""
        if self.field.dtype.kind not in "iu":
            return inf, -inf
        dtype = np.dtype(np.int64)
        low, high = self.field.limits(dtype)
        if np.ndim(low) or np.ndim(high):
            return inf, -inf
        edge = np.iinfo(dtype)
        return edge.min if low is None else int(low), edge.max if high is None else int(high)

    def _learn(self, dtype: np.dtype) -> tuple[Any, Any]:
        """Least and largest value; None where nothing needs to be compared."""
        low, high = self._bounds(dtype)
        rule = self._known[dtype] = _number(low), _number(high)
        return rule

    def _bounds(self, dtype: np.dtype) -> tuple[Any, Any]:
        field = self.field
        if not field.accepts(dtype):
            return _REFUSE
        low, high = field.limits(dtype)
        if np.ndim(low) or np.ndim(high):
            return _REFUSE  # an element each: the long way compares them
        if field.dtype.kind == "f":
            if field.allow_nan:
                return (None, None) if dtype == field.dtype and low is high is None else _REFUSE
            # Infinities fit a float field; what is only made infinite by storing it does not.
            wider = self._finite or dtype != field.dtype
            most = float(np.finfo(field.dtype).max) if wider else inf
            low = None if low is None and most == inf else max(-most, -inf if low is None else low)
            high = min(most, inf if high is None else high)
        return low, high


def _number(bound: Any) -> Any:
    """A bound as a plain number, which compares faster."""
    return None if bound is None else np.asarray(bound).item()
