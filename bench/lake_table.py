"""The tables of replay on disk: every library side by side, and ours against its targets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table

Cards = Mapping[str, Mapping[str, Mapping[str, Any]]]  # "worker game" → row key → value, note

LIBRARIES = (  # worker, key of its rows, title
    ("limits", "write", "limit: a bare write and sync"),
    ("limits", "gather", "limit: gather in memory"),
    ("limits", "disk", "limit: random reads from disk"),
    ("ours", "raw", "millpond Lake, raw"),
    ("ours", "packed", "millpond Lake, compressed"),
    ("torchrl", "storage", "TorchRL memmap storage, by index"),
    ("torchrl", "sampler", "TorchRL memmap, SliceSampler"),
    ("lmdb", "lmdb", "LMDB"),
    ("tensorstore", "zarr3", "TensorStore zarr3, shards, zstd"),
    ("vault", "vault", "Vault's settings (zarr, gzip)"),
)
PARTS = (
    ("append", "append kframes/s"),
    ("blocks", "in blocks of 8 steps"),
    ("warm", "warm windows/s"),
    ("cold", "cold windows/s"),
    ("bytes", "B/frame"),
)
GAMES = ("gravitar", "ms_pacman")
APART = 1.3  # rounds that differ more are named


@dataclass(frozen=True)
class Target:
    """`value` of ours against `base`, as a ratio that is to be at least (or at most) `limit`."""

    title: str
    value: tuple[str, str]  # worker and game, row key
    base: tuple[str, str]
    limit: float
    most: bool = False
    turned: bool = False  # base / value: where less is better


G, P = GAMES
WAYS = (("append", "one step"), ("blocks", "blocks"))  # how much one call appends
TARGETS = (
    Target(
        "raw warm / gather limit", (f"ours {G}", "raw_warm"), (f"limits {G}", "gather_warm"), 0.6
    ),
    *(
        target
        for game, smaller in ((G, 40.0), (P, 18.0))
        for target in (
            Target(
                f"{game}: compressed warm / TorchRL storage",
                (f"ours {game}", "packed_warm"),
                (f"torchrl {G}", "storage_warm"),
                2.0,
            ),
            Target(
                f"{game}: compressed warm / TorchRL sampler",
                (f"ours {game}", "packed_warm"),
                (f"torchrl {G}", "sampler_warm"),
                5.0,
            ),
            Target(
                f"{game}: TorchRL bytes / compressed bytes",
                (f"ours {game}", "packed_bytes"),
                (f"torchrl {G}", "storage_bytes"),
                smaller,
                turned=True,
            ),
            Target(
                f"{game}: compressed cold / disk limit",
                (f"ours {game}", "packed_cold"),
                (f"limits {G}", "disk_cold"),
                1.0,
            ),
            *(
                Target(
                    f"{game}: compressed append / TorchRL append, {way}",
                    (f"ours {game}", f"packed_{part}"),
                    (f"torchrl {G}", f"storage_{part}"),
                    1.5,
                )
                for part, way in WAYS
            ),
        )
    ),
    Target("raw cold / disk limit", (f"ours {G}", "raw_cold"), (f"limits {G}", "disk_cold"), 0.8),
    *(
        Target(
            f"raw append / TorchRL append, {way}",
            (f"ours {G}", f"raw_{part}"),
            (f"torchrl {G}", f"storage_{part}"),
            4.0,
        )
        for part, way in WAYS
    ),
    Target(
        "sample time, most rows / 1M rows",
        (f"growth {G}", "many_sample"),
        (f"growth {G}", "few_sample"),
        1.3,
        most=True,
    ),
    *(
        Target(
            f"own memory after long sampling / after one batch, {kind}",
            (f"ours {G}", f"{kind}_memory"),
            (f"ours {G}", f"{kind}_memory_first"),
            1.05,
            most=True,
        )
        for kind in ("raw", "packed")
    ),
)


def judge(cards: Cards) -> list[dict[str, Any]]:
    """Every target with what was measured; the verdict is empty where something is missing."""
    lines: list[dict[str, Any]] = []
    for target in TARGETS:
        value, base = _value(cards, target.value), _value(cards, target.base)
        ratio = None
        if value is not None and base is not None:
            ratio = base / value if target.turned else value / base
        met = ratio is not None and (
            ratio <= target.limit if target.most else ratio >= target.limit
        )
        lines.append(
            {
                "title": target.title,
                "ours": value,
                "against": base,
                "ratio": ratio,
                "target": f"{'≤' if target.most else '≥'} {target.limit:g}",
                "verdict": "not available" if ratio is None else "met" if met else "MISSED",
            }
        )
    return lines


def show(lines: list[dict[str, Any]], cards: Cards) -> None:
    """Print both tables, then what each library returned and what it could not do."""
    console = Console(width=150)
    console.print(_libraries(cards))
    table = Table(title="targets")
    for head in ("what", "ours", "against", "ratio", "target", "verdict"):
        table.add_column(head, justify="left" if head == "what" else "right")
    for line in lines:
        ratio = "" if line["ratio"] is None else f"{line['ratio']:.2f}"
        numbers = [_number(line["ours"]), _number(line["against"]), ratio]
        table.add_row(line["title"], *numbers, line["target"], line["verdict"])
    console.print(table)
    for remark in _remarks(cards):
        console.print(remark, markup=False, highlight=False)


def _libraries(cards: Cards) -> Table:
    table = Table(title="replay on disk: windows of five 84 x 84 frames, batches of 512, one core")
    table.add_column("library")
    table.add_column("game")
    for _, head in PARTS:
        table.add_column(head, justify="right")
    for worker, key, title in LIBRARIES:
        for game in GAMES:
            rows = cards.get(f"{worker} {game}", {})
            if not any(f"{key}_{part}" in rows for part, _ in PARTS):
                continue
            values = [_cell(rows.get(f"{key}_{part}")) for part, _ in PARTS]
            table.add_row(title, game, *values)
    return table


def _remarks(cards: Cards) -> list[str]:
    """Notes and reasons once per library; variants with their values."""
    remarks: dict[str, list[str]] = {}

    def say(worker: str, key: str, text: str) -> None:
        remarks.setdefault(f"{worker}: {text}", []).append(key)

    for worker, rows in cards.items():
        for key, row in rows.items():
            if row["value"] is None:
                say(worker, key, f"none; {row['reason']}")
                continue
            if "." in key:
                say(worker, key, _number(row["value"]))
            elif row.get("note"):
                say(worker, key, row["note"])
            if None in row["rounds"]:
                say(worker, key, f"failed in a round: {row['reason']}")
            elif "." not in key and max(row["rounds"]) > APART * min(row["rounds"]):
                rounds = ", ".join(_number(value) for value in row["rounds"])
                say(worker, key, f"rounds far apart: {rounds}")
    return [
        f"{text.split(': ', 1)[0]}: {', '.join(keys)}: {text.split(': ', 1)[1]}"
        for text, keys in remarks.items()
    ]


def _value(cards: Cards, where: tuple[str, str]) -> float | None:
    return cards.get(where[0], {}).get(where[1], {}).get("value")


def _cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    return "failed" if row["value"] is None else _number(row["value"])


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.1f}" if value < 1000 else f"{value:,.0f}"
