"""The status file and the lock that every run's folder has."""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path
from shlex import quote
from typing import Any

from .errors import RunRefused
from .whole_file import write_whole

LOGGED = "millpond_log"  # a key of config.json in runs logged by a user's own loop
OWN_LOOP = "own loop"  # the mode of such a run
_INSTANT_S = 0.5


def shell_word(path: Path | str) -> str:
    """A path quoted for the shell, for commands that the user may copy."""
    return quote(str(path))


def lock_folder(path: Path) -> int:
    """Lock a run's folder; returns a file descriptor that holds the lock until it is closed."""
    lock = os.open(path / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    # `in_use` in another process holds the lock for an instant: retry before refusing.
    until = time.monotonic() + _INSTANT_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return lock
        except BlockingIOError as error:
            if time.monotonic() > until:
                os.close(lock)
                raise RunRefused(
                    f"{path} is in use by another process; wait for it or stop it"
                ) from error
            time.sleep(0.005)


def write_status(path: Path, state: str, steps: int, why: str = "", traceback: str = "") -> None:
    """Record the state of a run; `why` and `traceback` say why it stopped, if it failed."""
    reasons = {"why": why, "traceback": traceback}
    status = {"state": state, "steps": steps} | {k: text for k, text in reasons.items() if text}
    write_whole(path / "status.json", json.dumps(status).encode() + b"\n")


def read_status(path: Path) -> dict[str, Any]:
    """A run's last recorded status, `killed` if it says "running" but no process has the run."""
    try:
        status = json.loads((path / "status.json").read_text(encoding="utf-8"))
        state, steps = str(status["state"]), int(status["steps"])
    except (OSError, ValueError, KeyError, TypeError):
        return {"state": "new", "steps": 0}
    if state == "running" and not in_use(path):
        state = "killed"
    reasons = {name: str(status[name]) for name in ("why", "traceback") if name in status}
    return {"state": state, "steps": steps, **reasons}


def in_use(path: Path) -> bool:
    """Whether a process is writing to the run in this folder now."""
    try:
        lock = os.open(path / "lock", os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)  # shared: others may ask at the same time
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def refuse_used(path: Path) -> None:
    """Raise RunRefused unless the folder is empty or does not exist."""
    if path.exists() and not path.is_dir():
        raise RunRefused(f"{path} is a file; choose a new folder with --run")
    if path.exists() and any(path.iterdir()):
        ours = (path / "config.json").exists()
        remedy = f"millpond resume {shell_word(path)} continues it, or " if ours else ""
        raise RunRefused(f"{path} is not empty; {remedy}choose another folder with --run")


def is_logged(path: Path) -> bool:
    """Whether the run in a folder was logged by a user's own loop."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and LOGGED in config
