"""The environment itself: what the lock names is what is there, and one torch."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path

LOCK = Path(__file__).parent / "requirements.lock"


def test_every_package_has_the_version_of_the_lock():
    pins = dict(line.split("==") for line in LOCK.read_text().split())
    # A build of torch for CPUs calls itself 2.13.0+cpu.
    found = {name: version(name).split("+")[0] for name in pins}
    assert found == pins


def test_the_core_comes_from_its_own_environment():
    core = (LOCK.parents[1] / "requirements.lock").read_text().split()
    core = dict(line.split("==") for line in core)
    assert version("jax") == core["jax"]
    assert version("numpy") == core["numpy"]
