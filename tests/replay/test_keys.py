"""Observation keys with slashes, as dm_control has them, in every store."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from millpond import BadConfig, Field, HostPond, Lake, Pond, Rows, Spec, SpecMismatch, Window
from millpond.transport import Channel

FIELDS = {
    "walker/joints": Field("float32", (3,)),
    "walker": {"height": Field("float32"), "a/b": {"c": Field("uint8", (2,))}},
    "": Field("float32"),
}
SPEC = Spec(obs=FIELDS, action=Field("int32", (), 0, 3))
WINDOW = Window(stack=2)


def obs_of(number: np.ndarray) -> dict:
    """[time, env] numbers, told apart by field."""
    wide = number[..., None]
    return {
        "walker/joints": (wide + np.array([0, 0.25, 0.5])).astype("f4"),
        "walker": {
            "height": number.astype("f4") + np.float32(0.75),
            "a/b": {"c": np.repeat(wide, 2, -1).astype("u1")},
        },
        "": -number.astype("f4"),
    }


def rows(time: int = 8, envs: int = 2) -> Rows:
    number = np.arange(time)[:, None] + 100 * np.arange(envs)
    quiet, flags = np.zeros((time, envs), bool), np.zeros((time, envs), np.uint8)
    flags[0] = 1
    return Rows(
        obs_of(number), np.zeros((time, envs), "i4"), number.astype("f4"), quiet, quiet, flags
    )


def same(got, wanted) -> None:
    assert jax.tree.structure(got) == jax.tree.structure(wanted)
    jax.tree.map(np.testing.assert_array_equal, got, wanted)


def check(batch) -> None:
    keep = np.asarray(batch.mask)
    assert keep.any()
    batch = jax.tree.map(lambda leaf: np.asarray(leaf)[keep], batch)
    number = batch.draw.ids() + 100 * batch.draw.stream
    same(jax.tree.map(lambda leaf: leaf[:, -1], batch.obs), obs_of(number))
    same(jax.tree.map(lambda leaf: leaf[:, -1], batch.next_obs), obs_of(number + 1))


@pytest.mark.parametrize("layout", ["stream", "per_env"])
@pytest.mark.parametrize("window", [Window(), WINDOW], ids=["plain", "stack"])
def test_slashes_in_a_host_pond(layout, window):
    pond = HostPond(SPEC, 40, 2, window, layout=layout)
    pond.add(rows())
    check(pond.sample(64))
    twin = HostPond(SPEC, 40, 2, window, layout=layout)
    twin.restore(pond.export())
    check(twin.sample(64))
    same(pond.read(np.array([1]), np.array([3])).obs, obs_of(np.array([103])))


def test_slashes_on_a_device():
    pond = Pond(SPEC, 40, 2, WINDOW)
    state = pond.add(pond.init(), rows())
    check(pond.sample(state, jax.random.key(0), 64)[1])


def test_slashes_in_a_lake(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 100_000)
    with lake.writer("a", 2) as writer:
        writer.append(rows())
        writer.commit()
    lake = Lake.open(tmp_path / "lake", "r")
    check(lake.sample(np.random.default_rng(0), 64, WINDOW))
    same(lake.read(1, 3, 4).obs, obs_of(np.array([103])))


def test_slashes_through_a_channel():
    channel = Channel.create(SPEC, 2, 8, 2)
    writer, reader = channel.writer(SPEC), channel.reader(SPEC)
    writer.push(rows(), timeout=0)
    same(reader.pop().obs, rows().obs)
    reader.close(), writer.close()


def test_ambiguous_keys_are_refused():
    twice = {"a/b": Field("float32"), "a": {"b": Field("float32")}}
    with pytest.raises(BadConfig, match=r"obs/a/b.*rename"):
        Spec(obs=twice, action=Field("int32"))
    for wrong in ({0: Field("float32")}, {"a": 3}, [Field("float32")]):
        with pytest.raises(BadConfig, match="obs"):
            Spec(obs=wrong, action=Field("int32"))
    pond = HostPond(Spec(obs={"a/b": Field("float32")}, action=Field("int32")), 10)
    quiet, one = np.zeros(1, bool), np.ones(1, "f4")
    obs = {"a/b": one, "a": {"b": one}}
    with pytest.raises(SpecMismatch, match="two"):
        pond.add(Rows(obs, np.zeros(1, "i4"), one, quiet, quiet, np.ones(1, "u1")))
    assert pond.size == 0
