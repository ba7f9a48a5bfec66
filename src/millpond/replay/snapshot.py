"""A ring's whole state as flat arrays, in one form for every placement.

Arrays have the layout's leading axes, in ring order, with native dtypes; binary fields lie as
packed bytes. So a Pond's export restores into a HostPond of the same layout, and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadState
from ..rows import CUT
from ..spec import Field, Spec
from .layouts import Layout

Masses = tuple[np.ndarray, float, int]  # leaves[capacity], the highest seen, batches drawn


class Snapshot(NamedTuple):
    """What `unpack` found: values by path, flags, rows ever added per stream, fault counts."""

    columns: dict[str, np.ndarray]
    flags: np.ndarray
    added: np.ndarray
    faults: np.ndarray
    priorities: Masses


def pack(
    layout: Layout,
    spec: Spec,
    columns: Mapping[str, np.ndarray],
    flags: np.ndarray,
    added: np.ndarray,
    faults: np.ndarray,
    priorities: Masses | None,
) -> dict[str, np.ndarray]:
    """Everything by name."""
    fields = layout.columns(spec)
    arrays = {f"columns/{path}": _pack(fields[path], value) for path, value in columns.items()}
    arrays |= {
        "spec": np.frombuffer(spec.fingerprint().encode(), np.uint8).copy(),
        "layout": np.frombuffer(layout.name.encode(), np.uint8).copy(),
        "shape": np.array([layout.length, layout.streams], np.int64),
        "flags": flags.copy(),
        "added": added.copy(),
        "faults": faults,
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
    """Check that the arrays belong to a ring like `ring`, or raise BadState."""
    who, layout, spec = type(ring).__name__, ring.layout, ring.spec
    fields = layout.columns(spec)
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
    flags, added = np.asarray(arrays["flags"]), np.asarray(arrays["added"], np.int64)
    if flags.shape != layout.lead or flags.dtype != np.uint8 or added.shape != (layout.streams,):
        raise BadState(f"{who}: flags or counts do not match the ring; the state is damaged")
    mass = np.asarray(arrays.get("priorities/mass", np.zeros(0)))
    if getattr(ring, "_tree", None) is not None and mass.shape != (layout.capacity,):
        raise BadState(
            f"{who}: the state holds no priorities for {layout.capacity} rows; "
            "export it from a ring with sampler=prioritized()"
        )
    highest = float(arrays["priorities/highest"][0]) if len(mass) else 1.0
    samples = int(arrays["priorities/samples"][0]) if len(mass) else 0
    return Snapshot(columns, flags, added, arrays["faults"], (mass, highest, samples))


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
