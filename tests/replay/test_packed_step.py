"""`add_packed` writes exactly what `add` does, or declines and changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from test_short_way import SPECS

from millpond import Field, Flag, HostPond, PackedStep, Rows, Spec, prioritized

ENVS = [("stream", 1), ("per_env", 1), ("per_env", 3), ("stream", 3)]


def packed(spec, obs, action, reward, flags, ends, final) -> PackedStep:
    stored = flags + (16 * ends[0] + 32 * ends[1]).astype(np.uint8)
    closed = {env: final[env].tobytes() for env in np.flatnonzero(ends.any(0)).tolist()}
    return PackedStep(obs.tobytes(), action.tobytes(), reward.tobytes(), stored.tobytes(), closed)


def spoiled(chance, step: PackedStep, envs: int) -> PackedStep:
    """The same with a fault that must be declined."""
    kind = chance.integers(9)
    if kind < 3:
        name = step._fields[kind]
        value = getattr(step, name)
        return step._replace(**{name: value[:-1] if chance.random() < 0.5 else value + b"\0"})
    if kind == 3:
        return step._replace(reward=np.full(envs, chance.choice([np.nan, np.inf]), "f4").tobytes())
    marks = bytearray(step.flags)
    env = int(chance.integers(envs))
    if kind == 4:
        marks[env] ^= int(chance.choice([1, 2, 8, 64, 128]))
        return step._replace(flags=bytes(marks))
    if kind == 5:
        return step._replace(flags=step.flags + b"\0")
    final = dict(step.final)
    if kind == 6 and final:
        final.popitem()
    elif kind == 7 and final:
        env, value = final.popitem()
        final[env] = value[:-1]
    else:
        final[int(chance.choice([env, -1, envs]))] = step.obs[: len(step.obs) // envs]
        if final.keys() == step.final.keys():
            final.clear()
            final[-1] = b""
    return step._replace(final=final)


def same(one: HostPond, two: HostPond) -> None:
    mine, other = one.export(), two.export()
    for name in mine:
        np.testing.assert_array_equal(mine[name], other[name], err_msg=name)
    for pond in (one, two):
        pond.check()
    np.testing.assert_array_equal(one.added, two.added)


@pytest.mark.parametrize(("layout", "envs"), ENVS)
@pytest.mark.parametrize("name", ["open", "bounded", "half open", "nan", "bool"])
@pytest.mark.parametrize("sampler", [None, prioritized()], ids=["plain", "ranked"])
def test_steps_enter_as_rows_do_or_not_at_all(name, layout, envs, sampler):
    spec, chance = SPECS[name], np.random.default_rng(7)
    ponds = [HostPond(spec, 9 * envs, envs, sampler=sampler, layout=layout) for _ in range(2)]
    flags, cut, declined, saved = np.full(envs, Flag.FIRST, np.uint8), True, 0, ()
    for number in range(200):
        ends = chance.random((2, envs)) < 0.08
        obs, final, action = (
            chance.integers(0, 2, (envs, *field.shape)).astype(field.dtype)
            for field in (spec.obs, spec.obs, spec.action)
        )
        reward = chance.integers(-3, 4, envs).astype("f4")
        step = packed(spec, obs, action, reward, flags, ends, final)
        if chance.random() < 0.3:
            wrong = spoiled(chance, step, envs)
            assert not ponds[0].add_packed(wrong), wrong
            declined += 1
            same(*ponds)
        rows = Rows(obs, action, reward, *ends, flags)
        assert ponds[0].add_packed(step) is not cut, "only what follows a cut is left to add"
        if cut:
            ponds[0].add(rows, final_obs=final)
        ponds[1].add(rows, final_obs=final)
        if number % 3 == 0:
            same(*ponds)
        flags = np.where(ends.any(0), np.uint8(Flag.FIRST), np.uint8(0))
        cut = bool(chance.random() < 0.05)
        if cut:
            env = int(chance.integers(envs))
            for pond in ponds:
                pond.cut(env)
        if number % 50 == 29:
            saved = ponds[0].export(), flags, cut
        if number % 50 == 49:  # back to where it was 20 steps ago
            for pond in ponds:
                pond.restore(saved[0])
            _, flags, cut = saved
    same(*ponds)
    assert declined > 40


def test_values_that_do_not_fit_are_declined():
    for name, value in (("open", np.nan), ("bounded", 2.5), ("half open", 6), ("elements", None)):
        spec = SPECS[name]
        pond = HostPond(spec, 10)
        obs = np.zeros((1, *spec.obs.shape), spec.obs.dtype)
        step = PackedStep(
            obs.tobytes(),
            np.zeros((1, *spec.action.shape), spec.action.dtype).tobytes(),
            np.zeros(1, "f4").tobytes(),
            b"\1",
            {},
        )
        if value is None:  # bounds of their own per element: add compares them
            assert not pond.add_packed(step)
            continue
        assert not pond.add_packed(step), "nothing is known of what came before"
        rows = [np.zeros((1, *field.shape), field.dtype) for field in (spec.obs, spec.action)]
        no = np.zeros(1, bool)
        pond.add(Rows(*rows, np.zeros(1), no, no, np.ones(1, np.uint8)))
        step = step._replace(flags=b"\0")
        bad = obs.copy()
        bad.flat[0] = value
        assert not pond.add_packed(step._replace(obs=bad.tobytes()))
        ended = step._replace(flags=b"\x10", final={0: bad[0].tobytes()})
        assert not pond.add_packed(ended)
        assert pond.size == 1
        assert pond.add_packed(ended._replace(final={0: obs[0].tobytes()}))
        assert pond.size == 3


def test_rows_with_more_than_one_array_are_left_to_add():
    for spec in (
        Spec({"a": Field("float32")}, Field("int32")),
        Spec(Field("float32"), Field("int32"), extras={"x": Field("int32")}),
    ):
        pond = HostPond(spec, 10)
        assert not pond.add_packed(PackedStep(bytes(4), bytes(4), bytes(4), b"\1", {}))
        assert pond.size == 0
