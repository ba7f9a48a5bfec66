"""The examples in their own processes: killed at any moment, and equal to the end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "dqn_in_your_own_loop.py"


def command(run: Path, where: str) -> list[str]:
    sizes = ["--steps", "900", "--every", "300"]
    return [sys.executable, str(EXAMPLE), "--run", str(run), "--replay", where, *sizes]


def finish(run: Path, where: str) -> str:
    done = subprocess.run(command(run, where), capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stderr
    return re.search(r"parameters (\w+)", done.stdout)[1]


def kill_after_first_save(run: Path, where: str) -> None:
    """SIGKILL as soon as the resume file is there and its replacement is on the way."""
    process = subprocess.Popen(command(run, where), stdout=subprocess.DEVNULL)
    try:
        while not (run / "resume.safetensors").exists():
            assert process.poll() is None, "the example ended before it saved"
            try:
                process.wait(timeout=0.01)
            except subprocess.TimeoutExpired:
                continue
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait(timeout=30)


@pytest.mark.full
@pytest.mark.parametrize("where", ["host", "device"])
def test_killed_and_resumed_equals_uninterrupted(where, tmp_path):
    kill_after_first_save(tmp_path / "killed", where)
    assert finish(tmp_path / "killed", where) == finish(tmp_path / "whole", where)
    assert (tmp_path / "killed" / "curve.png").stat().st_size > 5000


def test_a_lake_survives_a_kill(tmp_path):
    """Twice on the same Lake: the second run goes on behind the first."""
    example = EXAMPLE.with_name("lake_survives_a_kill.py")
    command = [sys.executable, str(example), "--lake", str(tmp_path / "lake"), "--steps", "60"]
    for acknowledged in ("rows 0 to 999", "rows 1060 to 2059"):
        done = subprocess.run(command, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        assert f"acknowledged {acknowledged} of each env" in done.stdout
        assert "every acknowledged row is there, byte for byte" in done.stdout
        assert done.stdout.count("steps per episode") == 5
