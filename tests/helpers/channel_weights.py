"""Trees filled with one number, and the process that publishes them in the tests."""

from __future__ import annotations

import os

import numpy as np

from millpond.transport import Weights


def tree_of(number: int) -> dict:
    """A tree in which every value is `number`; 40 KB, so that a copy takes a while."""
    return {
        "params": {
            "dense": {
                "bias": np.full(64, number, "f4"),
                "kernel": np.full((64, 128), number, "f4"),
            },
            "scale": np.full((), number, "i8"),
        },
        "more": [np.full(3, number % 256, "u1"), np.full((7, 5), number, "f8")],
    }


def publish_until(weights: Weights, last: int) -> None:
    """Publish versions 1 ... last without a pause, while the parent lives."""
    writer, parent = weights.writer(tree_of(0)), os.getppid()
    for version in range(1, last + 1):
        writer.publish(tree_of(version), version)
        if os.getppid() != parent:
            return


def die_inside(weights: Weights, version: int) -> None:
    """Publish up to `version`, and be killed with half of the next one written."""
    import signal

    from millpond.transport import weights as module

    publish_until(weights, version)
    module._digest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    weights.writer(tree_of(0)).publish(tree_of(version + 1), version + 1)
