"""The benchmarks: every script can be imported, and what it trains with are valid settings.

In a process of their own: they set XLA's flags and the number of threads when they are imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
# Packages that only some benchmarks need, each in an environment of its own.
FOREIGN = ("brax", "torch", "stable_baselines3", "torchrl", "tensordict")
IMPORT_ALL = f"""
import importlib, pathlib
for path in sorted(pathlib.Path().glob("*.py")):
    try:
        importlib.import_module(path.stem)
    except ModuleNotFoundError as error:
        if error.name not in {FOREIGN}:
            raise
"""
ALL_SETTINGS = """
import processes, ray_bench
for case in processes.CASES:
    for mode in processes.MODES:
        if mode != "fused" or not case.startswith("atari"):
            processes.case_settings(case, mode.replace("one-core", "sequential"), 1)
ray_bench.settings("ray", 2, 2)
"""


def run(code: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", code]
    done = subprocess.run(command, cwd=BENCH, capture_output=True, text=True, timeout=300)
    assert not done.returncode, done.stderr


def test_every_benchmark_can_be_imported():
    run(IMPORT_ALL)


def test_what_is_trained_are_valid_settings():
    run(ALL_SETTINGS)
