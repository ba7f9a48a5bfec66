"""`Projector`: films of the newest checkpoints, made on demand by a low-priority child process.

The child runs only when a core is idle and ends with its parent. Films are kept in memory; nothing
is written to the run's folder.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..engine.environment import child_environment

_AGAIN_S = 60.0  # least time between two films of a run
_LIMIT_S = 600.0  # a film that takes longer is abandoned
_KEPT = 24  # films kept in memory


@dataclass
class _Film:
    """The film of one run."""

    steps: int  # of the checkpoint
    data: bytes | None = None
    why: str = ""  # the reason, if it failed
    ended: float = 0.0


class Projector:
    """`projector.film(run_id, path)` returns the film's status, and starts making it if needed."""

    def __init__(self) -> None:
        self._films: dict[str, _Film] = {}
        self._making: tuple[str, int] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    def film(self, run: str, path: Path) -> dict[str, Any]:
        """`state` is none, waiting, making, ready or failed; `steps` are the checkpoint's."""
        newest = newest_checkpoint(path)
        with self._lock:
            film = self._films.get(run)
            making = self._making[1] if self._making and self._making[0] == run else None
            old = film is None or film.steps != newest
            rested = film is None or time.monotonic() - film.ended > _AGAIN_S
            due = newest is not None and making is None and old and rested
            if due and self._making is None and not self._closed:
                assert newest is not None
                making = newest
                self._making = run, newest
                args = (run, path, newest)
                threading.Thread(target=self._make, args=args, daemon=True).start()
            waiting = due and making is None
        if film is not None and film.data is not None:
            return {"state": "ready", "steps": film.steps, "making": making}
        if making is not None:
            return {"state": "making", "steps": making, "making": making}
        if film is not None and film.why:
            return {"state": "failed", "steps": film.steps, "why": film.why, "making": None}
        return {"state": "waiting" if waiting else "none", "steps": newest, "making": None}

    def data(self, run: str) -> bytes | None:
        """The newest film."""
        film = self._films.get(run)
        return film.data if film else None

    def close(self) -> None:
        """End the child process, if there is one."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()

    def _make(self, run: str, path: Path, steps: int) -> None:
        film = _Film(steps)
        try:
            with tempfile.TemporaryDirectory(prefix="millpond-film-") as folder:
                film.data = self._filmed(path, steps, Path(folder))
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            film.why = f"{error}"
        film.ended = time.monotonic()
        with self._lock:
            before = self._films.pop(run, None)
            if film.data is None and before is not None and before.data is not None:
                film.data, film.steps = before.data, before.steps  # keep showing the old one
            self._films[run] = film
            while len(self._films) > _KEPT:
                del self._films[next(iter(self._films))]
            self._making = self._child = None

    def _filmed(self, path: Path, steps: int, folder: Path) -> bytes:
        target = folder / "film.gif"
        command = [sys.executable, "-m", "millpond.view.film_process", str(os.getpid())]
        environment = child_environment(1, True, folder / "compiled")
        with self._lock:
            if self._closed:
                raise OSError("the server has ended")
            self._child = subprocess.Popen(
                [*command, str(path), str(steps), str(target)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            child = self._child
        try:
            _, said = child.communicate(timeout=_LIMIT_S)
        finally:
            with contextlib.suppress(OSError):
                child.kill()
            child.wait(timeout=30)
        if child.returncode:
            lines = said.decode(errors="replace").strip().splitlines()
            raise OSError(lines[-1] if lines else f"exit code {child.returncode}")
        return target.read_bytes()


def newest_checkpoint(path: Path) -> int | None:
    """The steps of a run's newest checkpoint, from its file name."""
    try:
        names = [entry.name for entry in os.scandir(path / "checkpoints")]
    except OSError:
        return None
    stems = [name.removesuffix(".safetensors") for name in names if name.endswith(".safetensors")]
    return max((int(stem) for stem in stems if stem.isdecimal()), default=None)
