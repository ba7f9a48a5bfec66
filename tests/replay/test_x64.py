"""The device half of the contract under `jax_enable_x64`, which some users set for all of JAX."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import jax
import numpy as np
from scenarios import PATTERNS, SUBJECTS
from test_contract import SAMPLERS, SEQUENCES, WINDOWS, play

assert jax.numpy.zeros(1, int).dtype == np.int64
story = [("add", 5), ("add", 1), ("cut", 1), ("add", 19), ("reload", 0), ("add", 1)]
for subject in ("device-stream", "device-per_env", "device-shared"):
    window = WINDOWS["plain" if subject.endswith("shared") else "stack3-n2-lives"]
    for name in NAMES:
        play(SUBJECTS[subject], window, PATTERNS["everything"], (7, 3, story, 1),
             sampler=SAMPLERS[name])
        if name == "uniform" and not subject.endswith("shared"):
            play(SUBJECTS[subject], SEQUENCES["cross-stack3-every2"], PATTERNS["everything"],
                 (7, 3, story, 1))
        print(subject, name)
"""


@pytest.mark.parametrize(
    "names",
    [
        pytest.param(["prioritized"], id="prioritized"),
        pytest.param(["uniform", "stratified", "recent"], id="others", marks=pytest.mark.full),
    ],
)
def test_contract_under_x64(names):
    tests = Path(__file__).parents[1]
    paths = os.pathsep.join(str(tests / name) for name in ("replay", "helpers"))
    program = PROGRAM.replace("NAMES", repr(names))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "JAX_ENABLE_X64": "1", "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(done.stdout.split("\n")) == 3 * len(names) + 1
