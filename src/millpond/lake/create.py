"""Creating a Lake, safely even if several processes try at the same time."""

from __future__ import annotations

from pathlib import Path

from ..errors import LakeRefused
from .files import Files
from .groups import PATIENCE
from .lock import take_lock
from .manifest import LakeInfo, save_lake

_UNFINISHED = {"groups", "lake.json.tmp", "lock"}  # what an interrupted creation may leave behind


def create(files: Files, folder: Path, info: LakeInfo) -> None:
    """Make a Lake in a new or empty folder; LakeRefused if it is not, or another process won."""
    _check_free(folder)
    made = [path for path in reversed([folder, *folder.parents]) if not path.exists()]
    for path in made:
        _make_folder(files, path)
    with take_lock(folder / "lock", "creating a Lake", PATIENCE):
        _check_free(folder)
        if not (folder / "groups").exists():
            files.make_folder(folder / "groups")
        files.sync_folder(folder)  # lake.json comes last: it says that all the rest is there
        save_lake(files, folder, info)
    for path in {folder, *made}:
        files.sync_folder(path.parent)


def _make_folder(files: Files, path: Path) -> None:
    try:
        files.make_folder(path)
    except FileExistsError:
        if not path.is_dir():
            raise  # else another process has just made it


def _check_free(folder: Path) -> None:
    if folder.exists() and not _free(folder):
        raise LakeRefused(
            f"{folder}: not empty, so no Lake is created in it; "
            "open it with Lake.open, or choose another folder"
        )


def _free(folder: Path) -> bool:
    """Whether a folder is empty, apart from what an interrupted creation leaves behind."""
    if not folder.is_dir() or {path.name for path in folder.iterdir()} - _UNFINISHED:
        return False
    groups = folder / "groups"
    return not groups.exists() or (groups.is_dir() and not any(groups.iterdir()))
