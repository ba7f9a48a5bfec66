"""The table: what was measured, against which target, in the order of the work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Cards = Mapping[str, Mapping[str, Mapping[str, Any]]]  # worker -> row key -> value, note, reason
OWN = ("ours", "floor")  # workers that are no peers


@dataclass(frozen=True)
class Row:
    """One line: a key that workers report, and the target.

    It is absolute, or so many times this run's floor, best peer, or another row of ours.
    """

    key: str
    title: str
    target: float | None = None
    floors: float | None = None
    peers: float | None = None
    times: tuple[float, str] | None = None
    unit: str = "µs"


ROWS = (
    Row("vector_add", "vector: add 2048 x 264 B", 45),
    Row("vector_add_scan", "vector: add 2048, in scan", 30),
    Row("vector_sample", "vector: sample 4096 of 500k", 450),
    Row("single_add", "one env: add 1", 2.5),
    Row("single_sample", "one env: sample 256", 45),
    *(
        Row(f"small_{envs}_add", f"vector of {many}: add, vector observations", peers=1.3)
        for envs, many in ((1, "1 env"), (8, "8 envs"), (64, "64 envs"))
    ),
    Row("ranked_add", "prioritised, in lockstep: add 2048"),
    Row("ranked_uneven_add", "prioritised, out of lockstep: add 2048", times=(3, "ranked_add")),
    Row("ranked_per_env_add", "prioritised, per_env, in lockstep: add 2048"),
    Row("ranked_masked_add", "prioritised, per_env, masked: add", times=(3, "ranked_per_env_add")),
    Row("pixels_sample", "pixels: sample 512", floors=1.15),
    Row("pixels_bytes", "pixels: bytes per transition", 7100, unit="B"),
    Row("prioritised_host", "prioritised cycle at 1M, host", 450),
    Row("prioritised_calls", "prioritised cycle, three jitted calls", 400),
    Row("prioritised_scan", "prioritised cycle, in scan", 220),
    Row("scan_add_first", "in scan: add 2048, then sample 4096", 550),
    Row("scan_sample_first", "in scan: sample 4096, then add 2048", 550),
    *(
        Row(f"{layout}_{work}", f"layout {layout}: {what}")
        for layout in ("stream", "shared", "per_env")
        for work, what in (
            ("add", "add 2048, host"),
            ("sample", "sample 4096, host"),
            ("add_first", "in scan, add first"),
            ("sample_first", "in scan, sample first"),
        )
    ),
)


@dataclass(frozen=True)
class Line:
    """One row as judged: every number is None where there is none."""

    row: Row
    ours: float | None
    best: tuple[str, float] | None
    others: tuple[tuple[str, float], ...]
    floor: float | None
    other_row: float | None = None  # ours in the row that the target is relative to

    @property
    def target(self) -> float | None:
        row, best = self.row, self.best[1] if self.best else None
        for factor, measure in (
            (row.floors, self.floor),
            (row.peers, best),
            (row.times and row.times[0], self.other_row),
        ):
            if factor is not None:
                return None if measure is None else factor * measure
        return row.target

    @property
    def ratio(self) -> float | None:
        """How many times ours the best peer takes."""
        return self.best[1] / self.ours if self.best and self.ours else None

    @property
    def verdict(self) -> str:
        if self.target is None:
            return ""
        if self.ours is None:
            return "not available"
        return "met" if self.ours <= self.target else "MISSED"

    def to_json(self) -> dict[str, Any]:
        """The line as it goes into the report."""
        return {
            "key": self.row.key,
            "title": self.row.title,
            "unit": self.row.unit,
            "ours": self.ours,
            "best_peer": self.best[0] if self.best else None,
            "best_peer_value": self.best[1] if self.best else None,
            "best_peer_per_ours": self.ratio,
            "floor": self.floor,
            "ours_per_floor": self.ours / self.floor if self.ours and self.floor else None,
            "target": self.target,
            "verdict": self.verdict,
        }


def judge(cards: Cards) -> list[Line]:
    """Every row with ours, the peers from fastest to slowest, and the floor."""

    def value(worker: str, key: str) -> float | None:
        return cards.get(worker, {}).get(key, {}).get("value")

    lines: list[Line] = []
    for row in ROWS:
        found = [(name, value(name, row.key)) for name in cards if name not in OWN]
        peers = sorted(((n, v) for n, v in found if v is not None), key=lambda pair: pair[1])
        best = peers[0] if peers else None
        other = value("ours", row.times[1]) if row.times else None
        ours, floor = value("ours", row.key), value("floor", row.key)
        lines.append(Line(row, ours, best, tuple(peers[1:]), floor, other))
    return lines


def show(lines: list[Line], cards: Cards) -> None:
    """Print the table, then what its numbers leave out: notes, missing rows and variants."""
    table = Table(title="replay: CPU µs per call on one core, bytes where it says so")
    heads = ("row", "ours", "best peer", "peer / ours", "other peers", "floor", "target", "verdict")
    for head in heads:
        table.add_column(head, justify="left" if head in ("row", "other peers") else "right")
    marked = {
        (w, k): "*" for w, rows in cards.items() for k, row in rows.items() if row.get("note")
    }
    for line in lines:
        key = line.row.key

        def named(pair: tuple[str, float], key: str = key) -> str:
            return f"{pair[0]} {_number(pair[1])}{marked.get((pair[0], key), '')}"

        table.add_row(
            line.row.title,
            _number(line.ours),
            named(line.best) if line.best else "",
            f"{line.ratio:.2f}" if line.ratio else "",
            ", ".join(named(pair) for pair in line.others),
            _number(line.floor),
            f"≤ {_number(line.target)}" if line.target else "",
            line.verdict,
        )
    console = Console(width=160)
    console.print(table)
    for name, rows in cards.items():
        for remark, keys in _remarks(name, rows).items():
            console.print(f"{name}: {', '.join(keys)}: {remark}", markup=False, highlight=False)


def _remarks(name: str, rows: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Notes, missing values and variants, each with the rows that it is about."""
    remarks: dict[str, list[str]] = {}
    for key, row in rows.items():
        if row["value"] is None:
            remarks.setdefault(f"none; {row['reason']}", []).append(key)
        elif "." in key:
            remarks.setdefault(_number(row["value"]), []).append(key)
        elif row["note"] and name not in OWN:
            remarks.setdefault(f"* {row['note']}", []).append(key)
    return remarks


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value < 100 else f"{value:,.0f}"
