"""`PackedStep`: a step of all envs, given as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PackedStep(NamedTuple):
    """One row of every env, each column as `tobytes()` of an array in the column's dtype.

    `flags` are as stored, including TERMINATED and TRUNCATED. `final` holds the final observations
    of envs whose episodes end, by env. `pond.add_packed(PackedStep(...))`.
    """

    obs: bytes
    action: bytes
    reward: bytes
    flags: bytes
    final: Mapping[int, bytes]
