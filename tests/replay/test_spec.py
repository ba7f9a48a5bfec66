"""Spec: what it reads from envs, refuses, and promises to keep stable."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from millpond import BadConfig, Field, HostPond, Spec, border_row


def test_fingerprint_is_stable_and_tells_specs_apart():
    spec = Spec(obs=Field("uint8", (84, 84)), action=Field("int32", (), 0, 17))
    assert spec.fingerprint() == "fa6291ac7a4262e1", "a changed fingerprint orphans stored data"
    assert spec.fingerprint() == Spec.from_json(spec.to_json()).fingerprint()
    others = [
        Spec(obs=Field("uint8", (84, 83)), action=Field("int32", (), 0, 17)),
        Spec(obs=Field("int8", (84, 84)), action=Field("int32", (), 0, 17)),
        Spec(obs=Field("uint8", (84, 84)), action=Field("int32", (), 0, 16)),
        Spec(obs={"a": Field("uint8", (84, 84))}, action=Field("int32", (), 0, 17)),
        Spec(Field("uint8", (84, 84)), Field("int32", (), 0, 17), {"life_lost": Field("bool")}),
    ]
    assert len({s.fingerprint() for s in [spec, *others]}) == 6


def test_key_order_does_not_matter():
    a, b = Field("uint8", (2,)), Field("float32")
    one = Spec(obs={"a": a, "b": {"c": b, "d": a}}, action=b)
    two = Spec(obs={"b": {"d": a, "c": b}, "a": a}, action=b)
    assert one.fingerprint() == two.fingerprint()
    assert list(one.columns) == ["obs/a", "obs/b/c", "obs/b/d", "action", "reward"]


def test_from_env_reads_every_space_with_a_fixed_shape():
    env = gymnasium.make("CartPole-v1")
    spec = Spec.from_env(env)
    assert spec.obs.describe() == "float32 (4,)"
    assert (spec.action.dtype, spec.action.low, spec.action.high) == (np.int32, 0, 1)
    vector = gymnasium.make_vec("CartPole-v1", num_envs=3, vectorization_mode="sync")
    assert Spec.from_env(vector).fingerprint() == spec.fingerprint()

    class Fake:
        observation_space = spaces.Dict(
            {
                "image": spaces.Box(0, 255, (8, 8), np.uint8),
                "keys": spaces.MultiBinary(12),
                "hand": spaces.Dict({"kind": spaces.MultiDiscrete([3, 5])}),
            }
        )
        action_space = spaces.Box(-1, np.array([1.0, 2.0]), (2,), np.float64)

    spec = Spec.from_env(Fake(), extras={"epsilon": Field("float32")})
    assert list(spec.columns) == [
        "obs/hand/kind",
        "obs/image",
        "obs/keys",
        "action",
        "reward",
        "extras/epsilon",
    ]
    assert spec.columns["obs/keys"].binary
    assert spec.columns["obs/keys"].nbytes == 2
    assert spec.action.dtype == np.float32
    np.testing.assert_array_equal(spec.action.high, [1, 2])
    Fake.observation_space = spaces.Text(5)
    with pytest.raises(BadConfig, match="obs is a Text space"):
        Spec.from_env(Fake())


def test_bytes_per_row():
    spec = Spec(obs=Field("uint8", (84, 84)), action=Field("int32"))
    assert spec.row_bytes == 84 * 84 + 4 + 4 + 1
    assert Field("bool", (10, 10, 4)).nbytes == 50


@pytest.mark.parametrize(
    "make",
    [
        lambda: Field("complex64"),
        lambda: Field("uint8", (0, 3)),
        lambda: Field("float32", (2,), low=1, high=0),
        lambda: Field("float32", (2,), low=[0, 1, 2]),
        lambda: Spec(Field("uint8"), Field("int32"), {"obs": Field("bool")}),
        lambda: Spec(Field("uint8"), Field("int32"), {"life_lost": Field("int32")}),
        lambda: Spec({}, Field("int32")),
    ],
)
def test_impossible_specs_are_refused(make):
    with pytest.raises(BadConfig):
        make()


BOUNDED = [
    (Field("int32", (), 2, 7), 2, 2),
    (Field("int32", (), 0.5, 3), 1, 1),
    (Field("uint8", (2,), -1, 10), 0, 0),
    (Field("float32", (2,), high=-3), -3, -3),
    (Field("float32", (2,), -1, 1), -1, 0),
    (Field("float32", (3,), [-np.inf, 1, -2], [np.inf, 3, -1]), [0, 1, -2], [0, 1, -1]),
    (Field("bool", (9,)), 0, 0),
]


@pytest.mark.parametrize(("field", "lowest", "blank"), BOUNDED, ids=lambda value: str(value))
def test_made_up_values_lie_inside_the_bounds(field, lowest, blank):
    """Of border rows and of those that a fill makes up: a store checks them as any other."""
    for made, wanted in ((field.lowest(), lowest), (field.blank(), blank)):
        assert (made.shape, made.dtype) == (field.shape, field.dtype)
        assert (made == wanted).all()
    spec = Spec(Field("float32", (1,), low=1), Field("int32", (), 0, 1), {"x": field})
    pond = HostPond(spec, 10)
    pond.add(border_row(spec, np.ones(1, np.float32)))
    assert pond.size == 1
