"""A Lake's manifests: `lake.json`, and a `group.json` for every writer group."""

from __future__ import annotations

import json
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import BadConfig, LakeRefused
from ..spec import Spec
from .columns import Columns
from .files import PAGE, Files
from .journal import digest

FORMAT, VERSION = "millpond-lake", 1
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
_SEGMENT = re.compile(r"\d{16}\.(open|journal|seg)")
_MAX = 1 << 24  # bytes; a larger file is not a manifest
_SEGMENT_BYTES = 256 << 20
# What parsing and checking nonsensical values may raise.
PARSE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    SyntaxError,
    TypeError,
    ValueError,
)
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


@dataclass(frozen=True)
class Capacity:
    """How much a Lake may hold, in rows or in bytes on disk; the other is None."""

    rows: int | None
    size: int | None

    @staticmethod
    def parse(capacity: Any) -> Capacity:
        """From a number of rows, or a string such as "40GB"."""
        if isinstance(capacity, str):
            match = re.fullmatch(r"\s*([0-9.]+)\s*([KMGT]?B)\s*", capacity)
            try:
                if match:
                    return Capacity(None, int(float(match[1]) * _UNITS[match[2]]))
            except ValueError:
                pass
        elif isinstance(capacity, int) and not isinstance(capacity, bool) and capacity > 0:
            return Capacity(capacity, None)
        raise BadConfig(
            f"Lake: capacity must be a number of rows such as 10_000_000, or bytes such as "
            f"'40GB', got {capacity!r}"
        )


@dataclass(frozen=True)
class LakeInfo:
    """The contents of `lake.json`: spec, capacity, groups and segment size."""

    spec: Spec
    capacity: Capacity
    groups: int  # writer groups that share the capacity
    slots: int  # rows per segment

    @property
    def fingerprint(self) -> str:
        return self.spec.fingerprint()


@dataclass(frozen=True)
class GroupInfo:
    """One writer group, with streams `base ... base + streams - 1` of the Lake."""

    name: str
    index: int
    streams: int
    base: int


def rows_per_segment(columns: Columns, capacity: Capacity, groups: int) -> int:
    """Rows per segment: a power of two, for 16 or more segments per group of at most 256 MiB."""
    rows = capacity.rows or (capacity.size or 0) // columns.row_bytes
    slots = PAGE
    while slots * 2 * groups * 16 <= rows and slots * 2 * columns.row_bytes <= _SEGMENT_BYTES:
        slots *= 2
    return slots


def check_lake(info: LakeInfo, columns: Columns) -> None:
    """Raise BadConfig if a Lake with these settings could not work."""
    if not isinstance(info.groups, int) or info.groups < 1:
        raise BadConfig(f"Lake: groups must be a whole number >= 1, got {info.groups!r}")
    slots = info.slots
    if not isinstance(slots, int) or slots < PAGE or slots & (slots - 1):
        raise BadConfig(f"Lake: segment_rows must be a power of two >= {PAGE}, got {slots!r}")
    widest = max(column.width for column in columns.all)
    if slots * widest >= 1 << 40:
        raise BadConfig(
            f"Lake: segments of {slots} rows of {widest} bytes are over a terabyte; "
            "lower segment_rows"
        )
    least = 2 * slots * info.groups
    if info.capacity.rows is not None and info.capacity.rows < least:
        raise BadConfig(
            f"Lake: capacity {info.capacity.rows} rows, but {info.groups} group(s) need at least "
            f"two segments of {slots} rows each, {least}; raise capacity, or use a HostPond"
        )
    if info.capacity.size is not None and info.capacity.size < least * columns.row_bytes:
        raise BadConfig(
            f"Lake: capacity {info.capacity.size} bytes, but {info.groups} group(s) need at least "
            f"two raw segments each, {least * columns.row_bytes} bytes; raise capacity"
        )


def write_json(files: Files, path: Path, plain: dict[str, Any]) -> None:
    """Write a manifest atomically, even in the face of a power loss."""
    text = json.dumps(plain, indent=1, sort_keys=True)
    whole = json.dumps({"sum": f"{digest(text.encode()):016x}", "manifest": plain}, indent=1)
    temporary = path.with_name(path.name + ".tmp")
    if temporary.exists():
        files.unlink(temporary)
    fd = files.create(temporary)
    try:
        files.pwrite(fd, memoryview(whole.encode()), 0)
        files.sync(fd)
    finally:
        files.close(fd)
    files.rename(temporary, path)
    files.sync_folder(path.parent)


def read_json(path: Path) -> dict[str, Any]:
    """Read a manifest; LakeRefused if it is missing or damaged."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise LakeRefused(f"{path}: {os.strerror(error.errno or 0)}; is this a Lake?") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode) or os.fstat(fd).st_size > _MAX:
            raise LakeRefused(f"{path}: not a regular file, or too large; is this a Lake?")
        text = os.read(fd, _MAX)
    finally:
        os.close(fd)
    try:
        whole = json.loads(text)
        plain = whole["manifest"]
        found = digest(json.dumps(plain, indent=1, sort_keys=True).encode())
        if not isinstance(plain, dict) or whole["sum"] != f"{found:016x}":
            raise ValueError("its checksum does not match")
    except PARSE_ERRORS as error:
        raise LakeRefused(
            f"{path}: the manifest is damaged ({error}); restore this file from a copy of the Lake"
        ) from None
    return plain


def save_lake(files: Files, folder: Path, info: LakeInfo) -> None:
    write_json(
        files,
        folder / "lake.json",
        {
            "format": FORMAT,
            "version": VERSION,
            "spec": info.spec.to_json(),
            "fingerprint": info.fingerprint,
            "capacity": {"rows": info.capacity.rows, "bytes": info.capacity.size},
            "groups": info.groups,
            "slots": info.slots,
        },
    )


def not_a_lake(folder: Path) -> str:
    """The message for a folder that is not a Lake; names a Lake inside it, as in a run's folder."""
    inner = sorted(path.parent for at in ("*", "lake/*") for path in folder.glob(f"{at}/lake.json"))
    remedy = f"did you mean {inner[0]}?" if inner else "give the folder that Lake.create made"
    return f"{folder}: not a Lake (no lake.json); {remedy}"


def load_lake(folder: Path) -> LakeInfo:
    """Read `lake.json`; LakeRefused if `folder` is not a Lake of this version."""
    path = folder / "lake.json"
    if not path.exists():
        raise LakeRefused(not_a_lake(folder))
    plain = read_json(path)
    if plain.get("format") != FORMAT:
        raise LakeRefused(f"{path}: format {plain.get('format')!r}, expected {FORMAT!r}")
    if plain.get("version") != VERSION:
        raise LakeRefused(
            f"{path}: format version {plain.get('version')!r}, this millpond reads {VERSION}; "
            "use the millpond that wrote it"
        )
    try:
        capacity = Capacity(plain["capacity"]["rows"], plain["capacity"]["bytes"])
        known = [n for n in (capacity.rows, capacity.size) if n is not None]
        if len(known) != 1 or type(known[0]) is not int or not 0 < known[0] < 1 << 62:
            raise ValueError(f"capacity {plain['capacity']}")
        info = LakeInfo(Spec.from_json(plain["spec"]), capacity, plain["groups"], plain["slots"])
        check_lake(info, Columns(info.spec))
        if info.fingerprint != plain["fingerprint"]:
            raise ValueError("spec and fingerprint disagree")
    except PARSE_ERRORS as error:
        raise LakeRefused(f"{path}: a field is missing or wrong: {error}") from None
    return info


def check_same(folder: Path, info: LakeInfo, fingerprint: str) -> None:
    """Raise LakeRefused if the Lake in this folder no longer has the expected spec."""
    if info.fingerprint != fingerprint:
        raise LakeRefused(
            f"{folder}: this Lake has spec {info.fingerprint}, the one that was sent or copied had "
            f"{fingerprint}; it was replaced meanwhile, so open it where it is used"
        )


def check_group_name(name: Any) -> None:
    """Raise BadConfig unless `name` can name a group, and so a folder."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise BadConfig(
            f"Lake: a group's name has 1 to 64 letters, digits, '_', '-' or '.', and begins with "
            f"neither '.' nor '-', got {name!r}"
        )


def save_group(files: Files, folder: Path, info: GroupInfo) -> None:
    write_json(
        files,
        folder / "group.json",
        {"name": info.name, "index": info.index, "streams": info.streams, "base": info.base},
    )


def group_folders(folder: Path) -> list[Path]:
    """The folders of a Lake's groups, sorted by name; those without group.json are skipped."""
    above = folder / "groups"
    if above.is_symlink() or not above.is_dir():
        raise LakeRefused(f"{above}: not a folder; restore it from a copy of the Lake")
    found: list[Path] = []
    for entry in sorted(os.scandir(above), key=lambda entry: entry.name):
        if entry.is_symlink():
            raise LakeRefused(
                f"{entry.path}: a link, and links are never followed; move the folder here"
            )
        named = _NAME.fullmatch(entry.name) and entry.is_dir()
        if named and (Path(entry.path) / "group.json").exists():
            found.append(Path(entry.path))
    return found


def folders_without_manifest(folder: Path) -> list[Path]:
    """Folders with segments but without group.json, which is always written first."""
    found: list[Path] = []
    for entry in sorted(os.scandir(folder / "groups"), key=lambda entry: entry.name):
        if _NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            inner = Path(entry.path)
            names = [] if (inner / "group.json").exists() else os.listdir(inner)
            if any(_SEGMENT.fullmatch(name) for name in names):
                found.append(inner)
    return found


def load_group(folder: Path) -> GroupInfo:
    """Read the `group.json` of a group's folder; LakeRefused if it is missing or damaged."""
    path = folder / "group.json"
    plain = read_json(path)
    try:
        values = [plain[key] for key in ("index", "streams", "base")]
        if plain["name"] != folder.name or any(
            type(n) is not int or not 0 <= n < 2**31 for n in values
        ):
            raise ValueError("its name or numbers")
        return GroupInfo(folder.name, *values)
    except PARSE_ERRORS as error:
        raise LakeRefused(f"{path}: a field is missing or wrong: {error}") from None


def load_groups(folder: Path, info: LakeInfo) -> list[GroupInfo]:
    """Every group of a Lake, in order of creation."""
    before: list[Path] = []
    while True:
        there = group_folders(folder)
        try:
            return _in_order(folder, info, there)
        except LakeRefused:
            if there == before:
                raise
            before = there  # groups created while listing may be seen only in part: list again


def _in_order(folder: Path, info: LakeInfo, folders: list[Path]) -> list[GroupInfo]:
    groups = [load_group(inner) for inner in folders]
    for inner in folders_without_manifest(folder):
        raise LakeRefused(
            f"{inner}: holds segments but no group.json; restore that file from a copy of the "
            "Lake, or move the folder away"
        )
    groups.sort(key=lambda group: group.index)
    base = 0
    for index, group in enumerate(groups):
        where = folder / "groups" / group.name
        if group.index != index or group.base != base:
            raise LakeRefused(
                f"{where}: group {group.index} with streams from {group.base}, "
                f"expected group {index} from {base}; a group's folder is missing"
            )
        if index >= info.groups or not 1 <= group.streams <= info.slots:
            raise LakeRefused(
                f"{where}: group {index} with {group.streams} streams, this Lake has "
                f"{info.groups} groups of 1 to {info.slots}; move the folder away"
            )
        base += group.streams
    return groups
