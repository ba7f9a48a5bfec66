"""Calls of a Lake that cannot work: a typed error that says what to pass, and nothing changes."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from lake_world import SLOTS, SPEC, WIDTH, append, check_all

from millpond import (
    BadConfig,
    Field,
    Flag,
    LakeFailed,
    LakeRefused,
    Sequence,
    Spec,
    SpecMismatch,
    Window,
)
from millpond.lake import Lake
from millpond.lake.files import translated_errors

STREAMS = np.arange(16)


@pytest.fixture
def lake(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    with lake.writer("g", 16) as writer:
        append(writer, 9)
    return lake


@pytest.mark.parametrize("env", [99, 16, -1, 1.5, "a"])
def test_cut_of_a_stream_that_is_not_there(lake, env):
    with lake.writer("g", 16, continues=True) as writer:
        with pytest.raises(SpecMismatch, match="cut: env must lie in"):
            writer.cut(env)
        assert not writer._lost.any()


def ends(lake: Lake, stream: int) -> int:
    """The flags of a stream's row before its newest."""
    lake.refresh()
    stop = lake.streams[stream].stop
    return int(lake.read(stream, stop - 2, stop - 1).flags[0])


@pytest.mark.parametrize("damage", [False, True])
def test_a_cut_outlives_its_writer(lake, damage):
    """Of a session that continues, rows follow those of the last one, but not across its cut."""
    with lake.writer("g", 16, continues=True) as writer:
        writer.cut(3)
    with lake.writer("g", 16, continues=True):
        pass  # nothing follows yet
    if damage:
        (lake.path / "groups" / "g" / "cuts.json").write_text("{")
    with lake.writer("g", 16, continues=True) as writer:
        append(writer, 1)
    assert [ends(lake, stream) & Flag.CUT for stream in (2, 3)] == [damage * Flag.CUT, Flag.CUT]
    with lake.writer("g", 16, continues=True) as writer:
        append(writer, 1)
    assert not ends(lake, 3) & Flag.CUT, "a cut that the next row has said already"


def test_a_cut_between_sessions_outlives_a_session_without_rows(lake):
    """Of a stream whose env began a new episode and took no step before that session ended."""
    with lake.writer("g", 16) as writer:
        append(writer, 2, 5)
    with lake.writer("g", 16, continues=True) as writer:
        append(writer, 1)
    assert [ends(lake, stream) & Flag.CUT for stream in (4, 5)] == [Flag.CUT, 0]


@pytest.mark.parametrize("number", [0, -1, 1.5, None])
def test_batches_of_no_rows(lake, number):
    with pytest.raises(BadConfig, match="batch must be"):
        next(lake.iterate(number))
    with pytest.raises(BadConfig, match="batch must be"):
        lake.sample(np.random.default_rng(0), number)
    with pytest.raises(BadConfig, match="length must be"):
        lake.gather(STREAMS, STREAMS * 0, number)
    if number != 0:
        with pytest.raises(BadConfig, match="epochs must be"):
            next(lake.iterate(8, epochs=number))


def test_take_from_an_empty_lake_is_masked(tmp_path):
    lake = Lake.create(tmp_path / "lake", SPEC, 10**6, segment_rows=SLOTS)
    batch = lake.take([0, 1], [5, 6])
    assert not batch.mask.any()
    assert not batch.obs["wide"].any()
    assert batch.draw.row.tolist() == [5, 6]


def test_nothing_is_asked_for(lake):
    none = np.zeros(0, np.int64)
    for window in (Window(stack=2), Sequence(4)):
        assert len(lake.take(none, none, window).reward) == 0
    assert lake.gather(none, none, 4).reward.shape == (0, 4)


def test_lists_that_do_not_belong_together(lake):
    with pytest.raises(BadConfig, match="same length"):
        lake.take([0, 1], [5])
    with pytest.raises(BadConfig, match="same length"):
        lake.take(0, 5)
    with pytest.raises(BadConfig, match="same length"):
        lake.gather(STREAMS, [0], 3)


def test_out_of_another_window_spec_or_kind(lake):
    rng = np.random.default_rng(0)
    fits = lake.sample(rng, 8)
    frozen = lake.sample(rng, 8)
    frozen.obs["wide"].setflags(write=False)
    strided = fits._replace(reward=np.zeros(16, np.float32)[::2])
    others = [
        lake.sample(rng, 8, Window(stack=3)),
        fits._replace(obs={"wide": fits.obs["wide"]}),
        fits._replace(action=fits.action.astype(np.float32)),
        fits._replace(reward=list(fits.reward)),
        frozen,
        strided,
        7,
    ]
    for other in others:
        with pytest.raises(SpecMismatch, match="out must be"):
            lake.sample(rng, 8, out=other)
    assert lake.sample(rng, 8, out=fits) is fits
    out = {"obs/wide": np.zeros((16, 3, WIDTH), np.uint8), "obs/tiny": np.zeros((16, 3, 2), "u1")}
    rows = lake.gather(STREAMS, STREAMS * 0, 3, out=out)
    assert np.array_equal(rows.obs["wide"], out["obs/wide"])
    wide = out["obs/wide"]
    for bad in (wide[:, :2], wide.astype(np.int8), wide.swapaxes(0, 1), None, 7):
        with pytest.raises(SpecMismatch, match="out\\['obs/wide'\\] must be"):
            lake.gather(STREAMS, STREAMS * 0, 3, out={**out, "obs/wide": bad})


def test_a_spec_that_differs_in_bounds_alone_is_named(tmp_path):
    Lake.create(tmp_path / "lake", Spec(Field("float32"), Field("int32", (), 0, 3)), 10**6)
    other = Spec(Field("float32"), Field("int32", (), 0, 5))
    with pytest.raises(
        LakeRefused, match=r"holds int32 \(\) from 0.0 to 3.0, got .* from 0.0 to 5.0"
    ):
        Lake.open(tmp_path / "lake", spec=other)


@pytest.mark.parametrize("code", [errno.EACCES, errno.EMFILE])
def test_what_the_system_refuses_is_typed(lake, monkeypatch, code):
    real = os.open

    def refuse(path, *rest, **named):
        if str(path).endswith((".open", ".seg", ".journal")):
            raise OSError(code, os.strerror(code), str(path))
        return real(path, *rest, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", refuse)
        with pytest.raises(LakeFailed, match=os.strerror(code)):
            len(Lake.open(lake.path))
        with pytest.raises(LakeFailed, match=os.strerror(code)):
            lake.writer("g", 16)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "exists", lambda path: os.open(path / "x.seg", os.O_RDONLY))
        patch.setattr(os, "open", refuse)
        with pytest.raises(LakeFailed, match=os.strerror(code)):
            Lake.open(lake.path)
    assert check_all(Lake.open(lake.path)).rows == 9 * 16


def test_a_full_disk_advises_what_can_be_done(tmp_path):
    with (
        pytest.raises(Exception, match=r"Free space and call again$"),
        translated_errors("x", tmp_path),
    ):
        raise OSError(errno.ENOSPC, "full")
