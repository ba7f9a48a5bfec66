"""The benchmarks: every script can be imported, and what it trains with are settings of today."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCH = Path(__file__).parents[2] / "bench"


@pytest.fixture
def script(monkeypatch):
    """Import a benchmark by its file's name; other modules do not see it, nor what it imports."""
    monkeypatch.syspath_prepend(BENCH)
    before = set(sys.modules)

    def load(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"bench_{name}", BENCH / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # where dataclasses look for it
        spec.loader.exec_module(module)
        return module

    yield load
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCH)):
            del sys.modules[name]


@pytest.mark.parametrize("name", sorted(path.stem for path in BENCH.glob("*.py")))
def test_it_can_be_imported(script, name):
    try:
        script(name)
    except ModuleNotFoundError as error:
        if error.name not in ("brax", "torch", "stable_baselines3", "torchrl", "tensordict"):
            raise
        pytest.skip(f"needs {error.name}, which is installed for its own environment only")


def test_the_cases_of_processes_are_settings(script):
    processes = script("processes")
    for case in processes.CASES:
        for mode in processes.MODES:
            if mode != "fused" or not case.startswith("atari"):
                processes.case_settings(case, mode.replace("one-core", "sequential"), 1)


def test_the_cases_of_ray_are_settings(script):
    script("ray_bench").settings("ray", 2, 2)
