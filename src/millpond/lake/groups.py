"""Writer groups: looked up by name, or created under a lock, so that their numbers are unique."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import BadConfig, LakeRefused
from .files import Files, translated_errors
from .lock import take_lock
from .manifest import GroupInfo, LakeInfo, check_group_name, load_groups, save_group
from .recovery import segment_files

PATIENCE = 60.0  # seconds to wait while other processes create groups, or the Lake itself


def group_for(files: Files, folder: Path, info: LakeInfo, name: Any, streams: Any) -> GroupInfo:
    """The group `name` of the Lake in `folder`, created if it does not exist."""
    check_group_name(name)
    if not isinstance(streams, int) or not 1 <= streams <= info.slots:
        raise BadConfig(
            f"Lake: streams must lie in [1, {info.slots}] (rows per segment), got {streams!r}"
        )
    known = _known(folder, info, name)
    if name not in known:
        with take_lock(folder / "lock", "making a group", PATIENCE):
            known = _known(folder, info, name)
            if name not in known:
                base = sum(group.streams for group in known.values())
                known[name] = GroupInfo(name, len(known), streams, base)
                _make(files, folder / "groups" / name, known[name])
    if known[name].streams != streams:
        raise LakeRefused(
            f"Lake: group '{name}' has {known[name].streams} streams, asked for {streams}; "
            "open it with that number, or use another group"
        )
    return known[name]


def _known(folder: Path, info: LakeInfo, name: str) -> dict[str, GroupInfo]:
    """The existing groups by name; BadConfig if `name` is new and there is no room for it."""
    known = {group.name: group for group in load_groups(folder, info)}
    if name not in known and len(known) >= info.groups:
        raise BadConfig(
            f"Lake: made for {info.groups} group(s), has {list(known)}; write to one of "
            "these, or create the Lake with more groups"
        )
    return known


def _make(files: Files, folder: Path, info: GroupInfo) -> None:
    with translated_errors("making a group", folder):
        if not folder.exists():
            files.make_folder(folder)
        if segment_files(folder):
            raise LakeRefused(
                f"{folder}: holds segments but no group.json; restore that file from a copy "
                "of the Lake, or move the folder away"
            )
        save_group(files, folder, info)
        files.sync_folder(folder.parent)
