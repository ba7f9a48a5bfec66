"""Where a row came from: the version of the parameters, epsilon, and the stack acted on.

Rows on their way from an actor to a learner carry these as extras, so that the learner can check
that it trains on what was acted on, and how old it is.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from ..envs import spec_of
from ..rows import Array, Tree
from ..spec import Field, Spec
from .make_agent import make_agent
from .player import memory_of
from .settings import Settings

EXTRAS = {
    "policy_version": Field("uint32"),  # updates that the acting parameters had seen
    "epsilon": Field("float32"),  # as applied
    "stack_hash": Field("uint32"),  # of the stack acted on
}


def stored_spec(settings: Settings) -> Spec:
    """The spec of the env's rows and, for an agent with memory, the memory it acted with."""
    spec, units = spec_of(settings.world), memory_of(make_agent(settings))
    if not units:
        return spec
    return dataclasses.replace(spec, extras={**spec.extras, "memory": Field("float32", (units,))})


def traced_spec(settings: Settings) -> Spec:
    """The stored spec, and provenance."""
    spec = stored_spec(settings)
    return dataclasses.replace(spec, extras={**spec.extras, **EXTRAS})


def stack_hash(stacks: Tree, lead: int) -> Array:
    """A uint32 for every stack, over the first `lead` axes; equal for equal stacks. Inside jit."""
    return sum(_hash(leaf, lead) for leaf in jax.tree.leaves(stacks))


def _hash(leaf: Array, lead: int) -> Array:
    wide = leaf.dtype == np.float32
    words = jax.lax.bitcast_convert_type(leaf, np.uint32) if wide else leaf.astype(np.uint32)
    words = words.reshape(*leaf.shape[:lead], -1)
    # An odd factor for each place: any single change changes the sum, and so does a swap.
    factors = np.random.default_rng(0).integers(2**31, size=words.shape[-1], dtype=np.uint32)
    return (words * jnp.asarray(factors * 2 + 1)).sum(-1, dtype=np.uint32)
