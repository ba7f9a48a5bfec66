"""`events.jsonl`: what happened to the actors and learners of a run. No resume winds it back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol


class Who(Protocol):
    """An actor or a learner, in one incarnation."""

    role: str
    index: int
    incarnation: int


class Events:
    """`Events(folder).note("lost", child, why="SIGKILL")` adds a line; `.read()` gives all."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    def note(self, what: str, who: Who, **more: Any) -> None:
        """What happened to whom."""
        line = {"event": what, "process": who.role, "index": who.index}
        line |= {"incarnation": who.incarnation, **more}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """Every line, oldest first; a torn last one is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
