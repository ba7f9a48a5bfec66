"""What XLA makes of the ring: no copy of it and no scatter, in either order, vmapped too."""

from __future__ import annotations

import copy
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond import Field, Pond, Rows, Sequence, Spec, Window, prioritized

SPEC = Spec(obs=Field("uint8", (16, 16)), action=Field("int32", (), 0, 5))
ENVS, LENGTH, BATCH = 8, 512, 16
POND = Pond(SPEC, ENVS * LENGTH, ENVS, Window(stack=2, n_step=2))
SEQUENCES = Pond(SPEC, ENVS * LENGTH, ENVS, window=Sequence(6, stack=2, burn_in=2, end="stop"))


def rows(*lead: int) -> Rows:
    return Rows(
        jnp.ones((*lead, 16, 16), jnp.uint8),
        jnp.ones(lead, jnp.int32),
        jnp.ones(lead),
        jnp.zeros(lead, bool),
        jnp.zeros(lead, bool),
        jnp.zeros(lead, jnp.uint8),
    )


def loss(batch):
    return sum(leaf.astype(np.float32).sum() for leaf in jax.tree.leaves(batch.obs)) + (
        batch.reward.sum() + getattr(batch, "next_obs", batch.obs).sum()
    )


def add_then_sample(add, sample, state, new, key):
    state = add(state, new)
    state, batch = sample(state, key)
    return state, loss(batch)


def sample_then_add(add, sample, state, new, key):
    state, batch = sample(state, key)
    value = loss(batch)
    scaled = new._replace(reward=new.reward + value * 0)
    return add(state, scaled), value


def programs():
    one = (POND.add, lambda state, key: POND.sample(state, key, BATCH))
    many = (
        jax.vmap(POND.add, in_axes=(POND.axes, 0), out_axes=POND.axes),
        jax.vmap(one[1], in_axes=(POND.axes, 0), out_axes=(POND.axes, 0)),
    )
    key = jax.random.key(0)
    keys = jax.random.split(key, 3)
    yield "one step", one, POND.init(), rows(ENVS), key
    yield "time block", one, POND.init(), rows(5, ENVS), key
    yield (
        "sequences",
        (SEQUENCES.add, lambda state, key: SEQUENCES.sample(state, key, BATCH)),
        SEQUENCES.init(),
        rows(ENVS),
        key,
    )
    yield "three agents", many, POND.init_many(3), rows(3, ENVS), keys


# By default each order of each case is compiled with a scan around it or without, in turn.
CELLS = [
    pytest.param(scanned, case, order, marks=[] if here else [pytest.mark.full])
    for one, case in enumerate(["one step", "time block", "sequences", "three agents"])
    for two, order in enumerate([add_then_sample, sample_then_add])
    for scanned in (False, True)
    for here in [(one + two) % 2 == scanned]
]


@pytest.mark.parametrize(("scanned", "case", "order"), CELLS)
def test_no_ring_sized_copy_and_no_scatter(order, case, scanned):
    _, (add, sample), state, new, key = next(p for p in programs() if p[0] == case)

    def program(state, new, key):
        step = lambda state, _: order(add, sample, state, new, key)
        return jax.lax.scan(step, state, None, length=3) if scanned else step(state, None)

    compiled = jax.jit(program, donate_argnums=0).lower(state, new, key).compile()
    ring = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < ring / 4, f"{temporary} B of scratch for a ring of {ring} B: it is copied"
    text = compiled.as_text()
    shapes = {",".join(map(str, leaf.shape)) for leaf in jax.tree.leaves(state) if leaf.size > 999}
    for line in text.splitlines():
        made = re.match(r"\s*(?:ROOT )?%?[\w.\-]+ = \w+\[([\d,]+)\]\S* (\w[\w\-]*)\(", line)
        if made and made[1] in shapes:
            assert made[2] not in ("copy", "scatter", "copy-start"), line


@pytest.mark.parametrize("layout", ["stream", "shared"])
def test_a_prioritised_cycle_copies_no_tree(layout):
    spec = Spec(obs=Field("uint8", (2,)), action=Field("uint8"))
    pond = Pond(spec, 2**17, ENVS, sampler=prioritized(), layout=layout)
    more = (jnp.ones((ENVS, 2), jnp.uint8),) if layout == "shared" else ()
    new = rows(ENVS)._replace(obs=jnp.ones((ENVS, 2), jnp.uint8), action=jnp.ones(ENVS, jnp.uint8))

    def turn(state, key):
        state = pond.add(state, new, *more)
        state, batch = pond.sample(state, key, BATCH)
        state = pond.update_priorities(state, batch.draw, batch.reward)
        return state, (batch.obs, batch.weight)  # not all of it is used

    def program(state, keys):
        return jax.lax.scan(turn, state, keys)

    state, keys = pond.init(), jax.random.split(jax.random.key(0), 3)
    tree = state.priorities.tree.nbytes
    compiled = jax.jit(program, donate_argnums=0).lower(state, keys).compile()
    temporary = compiled.memory_analysis().temp_size_in_bytes
    assert temporary < tree / 2, f"{temporary} B of scratch for a tree of {tree} B: it is copied"


def test_the_test_would_see_a_copy():
    """Without the thread of data through `zero`, sampling before adding does copy the ring."""

    def program(state, new, key):
        _, batch = POND.sample(state, key, BATCH)
        value = loss(batch)
        return POND.add(state, new), value

    state = POND.init()
    compiled = jax.jit(program, donate_argnums=0).lower(state, rows(ENVS), jax.random.key(0))
    ring = sum(leaf.nbytes for leaf in jax.tree.leaves(state))
    assert compiled.compile().memory_analysis().temp_size_in_bytes > ring / 4


@pytest.mark.full
def test_agents_with_one_head_hold_their_own_rows():
    add = jax.vmap(POND.add, in_axes=(POND.axes, 0), out_axes=POND.axes)
    states = POND.init_many(2)
    assert states.head.shape == ()
    for step in range(6):
        new = rows(2, ENVS)
        new = new._replace(
            reward=new.reward * jnp.array([[1.0], [10.0]]) + step,
            flags=jnp.full((2, ENVS), step == 0, jnp.uint8),
        )
        states = add(states, new)
    sample = jax.vmap(
        lambda s, k: POND.sample(s, k, 32), in_axes=(POND.axes, 0), out_axes=(POND.axes, 0)
    )
    states, batch = sample(states, jax.random.split(jax.random.key(1), 2))
    assert np.asarray(batch.mask).all()
    assert batch.reward.shape == (2, 32)
    ids = batch.draw.ids()
    for agent, level in enumerate((1.0, 10.0)):
        want = (level + ids[agent]) + 0.99 * (level + ids[agent] + 1)
        np.testing.assert_allclose(batch.reward[agent], want, rtol=1e-5)
    POND.check(states)


def test_sequences_are_one_gather_per_column():
    """Of every column [batch, rows] at once; and of the flags, once."""
    pond = Pond(SPEC, ENVS * LENGTH, ENVS, window=Sequence(6, burn_in=2, end="stop"))
    lowered = jax.jit(pond.sample, static_argnums=2).lower(pond.init(), jax.random.key(0), BATCH)
    gathers = [line for line in lowered.as_text().splitlines() if '"stablehlo.gather"' in line]
    assert len(gathers) == len(SPEC.columns) + 1, "\n".join(gathers)


def test_outside_jit_a_call_is_one_program(caplog):
    pond, key = Pond(SPEC, 33, 3, Window(stack=2)), jax.random.key(0)  # a shape of its own
    new, place = jax.tree.map(np.asarray, rows(4, 3)), np.zeros(5, np.int32)
    with jax.log_compiles():
        state, batch = pond.sample(pond.add(pond.init(), new), key, 37)
        pond.take(state, place, place)
    said = [one.getMessage() for one in caplog.records]
    compiled = [one.split()[4] for one in said if one.startswith("Finished XLA compilation of")]
    assert compiled == ["jit(init)", "jit(_write)", "jit(sample)", "jit(take)"]
    inside = jax.jit(lambda state: pond.sample(state, key, 37))(state)[1]
    jax.tree.map(np.testing.assert_array_equal, inside, batch)
    assert copy.deepcopy(pond).sample(state, key, 37)[1].reward.shape == (37,)
