"""Cuts behind the newest rows of a group: what follows would say so, but it is not there yet.

The next row of a stream carries the flag LOST. If its writer closes before there is one, this file
remembers the cut for a session that `continues`. It counts while the stream still ends there.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import LakeRefused
from .files import Files, translated_errors
from .manifest import read_json, write_json

_NAME = "cuts.json"


def save_cuts(files: Files, folder: Path, cuts: dict[str, int]) -> None:
    """Note the streams that were cut, by number, and the id that the next row of each gets."""
    with translated_errors("noting a cut", folder / _NAME):
        write_json(files, folder / _NAME, {"cuts": cuts})


def read_cuts(folder: Path, next_id: np.ndarray) -> tuple[np.ndarray, bool]:
    """bool[streams]: whether a stream was cut behind its newest row; and whether that is known.

    If it is not, as the file is damaged, all of them were.
    """
    if not (folder / _NAME).exists():
        return np.zeros(len(next_id), bool), True
    try:
        cuts = read_json(folder / _NAME)["cuts"]
        noted = np.array([cuts.get(str(stream), -1) for stream in range(len(next_id))])
    except (LakeRefused, KeyError, AttributeError):
        return next_id > 0, False
    return noted == next_id, True
