"""Rows of several policies in one push: side by side, as if they were more envs."""

from __future__ import annotations

import jax

from ..engine.sequential import rows_of
from ..rows import Rows


def to_block(rows: Rows, policies: range) -> Rows:
    """Rows [time, policies * env] of some policies, out of [time, policies, env] of all."""
    mine = rows_of(rows, policies)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), -1, *leaf.shape[3:]), mine)


def from_block(block: Rows, policies: range) -> Rows:
    """Rows [time, policies, env] again."""
    number = len(policies)
    return jax.tree.map(lambda leaf: leaf.reshape(len(leaf), number, -1, *leaf.shape[2:]), block)
