"""`cuts.json`: the cuts after a group's newest rows, which no stored row records yet.

A cut is stored in the row after it, as the flag LOST. If the writer closes before there is one,
this file remembers the cut for a session that `continues`, as long as the stream still ends there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import LakeRefused
from .files import Files, translated_errors
from .manifest import read_json, write_json

_NAME = "cuts.json"


def save_cuts(files: Files, folder: Path, cuts: dict[str, int]) -> None:
    """Save the streams that were cut, by number, each with the id its next row will get."""
    with translated_errors("noting a cut", folder / _NAME):
        write_json(files, folder / _NAME, {"cuts": cuts})


def read_cuts(folder: Path, next_id: np.ndarray) -> tuple[np.ndarray, bool]:
    """(cut, known): bool[streams], which streams were cut after their newest row.

    `known` is false if the file is damaged; all streams that hold rows then count as cut.
    """
    if not (folder / _NAME).exists():
        return np.zeros(len(next_id), bool), True
    try:
        cuts = read_json(folder / _NAME)["cuts"]
        noted = np.array([cuts.get(str(stream), -1) for stream in range(len(next_id))])
    except (LakeRefused, KeyError, AttributeError):
        return next_id > 0, False
    return noted == next_id, True
