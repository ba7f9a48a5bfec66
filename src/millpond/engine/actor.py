"""`Actor`: a vector env, and the policies that act in it. What it gives is rows, cycle by cycle."""

from __future__ import annotations

import numpy as np

from ..envs import Env
from .device_actor import DeviceActor
from .host_actor import HostActor
from .settings import Settings

# One of `settings.actors`; a cycle is `update_every` turns under the same parameters.
Actor = DeviceActor | HostActor


def make_actor(
    settings: Settings,
    index: int,
    incarnation: int = 0,
    cycle: int = 0,
    steps: np.ndarray | None = None,
) -> Actor:
    """Actor `index`; after a crash the next incarnation, which continues at `cycle` and `steps`.

    Incarnations are numbered from 0 each time a run is started or resumed, turns are not: they are
    counted from the run's first one. So whatever follows from both is never drawn twice in a run.
    """
    if isinstance(settings.world, Env):
        return DeviceActor(settings, index, incarnation, cycle, steps)
    return HostActor(settings, index, incarnation, cycle, steps)
