"""Encode and decode `tf.train.Example`: named lists of bytes, float32 or int64.

As Protocol Buffers, an Example is {1: Features}, Features {1: entry, ...}, an entry {1: name,
2: Feature}, and a Feature one of {1: BytesList, 2: FloatList, 3: Int64List} with values in field 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

_BYTES, _FLOATS, _INTS = 1, 2, 3
_VARINT, _FIXED64, _LENGTH, _FIXED32 = 0, 1, 2, 5
Values = np.ndarray | list[bytes]


def encode_example(columns: Mapping[str, Values]) -> bytes:
    """Encode lists by name, each float32[n], int64[n] or a list of bytes."""
    entries = b"".join(
        _field(1, _field(1, name.encode()) + _field(2, _encode_feature(values)))
        for name, values in columns.items()
    )
    return _field(1, entries)


def _encode_feature(values: Values) -> bytes:
    if isinstance(values, list):
        return _field(_BYTES, b"".join(_field(1, one) for one in values))
    if values.dtype == np.float32:
        return _field(_FLOATS, _field(1, values.astype("<f4").tobytes()))
    return _field(_INTS, _field(1, _encode_ints(values.astype(np.int64))))


def decode_example(data: memoryview) -> dict[str, Values]:
    """Decode the lists of an Example; ValueError if the data is not one."""
    return {name: _decode_feature(feature) for name, feature in entries_of(data)}


def entries_of(data: memoryview) -> Iterator[tuple[str, memoryview]]:
    """Names and Features, which are not decoded yet."""
    for number, features in _fields(data):
        if number != 1:
            continue
        for _, entry in _fields(features):
            parts: dict[int, Any] = dict(_fields(entry))
            yield bytes(parts.get(1, b"")).decode(), memoryview(parts.get(2, b""))


def length_of(feature: memoryview) -> int:
    """The number of values in a Feature."""
    return len(_decode_feature(feature))


def _decode_feature(feature: memoryview) -> Values:
    for kind, values in _fields(feature):
        found = [part for number, part in _fields(values) if number == 1]
        if kind == _BYTES:
            return [bytes(part) for part in found]
        if kind == _FLOATS:  # all packed into one part, or one part each
            return np.frombuffer(b"".join(found), "<f4").astype(np.float32)
        if kind == _INTS:
            return _decode_ints(np.frombuffer(b"".join(found), np.uint8))
    return np.zeros(0, np.int64)


def _fields(data: memoryview) -> Iterator[tuple[int, memoryview]]:
    """The field numbers and contents of a message."""
    at, size = 0, len(data)
    while at < size:
        key, at = _varint(data, at)
        start, kind = at, key & 7
        if kind == _LENGTH:
            length, start = _varint(data, at)
            at = start + length
        elif kind == _VARINT:
            _, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            at += 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"unknown wire type {kind} at byte {start} of a message")
        if at > size:
            raise ValueError("a message that ends too early")
        yield key >> 3, data[start:at]


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number that does not end")
        byte = data[at]
        value, at = value | (byte & 127) << shift, at + 1
        if byte < 128:
            return value, at
        shift += 7


def _field(number: int, content: bytes) -> bytes:
    return bytes([number << 3 | _LENGTH]) + _number(len(content)) + content


def _number(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


_SHIFTS = np.arange(0, 70, 7, dtype=np.uint64)


def _encode_ints(values: np.ndarray) -> bytes:
    """Encode int64[n] as varints; negative numbers take ten bytes."""
    rest = values.reshape(-1, 1).view(np.uint64) >> _SHIFTS  # [n, 10]
    more = rest[:, 1:] != 0
    digits = (rest & np.uint64(127)).astype(np.uint8)
    digits[:, :-1] |= more.astype(np.uint8) << 7
    there = np.concatenate([np.ones((len(rest), 1), bool), more], axis=1)
    return digits[there].tobytes()


def _decode_ints(data: np.ndarray) -> np.ndarray:
    """Decode varints to int64[n]."""
    ends = np.flatnonzero(data < 128)
    if len(data) and (not len(ends) or ends[-1] != len(data) - 1):
        raise ValueError("a number that does not end")
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    lengths = ends - starts + 1
    if len(ends) and lengths.max() > len(_SHIFTS):
        raise ValueError("a number that is too long")
    found = np.zeros(len(ends), np.uint64)
    for place in range(int(lengths.max()) if len(ends) else 0):
        longer = lengths > place
        digits = data[starts[longer] + place].astype(np.uint64) & np.uint64(127)
        found[longer] |= digits << _SHIFTS[place]
    return found.view(np.int64)
