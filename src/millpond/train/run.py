"""`Run`: the folder of a training run, which holds everything needed to continue it.

config.json            the settings, and the version that wrote them
status.json            running, finished, stopped, diverged or failed (and why); env steps
metrics.jsonl          results by env steps; speed.jsonl: how fast, by the clock
checkpoints/N.safetensors   the parameters after N env steps; kept
resume.safetensors     the whole state; replaced
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from ..engine.settings import Settings
from ..errors import BadConfig, Diverged, MillpondError, Paused, RunRefused
from ..run_folder import is_logged, lock_folder, read_status, refuse_used, shell_word, write_status
from ..whole_file import write_whole
from .old_runs import from_version_1, with_auto_mode

VERSION = 2


class Checkpoint(NamedTuple):
    """One kept checkpoint."""

    path: Path
    steps: int


@dataclass(frozen=True)
class Run:
    """`run = Run.create(path, settings)`, `run = Run.open(path)`."""

    path: Path
    settings: Settings
    version: int = VERSION  # of the run's format
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # when it was created

    @staticmethod
    def create(path: Path, settings: Settings) -> Run:
        """Create a run in a folder that is empty or does not exist."""
        refuse_used(path)
        settings.check_saved()
        run = Run(path, settings, VERSION, settings.parts())
        config = {
            "millpond_run": VERSION,
            "settings": settings.to_json(),
            "learns": dataclasses.asdict(settings.learns),
            "parts": run.parts,
        }
        write_whole(path / "config.json", json.dumps(config, indent=2).encode() + b"\n")
        return run

    @staticmethod
    def open(path: Path) -> Run:
        """Open the run in a folder; raises RunRefused if it has none, or one of another version."""
        file = path / "config.json"
        if not file.is_file():
            raise RunRefused(_no_run(path))
        if is_logged(path):
            raise RunRefused(
                f"{path} was logged by your own loop (millpond.run), and only that loop can play "
                "or continue it; runs, watch, report and doctor work with it"
            )
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
            version = config["millpond_run"]
            plain = config["settings"]
        except (ValueError, KeyError, TypeError) as error:
            raise RunRefused(f"{file} was not written by millpond train") from error
        if version not in (1, VERSION):
            raise RunRefused(
                f"{path} is a run of version {version}, this millpond reads version {VERSION}; "
                "use the millpond that wrote it"
            )
        plain = with_auto_mode(from_version_1(plain)) if version == 1 else plain
        try:
            return Run(path, Settings.from_json(plain), version, config.get("parts", {}))
        except BadConfig as error:
            raise RunRefused(f"{file} cannot be used: {error}") from error

    def check_parts(self) -> None:
        """Raise RunRefused unless the parts' classes and versions are those of its beginning."""
        if self.version != VERSION:
            raise RunRefused(
                f"{self.path} was begun by millpond 0.1, whose saved states this version does not "
                "read: finish it with 0.1, or start a new run; eval, report and watch work with it"
            )
        for name, now in self.settings.parts().items():
            then = self.parts.get(name, now)
            if then != now and not now["class"].startswith("millpond."):
                raise RunRefused(
                    f"{self.path} was begun with {name} {then['class']} of version "
                    f"{then['version'] or 'unknown'}, installed is {now['class']} of version "
                    f"{now['version'] or 'unknown'}; install that version again, or start a new run"
                )

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def speed(self) -> Path:
        return self.path / "speed.jsonl"

    @property
    def resume_state(self) -> Path:
        return self.path / "resume.safetensors"

    def checkpoint_path(self, steps: int) -> Path:
        """The path of the checkpoint after that many env steps."""
        return self.path / "checkpoints" / f"{steps:012d}.safetensors"

    def checkpoints(self) -> list[Checkpoint]:
        """All kept checkpoints, oldest first; none is opened."""
        files = sorted((self.path / "checkpoints").glob("*.safetensors"))
        return [Checkpoint(file, int(file.stem)) for file in files if file.stem.isdigit()]

    def checkpoint(self, steps: int | None = None) -> Checkpoint:
        """The newest checkpoint, or the one after that many env steps."""
        there = self.checkpoints()
        if not there:
            raise RunRefused(f"{self.path} has no checkpoint yet; train it for longer")
        if steps is None:
            return there[-1]
        for checkpoint in there:
            if checkpoint.steps == steps:
                return checkpoint
        known = ", ".join(str(c.steps) for c in there)
        raise RunRefused(f"{self.path} has no checkpoint at {steps} steps; it has {known}")

    def status(self) -> dict[str, Any]:
        """The run's last recorded status."""
        return read_status(self.path)

    def say(self, state: str, steps: int, why: str = "", traceback: str = "") -> None:
        """Record the run's state and, if it failed, why."""
        write_status(self.path, state, steps, why, traceback)

    def gave_up(self, error: BaseException) -> None:
        """Record the error that ended the run, unless that was recorded already."""
        if isinstance(error, (Diverged, Paused)):
            return
        where = getattr(error, "traceback", "")  # that of the process in which it happened
        text = where or "".join(traceback.format_exception(error))
        why = f"{type(error).__name__}: {error}".replace(text, "").strip()
        with contextlib.suppress(MillpondError):  # the error itself says that the disk is full
            self.say("failed", self.status()["steps"], why, text)

    def lock(self) -> int:
        """Keep other processes out until the descriptor is closed or this process ends."""
        return lock_folder(self.path)


def _no_run(path: Path) -> str:
    """What there is at `path` instead of a run, and what to do."""
    remedy = "millpond runs lists all runs"
    if not path.exists():
        return f"there is no folder {path}; {remedy}"
    if (path / "lake.json").is_file():
        return (
            f"{path} is a Lake, not a run; millpond lake info {shell_word(path)} says what it holds"
        )
    return f"{path} is not a run: it has no config.json; {remedy}"


def find_runs(root: Path) -> Iterator[Run]:
    """All runs in a folder and its subfolders, by name; folders that are no runs are skipped.

    `for run in find_runs(Path("runs")): print(run.path, run.status())`.
    """
    if not root.is_dir():
        raise RunRefused(f"there is no folder {root}; millpond train creates runs")
    for file in sorted(root.rglob("config.json")):
        try:
            yield Run.open(file.parent)
        except RunRefused:
            continue
