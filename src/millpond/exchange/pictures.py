"""Decode PNG and JPEG images inside other formats."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .source import package


def decode_picture(data: bytes, shape: tuple[int, ...], form: str) -> np.ndarray:
    """Decode an image file to uint8[height, width(, channels)]; ValueError for another shape.

    `form` is the format that it is part of, whose extra installs the decoder.
    """
    image: Any = package("PIL.Image", form)
    with image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as opened:
        found = np.asarray(opened)
    if found.dtype != np.uint8 or found.size != np.prod(shape) or found.shape[:2] != shape[:2]:
        raise ValueError(f"an image is {found.dtype} {found.shape}, expected uint8 {shape}")
    return found.reshape(shape)
