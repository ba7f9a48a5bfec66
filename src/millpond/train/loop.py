"""`open_loop`: the loop that runs a session's rounds: one program, or actors and learners."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from ..cluster import team as ray_team
from ..engine.crew import CrewLoop
from ..engine.device_loop import DeviceLoop
from ..engine.sequential import LocalCrew
from ..engine.settings import Settings
from ..process import team as process_team

Loop = DeviceLoop | CrewLoop


@contextlib.contextmanager
def open_loop(settings: Settings, folder: Path) -> Generator[Loop]:
    """The loop for these settings; whatever it opens is closed at the end."""
    if settings.way == "fused":
        yield DeviceLoop(settings)
    elif settings.way == "sequential":
        with LocalCrew.opened(settings, folder) as crew:
            yield CrewLoop(settings, crew)
    else:
        team = ray_team if settings.way == "ray" else process_team
        with team.open_loop(settings, folder) as loop:
            yield loop
