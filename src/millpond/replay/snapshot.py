"""A ring's whole state as flat arrays, in one form for every placement.

Arrays lie [length, env, ...] in ring order with native dtypes; binary fields as packed bytes. So
a Pond's export restores into a HostPond and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import BadState
from ..spec import Field


class Snapshot(NamedTuple):
    """What `unpack` found: columns by path, flags, rows ever added per env, fault counts."""

    columns: dict[str, np.ndarray]
    flags: np.ndarray
    added: np.ndarray
    faults: np.ndarray


def plain(field: Field, value: np.ndarray) -> np.ndarray:
    """Values [length, env, *shape] in the form that is exported."""
    if not field.binary:
        return np.ascontiguousarray(value)
    flat = value.reshape(*value.shape[:2], field.size) != 0
    return np.packbits(flat, axis=-1, bitorder="little")


def value(field: Field, stored: np.ndarray) -> np.ndarray:
    """The inverse of `plain`."""
    if not field.binary:
        return stored
    bits = np.unpackbits(stored, axis=-1, count=field.size, bitorder="little")
    return bits.reshape(*stored.shape[:2], *field.shape).astype(field.dtype)


def pack(
    ring: Any,
    columns: Mapping[str, np.ndarray],
    flags: np.ndarray,
    added: np.ndarray,
    faults: np.ndarray,
) -> dict[str, np.ndarray]:
    """Everything by name; `ring` gives spec, capacity and num_envs."""
    arrays = {f"columns/{path}": column for path, column in columns.items()}
    fingerprint = np.frombuffer(ring.spec.fingerprint().encode(), np.uint8).copy()
    shape = np.array([ring.length, ring.num_envs], np.int64)
    head = {"spec": fingerprint, "shape": shape, "flags": flags, "added": added, "faults": faults}
    return arrays | head


def unpack(ring: Any, arrays: Mapping[str, np.ndarray]) -> Snapshot:
    """Check that the arrays belong to a ring like `ring`, or raise BadState."""
    name = type(ring).__name__
    wanted = {f"columns/{path}" for path in ring.spec.columns}
    wanted |= {"spec", "shape", "flags", "added", "faults"}
    missing = sorted(wanted - set(arrays))
    if missing:
        raise BadState(f"{name}: the state lacks {missing}; restore what export() returned")
    fingerprint = bytes(arrays["spec"]).decode(errors="replace")
    if fingerprint != ring.spec.fingerprint():
        raise BadState(
            f"{name}: the state was exported with spec {fingerprint}, this ring has "
            f"{ring.spec.fingerprint()}; build the ring with the same Spec"
        )
    shape = tuple(int(n) for n in arrays["shape"])
    if shape != (ring.length, ring.num_envs):
        raise BadState(
            f"{name}: the state holds {shape[0]} rows x {shape[1]} envs, this ring "
            f"{ring.length} x {ring.num_envs}; use the same capacity and num_envs"
        )
    columns: dict[str, np.ndarray] = {}
    for path, field in ring.spec.columns.items():
        column = np.asarray(arrays[f"columns/{path}"])
        expected = (*shape, field.nbytes) if field.binary else (*shape, *field.shape)
        dtype = np.dtype(np.uint8) if field.binary else field.dtype
        if column.shape != expected or column.dtype != dtype:
            raise BadState(
                f"{name}: '{path}' is {column.dtype} {column.shape}, expected {dtype} {expected}; "
                "the state is damaged"
            )
        columns[path] = column
    flags, added = np.asarray(arrays["flags"]), np.asarray(arrays["added"])
    if flags.shape != shape or flags.dtype != np.uint8 or added.shape != shape[1:]:
        raise BadState(f"{name}: flags or counts do not match the ring; the state is damaged")
    return Snapshot(columns, flags, added, np.asarray(arrays["faults"]))
