"""Messages between a run's parent and its processes."""

from __future__ import annotations

import json
import os
import resource

import numpy as np
import pytest

from millpond.errors import BadConfig
from millpond.process.team import allow_descriptors
from millpond.process.wire import Wire, pack, unpack


@pytest.fixture
def limit():
    """The limit of open files as it was before."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("number", [0, 1, 200, 201, 1_200])
def test_a_message_takes_any_number_of_descriptors_in_their_order(limit, number):
    """A learner gets three from every actor; those beyond 1023 can be waited for too."""
    allow_descriptors(500, 1)
    wire, theirs = Wire.pair()
    other, made, got = Wire(theirs), [], []
    try:
        made = [os.memfd_create(f"fd-{i}") for i in range(number)]
        for i, fd in enumerate(made):
            os.write(fd, str(i).encode())
        wire.send("learner", {"a": 1}, {"x": np.arange(3)}, fds=made)
        wire.send("next")
        message = other.receive(5)
        assert message is not None
        got = message.fds
        assert [int(os.pread(fd, 9, 0)) for fd in got] == list(range(number))
        assert message.arrays["x"].tolist() == [0, 1, 2]
        last = other.receive(5)
        assert last is not None
        assert (last.kind, last.fds) == ("next", [])
    finally:
        for fd in (*made, *got):
            os.close(fd)
        wire.close()
        other.close()


def test_more_actors_than_the_machine_allows_are_refused_with_the_limit(limit):
    soft, hard = limit
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 300), hard))
    allow_descriptors(66, 1)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= 3 * 66
    with pytest.raises(BadConfig, match=r"actors and 1 learners need about .*ulimit -Hn"):
        allow_descriptors(10**9, 1)


def test_what_is_packed_comes_out_again_whatever_its_names():
    tree = [3, {"array": np.arange(4), "b": [{"array": None}, np.float32(2)]}, (None,)]
    plain, arrays = pack(tree)
    out = unpack(json.loads(json.dumps(plain)), arrays)
    assert out[0] == 3
    assert out[1]["array"].tolist() == [0, 1, 2, 3]
    assert out[1]["b"] == [{"array": None}, np.float32(2)]
    assert out[2] == [None]
