"""One Ray for the whole session, of several nodes on this machine: `make test-ray`."""

from __future__ import annotations

import atexit
import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import pytest

# What one process has compiled the others need not; machine code need not be fast here.
_CACHE = tempfile.mkdtemp(prefix="millpond-tests-")
atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
os.environ |= {
    "XLA_FLAGS": "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false",
    "JAX_COMPILATION_CACHE_DIR": _CACHE,
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.05",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "RAY_AUTH_TOKEN": secrets.token_hex(32),
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listen on the loopback address alone
}
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "helpers"))  # tiny_runs

from millpond.cluster.ray import import_ray  # noqa: E402

_NODE = dict(num_cpus=12, num_gpus=1, object_store_memory=128 << 20, include_dashboard=False)


@pytest.fixture(scope="session")
def cluster():
    """Two nodes with room for everybody, and this process connected to the first."""
    ray = import_ray()
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args=_NODE)
    made.add_node(**_NODE)  # before anything runs in JAX, which does not like to be forked
    ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
    yield made
    ray.shutdown()
    made.shutdown()
