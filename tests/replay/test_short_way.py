"""The short way into a HostPond takes and refuses exactly what the long way does."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from millpond import (
    BrokenEpisode,
    Field,
    Flag,
    HostPond,
    Rows,
    Spec,
    SpecMismatch,
    next_flags,
    prioritized,
)
from millpond.replay.lanes import within

SPECS = {
    "open": Spec(Field("float32", (3,)), Field("float32", (2,))),
    "bounded": Spec(Field("float32", (3,), -2, 2), Field("int32", (), 0, 3)),
    "half open": Spec(Field("float16", (3,), None, 5), Field("uint8")),
    "nan": Spec(Field("float32", (3,), allow_nan=True), Field("int64", (), -5)),
    "nan in bounds": Spec(Field("float32", (3,), -2, 2, allow_nan=True), Field("float32")),
    "elements": Spec(Field("uint8", (3,)), Field("float32", (2,), [-1, -2], [1, 2])),
    "bool": Spec(Field("bool"), Field("bool")),
}
WRONG = (np.nan, np.inf, -np.inf, 1e39, -1e39, 2.0000001, 300.0, -7.0, 2.5, 4, -1, 70_000, 2**40)


def pair(spec, envs, layout, sampler=None):
    """A pond as it is, and one that takes every row the long way."""
    ponds = [HostPond(spec, 6 * envs, envs, sampler=sampler, layout=layout) for _ in range(2)]
    ponds[1]._gate._short = None
    return ponds


def both(ponds, call) -> str:
    """Run a call on both ponds: the same outcome, the same ring afterwards; the error, if any."""
    said = []
    for pond in ponds:
        try:
            call(pond)
            said.append("")
        except (SpecMismatch, BrokenEpisode) as error:
            said.append(f"{type(error).__name__}: {error}")
    assert said[0] == said[1]
    mine, long = (pond.export() for pond in ponds)
    assert mine.keys() == long.keys()
    for name in mine:
        np.testing.assert_array_equal(mine[name], long[name], err_msg=name)
    np.testing.assert_array_equal(ponds[0].added, ponds[1].added)
    for pond in ponds:
        pond.check()
    return said[0]


def values(chance, field, lead):
    """Values that fit mostly, in the field's dtype or in another one."""
    dtype = field.dtype
    if dtype.kind == "f" and chance.random() < 0.4:
        dtype = np.dtype(chance.choice(["float64", "float32", "float16", "int64"]))
    elif dtype.kind in "iu" and chance.random() < 0.4:
        dtype = np.dtype(chance.choice(["int64", "int32", "uint8", "float32"]))
    given = np.asarray(chance.integers(0, 2, (*lead, *field.shape)))
    if chance.random() < 0.15:
        with np.errstate(all="ignore"):
            given = given.astype(np.float64)
            given.flat[chance.integers(given.size)] = chance.choice(WRONG)
            return given.astype(dtype)
    return given.astype(dtype)


def story(spec, envs, layout, sampler, seed, steps=120, how="") -> set[str]:
    """Random steps, a fifth of them wrong in some way; what was refused.

    `how`: of envs in a random "mask", or with the "final" observations of those that ended.
    """
    chance = np.random.default_rng(seed)
    ponds = pair(spec, envs, layout, sampler)
    flags, said = np.full(envs, Flag.FIRST, np.uint8), set()
    for _ in range(steps):
        ended = chance.random((2, envs)) < 0.1
        ended &= ((flags & Flag.BORDER) == 0) | (chance.random() < 0.02)
        reward = values(chance, Field("float32"), (envs,))
        if chance.random() < 0.97 and reward.dtype.kind == "f":
            reward[(flags & Flag.BORDER) != 0] = 0
        marks = flags.copy()
        if chance.random() < 0.1:
            marks[chance.integers(envs)] ^= chance.choice([1, 2, 4, 8, 16])
        obs, action = values(chance, spec.obs, (envs,)), values(chance, spec.action, (envs,))
        rows = Rows(obs, action, reward, *ended, marks)
        if chance.random() < 0.05:
            name = chance.choice(list(rows._fields[:6]))
            odd = getattr(rows, name)
            odd = odd[:, None] if chance.random() < 0.5 else odd.astype("float64")
            rows = rows._replace(**{name: odd})
        more = {}
        if how == "mask" and chance.random() < 0.8:
            more = {"mask": chance.random(envs) < chance.choice([0.2, 0.8])}
        elif how == "final":
            final = values(chance, spec.obs, (envs,))
            more = {"final_obs": final if chance.random() < 0.95 else final[..., None]}
        error = both(ponds, lambda pond, rows=rows, more=more: pond.add(rows, **more))
        if error:
            said.add(error.split("expected")[0])
        else:
            came = next_flags(marks, *ended, same_step=how == "final")
            came = np.where((marks & Flag.CUT) != 0, np.uint8(Flag.FIRST), came)
            flags = np.where(more.get("mask", True), came, flags)
        if chance.random() < 0.04:
            which = int(chance.integers(envs))
            both(ponds, lambda pond, which=which: pond.cut(which))
            flags[which] = Flag.FIRST
    return said


@pytest.mark.parametrize("layout", ["stream", "per_env"])
@pytest.mark.parametrize("envs", [1, 5])
@pytest.mark.parametrize("name", SPECS)
def test_steps_enter_as_on_the_long_way(name, envs, layout):
    said = story(SPECS[name], envs, layout, None, seed=1)
    said |= story(SPECS[name], envs, layout, prioritized(), seed=2)
    assert len(said) >= 4, "too little was refused to say much"


@pytest.mark.parametrize("how", ["mask", "final"])
@pytest.mark.parametrize("envs", [1, 5])
@pytest.mark.parametrize("name", SPECS)
def test_parts_of_steps_enter_as_on_the_long_way(name, envs, how):
    layout = "stream" if how == "final" and envs == 5 else "per_env"
    said = story(SPECS[name], envs, layout, None, seed=4, how=how)
    assert len(said) >= 3, "too little was refused to say much"


@pytest.mark.parametrize("layout", ["stream", "per_env"])
@pytest.mark.parametrize("envs", [1, 3])
@pytest.mark.parametrize("name", SPECS)
def test_single_rows_enter_as_on_the_long_way(name, envs, layout):
    spec, chance = SPECS[name], np.random.default_rng(3)
    ponds = pair(spec, envs, layout)
    flags = [int(Flag.FIRST)] * envs
    for _ in range(150):
        env = int(chance.integers(envs))
        ended = [bool(chance.random() < 0.1 and not flags[env] & Flag.BORDER) for _ in range(2)]
        reward = float(chance.choice([0, 1, -1])) * (not flags[env] & Flag.BORDER)
        if chance.random() < 0.1:
            reward = float(chance.choice(WRONG))
        obs, action = values(chance, spec.obs, ()), values(chance, spec.action, ())
        if not action.shape and chance.random() < 0.7:
            action = action.item()
        mark = flags[env] ^ (int(chance.choice([1, 2, 4, 8])) if chance.random() < 0.1 else 0)
        row = Rows(obs, action, reward, *ended, np.uint8(mark))
        more = {} if envs == 1 and chance.random() < 0.5 else {"env": env}
        if not both(ponds, lambda pond, row=row, more=more: pond.add(row, **more)):
            last = next_flags(np.uint8(mark), *np.array(ended))
            flags[env] = int(Flag.FIRST) if mark & Flag.CUT else int(last)


def test_plain_steps_take_the_short_way():
    """Otherwise the tests above compare the long way with itself."""
    for name in ("open", "bounded", "half open", "nan"):
        spec = SPECS[name]
        pond = HostPond(spec, 40, 4)
        zeros = [np.zeros((4, *field.shape), field.dtype) for field in (spec.obs, spec.action)]
        no = np.zeros(4, bool)
        rows = Rows(*zeros, np.zeros(4), no, no, np.ones(4, np.uint8))
        pond.add(rows)  # the first rows of all follow a cut, after which several flags may come
        assert pond._gate._short.step(rows._replace(flags=np.zeros(4, np.uint8)))
        ended = rows._replace(flags=np.zeros(4, np.uint8), terminated=~no)
        assert pond._gate._short.step(ended)
        assert pond._gate._short.step(rows._replace(flags=np.full(4, Flag.BORDER, np.uint8)))
        assert pond._gate._short.step(rows)
        assert pond.size == 20


def test_parts_of_plain_steps_take_the_short_way():
    spec, no = SPECS["bounded"], np.zeros(4, bool)
    pond, mask = HostPond(spec, 40, 4, layout="per_env"), np.array([True, False, True, True])
    zeros = [np.zeros((4, *field.shape), field.dtype) for field in (spec.obs, spec.action)]
    rows = Rows(*zeros, np.zeros(4, np.float32), no, no, np.ones(4, np.uint8))
    pond.add(rows)
    short, rows = pond._gate._short, rows._replace(flags=np.zeros(4, np.uint8))
    assert short.some(rows, mask)
    assert short.step(rows), "one env is a row behind"
    assert short.closing(rows._replace(terminated=mask), rows.obs)
    assert pond.added.tolist() == [5, 3, 5, 5]


KINDS = ("float16", "float32", "float64", "uint8", "int32", "int64", "uint16")
BOUNDS = (None, 0, 1, 2.5, 200, -1, -2.5, -200, "most", "-most", np.inf, -np.inf)


@pytest.mark.parametrize("kind", KINDS)
def test_bytes_within_bounds_are_numbers_within_bounds(kind):
    """`within` never says yes of what is outside, and no of what is inside only where it may."""
    dtype, chance = np.dtype(kind), np.random.default_rng(6)
    floats = dtype.kind == "f"
    most = np.finfo(dtype).max if floats else np.iinfo(dtype).max
    edges = [0, 1, 2, 2.5, 200, -1, -2.5, -200, most, 3.0e38, 1e300, np.inf, np.nan, -np.nan]
    asked = 0
    for low, high, size in itertools.product(BOUNDS, BOUNDS, (1, 3, 20)):
        bounds = [{"most": most, "-most": -most}.get(bound, bound) for bound in (low, high)]
        known = [bound for bound in bounds if bound is not None]
        if not floats and not all(isinstance(b, int) and 0 <= b <= most for b in known):
            continue  # a Field of whole numbers has no such bounds
        with np.errstate(over="ignore"):
            given = [None if b is None else dtype.type(b).item() for b in bounds]
        ask = within(dtype, size, *given)
        for _ in range(8 if ask else 0):
            with np.errstate(all="ignore"):
                near = [dtype.type(bound) for bound in known] or [dtype.type(0)]
                near += [np.nextafter(n, way) for n in near for way in (9e9, -9e9) if floats]
                near += np.array(edges if floats else [0, 1, 2, 100, most]).astype(dtype).tolist()
            numbers = np.array(chance.choice(near, size), dtype)
            least, largest = (-np.inf if given[0] is None else given[0]), given[1]
            inside = (numbers >= least) & (numbers <= (np.inf if largest is None else largest))
            says = ask(numbers.tobytes())
            assert not says or inside.all(), (given, numbers)
            huge = floats & (np.abs(numbers.astype(np.float64)) >= float(most) / 2)
            if inside.all() and not (huge | np.signbit(numbers)).any():
                assert says, (given, numbers)
            asked += 1
    assert asked > 30
    assert within(dtype, 10**6, None, None) is None
