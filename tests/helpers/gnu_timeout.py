"""Runs of the command line under GNU `timeout`, which ends them as it ends any program."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from millpond.metrics import read_metrics

SMALL = {
    **{"world.agents": "1", "world.size": "5", "envs": "4", "network.width": "8", "steps": "1M"},
    **{"dqn.capacity": "800", "dqn.min-fill": "80", "dqn.batch": "8", "log-every": "80"},
    **{"eval-episodes": "1", "eval-every": "1M", "checkpoint-every": "1M", "resume-every": "1M"},
}


def there() -> bool:
    """Whether `timeout` is GNU's."""
    if not shutil.which("timeout"):
        return False
    said = subprocess.run(["timeout", "--version"], capture_output=True, text=True, timeout=30)
    return "GNU coreutils" in said.stdout


def trained_until_time_is_up(path: Path, mode: str, *options: str) -> int:
    """Begin a run, or resume it; time is up after two lines. The steps that it had reached."""
    small = [word for name, value in SMALL.items() for word in (f"--{name}", value)]
    begin = ["train", "treasurehunt-small", "--run", str(path), "--mode", mode, *small, *options]
    words = ["resume", str(path)] if path.exists() else begin
    command = ["timeout", "--kill-after=120", "900", sys.executable, "-m", "millpond", *words]
    said = path.with_name(f"{path.name}.txt")
    with open(said, "wb") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True
        )
    before = len(lines_of(path))
    try:
        deadline = time.monotonic() + 240
        while len(lines_of(path)) < before + 2:
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)  # looking, not waiting for a moment to pass
        process.send_signal(signal.SIGALRM)  # what its timer sends: its 900 seconds are over
        assert process.wait(timeout=130) == 124, said.read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
    assert "Traceback" not in said.read_text()
    return lines_of(path)[-1]


def lines_of(path: Path) -> list[int]:
    """The steps of every line about training."""
    metrics = path / "metrics.jsonl"
    return [line["steps"] for line in read_metrics(metrics, "train")] if metrics.exists() else []
