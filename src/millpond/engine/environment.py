"""Environment variables for the processes of a run, wherever they run."""

from __future__ import annotations

import os
from pathlib import Path


def child_environment(threads: int, on_cpu: bool, compiled: Path | None) -> dict[str, str]:
    """The environment of a process: few threads, so that processes do not compete for cores.

    `compiled` is the folder of JAX's compilation cache, which the processes share.
    """
    environment = dict(os.environ)
    if compiled is not None and "JAX_COMPILATION_CACHE_DIR" not in environment:
        environment["JAX_COMPILATION_CACHE_DIR"] = str(compiled)
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"
        environment["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    few = str(threads)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NPROC"):
        environment[name] = few
    flags = [environment.get("XLA_FLAGS", "")]
    if threads == 1:
        flags.append("--xla_cpu_multi_thread_eigen=false")
    environment["XLA_FLAGS"] = " ".join(flags).strip()
    environment.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    # We wait for every result at once, so handing work to another thread would only cost.
    environment["JAX_CPU_ENABLE_ASYNC_DISPATCH"] = "false"
    if on_cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    return environment
