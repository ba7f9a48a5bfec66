"""`LoggedRun`: the folder of a run that is logged by a user's own loop.

config.json                                 env, agent, seed, steps and the loop's own settings
status.json, metrics.jsonl, speed.jsonl     as in millpond's own runs; curve.png at the end
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunRefused
from ..run_folder import LOGGED, is_logged, read_status
from ..whole_file import write_whole

VERSION = 1


@dataclass(frozen=True)
class LoggedRun:
    """`LoggedRun.open(Path("runs/mine")).status()`; `millpond.run` creates such folders."""

    path: Path
    settings: dict[str, Any]  # env, agent, seed, steps, mode, and `config` as given

    @staticmethod
    def create(path: Path, settings: dict[str, Any]) -> LoggedRun:
        """Write the config of a new run into an empty folder."""
        config = {LOGGED: VERSION, "settings": settings}
        write_whole(path / "config.json", json.dumps(config, indent=2).encode() + b"\n")
        return LoggedRun(path, settings)

    @staticmethod
    def open(path: Path) -> LoggedRun:
        """Open the run in a folder; RunRefused if there is none or its version is unknown."""
        if not is_logged(path):
            raise RunRefused(f"{path} was not logged by millpond.run; millpond runs lists the runs")
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        if config[LOGGED] != VERSION:
            raise RunRefused(
                f"{path} is a logged run of version {config[LOGGED]}, this millpond reads version "
                f"{VERSION}; use the millpond that wrote it"
            )
        settings = config.get("settings")
        return LoggedRun(path, settings if isinstance(settings, dict) else {})

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def speed(self) -> Path:
        return self.path / "speed.jsonl"

    def status(self) -> dict[str, Any]:
        """The run's last recorded status."""
        return read_status(self.path)


def find_logged(root: Path) -> Iterator[LoggedRun]:
    """Every logged run below a folder, at any depth, sorted by path.

    `[run.path for run in find_logged(Path("runs"))]`.
    """
    for file in sorted(root.rglob("config.json")):
        if is_logged(file.parent):
            try:
                yield LoggedRun.open(file.parent)
            except RunRefused:  # of another version
                continue
