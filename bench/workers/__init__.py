"""One worker per library: `python -m workers.NAME` prints one JSON object on its last line.

Importing this package pins the process to one core. That happens here, before any heavy import,
because NumPy, XLA and torch size their thread pools when they are loaded.
"""

import os

_core = os.environ.get("BENCH_CORE")
os.sched_setaffinity(0, {int(_core) if _core else max(os.sched_getaffinity(0))})
for _pool in ("OMP", "OPENBLAS", "MKL", "NUMEXPR"):
    os.environ[f"{_pool}_NUM_THREADS"] = "1"
os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
os.environ["JAX_PLATFORMS"] = "cpu"
