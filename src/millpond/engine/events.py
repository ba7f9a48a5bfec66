"""`events.jsonl`: what happened to the processes of a run. A resume only adds to it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol


class Who(Protocol):
    """One incarnation of an actor, a learner or a server."""

    role: str
    index: int
    incarnation: int


class Events:
    """`Events(folder).note("lost", child, why="SIGKILL")` adds a line; `.read()` returns all."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.jsonl"

    def note(self, what: str, who: Who, **more: Any) -> None:
        """Add a line: `what` happened to `who`."""
        line = {"event": what, "process": who.role, "index": who.index}
        line |= {"incarnation": who.incarnation, **more}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def read(self) -> list[dict[str, Any]]:
        """All lines, oldest first, without an incomplete last one."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [json.loads(line) for line in lines if line.endswith("\n")]
