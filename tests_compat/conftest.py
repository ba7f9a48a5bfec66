"""Tests of `millpond.compat` against the real packages: `make test-compat`."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# What one test has compiled the others need not; machine code need not be fast here.
_CACHE = tempfile.mkdtemp(prefix="millpond-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ |= {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "JAX_COMPILATION_CACHE_DIR": _CACHE,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
}
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "tests" / "helpers")]


@pytest.fixture(autouse=True, scope="session")
def one_thread():
    """Two cores are shared by a learner, its workers and other work."""
    import torch

    torch.set_num_threads(1)
