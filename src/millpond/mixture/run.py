"""`MixRun`: the folder of a mixture. It is laid out like that of a training run, plus the Lakes.

config.json, status.json, metrics.jsonl, speed.jsonl, resume.safetensors: as in `train.Run`
checkpoints/N.safetensors   parameters of all agents and BigAgents after N frames; kept
lake/member-M               the rows of the agents of member M
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadConfig, RunRefused
from ..run_folder import refuse_used
from ..train.old_runs import from_version_1
from ..train.run import Run
from ..whole_file import write_whole
from .settings import MixSettings

VERSION = 2
_MARK = "millpond_mixture"


@dataclass(frozen=True)
class MixRun:
    """`run = MixRun.create(path, settings)`, `run = MixRun.open(path)`."""

    path: Path
    settings: MixSettings
    version: int = VERSION  # of the folder's format

    @staticmethod
    def create(path: Path, settings: MixSettings) -> MixRun:
        """Create a mixture in a folder that is empty or does not exist yet."""
        refuse_used(path)
        settings.playing.check_saved()
        settings.big_playing.check_saved()
        run = MixRun(path, settings)
        if settings.lake.path and run.lakes.exists() and any(run.lakes.iterdir()):
            raise RunRefused(
                f"{run.lakes} is not empty, and the Lake of a mixture must hold only its own rows; "
                "choose a new folder with --lake.path"
            )
        config = {_MARK: VERSION, "settings": settings.to_json()}
        write_whole(path / "config.json", json.dumps(config, indent=2).encode() + b"\n")
        return run

    @staticmethod
    def open(path: Path) -> MixRun:
        """Open the mixture in a folder; RunRefused if there is none or its version is unknown."""
        file = path / "config.json"
        if not is_mixture(path):
            raise RunRefused(f"{path} is not a mixture; create one with millpond mix ENV")
        config = json.loads(file.read_text(encoding="utf-8"))
        version, plain = config[_MARK], config.get("settings")
        if version not in (1, VERSION):
            raise RunRefused(
                f"{path} is a mixture of version {config[_MARK]}, this millpond reads version "
                f"{VERSION}; use the millpond that wrote it"
            )
        try:
            plain = from_version_1(plain) if version == 1 else plain
            return MixRun(path, MixSettings.from_json(plain), version)
        except BadConfig as error:
            raise RunRefused(f"{file} cannot be used: {error}") from error

    @property
    def folder(self) -> Run:
        """The same folder as a `Run`, for its files, status and lock."""
        return Run(self.path, self.settings.playing, self.version)

    @property
    def everyone(self) -> Run:
        """The same folder as a `Run` whose members are all agents, then all BigAgents."""
        return Run(self.path, self.settings.judged)

    @property
    def lakes(self) -> Path:
        """The folder that holds the members' Lakes."""
        elsewhere = self.settings.lake.path
        return Path(elsewhere) if elsewhere else self.path / "lake"


def is_mixture(path: Path) -> bool:
    """Whether a folder holds a mixture.

    `is_mixture(Path("runs/mixture"))`.
    """
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and _MARK in config


def find_mixtures(root: Path) -> Iterator[MixRun]:
    """Every mixture below a folder, at any depth, sorted by path.

    `[run.path for run in find_mixtures(Path("runs"))]`.
    """
    for file in sorted(root.rglob("config.json")):
        if is_mixture(file.parent):
            yield MixRun.open(file.parent)
