"""`check_room`: refuse a replay that this machine cannot hold before the run is created."""

from __future__ import annotations

from ..agents import Replayed
from ..errors import BadConfig
from ..replay.plan import Machine, make_plan
from .provenance import stored_spec
from .settings import Settings


def check_room(settings: Settings) -> None:
    """Raise BadConfig if the replay, or one batch from it, is larger than the whole memory.

    (A replay that leaves too little for the rest is only found when the run starts.) Ponds in other
    processes and on Ray are not checked: they may be on devices that this process does not see.
    """
    learns, in_memory = settings.learns, settings.replay in ("pond", "host")
    here = settings.way in ("fused", "sequential") or settings.replay == "host"
    if not isinstance(learns, Replayed) or settings.mode == "ray" or not (in_memory and here):
        return
    machine = Machine.detect()
    placement = "device" if settings.replay == "pond" else "host"
    wanted = {"batch": learns.rows(settings.envs)}
    wanted |= {} if settings.from_lake else {"capacity": learns.capacity}
    for name, rows in wanted.items():
        ranked = settings.ranked and name == "capacity"
        plan = make_plan(stored_spec(settings), capacity=max(rows, 2), prioritized=ranked)
        row = next(
            one for one in plan.layouts if (one.layout, one.placement) == ("stream", placement)
        )
        there, policies = machine.memory(placement), settings.policies
        needed = (row.total_bytes or 0) * policies
        if there is not None and needed > there:
            what = "device memory" if machine.device_bytes and placement == "device" else "RAM"
            each = f" for each of {policies} policies" if policies > 1 else ""
            lake = ", or keep rows on disk with --replay lake" if name == "capacity" else ""
            raise BadConfig(
                f"{name}: {rows:,} rows{each} take {needed / 1e9:,.1f} GB, and this machine has "
                f"{there / 1e9:,.1f} GB of {what}; use fewer{lake}"
            )
