"""`write_whole`: replaces a small file atomically."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from .errors import RunFailed


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file's content; even a power loss leaves either the old content or the new."""
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise RunFailed(
            f"could not write {path.name} ({len(data):,} bytes) in {path.parent}: "
            f"{error.strerror}; the previous content is untouched; {remedy(error)}"
        ) from error


def remedy(error: OSError) -> str:
    """What to do when a file could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and resume"
    return "make the folder writable, or choose another one with --run"
