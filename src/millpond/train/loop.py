"""`Loop`: what a training session asks of the machinery that runs rounds."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ..cluster import team as ray_team
from ..engine.crew import CrewLoop
from ..engine.device_loop import DeviceLoop
from ..engine.episode_stats import Sums
from ..engine.sequential import LocalCrew
from ..engine.settings import Settings
from ..process import team as process_team


class Loop(Protocol):
    """Rounds of cycles over a state that can be saved whole."""

    @property
    def turns_per_cycle(self) -> int:
        """Turns of all envs in one cycle."""
        ...

    def init(self) -> Any:
        """The run's first state; `state.agent` is the agents' part of it."""
        ...

    def round(self, state: Any, cycles: int) -> tuple[Any, Sums]:
        """Run that many cycles; `state` is used up."""
        ...

    def steps(self, state: Any) -> np.ndarray:
        """Env steps of every policy so far."""
        ...

    def bad(self, state: Any) -> np.ndarray:
        """Which policies met a gradient that was not finite."""
        ...

    def check(self, state: Any) -> None:
        """Raise if an env gave what it does not declare."""
        ...

    def health(self) -> dict[str, Any]:
        """Evidence of the last round, for the doctor; empty where there is none."""
        ...

    def pace(self) -> dict[str, Any]:
        """What depends on the clock and belongs beside the metrics."""
        ...

    def pack(self, state: Any) -> Any:
        """All that must be saved."""
        ...

    def like(self) -> Any:
        """Shapes and dtypes of what `pack` returns."""
        ...

    def unpack(self, tree: Any) -> Any:
        """Go on from what `pack` returned."""
        ...


@contextlib.contextmanager
def open_loop(settings: Settings, folder: Path) -> Generator[Loop]:
    """The loop that the settings ask for; whatever it opens is closed at the end."""
    if settings.way == "fused":
        yield DeviceLoop(settings)
    elif settings.way == "sequential":
        with LocalCrew.opened(settings, folder) as crew:
            yield CrewLoop(settings, crew)
    else:
        team = ray_team if settings.way == "ray" else process_team
        with team.open_loop(settings, folder) as loop:
            yield loop
