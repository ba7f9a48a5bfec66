"""Random keys of a run: derived from (seed, role, turn), so that none need be saved."""

from __future__ import annotations

from enum import IntEnum

import jax

from ..rows import Array


class Role(IntEnum):
    """What random numbers are for; each role has its own."""

    PARAMETERS = 0
    RESET = 1
    ACT = 2
    ENV = 3
    DRAW = 4
    LEARN = 5
    EVALUATE = 6


def key_of(seed: int, role: Role, turn: Array = 0) -> jax.Array:
    """The key of a role at a turn: `key_of(seed, Role.ACT, turn)`."""
    with jax.ensure_compile_time_eval():  # inside jit this part is a constant
        of_role = jax.random.fold_in(jax.random.key(seed), int(role))
    return jax.random.fold_in(of_role, turn)
