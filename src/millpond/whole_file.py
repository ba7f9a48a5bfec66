"""`write_whole`: a small file is the old one or the new one, whatever happens."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from .errors import RunFailed


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file's content so that even a power loss leaves the old or the new one."""
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
            f"{error.strerror}; what was there before is untouched; {remedy(error)}"
        ) from error


def remedy(error: OSError) -> str:
    """What to do about a file that could not be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "free some space and resume"
    return "make the folder writable, or choose another one with --run"
