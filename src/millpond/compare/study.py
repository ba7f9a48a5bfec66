"""`Study`: arms over seeds in one folder. Finished runs are not repeated.

compare.json           the arms and their settings, which must be the same in later calls
arms/NAME/seeds-A-B    one run, of seeds A to B
results.json           the results
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import RunRefused
from ..mixture import MixRun, MixSettings, mix
from ..train import Run, train
from ..train.session import Report
from ..whole_file import write_whole
from . import results
from .arms import Arm
from .norm import Norm

# begun(arm, first seed, last seed) returns the callback that this run reports to
Begun = Callable[[Arm, int, int], Report]


@dataclass(frozen=True)
class Study:
    """`study = Study.open(path, arms, env, frames, seeds=10, seed=0, together=0); study.go()`."""

    path: Path
    arms: tuple[Arm, ...]
    env: str
    frames: int
    seeds: int
    seed: int = 0
    together: int = 0  # seeds per run; 0: all if they can run as one program, else one

    @staticmethod
    def open(
        path: Path, arms: list[Arm], env: str, frames: int, seeds: int, seed: int, together: int
    ) -> Study:
        """Open a new study, or continue one, perhaps with more or fewer arms.

        RunRefused if the folder holds something else.
        """
        study = Study(path, tuple(arms), env, frames, seeds, seed, together)
        file, about = path / "compare.json", _plain(study._about())
        if file.exists():
            before = json.loads(file.read_text(encoding="utf-8"))
            old = {arm["name"]: arm for arm in before.pop("arms")}
            new = {arm["name"]: arm for arm in about["arms"]}
            same = all(old[name] == new[name] for name in old.keys() & new.keys())
            if not same or before != {key: about[key] for key in about if key != "arms"}:
                raise RunRefused(
                    f"{path} holds a comparison with other seeds, frames or settings; give the "
                    "same command as before to continue it, or choose another folder with --out"
                )
            about["arms"] = list((old | new).values())
        elif path.exists() and any(path.iterdir()):
            raise RunRefused(f"{path} is not empty; choose another folder with --out")
        write_whole(file, json.dumps(about, indent=2, sort_keys=True).encode() + b"\n")
        return study

    def go(self, begun: Begun = lambda *_: lambda line: None) -> dict[str, Any]:
        """Run what is missing and return the results, which are also written after every arm.

        If it is interrupted, call it again to continue.
        """
        found: dict[str, Any] = {}
        for arm in self.arms:
            for first, last in self._parts(arm):
                self._run(arm, first, last, begun)
            found = self.results()
            write_whole(self.path / "results.json", json.dumps(found, indent=1).encode() + b"\n")
        return found

    def results(self) -> dict[str, Any]:
        """The results of the finished arms."""
        arms: list[dict[str, Any]] = []
        norm = self._norm()
        for arm in self.arms:
            parts = [(self._folder(arm, a, b), b - a + 1) for a, b in self._parts(arm)]
            if all(_finished(folder, arm) for folder, _ in parts):
                runs = [results.of_run(folder, arm, seeds, norm) for folder, seeds in parts]
                arms.append(results.summary(arm, results.together(runs)))
        about = {name: value for name, value in self._about().items() if name != "arms"}
        return {**about, "arms": arms, "pairs": results.pairs(arms)}

    def _norm(self) -> Norm | None:
        """None if an arm is a mixture, or if the env has no scripted player."""
        settings = [arm.settings for arm in self.arms]
        first = settings[0]
        if isinstance(first, MixSettings) or any(isinstance(s, MixSettings) for s in settings):
            return None
        return Norm.of(first, self.path / "references.json")

    def _about(self) -> dict[str, Any]:
        return {
            "env": self.env,
            "frames": self.frames,
            "seeds": self.seeds,
            "seed": self.seed,
            "together": self.together,
            "arms": [arm.to_json() for arm in self.arms],
        }

    def _parts(self, arm: Arm) -> list[tuple[int, int]]:
        """The first and last seed of every run of an arm."""
        size = self.together or (self.seeds if arm.at_once else 1)
        return [(first, min(first + size, self.seeds) - 1) for first in range(0, self.seeds, size)]

    def _folder(self, arm: Arm, first: int, last: int) -> Path:
        return self.path / "arms" / arm.name / f"seeds-{first}-{last}"

    def _run(self, arm: Arm, first: int, last: int, begun: Begun) -> None:
        folder = self._folder(arm, first, last)
        if _finished(folder, arm):
            return
        settings = arm.runs_of(self.seed + first, last - first + 1)
        new = not (folder / "config.json").exists()
        report = begun(arm, first, last)
        if isinstance(settings, MixSettings):
            mix(MixRun.create(folder, settings) if new else MixRun.open(folder), report)
        else:
            train(Run.create(folder, settings) if new else Run.open(folder), report)


def _plain(about: dict[str, Any]) -> dict[str, Any]:
    """The value as JSON gives it back, with lists for tuples."""
    return json.loads(json.dumps(about))


def _finished(folder: Path, arm: Arm) -> bool:
    if not (folder / "config.json").exists():
        return False
    mixture = isinstance(arm.settings, MixSettings)
    run = MixRun.open(folder).folder if mixture else Run.open(folder)
    return run.status()["state"] == "finished"
