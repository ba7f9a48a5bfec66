"""Test settings, and the contract's matrix at the end of a run."""

from __future__ import annotations

import atexit
import copy
import gc
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

# Most of the suite's time is compiling; machine code need not be fast here, one emitter for all of
# it takes half as long as those for fusions, and one module per program less than many. HLO is the
# same, and `make test-full` sets XLA_FLAGS to nothing, so that it compiles as users do.
os.environ.setdefault(
    "XLA_FLAGS",
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false "
    "--xla_cpu_parallel_codegen_split_count=1",
)
if "PYTEST_XDIST_WORKER" not in os.environ and "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # What one worker or a test's own process has compiled, the others need not: also what takes
    # milliseconds, because loading it takes a quarter of that.
    _CACHE = tempfile.mkdtemp(prefix="millpond-tests-")
    atexit.register(shutil.rmtree, _CACHE, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _CACHE
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "-1"

import pytest
from hypothesis import HealthCheck, settings

# Helpers, and tests that others build on, are imported by name from any folder.
sys.path[:0] = [str(folder) for folder in Path(__file__).parent.iterdir() if folder.is_dir()]

# The same examples in every run, so that a red build is red for everyone; `make test-full` draws
# fresh ones.
settings.register_profile(
    "default", deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
settings.register_profile("full", deadline=None, suppress_health_check=list(HealthCheck))


def pytest_addoption(parser):
    parser.addoption("--examples", type=int, default=3, help="examples per contract cell")
    parser.addoption("--full", action="store_true", help="run tests marked full, fresh examples")


def pytest_configure(config):
    # Traced programs are many small objects that stay; looking through them for cycles again and
    # again took a sixth of the suite's CPU time.
    gc.set_threshold(100_000, 50, 100)
    config.addinivalue_line("markers", "full: long property, soak and fault tests")
    settings.load_profile("full" if config.getoption("--full") else "default")


@pytest.fixture(scope="module")
def compiled_once():
    """Runs of equal settings share their programs within a module; what they hold is their own.

    Each has a copy of the loop and the referee, so that a test may change its own.
    """
    from millpond.once import Once
    from millpond.train import loop, session

    with pytest.MonkeyPatch.context() as patch:
        for module, name in ((loop, "DeviceLoop"), (session, "Referee")):
            kept = Once(getattr(module, name), most=8)
            patch.setattr(module, name, lambda *of, kept=kept: copy.copy(kept(*of)))
        yield


def pytest_collection_modifyitems(config, items):
    if config.getoption("--full"):
        return
    long = [item for item in items if item.get_closest_marker("full")]
    config.hook.pytest_deselected(items=long)
    items[:] = [item for item in items if not item.get_closest_marker("full")]


def pytest_terminal_summary(terminalreporter):
    cells, notes = defaultdict(dict), defaultdict(list)
    for report in terminalreporter.stats.get("passed", []):
        for name, value in report.user_properties:
            if name == "contract":
                placement, window, pattern, examples = value
                cells[placement, window][pattern] = examples
            elif name in ("excluded", "mutants"):
                notes[name].append(value)
    if cells:
        patterns = list(dict.fromkeys(p for row in cells.values() for p in row))
        terminalreporter.section("contract: examples per cell")
        terminalreporter.write_line(f"{'':46}" + "".join(f"{p:>13}" for p in patterns))
        for (placement, window), row in sorted(cells.items()):
            counts = "".join(f"{row.get(p, '-'):>13}" for p in patterns)
            terminalreporter.write_line(f"{placement + ' ' + window:46}" + counts)
    for title, lines in notes.items():
        terminalreporter.section(title)
        for line in lines:
            terminalreporter.write_line(str(line))
