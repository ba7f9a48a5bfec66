"""A row of a host run passes through few hands between the env's step and the ring."""

from __future__ import annotations

import sys
from pathlib import Path

from tiny_runs import HostArms, settings

import millpond
from millpond.envs.hosted import HostedVector
from millpond.replay.host_ring import HostRing
from millpond.train.loop import open_loop

SRC = str(Path(millpond.__file__).parent)


def calls_from_run() -> list[str]:
    """Functions of millpond under way, from the crew's `run` to the caller's."""
    frame, found = sys._getframe(2), []
    while not found or found[0] != "run":
        assert frame is not None, found
        name = frame.f_code.co_name
        if frame.f_code.co_filename.startswith(SRC) and "<" not in name:
            found.insert(0, name)
        frame = frame.f_back
    return found


def test_a_row_reaches_the_ring_in_eight_calls(tmp_path, monkeypatch):
    paths = {}

    def noted(kind, name):
        plain = getattr(kind, name)

        def call(*args):
            paths[name] = [*calls_from_run(), name]
            return plain(*args)

        monkeypatch.setattr(kind, name, call)

    noted(HostedVector, "step")
    noted(HostRing, "write_block")
    of = settings("host-arms", HostArms(), replay="host", stack=1)
    with open_loop(of, tmp_path) as loop:
        loop.round(loop.init(), 1)
    # It is returned from call to call up to `run`, and handed on from there.
    assert len(paths["step"]) - 1 + len(paths["write_block"]) - 1 <= 8, paths
