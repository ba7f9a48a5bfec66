"""Tensors in the memory of batches that a device gave. Apart from test_torch.py, whose workers are
forked, which must not happen where JAX runs.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from lakes import SPEC

from millpond import Pond, Rows
from millpond.compat.torch import as_torch


def test_tensors_of_a_device_batch_share_its_memory():
    made = Pond(SPEC, 40, 2)
    state = made.init()
    zero = jnp.zeros(2, bool)
    for t in range(6):
        rows = (jnp.full((2, 3), t, jnp.float32), jnp.zeros(2, jnp.int32), jnp.ones(2), zero, zero)
        flags = jnp.full(2, t == 0, jnp.uint8)
        state = made.add(state, Rows(*rows, flags, {"mood": jnp.zeros(2, jnp.uint8)}))
    batch = made.sample(state, jax.random.key(0), 5)[1]
    given = as_torch(batch)
    assert given.draw.row.dtype == torch.uint32  # exact, though PyTorch can do little with it
    for array, tensor in zip(jax.tree.leaves(batch), jax.tree.leaves(given), strict=True):
        assert tensor.data_ptr() == array.unsafe_buffer_pointer()
        np.testing.assert_array_equal(tensor.numpy(), array)
