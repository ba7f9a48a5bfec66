"""Exports of a ring: its whole state as flat arrays, in the same form for Pond and HostPond.

Arrays have the layout's leading axes, in ring order, with native dtypes; binary fields are packed
into bytes. So what a Pond exports can be restored into a HostPond of the same layout, and back.
Masses of priorities depend on the window and alpha of the exporting ring; for others they are
recomputed, so that an invalid start never has any.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadState
from ..rows import CUT
from ..samplers import Prioritized, Sampler
from ..sequence import AnyWindow, Sequence
from ..spec import Field
from ..window import Window
from .layouts import Layout

Masses = tuple[np.ndarray, float, int]  # leaves[capacity], the highest seen, batches drawn


# The allowed dtype kinds, and the number of axes, of arrays that are not columns.
_KINDS: dict[str, tuple[str, int]] = {
    **dict.fromkeys(("spec", "layout", "meaning"), ("u", 1)),
    **dict.fromkeys(("shape", "added"), ("iu", 1)),
    "flags": ("u", 2),
    "faults": ("iu", 2),
    **{f"priorities/{name}": ("fiu", 1) for name in ("mass", "highest", "samples")},
}


class Snapshot(NamedTuple):
    """A checked export: values by path, flags, rows ever added per stream, fault counts, masses."""

    columns: dict[str, np.ndarray]
    flags: np.ndarray
    added: np.ndarray
    faults: np.ndarray
    priorities: Masses


def pack(
    ring: Any,
    columns: Mapping[str, np.ndarray],
    flags: np.ndarray,
    added: np.ndarray,
    faults: np.ndarray,
    priorities: Masses | None,
) -> dict[str, np.ndarray]:
    """The arrays to export, by name; `ring` is a Pond or a HostPond."""
    layout, spec = ring.layout, ring.spec
    fields = layout.columns(spec)
    arrays = {f"columns/{path}": _pack(fields[path], value) for path, value in columns.items()}
    arrays |= {
        "spec": np.frombuffer(spec.fingerprint().encode(), np.uint8).copy(),
        "layout": np.frombuffer(layout.name.encode(), np.uint8).copy(),
        "shape": np.array([layout.length, layout.streams], np.int64),
        "flags": flags.copy(),
        "added": added.copy(),
        "faults": faults,
        "meaning": np.frombuffer(json.dumps(_meaning(ring)).encode(), np.uint8).copy(),
    }
    if priorities is not None:
        mass, highest, samples = priorities
        arrays |= {
            "priorities/mass": np.array(mass, np.float64),
            "priorities/highest": np.array([highest], np.float64),
            "priorities/samples": np.array([samples], np.int64),
        }
    return arrays


def unpack(ring: Any, arrays: Mapping[str, np.ndarray]) -> Snapshot:
    """Check and decode exported arrays; BadState unless they belong to a ring like `ring`."""
    who, layout, spec = type(ring).__name__, ring.layout, ring.spec
    fields = layout.columns(spec)
    if not isinstance(arrays, Mapping):
        given = type(arrays).__name__
        raise BadState(f"{who}: restore takes the arrays that export() returned, got {given}")
    arrays = {name: np.asarray(array) for name, array in arrays.items()}
    for name in _KINDS.keys() & arrays.keys():
        (kinds, axes), array = _KINDS[name], arrays[name]
        if array.dtype.kind not in kinds or array.ndim != axes:
            got = f"{array.dtype} {array.shape}"
            raise BadState(f"{who}: '{name}' cannot be {got}; the state is damaged")
    wanted = {"spec", "layout", "shape", "flags", "added", "faults"}
    missing = sorted(wanted - set(arrays))
    if missing:
        raise BadState(f"{who}: the state lacks {missing}; restore what export() returned")
    _same(who, "spec", _text(arrays["spec"]), spec.fingerprint())
    _same(who, "layout", _text(arrays["layout"]), layout.name)
    shape = tuple(int(n) for n in arrays["shape"])
    _same(who, "capacity and num_envs (rows x streams)", shape, (layout.length, layout.streams))
    columns: dict[str, np.ndarray] = {}
    for path, field in fields.items():
        stored = arrays.get(f"columns/{path}")
        tail = (field.nbytes,) if field.binary else field.shape
        dtype = np.dtype(np.uint8) if field.binary else field.dtype
        if stored is None or stored.shape != (*layout.lead, *tail) or stored.dtype != dtype:
            raise BadState(
                f"{who}: '{path}' should be {dtype} {(*layout.lead, *tail)}; the state is damaged"
            )
        columns[path] = _unpack(field, stored)
    flags, added = arrays["flags"], arrays["added"]
    if flags.shape != layout.lead or flags.dtype != np.uint8 or added.shape != (layout.streams,):
        raise BadState(f"{who}: flags or counts do not match the ring; the state is damaged")
    added, faults = added.astype(np.int64), arrays["faults"]
    if faults.shape != (2, layout.streams):
        raise BadState(f"{who}: the fault counts do not match the ring; the state is damaged")
    blank = flags.reshape(-1)[~_ages(layout, added)[1].reshape(-1)]
    if (added < 0).any() or (flags > 127).any() or (blank != CUT).any():
        raise BadState(f"{who}: counts and flags contradict each other; the state is damaged")
    masses = (np.zeros(0), 1.0, 0)
    if isinstance(ring.sampler, Prioritized):
        masses = _masses(who, ring, arrays, flags, added)
    return Snapshot(columns, flags, added, faults, masses)


def _masses(
    who: str, ring: Any, arrays: Mapping[str, np.ndarray], flags: np.ndarray, added: np.ndarray
) -> Masses:
    """The masses, adapted to this ring's window and sampler, or BadState."""
    layout, window, sampler = ring.layout, ring.window.ranked, ring.sampler
    mass = np.asarray(arrays.get("priorities/mass", np.zeros(0)))
    if mass.shape != (layout.capacity,):
        raise BadState(
            f"{who}: the state holds no priorities for {layout.capacity} rows; "
            "export it from a ring with sampler=prioritized()"
        )
    notes = [np.ravel(arrays.get(f"priorities/{name}", ())) for name in ("highest", "samples")]
    good = all(note.shape == (1,) and np.isfinite(note[0]) and note[0] >= 0 for note in notes)
    if not good or not (np.isfinite(mass) & (mass >= 0)).all():
        raise BadState(f"{who}: priorities must be numbers >= 0; the state is damaged")
    highest, samples = float(notes[0][0]), int(notes[1][0])
    valid = valid_starts(layout, window, flags, added)
    then, known = _said(who, arrays), mass > 0
    if then is not None:
        before, alpha = then
        if alpha and alpha != sampler.alpha:
            mass, highest = (x ** (sampler.alpha / alpha) for x in (mass, highest))
        known = known | valid_starts(layout, before, flags, added)
        if type(before) is not type(window):  # priorities of transitions do not apply to sequences
            known = np.zeros_like(known)
    return np.where(valid, np.where(known, mass, highest), 0.0), highest, samples


def valid_starts(
    layout: Layout, window: AnyWindow, flags: np.ndarray, added: np.ndarray
) -> np.ndarray:
    """bool[capacity], by slot: which rows are valid starts."""
    age, _ = _ages(layout, added)
    grid = flags.T if layout.own_heads else flags
    reach = range(-window.before, window.n_step)
    near = np.stack([np.roll(grid, -ahead, axis=0) for ahead in reach])
    first, count = layout.eligible(window, np.minimum(added, layout.length))
    valid = window.judge(near, np).valid & (age >= first) & (age < first + count)
    valid &= (added - np.minimum(added, layout.length) + age) % window.every == 0
    return (valid.T if layout.own_heads else valid).reshape(-1)


def _ages(layout: Layout, added: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """int64[length, streams]: each row's age from the oldest; and bool[*lead]: which are stored."""
    size = np.minimum(added, layout.length)
    age = (np.arange(layout.length)[:, None] - (added - size)) % layout.length
    stored = age < size
    return age, stored.T if layout.own_heads else stored


def _meaning(ring: Any) -> dict[str, Any]:
    """The settings that masses depend on."""
    window, alpha = ring.window, _alpha(ring.sampler)
    if isinstance(window, Sequence):
        names = ("length", "stack", "end", "every")
        return {"sequence": {name: getattr(window, name) for name in names}, "alpha": alpha}
    return {
        "stack": window.stack,
        "n_step": window.n_step,
        "life_loss_ends": window.life_loss_ends,
        "alpha": alpha,
    }


def _alpha(sampler: Sampler) -> float | None:
    return sampler.alpha if isinstance(sampler, Prioritized) else None


def _said(who: str, arrays: Mapping[str, np.ndarray]) -> tuple[AnyWindow, float] | None:
    """The window and alpha of the exporting ring; None in exports of version 0.1."""
    if "meaning" not in arrays:
        return None
    try:
        said = json.loads(_text(arrays["meaning"]))
        alpha = float(said["alpha"] or 0)
        if "sequence" in said:
            return Sequence(**said["sequence"]).ranked, alpha
        lives = said["life_loss_ends"]
        return Window(said["stack"], said["n_step"], life_loss_ends=lives), alpha
    except (ValueError, KeyError, TypeError) as error:
        raise BadState(f"{who}: 'meaning' cannot be read ({error}); the state is damaged") from None


def newest_flags(layout: Layout, saved: Snapshot) -> np.ndarray:
    """uint8[streams]: flags byte of every stream's newest row, CUT where there is none."""
    slots = layout.slot(np.arange(layout.streams), (saved.added - 1) % layout.length)
    return np.where(saved.added > 0, saved.flags.reshape(-1)[slots], np.uint8(CUT))


def _same(who: str, what: str, theirs: Any, ours: Any) -> None:
    if theirs != ours:
        raise BadState(
            f"{who}: the state was exported with {what} {theirs}, this ring has {ours}; "
            f"build the ring with the same {what}"
        )


def _text(stored: np.ndarray) -> str:
    return bytes(np.asarray(stored, np.uint8)).decode(errors="replace")


def _pack(field: Field, value: np.ndarray) -> np.ndarray:
    if not field.binary:
        return np.array(value, field.dtype)
    flat = value.reshape(*value.shape[:2], field.size) != 0
    return np.packbits(flat, axis=-1, bitorder="little")


def _unpack(field: Field, stored: np.ndarray) -> np.ndarray:
    if not field.binary:
        return stored
    bits = np.unpackbits(stored, axis=-1, count=field.size, bitorder="little")
    return bits.reshape(*stored.shape[:2], *field.shape).astype(field.dtype)
