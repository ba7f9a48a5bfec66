"""`make_actor`: a vector env and the policies that act in it, which give rows cycle by cycle."""

from __future__ import annotations

import numpy as np

from ..envs import Env
from .device_actor import DeviceActor
from .host_actor import HostActor
from .settings import Settings

# One of `settings.actors`. A cycle is some turns of all envs with the same parameters.
Actor = DeviceActor | HostActor


def make_actor(
    settings: Settings,
    index: int,
    incarnation: int = 0,
    cycle: int = 0,
    steps: np.ndarray | None = None,
) -> Actor:
    """Actor `index`. After a crash its next incarnation continues at `cycle` and `steps`.

    Incarnations are numbered from 0 whenever a run is started or resumed, turns from the beginning
    of the run. Random numbers depend on both, so none is drawn twice in a run.
    """
    if isinstance(settings.world, Env):
        return DeviceActor(settings, index, incarnation, cycle, steps)
    return HostActor(settings, index, incarnation, cycle, steps)
