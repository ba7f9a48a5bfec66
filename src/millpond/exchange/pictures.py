"""PNG and JPEG files inside other formats, as arrays."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from .source import package


def decode_picture(data: bytes, shape: tuple[int, ...], form: str) -> np.ndarray:
    """uint8[height, width(, channels)] of an image file; ValueError if it is of another shape.

    `form`: the format that it is in, whose extra brings what reads it.
    """
    image: Any = package("PIL.Image", form)
    with image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as opened:
        found = np.asarray(opened)
    if found.dtype != np.uint8 or found.size != np.prod(shape) or found.shape[:2] != shape[:2]:
        raise ValueError(f"an image is {found.dtype} {found.shape}, expected uint8 {shape}")
    return found.reshape(shape)
