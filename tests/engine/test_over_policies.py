"""`over_policies` beside `jax.vmap`, which it must equal for one policy and for several."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond.engine.over_policies import over_policies


@pytest.mark.parametrize("policies", [1, 3])
def test_it_is_vmap(policies):
    """Axes 0, 1 and none, in and out, shared leaves in a tree, and an argument that is missing."""
    rng = np.random.default_rng(0)

    def values(*shape):
        return rng.normal(size=shape).astype(np.float32)

    def function(state, ring, rows, shift, nothing):
        assert state["w"].shape == (2, 4)
        assert rows.shape == (5, 2)
        assert nothing is None
        rows = rows @ state["w"] + ring["column"] + shift
        return rows.sum(), {"column": rows[0], "head": ring["head"] + 1}

    axes = {"column": 0, "head": None}
    ins, outs = (0, axes, 1, None, 0), (0, axes)
    ring = {"column": values(policies, 4), "head": jnp.int32(7)}
    given = ({"w": values(policies, 2, 4)}, ring, values(5, policies, 2), np.float32(0.5), None)
    found = over_policies(function, ins, outs)(*given)
    wanted = jax.vmap(function, ins, outs)(*given)
    assert jax.tree.structure(found) == jax.tree.structure(wanted)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert a.shape == b.shape
        np.testing.assert_allclose(a, b, rtol=1e-6)
