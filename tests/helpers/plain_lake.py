"""A reader of Lakes that knows docs/lake-format.md and nothing of millpond.

It checks every checksum it comes across and raises Wrong where the document says a reader must
stop. Slow and plain: one row at a time.
"""

from __future__ import annotations

import hashlib
import json
import re
import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash
import zstandard

PAGE = 4096


class Wrong(Exception):
    """A checksum or a rule of the document does not hold."""


class Column(NamedTuple):
    name: str
    width: int


class Row(NamedTuple):
    """One stored row: the bytes of every column."""

    record: bytes
    obs: tuple[bytes, ...]


def need(true: bool, what: str) -> None:
    if not true:
        raise Wrong(what)


def xxh(data: bytes, seed: int = 0) -> int:
    return xxhash.xxh3_64_intdigest(data, seed)


def manifest(path: Path) -> dict:
    whole = json.loads(path.read_bytes())
    text = json.dumps(whole["manifest"], indent=1, sort_keys=True)
    need(whole["sum"] == f"{xxh(text.encode()):016x}", f"{path.name}: sum")
    return whole["manifest"]


def leaves(node: dict, path: str):
    """Observation fields in the order of their paths."""
    if "keys" in node:
        for key in sorted(node["keys"]):
            yield from leaves(node["keys"][key], f"{path}/{key}")
    else:
        yield path, node


def nbytes(field: dict) -> int:
    size = int(np.prod(field["shape"], dtype=np.int64))
    return -(-size // 8) if field["binary"] else size * np.dtype(field["dtype"]).itemsize


class PlainLake:
    def __init__(self, folder: Path) -> None:
        self.folder, self.info = folder, manifest(folder / "lake.json")
        need(self.info["format"] == "millpond-lake", "format")
        need(self.info["version"] == 1, "version")
        spec = self.info["spec"]
        text = json.dumps(spec, sort_keys=True, separators=(",", ":"))
        need(self.info["fingerprint"] == hashlib.sha256(text.encode()).hexdigest()[:16], "print")
        self.obs = dict(leaves(spec["obs"], "obs"))
        self.small = {"action": spec["action"], "reward": {"dtype": "<f4", "shape": []}}
        self.small["reward"] |= {"binary": False}
        for name in sorted(spec["extras"]):
            if name != "life_lost":
                self.small[f"extras/{name}"] = spec["extras"][name]
        width = 1 + sum(nbytes(field) for field in self.small.values())
        self.columns = [Column("record", width)]
        self.columns += [Column(path, nbytes(field)) for path, field in self.obs.items()]
        self.groups = sorted(
            (manifest(path) for path in (folder / "groups").glob("*/group.json")),
            key=lambda group: group["index"],
        )

    def rows(self) -> dict[int, dict[int, Row]]:
        """Every committed row: stream of the Lake → row id → row."""
        found: dict[int, dict[int, Row]] = {}
        for group in self.groups:
            for segment in self.segments(group):
                for stream in range(group["streams"]):
                    mine = found.setdefault(group["base"] + stream, {})
                    for time in range(segment.count[stream]):
                        row = segment.meta["first"][stream] + time
                        need(row not in mine, "an id twice")
                        mine[row] = segment.row(stream, time)
        return found

    def segments(self, group: dict) -> list[Segment]:
        inner = self.folder / "groups" / group["name"]
        found = []
        for number in sorted({p.stem for p in inner.iterdir() if re.match(r"\d{16}\.", p.name)}):
            sealed, raw, journal = (inner / f"{number}.{k}" for k in ("seg", "open", "journal"))
            if sealed.exists():
                found.append(Sealed(self, group, sealed))
            elif raw.exists() and journal.exists() and journal.stat().st_size:
                found.append(Open(self, group, raw))
        return found

    def field(self, row: Row, path: str) -> np.ndarray:
        """One value of a row, by its path in the spec."""
        if path in self.obs:
            field, data = self.obs[path], row.obs[list(self.obs).index(path)]
        else:
            at = 1
            for name, field in self.small.items():
                if name == path:
                    break
                at += nbytes(field)
            data = row.record[at : at + nbytes(field)]
        size = int(np.prod(field["shape"], dtype=np.int64))
        if field["binary"]:
            bits = np.unpackbits(np.frombuffer(data, np.uint8), count=size, bitorder="little")
            return bits.astype(field["dtype"]).reshape(field["shape"])
        return np.frombuffer(data, field["dtype"]).reshape(field["shape"])


class Segment:
    """The header and the JSON it points at; `Sealed` and `Open` know how rows lie."""

    kind: str

    def __init__(self, lake: PlainLake, group: dict, path: Path) -> None:
        self.lake, self.group, self.path, self.file = lake, group, path, path.read_bytes()
        need(len(self.file) >= 48, "too short")
        place = 0 if self.kind == "open" else len(self.file) - 48
        self.header = (place, place + 48)
        head = self.file[place : place + 48]
        magic, version, at, size, json_sum = struct.unpack_from("<8sQQQQ", head)
        need(magic == b"MILLPOND", "magic")
        need(xxh(head[:40]) == struct.unpack_from("<Q", head, 40)[0], "header's sum")
        need(version in (1, 2), "segment's version")
        text = self.file[at : at + size]
        need(len(text) == size and xxh(text) == json_sum, "the JSON's sum")
        self.json = (at, at + size)
        self.meta = json.loads(text)
        need(self.meta["kind"] == self.kind, "kind")
        need(self.meta["fingerprint"] == lake.info["fingerprint"], "fingerprint")
        mine = (group["index"], int(path.stem), group["streams"])
        need((self.meta["group"], self.meta["number"], self.meta["streams"]) == mine, "place")
        self.slots, self.length = lake.info["slots"], self.meta["length"]
        self.layout = self.meta.get("layout", "shares")
        need(self.layout in (["shares"], ["log", "packed"])[version - 1], "layout")
        need(self.layout != ("packed" if self.kind == "open" else "log"), "layout")
        shares = self.layout == "shares"
        need(
            self.length == (self.slots // self.meta["streams"] if shares else self.slots), "length"
        )

    def region(self, part: list[int]) -> bytes:
        need(part[0] % PAGE == 0 and part[0] + part[1] <= len(self.file), "region")
        return self.file[part[0] : part[0] + part[1]]


class Sealed(Segment):
    kind = "sealed"

    def __init__(self, lake: PlainLake, group: dict, path: Path) -> None:
        super().__init__(lake, group, path)
        self.count = self.meta["count"]
        used = max(self.count) if self.layout == "shares" else sum(self.count)
        need(used <= self.length, "count")
        table = self.region(self.meta["sums"])
        need(xxh(table) == self.meta["sums_sum"], "the sums' sum")
        self.sums = np.frombuffer(table, "<u8")
        self.decoders = {}
        for name, stored in self.meta["columns"].items():
            if stored["codec"] == "zstd":
                dictionary = self.region(stored["dictionary"]) if stored["dictionary"] else b""
                need(xxh(dictionary) == stored["dictionary_sum"], "dictionary's sum")
                known = zstandard.ZstdCompressionDict(dictionary) if dictionary else None
                self.decoders[name] = zstandard.ZstdDecompressor(dict_data=known)
        self.checked: set[tuple[int, int]] = set()

    def bytes(self, part: list[int], start: int, stop: int) -> bytes:
        """Bytes of a region, once the pages they lie in are checked."""
        for page in range(start // PAGE, (stop - 1) // PAGE + 1):
            if (part[0], page) not in self.checked:
                end = min((page + 1) * PAGE, part[1])
                data = self.file[part[0] + page * PAGE : part[0] + end]
                need(xxh(data) == int(self.sums[part[2] // 8 + page]), f"page {page}")
                self.checked.add((part[0], page))
        return self.file[part[0] + start : part[0] + stop]

    def frame(self, name: str, slot: int) -> tuple[int, int]:
        entries = self.bytes(self.meta["columns"][name]["offsets"], slot * 8, slot * 8 + 16)
        start, stop = struct.unpack("<QQ", entries)
        need(start < stop <= self.meta["columns"][name]["data"][1], "offsets")
        return start, stop

    def row(self, stream: int, time: int) -> Row:
        slot, values = stream * self.length + time, []
        if self.layout == "packed":
            slot = sum(self.count[:stream]) + time
        for column in self.lake.columns:
            stored = self.meta["columns"][column.name]
            if stored["codec"] == "raw":
                start = slot * column.width
                values.append(self.bytes(stored["data"], start, start + column.width))
            else:
                packed = self.bytes(stored["data"], *self.frame(column.name, slot))
                decoder = self.decoders[column.name]
                value = decoder.decompress(packed, max_output_size=column.width)
                need(len(value) == column.width, "frame's size")
                values.append(value)
        return Row(values[0], tuple(values[1:]))


class Open(Segment):
    kind = "open"

    def __init__(self, lake: PlainLake, group: dict, path: Path) -> None:
        super().__init__(lake, group, path)
        self.records = self.journal(path.with_suffix(".journal").read_bytes())
        self.count = [0] * self.meta["streams"]
        self.slots_of: list[list[int]] = [[] for _ in self.count]  # of a log: stream → slots
        begin = self.count
        for _, end, rows_sum, commit in self.records:
            if any(not b <= e <= self.length for b, e in zip(begin, end, strict=True)):
                break
            if self.layout == "log" and sum(end) > self.slots:
                break
            if self.rows_sum(begin, end) != rows_sum:
                break
            slot = sum(begin)
            for mine, b, e in zip(self.slots_of, begin, end, strict=True):
                mine += range(slot, slot + e - b)
                slot += e - b
            begin = end
            if commit:
                self.count = end

    def journal(self, data: bytes) -> list[tuple[int, list[int], int, bool]]:
        """Whole records from the beginning: where each ends, rows, sum of rows, commit."""
        found, at, streams = [], 0, self.meta["streams"]
        seed = int(self.meta["fingerprint"], 16) ^ self.meta["group"]
        while at + 48 <= len(data):
            magic, sequence, number, rows_sum, kind, count = struct.unpack_from(
                "<8sQQQII", data, at
            )
            size = 40 + (-(-streams * 4 // 8) * 8 if kind & 2 else 0)
            record = data[at : at + size + 8]
            if magic != b"MPJOURNL" or kind > 3 or len(record) < size + 8:
                break
            if sequence != len(found) or number != self.meta["number"]:
                break
            if xxh(record[:size], seed) != struct.unpack_from("<Q", record, size)[0]:
                break
            end = [count] * streams
            if kind & 2:
                end = list(struct.unpack_from(f"<{streams}I", record, 40))
            at += size + 8
            found.append((at, end, rows_sum, bool(kind & 1)))
        return found

    def rows_sum(self, begin: list[int], end: list[int]) -> int:
        sums = xxhash.xxh3_64()
        for column in self.lake.columns:
            data = self.region(self.meta["columns"][column.name]["data"])
            for stream, (b, e) in enumerate(zip(begin, end, strict=True)):
                slot = stream * self.length
                if self.layout == "log":  # all of the block lies side by side
                    slot = sum(begin) + sum(end[:stream]) - sum(begin[:stream]) - b
                sums.update(data[(slot + b) * column.width : (slot + e) * column.width])
        return sums.intdigest()

    def row(self, stream: int, time: int) -> Row:
        slot, values = stream * self.length + time, []
        if self.layout == "log":
            slot = self.slots_of[stream][time]
        for column in self.lake.columns:
            at = self.meta["columns"][column.name]["data"][0] + slot * column.width
            values.append(self.file[at : at + column.width])
        return Row(values[0], tuple(values[1:]))
