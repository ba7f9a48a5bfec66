"""Tensors in the memory of batches, and a Lake as PyTorch's datasets."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
import torch
from lakes import SPEC, fill, lake
from torch.utils.data import DataLoader

from millpond import (
    BadConfig,
    BadState,
    Field,
    HostPond,
    Lake,
    NotEnoughData,
    Rows,
    RowsGone,
    Sequence,
    Spec,
    SpecMismatch,
    Window,
    prioritized,
)
from millpond.compat.torch import LakeBatches, LakeLoader, LakeWindows, as_torch, pinned_like

WINDOWS = [Window(stack=2, n_step=3), Sequence(6, burn_in=2, end="stop")]


def leaves(tree):
    return jax.tree.leaves(tree)


def pond(sampler=None):
    made = HostPond(SPEC, 40, 2, sampler=sampler)
    for t in range(6):
        zero = np.zeros(2, bool)
        obs = np.full((2, 3), t, np.float32)
        flags = np.full(2, t == 0, np.uint8)
        extras = {"mood": np.zeros(2, np.uint8)}
        made.add(
            Rows(obs, np.zeros(2, np.int32), np.ones(2, np.float32), zero, zero, flags, extras)
        )
    return made


@pytest.mark.parametrize("sampler", [None, prioritized()])
def test_tensors_of_a_host_batch_share_its_memory(sampler):
    batch = pond(sampler).sample(7)
    given = as_torch(batch)
    assert type(given) is type(batch)
    assert (given.draw.probability is None) == (sampler is None)
    for array, tensor in zip(leaves(batch), leaves(given), strict=True):
        assert tensor.data_ptr() == array.ctypes.data
        assert tensor.shape == array.shape
        np.testing.assert_array_equal(tensor.numpy(), array)
    given.reward[3] = 17.0
    assert batch.reward[3] == 17.0


@pytest.mark.parametrize(
    "dtype", ["bool", "u1", "u2", "u4", "u8", "i1", "i2", "i4", "i8", "f2", "f4", "f8"]
)
def test_every_dtype_keeps_its_values(dtype):
    array = np.array([0, 1, np.iinfo(dtype).max if dtype[0] in "iu" else 1], dtype)
    tensor = as_torch({"a": array})["a"]
    assert tensor.data_ptr() == array.ctypes.data
    np.testing.assert_array_equal(tensor.numpy(), array)


def test_what_torch_cannot_share_is_refused_by_name_or_copied():
    with pytest.raises(SpecMismatch, match=r"batch\.obs\.a is >f4.*convert"):
        as_torch({"obs": {"a": np.zeros(3, ">f4")}})
    with pytest.raises(SpecMismatch, match=r"float128|longdouble"):
        as_torch(np.zeros(3, np.longdouble))
    fixed = np.zeros(3)
    fixed.flags.writeable = False
    as_torch(fixed)[0] = 1
    assert fixed[0] == 0


def test_to_a_device_and_into_pinned_memory():
    made = pond()
    out = pinned_like(made.sample(7))
    batch = made.sample(7, out=out)
    assert batch.obs is out.obs
    meta = as_torch(batch, "meta")
    assert meta.obs.device.type == "meta"
    if torch.cuda.is_available():
        assert as_torch(out).obs.is_pinned()
        np.testing.assert_array_equal(as_torch(batch, "cuda").obs.cpu().numpy(), batch.obs)


def same(ours, batch, number):
    """Every array of our batch equals those rows of a batch."""
    ours = ours._replace(draw=ours.draw._replace(probability=None))
    for tensor, array in zip(leaves(ours), leaves(batch), strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array[number])


@pytest.mark.parametrize("window", WINDOWS)
def test_windows_are_the_lakes_own(tmp_path, window):
    made = lake(tmp_path / "lake")
    windows = LakeWindows(made, window)
    theirs = list(made.iterate(10_000, window, shuffle=False))
    assert len(theirs) == 1
    assert len(windows) == len(theirs[0].reward) > 100
    same(windows[np.arange(len(windows))], theirs[0], slice(None))
    same(windows[3], theirs[0], 3)
    same(windows[-1], theirs[0], -1)
    same(windows[[5, 2]], theirs[0], [5, 2])
    for wrong in (len(windows), -len(windows) - 1, [0, len(windows)]):
        with pytest.raises(IndexError, match="there is no start"):
            windows[wrong]
    with pytest.raises(BadConfig, match="whole number"):
        windows[1.5]


def ids(batch):
    return list(zip(batch.draw.stream.tolist(), batch.draw.row.tolist(), strict=True))


def flat(batches):
    return [pair for batch in batches for pair in batch]


def epoch(loader):
    return [ids(batch) for batch in loader]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker")
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_an_epoch_over_workers_has_every_start_once_in_one_order(tmp_path, start):
    made = lake(tmp_path / "lake")
    windows = LakeWindows(made, Window(n_step=3))
    alone = epoch(LakeLoader(windows, 32, seed=3))
    stream, row = made.starts(Window(n_step=3))
    wanted = sorted(zip(stream.tolist(), row.tolist(), strict=True))
    assert sorted(flat(alone)) == wanted
    assert flat(alone) != wanted
    fill(made, 30, seed=9)  # committed after the dataset was made: spawned workers see more rows
    loader = LakeLoader(windows, 32, seed=3, workers=3, start=start)
    assert len(loader) == len(alone)
    assert epoch(loader) == alone
    assert loader.epoch == 1
    if start == "fork":
        second = epoch(loader)
        assert sorted(flat(second)) == wanted
        assert second != alone
        direct = DataLoader(LakeBatches(windows, 32, seed=3), batch_size=None, num_workers=2)
        assert epoch(direct) == alone


@pytest.mark.parametrize("window", [Window(), Window(stack=3), Window(stack=3, pad="first")])
def test_overlapping_stacks_are_the_lakes_own(tmp_path, window):
    made = lake(tmp_path / "lake")
    fill(made, 30, seed=9)
    windows = LakeWindows(made, window, overlap=True)
    whole = windows[np.arange(len(windows))]
    same(whole, made.take(whole.draw.stream.numpy(), whole.draw.row.numpy(), window), slice(None))
    for obs, after in zip(leaves(whole.obs), leaves(whole.next_obs), strict=True):
        assert after.data_ptr() - obs.data_ptr() == obs.stride(1) * obs.element_size()
        assert obs.untyped_storage().data_ptr() == whole.reward.untyped_storage().data_ptr()
    for batch in LakeLoader(windows, 40, workers=2, start="fork"):
        want = made.take(batch.draw.stream.numpy(), batch.draw.row.numpy(), window)
        same(batch, want, slice(None))
        storages = {leaf.untyped_storage().data_ptr() for leaf in leaves(batch)}
        assert len(storages) == 1, "one file of shared memory per batch"
    for wrong in (Window(n_step=2), Sequence(4)):
        with pytest.raises(BadConfig, match="overlap needs a window with n_step=1"):
            LakeWindows(made, wrong, overlap=True)


def test_take_refuses_an_out_that_does_not_fit(tmp_path):
    made = lake(tmp_path / "lake")
    stream, row = made.starts(Window(stack=3))
    stream, row = stream[:5], row[:5]
    good = made.take(stream, row, Window(stack=3))
    again = made.take(stream, row, Window(stack=3), out=good)
    assert again.reward is good.reward
    for wrong in (
        good._replace(obs=jax.tree.map(lambda obs: obs[::-1], good.obs)),
        good._replace(reward=good.reward[:4]),
        good._replace(action=good.action.astype(np.int64)),
        made.take(stream, row, Window(stack=2)),
    ):
        with pytest.raises(SpecMismatch, match="out must be"):
            made.take(stream, row, Window(stack=3), out=wrong)


def test_workers_give_the_lakes_own_values(tmp_path):
    made = lake(tmp_path / "lake")
    loader = LakeLoader(made, 50, WINDOWS[0], workers=2, start="fork")
    for batch in loader:
        want = made.take(batch.draw.stream.numpy(), batch.draw.row.numpy(), WINDOWS[0])
        same(batch, want, slice(None))
        batch.obs[:] = 0  # a batch's own memory: the Lake's stays as it is
    assert len(loader) > 1


def test_a_map_style_loader_of_pytorch_alone(tmp_path):
    windows = LakeWindows(lake(tmp_path / "lake"))
    loader = DataLoader(windows, batch_size=16, shuffle=True)
    found = flat(epoch(loader))
    assert sorted(found) == sorted(ids(windows[np.arange(len(windows))]))


CHILD = """
import json, sys
sys.path.insert(0, {folder!r})
import torch
from test_torch import ids
from millpond.compat.torch import LakeLoader
loader = LakeLoader({lake!r}, 32, seed=3, workers={workers}, start="fork")
if {state!r}:
    loader.load_state_dict(torch.load({state!r}))
for turn in range(2 if {state!r} else 1):
    for batch in loader:
        torch.save(loader.state_dict(), {save!r})
        print(json.dumps(ids(batch)), flush=True)
"""


def run(code, stop_after=None):
    """What a child printed, killed after so many lines."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", code], stdout=subprocess.PIPE
    ) as child:
        lines = []
        for line in child.stdout:
            lines.append(json.loads(line))
            if len(lines) == stop_after:
                child.send_signal(signal.SIGKILL)
        child.wait(timeout=60)
    return lines


def test_after_a_kill_the_order_goes_on_exactly(tmp_path):
    made = lake(tmp_path / "lake", time=600)
    whole = LakeLoader(made, 32, seed=3)
    first = [[list(pair) for pair in batch] for batch in epoch(whole)]
    second = [[list(pair) for pair in batch] for batch in epoch(whole)]
    names = dict(folder=str(Path(__file__).parent), lake=str(tmp_path / "lake"))
    state = str(tmp_path / "state")
    # The worker had read ahead: what counts is what was given out.
    begun = run(CHILD.format(**names, workers=2, state="", save=state), stop_after=4)
    begun = begun[: torch.load(state)["begin"]]
    done = torch.load(state)["begin"]
    assert 4 <= done <= len(first)
    rest = run(CHILD.format(**names, workers=1, state=state, save=state + "2"))
    assert begun[:4] == first[:4]
    assert rest == first[done:] + second


def test_a_state_of_another_order_is_refused(tmp_path):
    made = lake(tmp_path / "lake")
    loader = LakeLoader(made, 32, seed=3)
    state = loader.state_dict()
    for other in (dict(seed=4), dict(batch=31), dict(shuffle=False), dict(window=Window(n_step=2))):
        wrong = LakeLoader(made, **{"batch": 32, "seed": 3, **other})
        with pytest.raises(BadState, match="use the settings"):
            wrong.load_state_dict(state)
        assert (wrong.epoch, wrong.begin) == (0, 0)
    fill(made, 30, seed=5)
    with pytest.raises(BadState, match="starts"):
        LakeLoader(made, 32, seed=3).load_state_dict(state)
    with pytest.raises(BadState):
        loader.load_state_dict({})
    with pytest.raises(BadConfig, match="begin"):
        loader.load_state_dict({**state, "begin": -1})


def test_one_iteration_at_a_time(tmp_path):
    loader = LakeLoader(lake(tmp_path / "lake"), 32)
    one, other = iter(loader), iter(loader)
    next(one)
    next(other)
    with pytest.raises(BadState, match="one iterator at a time"):
        next(one)


def test_an_empty_lake_and_bad_settings_are_refused(tmp_path):
    with pytest.raises(NotEnoughData, match="no valid start"):
        LakeWindows(Lake.create(tmp_path / "empty", SPEC, capacity=10_000))
    made = lake(tmp_path / "lake")
    for wrong in (
        dict(batch=0),
        dict(batch=2.5),
        dict(batch=4, workers=-1),
        dict(batch=4, seed=-1),
    ):
        with pytest.raises(BadConfig):
            LakeLoader(made, **wrong)
    with pytest.raises(BadConfig, match="omit window"):
        LakeLoader(LakeWindows(made), 4, Window(n_step=2))


def test_evicted_rows_are_named_not_missing(tmp_path):
    spec = Spec(Field("float32", (3,)), Field("int32", (), 0, 4), SPEC.extras)
    made = Lake.create(tmp_path / "lake", spec, capacity=8192, segment_rows=4096)
    fill(made, 200)
    windows = LakeWindows(Lake.open(tmp_path / "lake"))
    fill(made, 7000, seed=1)
    windows.lake.refresh()
    with pytest.raises(RowsGone, match="was evicted after this dataset was made"):
        windows[np.arange(len(windows))]
