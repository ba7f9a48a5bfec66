"""CRC-32C (Castagnoli) in NumPy; Python's standard library has only the other CRC-32."""

from __future__ import annotations

import numpy as np

_POLYNOMIAL = np.uint32(0x82F63B78)  # bits reversed
_LANES_FROM = 2048  # bytes from which on parallel lanes are faster
_MASK_DELTA = 0xA282EAD8


def _bytewise() -> np.ndarray:
    """uint32[256]: the remainder of every byte."""
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = (table >> np.uint32(1)) ^ np.where(table & np.uint32(1), _POLYNOMIAL, np.uint32(0))
    return table


_TABLE = _bytewise()
_PLAIN = _TABLE.tolist()


def crc32c(data: bytes | memoryview) -> int:
    """The checksum of `data`: `crc32c(b"123456789") == 0xE3069283`."""
    view = np.frombuffer(data, np.uint8)
    crc = 0xFFFFFFFF
    if len(view) >= _LANES_FROM:
        # The checksum is linear, so 2^k equal parts are summed in parallel and then combined.
        levels = max(1, (len(view) // 256).bit_length() - 1)
        length = len(view) >> levels
        lanes = view[: length << levels].reshape(-1, length)
        parts = np.zeros(len(lanes), np.uint32)
        parts[0] = crc
        for column in np.ascontiguousarray(lanes.T):
            parts = (parts >> np.uint32(8)) ^ _TABLE[(parts ^ column) & np.uint32(255)]
        shift = _shift(length)
        while len(parts) > 1:
            parts = _apply(shift, parts[0::2]) ^ parts[1::2]
            shift = _apply(shift, shift)  # for twice the length
        crc, view = int(parts[0]), view[len(lanes) * length :]
    for byte in view.tolist():
        crc = (crc >> 8) ^ _PLAIN[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def masked_crc32c(data: bytes | memoryview) -> int:
    """The checksum in the masked form of TFRecord files."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


def _shift(length: int) -> np.ndarray:
    """uint32[32]: the effect of `length` zero bytes on each bit of a checksum."""
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    step = (bits >> np.uint32(8)) ^ _TABLE[bits & np.uint32(255)]
    found = bits
    while length:
        if length & 1:
            found = _apply(step, found)
        step, length = _apply(step, step), length >> 1
    return found


def _apply(matrix: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Multiply each value by a bit matrix, modulo 2."""
    bits = (values[:, None] >> np.arange(32, dtype=np.uint32)) & np.uint32(1)
    return np.bitwise_xor.reduce(bits * matrix, axis=1)
