"""`Tail`: reads the lines that were added to a `.jsonl` file since the last look."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

Line = dict[str, Any]
_SEAM = 256  # bytes before our position that are compared, to detect a truncated file
_CHUNK = 4_000_000  # bytes read at once, so that a long file does not fill the memory
END_BYTES = 65_536


class News(NamedTuple):
    """The new lines; if `truncated`, the file was cut back, so forget all lines before these."""

    lines: list[Line]
    truncated: bool


class Tail:
    """`tail.read()` returns complete new lines; an incomplete last line is left for later.

    With `only`, lines that do not contain these bytes are skipped, which is ten times as fast.
    """

    def __init__(self, path: Path, only: bytes = b"") -> None:
        self.path, self.only = path, only
        self._at = 0
        self._seam = b""

    def read(self) -> News:
        """Read at most a few megabytes; call again until there are no more lines."""
        truncated = False
        while True:
            try:
                with open(self.path, "rb") as file:
                    if self._changed(file):
                        truncated, self._at, self._seam = True, 0, b""
                    file.seek(self._at)
                    data = file.read(_CHUNK)
            except OSError:  # the file does not exist yet, or no longer
                truncated = truncated or self._at > 0
                self._at, self._seam = 0, b""
                return News([], truncated)
            whole = data[: data.rfind(b"\n") + 1]
            self._at += len(whole)
            self._seam = (self._seam + whole)[-_SEAM:]
            lines = parse(whole, self.only)
            if lines or not whole:
                return News(lines, truncated)

    def _changed(self, file: Any) -> bool:
        """Whether the bytes before our position differ from what we read."""
        if not self._at:
            return False
        if os.fstat(file.fileno()).st_size < self._at:
            return True
        file.seek(self._at - len(self._seam))
        return file.read(len(self._seam)) != self._seam


def last_lines(path: Path, number: int = END_BYTES) -> list[Line]:
    """The complete lines among the last `number` bytes of a file."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - number))
            data = file.read(number)
    except OSError:
        return []
    if size > number:
        data = data[data.find(b"\n") + 1 :]
    return parse(data[: data.rfind(b"\n") + 1])


def parse(data: bytes, only: bytes = b"") -> list[Line]:
    """Parse lines that are JSON objects and contain `only`; skip all others."""
    lines = [line for line in data.splitlines() if only in line]
    try:  # parsing all at once takes half the time
        whole = json.loads(b"[" + b",".join(lines) + b"]")
        if len(whole) == len(lines):
            return [line for line in whole if isinstance(line, dict)]
    except ValueError:
        pass
    found: list[Line] = []
    for text in lines:
        try:
            line = json.loads(text)
        except ValueError:
            continue
        if isinstance(line, dict):
            found.append(line)
    return found
