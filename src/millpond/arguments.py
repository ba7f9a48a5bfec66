"""Checks of the arguments of `sample`, `take` and `read`, made before any row is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import BadConfig, SpecMismatch
from .samplers import Prioritized, Sampler, uniform
from .sequence import AnyWindow, Sequence
from .window import Window


def whole_numbers(what: str, given: Any) -> np.ndarray:
    """`given` as int64[...]; BadConfig for floats and bools, which are never converted."""
    try:
        found = np.asarray(given)
    except ValueError:  # lists of different lengths
        found = np.asarray(None)
    if found.size and found.dtype.kind not in "iu":
        raise BadConfig(f"{what} must be whole numbers, got {_shown(given)}")
    return found.astype(np.int64)


def checked_rows(who: str, stream: Any, row: Any, streams: int) -> tuple[np.ndarray, np.ndarray]:
    """Streams and row ids as int64[...]; BadConfig unless shapes match and the streams exist."""
    stream = whole_numbers(f"{who}: streams", stream)
    row = whole_numbers(f"{who}: row ids", row)
    try:
        np.broadcast_shapes(stream.shape, row.shape)
    except ValueError:
        raise BadConfig(
            f"{who}: streams and row ids must have one shape, got {stream.shape} and {row.shape}"
        ) from None
    if stream.size and not 0 <= stream.min() <= stream.max() < streams:
        raise BadConfig(
            f"{who}: streams must lie in [0, {streams - 1}], got {stream.min()} to {stream.max()}"
        )
    return stream, row


def check_batch_size(batch_size: Any) -> None:
    """Raise SpecMismatch unless `batch_size` is a whole number, 1 or more."""
    whole = isinstance(batch_size, (int, np.integer)) and not isinstance(batch_size, bool)
    if not whole or batch_size < 1:
        raise SpecMismatch(
            f"sample: expected a batch of 1 or more, got {batch_size!r}; give a whole number"
        )


def checked_window(who: str, window: AnyWindow | None) -> AnyWindow:
    """The window, `Window()` if it is None; BadConfig for anything that is not a window."""
    if window is None:
        return Window()
    if not isinstance(window, (Window, Sequence)):
        raise BadConfig(f"{who}: window must be a Window or a Sequence, got {_shown(window)}")
    return window


def checked_sampler(who: str, sampler: Sampler | None) -> Sampler:
    """The sampler, `uniform()` if it is None; BadConfig for anything that cannot sample."""
    if sampler is None:
        return uniform()
    if not isinstance(sampler, Prioritized) and not callable(getattr(sampler, "propose", None)):
        raise BadConfig(
            f"{who}: sampler must be uniform(), stratified(), recent(), prioritized() or an object "
            f"of your own with tries and propose, got {_shown(sampler)}"
        )
    return sampler


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) < 60 else type(given).__name__
