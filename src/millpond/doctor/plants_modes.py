"""`in_mode(plant, mode)`: a bug that was planted in one program, planted in another mode."""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from ..agents import Replayed
from ..cluster import team as ray_team
from ..engine import device_actor, pond_updates
from ..process import team as process_team
from .plants import PLANTS, Plant
from .plants_probe import PROBE_PLANTS
from .probe_checks import ANSWERED

_TOGETHER = ("fused", "sequential")
_planted: list[AbstractContextManager[None]] = []  # in this process, for as long as it lives


def plants_in(mode: str = "") -> list[Plant]:
    """Every plant as it is declared or, of those that a mode has, all in that mode."""
    if not mode:
        return [*PLANTS, *PROBE_PLANTS]
    own = [plant for plant in PLANTS if plant.settings.mode == mode]
    # Who acts and learns in turn has no processes of its own.
    there = [
        p for p in PROBE_PLANTS if mode in _TOGETHER or isinstance(p.settings.learns, Replayed)
    ]
    return [*own, *(in_mode(plant, mode) for plant in there)]


def in_mode(plant: Plant, mode: str) -> Plant:
    """The same bug in another mode, where what is recorded may name it besides."""
    if plant.settings.mode == mode:
        return plant
    named = {plant.fires, *plant.may}
    recorded = [check for check, others in ANSWERED.items() if named & set(others)]
    if "stored-rows" in named:  # rows as they came are compared with what is drawn there
        recorded += ["nstep-oracle", "stack-parity", "episode-borders"]
    opener = plant.opener
    if mode not in _TOGETHER:
        team = ray_team if mode == "ray" else process_team
        opener = functools.partial(team.open_loop, hook=_hooks(plant))
    other: Any = mode
    settings = dataclasses.replace(plant.settings, mode=other)
    may = (*plant.may, *recorded)
    return dataclasses.replace(plant, may=may, settings=settings, opener=opener)


def _hooks(plant: Plant) -> dict[str, str]:
    """What processes ask for before they make their parts: see `__getattr__`."""
    patch: Any = plant.patch
    if patch is nullcontext:
        return {}
    where = f"{__name__}:{patch.__module__}:{patch.__name__}"
    return dict.fromkeys(("actor", "learner", "shard"), where)


def __getattr__(name: str) -> Callable[[Any], None]:
    """Asking for `package.module:patch` breaks this process for good, before its part is made."""
    module, colon, patch = name.partition(":")
    if not colon:
        raise AttributeError(name)
    context = getattr(importlib.import_module(module), patch)()
    context.__enter__()
    _planted.append(context)
    return lambda part: None


@contextmanager
def compiled_again() -> Generator[None]:
    """Programs that are kept by their settings are not those of another bug."""

    def forget() -> None:
        for module in (device_actor, pond_updates):
            module._program.forget()  # pyright: ignore[reportPrivateUsage]

    forget()
    try:
        yield
    finally:
        forget()
