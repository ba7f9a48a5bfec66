"""Which numbers a field takes: its own edges, nothing beyond them, and none that it cannot hold."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from millpond import BadConfig, Field, HostPond, Pond, Rows, Spec, SpecMismatch

ACTION = Field("int32", (), 0, 3)


def row(obs, **changes) -> Rows:
    obs = np.asarray(obs)
    quiet = np.zeros(1, bool)
    one = Rows(obs[None], np.zeros(1, np.int32), np.ones(1, np.float32), quiet, quiet, np.ones(1))
    return one._replace(flags=np.ones(1, np.uint8))._replace(**changes)


def judge(field: Field, obs, **changes) -> tuple[bool, bool]:
    """Whether a host and a device ring take the row."""
    spec = Spec(obs=field, action=ACTION)
    host = HostPond(spec, 10)
    try:
        host.add(row(obs, **changes))
        taken = True
    except SpecMismatch:
        taken = False
        assert host.size == 0
    device = Pond(spec, 10)
    state = jax.jit(device.add)(device.init(), row(obs, **changes))
    return taken, not np.asarray(state.faults).any()


F32 = [np.float32(0.1), np.float32(0.3)]
CASES = {
    "float32 edges of an array": (Field("float32", (2,), [0.1, 0.1], F32), F32, True),
    "edges given as float64": (Field("float32", (2,), [-0.1, -1], [0.1, 0.3]), F32, True),
    "just above an edge": (
        Field("float32", (2,), [-1, -1], [0.1, 0.3]),
        [F32[0], np.nextafter(F32[1], np.float32(1))],
        False,
    ),
    "large int": (Field("int32", (), 0, 20_000_000), np.int32(20_000_001), False),
    "large int at its edge": (Field("int32", (), 0, 20_000_000), np.int32(20_000_000), True),
    "large ints of an array": (
        Field("int32", (2,), 0, [20_000_000, 5]),
        np.array([20_000_001, 5], np.int32),
        False,
    ),
    "negative into uint32": (Field("uint32"), np.int32(-1), False),
    "int32 into uint32": (Field("uint32"), np.int32(2**31 - 1), True),
    "uint32 into int32": (Field("int32"), np.uint32(2**31), False),
    "int8 that can never fit": (Field("int32", (), 1000, 2000), np.int8(5), False),
    "1e6 into float16": (Field("float16", (2,)), np.array([1, 1e6], np.float32), False),
    "int into float16": (Field("float16", (2,)), np.array([1, 70_000], np.int32), False),
    "inf into float16": (Field("float16", (2,)), np.array([1, np.inf], np.float32), True),
    "nan": (Field("float32", (2,)), np.array([1, np.nan], np.float32), False),
    "nan of an image": (Field("float32", (120, 120)), np.full((120, 120), np.nan, "f4"), False),
    "nan in float16": (Field("float16", (2,)), np.array([1, np.nan], np.float16), False),
    "nan allowed": (Field("float32", (2,), allow_nan=True), np.array([1, np.nan], "f4"), True),
    "nan allowed within bounds": (
        Field("float32", (2,), 0, 1, allow_nan=True),
        np.array([1, np.nan], "f4"),
        True,
    ),
    "nan allowed, bounds kept": (
        Field("float32", (2,), 0, 1, allow_nan=True),
        np.array([2, np.nan], "f4"),
        False,
    ),
    "inf": (Field("float32", (2,)), np.array([-np.inf, np.inf], np.float32), True),
    "half a bit": (Field("uint8", (9,), binary=True), np.full(9, 2, np.uint8), False),
}


@pytest.mark.parametrize("case", CASES)
def test_host_and_device_take_the_same_numbers(case):
    field, obs, fits = CASES[case]
    assert judge(field, obs) == (fits, fits)


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")  # JAX casts on the way in
def test_a_reward_beyond_float32_is_refused_not_infinite():
    field = Field("float32", (2,))
    assert judge(field, np.ones(2, "f4"), reward=np.array([1e39])) == (False, False)
    pond = HostPond(Spec(obs=field, action=ACTION), 10)
    with pytest.raises(SpecMismatch, match="float32 can hold"):
        pond.add(Rows(np.ones(2, "f4"), 1, 1e39, False, False, 1))
    with pytest.raises(SpecMismatch, match="allow_nan"):
        pond.add(Rows(np.full(2, np.nan, "f4"), 1, 1.0, False, False, 1))
    assert pond.size == 0


def test_64_bit_bounds_are_exact_on_the_host():
    spec = Spec(obs=Field("int64", (), 0, 2**60 + 1), action=ACTION)
    HostPond(spec, 10).add(row(np.int64(2**60 + 1)))
    with pytest.raises(SpecMismatch):
        HostPond(spec, 10).add(row(np.int64(2**60 + 2)))
    again = Spec.from_json(spec.to_json())
    assert again == spec
    assert again.fingerprint() == spec.fingerprint()


def test_rows_that_a_mask_leaves_out_may_hold_anything():
    pond = HostPond(Spec(obs=Field("float32", (1,)), action=ACTION), 10, 2, layout="per_env")
    two = jax.tree.map(lambda leaf: np.repeat(leaf, 2, axis=0), row(np.ones(1, "f4")))
    bad = two._replace(obs=np.array([[1], [np.nan]], "f4"), reward=np.array([1, np.inf], "f4"))
    pond.add(bad, mask=np.array([True, False]))
    assert pond.added.tolist() == [1, 0]
    with pytest.raises(SpecMismatch):
        pond.add(bad, mask=np.array([False, True]))


def test_fields_compare_and_hash_whatever_their_bounds():
    one, two = (Field("float32", (2,), [0, 1], [2, 3]) for _ in range(2))
    assert one == two
    assert hash(one) == hash(two)
    assert one != Field("float32", (2,), [0, 1], [2, 4])
    assert one != Field("float32", (2,), [0, 1], [2, 3], allow_nan=True)
    assert one != "float32"
    with pytest.raises(BadConfig, match="not a number"):
        Field("float32", (2,), low=float("nan"))


def test_allow_nan_leaves_other_fingerprints_alone():
    assert "allow_nan" not in Field("float32").to_json()
    field = Field("float32", (2,), allow_nan=True)
    assert Field.from_json(field.to_json()) == field
