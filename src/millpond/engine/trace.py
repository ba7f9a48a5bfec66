"""`Trace`: a chain of hashes over a run, to find where two runs diverge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from .checkpoint import named_leaves


class Trace:
    """One line per cycle: hashes of each actor's rows, and of each policy's draws and agent.

    Each hash also covers the one before it, so two runs diverge at the first line that differs.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trace.jsonl"
        self._chain: dict[str, int] = {}

    def write(self, cycle: int, rows: list[int], learners: list[dict[str, int]]) -> None:
        """Add the hashes of one cycle."""
        found = {f"actor {i} rows": value for i, value in enumerate(rows)}
        for policy, parts in enumerate(learners):
            found |= {f"learner {policy} {name}": value for name, value in parts.items()}
        for name, value in found.items():
            before = self._chain.get(name, 0)
            self._chain[name] = xxhash.xxh3_64_intdigest(f"{before:016x}{value:016x}".encode())
        line = {"cycle": cycle, **{name: f"{self._chain[name]:016x}" for name in found}}
        with open(self.path, "a", encoding="ascii") as file:
            file.write(json.dumps(line) + "\n")

    def cut(self, cycle: int) -> None:
        """Drop the lines after `cycle`; a resumed run writes them again."""
        lines = list(read_trace(self.path))[:cycle]
        with open(self.path, "w", encoding="ascii") as file:
            file.writelines(json.dumps(line) + "\n" for line in lines)
        self._chain = (
            {name: int(value, 16) for name, value in lines[-1].items() if name != "cycle"}
            if lines
            else {}
        )


def read_trace(path: Path) -> list[dict[str, Any]]:
    """The lines of a trace, without an incomplete last one."""
    if not path.exists():
        return []
    text = path.read_text(encoding="ascii")
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def digest(tree: Any) -> int:
    """A 64-bit hash, equal for equal trees."""
    state = xxhash.xxh3_64()
    for name, leaf in named_leaves(tree):
        state.update(name.encode())
        state.update(np.ascontiguousarray(np.asarray(leaf)).data)
    return state.intdigest()
