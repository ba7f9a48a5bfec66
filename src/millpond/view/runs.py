"""`Runs`: the runs below a folder, their status, and which of them have changed.

A run's id is a hash that is looked up in a table, so no request can name a path.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import RunRefused
from .card import card
from .greedy import Greedy
from .groups import group_names, group_of
from .history import RunHistory, differences, read_config
from .sketch import Sketch

_DEPTH = 4  # levels of folders that are searched; a comparison's runs are two levels deep
_SEARCH_S = 2.0  # time between two searches for new runs
_STATUS_S = 2.0  # time between two checks whether a silent run is still alive
_FORGET_S = 300.0  # how long a run stays in memory after it was last shown
_WHOLE = 24  # runs whose whole history is kept in memory
_FILES = ("config.json", "status.json", "metrics.jsonl", "speed.jsonl", "events.jsonl")


class RunEntry:
    """One run of the table."""

    def __init__(self, name: str, path: Path) -> None:
        self.name, self.path = name, path
        self.mixture, self.settings, _ = read_config(path)
        self.made = _stamp(path / "config.json")[2]
        self.id = hashlib.sha256(os.fsencode(path)).hexdigest()[:12]
        self.group = group_of({"mixture": self.mixture, **self.settings})
        self.card: dict[str, Any] = {}
        self.version = 0  # `Runs.version` at its last change
        self.history: RunHistory | None = None
        self.greedy: Greedy | None = None
        self.sketch: tuple[int, Sketch] | None = None  # with the version that it shows
        self.used = self._asked = 0.0
        self._seen: tuple[Any, ...] = ()

    def look(self, now: float) -> bool:
        """Look at the run's files; whether anything has changed."""
        seen = tuple(_stamp(self.path / name) for name in _FILES)
        alive = self.card.get("state") == "running" and now - self._asked > _STATUS_S
        if seen == self._seen and not alive:
            return False
        changed = seen != self._seen
        self._seen, self._asked = seen, now
        before, self.card = self.card, card(self.path, self.mixture, self.settings)
        return changed or before != self.card


class Runs:
    """`runs.look()` now and then; `runs.cards(since)`; `runs.history(entry)`."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise RunRefused(
                f"watch: there is no folder {root}; give the folder that holds your runs, or start "
                "one with millpond train ENV"
            )
        self.root, self.shown = root.resolve(), str(root)
        self.entries: dict[str, RunEntry] = {}
        self.version = 0
        self.name = secrets.token_hex(4)  # of this server: versions of another mean nothing here
        self._lock, self._reading = threading.Lock(), threading.Lock()
        self._searched = float("-inf")

    def look(self) -> bool:
        """Look at all runs on disk; whether anything has changed."""
        with self._lock:
            now = time.monotonic()
            changed = self._search(now)
            for entry in self.entries.values():
                if entry.look(now):
                    changed = True
                    entry.version = self.version + 1
                if now - entry.used > _FORGET_S:
                    entry.history = entry.sketch = None
            self.version += changed
            return changed

    def _search(self, now: float) -> bool:
        if now - self._searched < _SEARCH_S:
            return False
        self._searched = now
        found = dict(find_folders(self.root))
        known = {entry.path: entry for entry in self.entries.values()}
        changed = False
        for path in known.keys() - found.keys():
            del self.entries[known[path].id]
            changed = True
        for path in found.keys() - known.keys():
            try:
                entry = RunEntry(found[path], path)
            except RunRefused:  # not a run, or config.json is still incomplete
                continue
            self.entries[entry.id] = entry
            changed = True
        return changed

    def cards(self, since: int = -1) -> dict[str, Any]:
        """The cards that changed after version `since`, and the ids of all runs, newest first."""
        with self._lock:
            order = sorted(self.entries.values(), key=lambda entry: (-entry.made, entry.name))
            wanted = [entry for entry in order if entry.version > since]
            return {
                "root": self.shown,
                "version": self.version,
                "order": [entry.id for entry in order],
                "runs": [
                    {
                        "id": e.id,
                        "name": e.name,
                        "group": e.group,
                        "made": e.made / 1e9,
                        "version": e.version,
                        **e.card,
                    }
                    for e in wanted
                ],
                "groups": group_names((entry.group, entry.name) for entry in reversed(order)),
            }

    def settings(self) -> dict[str, Any]:
        """Settings that differ between runs: their names, and every run's values by id."""
        with self._lock:
            entries = list(self.entries.values())
        rows = differences([entry.settings for entry in entries])
        values = list(zip(*(row for _, row in rows), strict=True)) or [()] * len(entries)
        of = {entry.id: list(row) for entry, row in zip(entries, values, strict=True)}
        return {"names": [name for name, _ in rows], "values": of}

    def get(self, run_id: str) -> RunEntry | None:
        """The run with that id, or None."""
        return self.entries.get(run_id)

    def history(self, entry: RunEntry) -> RunHistory:
        """A run's history up to now; kept in memory while somebody looks at it."""
        with self._lock:
            entry.used = time.monotonic()
            history = entry.history = entry.history or RunHistory(entry.path)
            read = [one for one in self.entries.values() if one.history is not None]
            for one in sorted(read, key=lambda one: one.used)[:-_WHOLE]:
                one.history = None
        with history.lock:
            history.look()
        return history

    def sketch(self, entry: RunEntry) -> Sketch:
        """The sketch of a run, updated if the run has changed."""
        version, known = entry.version, entry.sketch
        entry.used = time.monotonic()
        if known is None or known[0] != version:
            history = self.history(entry)
            with history.lock:
                entry.sketch = known = version, Sketch.of(history)
        return known[1]

    def greedy(self, entry: RunEntry) -> dict[str, Any]:
        """A run's greedy returns up to now."""
        with self._reading:
            entry.greedy = entry.greedy or Greedy(entry.path)
            return entry.greedy.curve(bool(entry.settings.get("from_lake")))


def find_folders(root: Path) -> Iterator[tuple[Path, str]]:
    """Folders with a config.json, and their paths relative to the root. Runs are not nested."""

    def search(folder: Path, depth: int) -> Iterator[Path]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        if any(entry.name == "config.json" for entry in entries):
            yield folder
        elif depth < _DEPTH:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                    yield from search(Path(entry.path), depth + 1)

    for path in search(root, 0):
        yield path, path.name if path == root else path.relative_to(root).as_posix()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)
