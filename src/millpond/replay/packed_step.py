"""`PackedStep`: a step of all envs as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class PackedStep(NamedTuple):
    """One row of every env, each column as `tobytes()` gives it in the column's own dtype.

    `flags`: as stored, with TERMINATED and TRUNCATED in them. `final`: by env, the final
    observations of those that end. `pond.add_packed(PackedStep(...))`.
    """

    obs: bytes
    action: bytes
    reward: bytes
    flags: bytes
    final: Mapping[int, bytes]
