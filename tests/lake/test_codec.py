"""Frames decoded together are the frames that were compressed, and damage is never a wrong row."""

from __future__ import annotations

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from millpond.lake import codec as module
from millpond.lake.codec import Codec, trained

WIDTH = 512
RNG = np.random.default_rng(3)
FRAMES = np.tile(RNG.integers(0, 9, WIDTH, np.uint8), (300, 1))
FRAMES[:, :40] = RNG.integers(0, 256, (300, 40), np.uint8)
CODECS = {"trained": trained(FRAMES, FRAMES[:64]), "none": Codec(b"", WIDTH)}


@pytest.fixture(params=["native", "public"], autouse=True)
def api(request, monkeypatch):
    """zstd's own functions by zstandard's private parts, and the public API where they lack."""
    assert module._zstd is not None, "the installed zstandard has the private parts"
    if request.param == "public":
        monkeypatch.setattr(module, "_zstd", None)


def packed(codec: Codec) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    blob, lengths = codec.compress(FRAMES, 1)
    ends = np.cumsum(lengths)
    return np.frombuffer(blob, np.uint8), ends - lengths, ends


@pytest.mark.parametrize("name", CODECS)
@given(st.data())
def test_any_frames_come_back_in_any_order_on_any_number_of_threads(name, data):
    codec = CODECS[name]
    blob, start, stop = packed(codec)
    runs = data.draw(st.lists(st.tuples(st.integers(0, 299), st.integers(1, 80)), max_size=9))
    which = np.concatenate([np.zeros(0, int), *(np.arange(a, min(300, a + n)) for a, n in runs)])
    cut = data.draw(st.integers(0, len(which)))
    outs = [np.empty((n, WIDTH), np.uint8) for n in (cut, len(which) - cut)]
    threads = data.draw(st.sampled_from([1, 3]))
    codec.decode(blob, start[which], stop[which], threads, *outs)
    np.testing.assert_array_equal(np.concatenate(outs), FRAMES[which])


@pytest.mark.parametrize("name", CODECS)
def test_another_library_call_decodes_the_same(name):
    codec = CODECS[name]
    blob, start, stop = packed(codec)
    known = zstandard.ZstdCompressionDict(codec.dictionary) if codec.dictionary else None
    decoder = zstandard.ZstdDecompressor(dict_data=known)
    for i in range(0, 300, 37):
        frame = decoder.decompress(blob[start[i] : stop[i]].tobytes(), max_output_size=WIDTH)
        assert frame == FRAMES[i].tobytes()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("damage", ["cut short", "one missing", "another's", "empty", "noise"])
def test_what_is_not_whole_frames_is_an_error(damage, threads):
    codec = CODECS["trained"]
    blob, start, stop = packed(codec)
    if damage == "cut short":
        stop[150] -= 1
    elif damage == "one missing":
        start[150] = start[151]
    elif damage == "another's":
        stop[150] = stop[151]
    elif damage == "empty":
        stop[150] = start[150]
    else:
        blob = blob.copy()
        blob[start[150] : stop[150]] = 255
    with pytest.raises((zstandard.ZstdError, ValueError)):
        codec.decode(blob, start, stop, threads, np.empty_like(FRAMES))


@pytest.mark.parametrize("where", [(-5, 10), (0, 1 << 40), (30, 20)])
def test_places_outside_are_refused_before_anything_is_read(where):
    codec = CODECS["trained"]
    blob, start, stop = packed(codec)
    start[7], stop[7] = where
    out = np.zeros_like(FRAMES)
    with pytest.raises(ValueError, match="not within"):
        codec.decode(blob, start, stop, 1, out)
    assert not out.any()


def test_no_dictionary_that_looks_like_one_is_refused():
    magic = (0xEC30A437).to_bytes(4, "little")
    blob, start, stop = packed(CODECS["none"])
    with pytest.raises(zstandard.ZstdError, match="dict"):
        Codec(magic + bytes(60), WIDTH).decode(blob, start, stop, 1, np.empty_like(FRAMES))
