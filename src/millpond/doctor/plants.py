"""`PLANTS`: every bug that the self-test plants, and what must be found then."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..agents import DQNSettings, Network
from ..agents.optimizer import Optimizer
from ..engine.crew import CrewLoop
from ..engine.sequential import LocalCrew
from ..engine.settings import CrewSettings
from ..envs.treasurehunt import Treasurehunt
from ..process import team
from ..schedule import constant
from ..train import Settings
from ..train.loop import open_loop
from . import sabotage

Opener = Callable[[Settings, Path], AbstractContextManager[Any]]

# Two agents that learn to collect gems within 2,000 steps; the ring wraps several times.
HEALTHY = Settings(
    "treasurehunt-small",
    Treasurehunt(size=5, agents=2, turns=11, spawn=0.2, items=("gem",)),
    mode="sequential",
    steps=2_400,
    envs=8,
    stack=2,
    network=Network(width=32),
    learning=DQNSettings(
        batch=32,
        min_fill=16,
        capacity=512,
        update_every=2,
        n_step=2,
        gamma=0.8,
        tau=0.02,
        reward_scale=0.1,
        optimizer=Optimizer(rate=constant(3e-3)),
    ),
    crew=CrewSettings(hang_s=30.0, start_s=120.0),
    log_every=240,
    eval_every=2_400,
    eval_episodes=64,
    eval_turns=12,
    checkpoint_every=2_400,
    resume_every=2_400,
)
PROCESSES = dataclasses.replace(HEALTHY, mode="processes")


@dataclass(frozen=True)
class Plant:
    """A bug, the check that must fire, and those that may fire too; all others must be quiet.

    One without `fires` is a healthy run, and `all_green` if nothing may be unknown either.
    """

    name: str
    fires: str = ""
    may: tuple[str, ...] = ()
    settings: Settings = HEALTHY
    opener: Opener = field(default=lambda settings, folder: _opened(settings, folder))
    all_green: bool = False
    patch: Callable[[], AbstractContextManager[None]] = contextlib.nullcontext
    outlives: bool = True  # the patch is still there when the doctor looks
    probed: bool = False  # the run is probed as well


def _opened(settings: Settings, folder: Path) -> AbstractContextManager[Any]:
    """The loop that the settings ask for, as it is."""
    return (
        _broken(settings, folder) if settings.way == "sequential" else open_loop(settings, folder)
    )


@contextlib.contextmanager
def _broken(
    settings: Settings, folder: Path, breaks: Callable[[LocalCrew], None] = lambda crew: None
) -> Generator[CrewLoop]:
    """A sequential loop, broken after it was made."""
    with LocalCrew.opened(settings, folder) as crew:
        breaks(crew)
        yield CrewLoop(settings, crew)


def _crew(breaks: Callable[[LocalCrew], None]) -> Opener:
    return functools.partial(_broken, breaks=breaks)


def _code(patch: Callable[[], AbstractContextManager[None]], within: Opener) -> Opener:
    """The code of this process is another one while the loop is open."""

    @contextlib.contextmanager
    def opener(settings: Settings, folder: Path) -> Generator[Any]:
        with patch(), within(settings, folder) as loop:
            yield loop

    return opener


def _hook(process: str, breaks: Callable[[Any], None]) -> Opener:
    """A process breaks itself before it runs."""
    where = f"{breaks.__module__}:{breaks.__name__}"
    return functools.partial(team.open_loop, hook={process: where})


def _with(seed: int = 0, **changes: Any) -> Settings:
    """Compiled programs are kept by their settings: changed code needs settings of its own."""
    learning = dataclasses.replace(HEALTHY.learning, **changes)
    return dataclasses.replace(HEALTHY, seed=seed, learning=learning)


def _rate(rate: float) -> Settings:
    return _with(optimizer=Optimizer(rate=constant(rate)))


_HANG = dataclasses.replace(PROCESSES, crew=CrewSettings(hang_s=5.0, start_s=120.0))
_LOST = ("process-health",)

PLANTS = (
    Plant("healthy, sequential"),
    Plant("healthy, processes", settings=PROCESSES, opener=team.open_loop, all_green=True),
    Plant("history cleared in mid-episode", "stack-parity", opener=_crew(sabotage.forget)),
    Plant(
        "a second target update",
        "target-cadence",
        settings=_with(seed=101),
        opener=_code(sabotage.second_target_update, _broken),
    ),
    Plant("a missing done", "episode-borders", opener=_crew(sabotage.lose_an_end)),
    Plant(
        "gamma^n with a 1-step sum",
        "nstep-oracle",
        settings=_with(seed=102),
        opener=_code(sabotage.one_step_sum, _broken),
    ),
    Plant("stale parameters", "policy-lag", opener=_crew(sabotage.keep_old_parameters)),
    Plant(
        "epsilon comes late",
        "epsilon-applied",
        settings=_with(seed=103),
        opener=_code(sabotage.late_epsilon, _broken),
    ),
    Plant("half of the updates", "replay-turnover", opener=_crew(sabotage.learn_too_little)),
    Plant(
        "min_fill never reached",
        "replay-fill",
        settings=dataclasses.replace(_with(min_fill=512), steps=400),
    ),
    Plant("learning rate 0", "update-norm", settings=_rate(0.0)),
    Plant(
        "learning rate 1000", "update-norm", ("reward-scale", "settings-fit"), settings=_rate(1e3)
    ),
    Plant("rewards 1000 times too large", "reward-scale", settings=_with(reward_scale=100.0)),
    Plant(
        "a bit flips in a channel",
        "channel-integrity",
        _LOST,
        PROCESSES,
        _hook("actor 0", sabotage.flip_a_bit),
    ),
    Plant(
        "a half-written push",
        "channel-integrity",
        _LOST,
        PROCESSES,
        _hook("actor 0", sabotage.write_half),
    ),
    Plant(
        "memory passed by value",
        "shared-memory",
        _LOST,
        PROCESSES,
        _code(sabotage.by_value, team.open_loop),
    ),
    Plant(
        "parameters damaged",
        "weights-hash",
        _LOST,
        PROCESSES,
        _hook("learner 0", sabotage.damage_parameters),
    ),
    Plant("SIGKILL of an actor", *_LOST, (), PROCESSES, _hook("actor 0", sabotage.die)),
    Plant("an actor raises", *_LOST, (), PROCESSES, _hook("actor 0", sabotage.fail)),
    Plant("an actor hangs", *_LOST, (), _HANG, _hook("actor 0", sabotage.hang)),
    Plant("a learner raises", *_LOST, (), PROCESSES, _hook("learner 0", sabotage.fail)),
)
