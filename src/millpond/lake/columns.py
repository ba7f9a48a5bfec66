"""`Columns`: how rows are stored on disk, as a small record and a column per observation field.

The record packs flags, reward, action and extras, so judging a start and reading its scalars
touches one place. Binary fields take one bit per element.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..rows import Rows, unpack_rows
from ..spec import Field, Spec, walk

RECORD = "record"
LOST = 128  # in a stored flags byte: this row does not continue the one before it
_WIDE = 1024  # bytes; narrower observations are never compressed


@dataclass(frozen=True)
class LakeColumn:
    """One region of a segment: `width` bytes per row."""

    name: str
    width: int
    wide: bool


class Columns:
    """The columns of one Spec; converts rows to bytes and back."""

    def __init__(self, spec: Spec) -> None:
        self.spec = spec
        self.obs = dict(walk(spec.obs, "obs"))
        small = {path: field for path, field in spec.columns.items() if path not in self.obs}
        self._small = small
        parts: list[tuple[str, Any, Any]] = [("flags", "u1", ())]
        parts += [
            (path, "u1", (field.nbytes,))
            if field.binary
            else (path, field.dtype.newbyteorder("<"), field.shape)
            for path, field in small.items()
        ]
        self.record = np.dtype(parts)
        self.all = [LakeColumn(RECORD, self.record.itemsize, False)]
        self.all += [
            LakeColumn(path, field.nbytes, field.nbytes >= _WIDE)
            for path, field in self.obs.items()
        ]

    @property
    def row_bytes(self) -> int:
        """Bytes of one row before compression."""
        return sum(column.width for column in self.all)

    def encode(self, values: Mapping[str, np.ndarray], flags: np.ndarray) -> dict[str, np.ndarray]:
        """Checked values by path, with any leading axes, as uint8[*lead, width] per column."""
        record = np.empty(flags.shape, self.record)
        record["flags"] = flags
        for path, field in self._small.items():
            record[path] = _to_bytes(field, values[path], flags.ndim)
        encoded = {RECORD: record.view(np.uint8).reshape(*flags.shape, -1)}
        for path, field in self.obs.items():
            value = _to_bytes(field, np.asarray(values[path]), flags.ndim)
            if value.dtype != np.uint8:
                value = value.astype(field.dtype.newbyteorder("<"), copy=False)
            value = np.ascontiguousarray(value.reshape(*flags.shape, -1))
            encoded[path] = value.view(np.uint8)
        return encoded

    def blank(self, flags: int) -> dict[str, np.ndarray]:
        """A blank row with these flags, within every field's bounds: uint8[width] per column."""
        values = {path: field.blank()[None] for path, field in self.spec.columns.items()}
        rows = self.encode(values, np.full(1, flags, np.uint8))
        return {name: row[0] for name, row in rows.items()}

    def small(self, record: np.ndarray, path: str) -> np.ndarray:
        """The values [*lead, *shape] of one field of records [*lead]."""
        return _from_bytes(self._small[path], record[path], record.shape)

    def put_obs(self, path: str, raw: np.ndarray, out: np.ndarray) -> None:
        """Decode stored bytes [n, width] into out[*lead, *shape], which has n rows in all."""
        field = self.obs[path]
        if field.binary:
            bits = np.unpackbits(raw, axis=-1, count=field.size, bitorder="little")
            out[...] = bits.reshape(out.shape)
        else:
            out[...] = raw.view(field.dtype.newbyteorder("<")).reshape(out.shape)

    def rows(self, record: np.ndarray, raw: Mapping[str, np.ndarray]) -> Rows:
        """Rows from records [...] and observation bytes [..., width] by path, without a copy."""

        def at(path: str) -> np.ndarray:
            field = self.obs.get(path)
            if field is None:
                return self.small(record, path)
            if field.binary:
                value = np.empty((*record.shape, *field.shape), field.dtype)
                self.put_obs(path, raw[path], value)
                return value
            value = raw[path].view(field.dtype.newbyteorder("<"))
            return value.reshape(*record.shape, *field.shape)

        return unpack_rows(self.spec, record["flags"], at)


def _to_bytes(field: Field, value: np.ndarray, rank: int) -> np.ndarray:
    if not field.binary:
        return value.astype(field.dtype, copy=False)
    flat = value.reshape(*value.shape[:rank], -1) != 0
    return np.packbits(flat, axis=-1, bitorder="little")


def _from_bytes(field: Field, stored: np.ndarray, lead: tuple[int, ...]) -> np.ndarray:
    if not field.binary:
        return stored.astype(field.dtype)  # a copy: records are not aligned
    bits = np.unpackbits(stored, axis=-1, count=field.size, bitorder="little")
    return bits.reshape(*lead, *field.shape).astype(field.dtype)
