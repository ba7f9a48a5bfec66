"""`processes(history)`: the table of a run's processes and their health."""

from __future__ import annotations

import os
from typing import Any

from .history import RunHistory

_LOST = {"lost", "not shared"}


def processes(history: RunHistory) -> list[dict[str, Any]]:
    """One row per process: name, health, pid, incarnation, losses, shares of time."""
    running = history.status["state"] == "running"
    rows: dict[tuple[str, int], dict[str, Any]] = {}
    for event in history.events:
        key = str(event.get("process")), int(event.get("index") or 0)
        row = rows.setdefault(key, {"name": f"{key[0]} {key[1]}", "losses": 0, "why": ""})
        what = event.get("event")
        if what == "started":
            row |= {"pid": event.get("pid"), "incarnation": event.get("incarnation", 0)}
            row["there"] = True
        elif what == "back":
            row |= {"incarnation": event.get("incarnation", 0), "there": True}
        elif what in _LOST:
            row["losses"] += 1
            row |= {"why": str(event.get("why", "")).partition("\n")[0], "there": False}
        elif what == "broken channel":
            row["why"] = str(event.get("why", "")).partition("\n")[0]
    names = history.last_speed.get("share_names") or []
    shares = history.last_speed.get("shares") or {}
    for row in rows.values():
        spent = shares.get(row["name"], [])
        row["shares"] = dict(zip(names, spent, strict=False))
        row["health"] = _health(row, running)
    if rows:
        return list(rows.values())
    state = history.status["state"]
    health = "running" if running else state
    own = {"name": "one program", "losses": 0, "why": history.status.get("why", "")}
    return [own | {"pid": None, "incarnation": 0, "shares": {}, "health": health}]


def _health(row: dict[str, Any], running: bool) -> str:
    if not running:
        return "ended"
    pid = row.get("pid")  # None: it runs on a cluster, and may be on another machine
    if not row.get("there") or (pid is not None and not _alive(pid)):
        return "lost"
    return "replaced" if row["losses"] else "running"


def _alive(pid: Any) -> bool:
    """Whether a process with this pid exists, ours or not."""
    if not isinstance(pid, int) or pid <= 0:
        return False
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except PermissionError:
        return True
    except OSError:
        return False
    return True
