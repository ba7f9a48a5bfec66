"""A package of others on Ray: its env, agent and sampler train, resume and are examined."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from plugin_package import install

from millpond.metrics import read_metrics

PARTS = ["corridor", "--agent", "softq", "--sampler", "newest"]
TWO = ["--mode", "ray", "--actors", "2", "--replay-shards", "2"]
SMALL = ["--envs", "8", "--eval-episodes", "8", "--log-every", "400", "--network.width", "8"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """Ray's processes must find the package as the command does: by the path they inherit."""
    return install(tmp_path_factory.mktemp("plugin"))


def millpond(env: dict[str, str], *args: str) -> str:
    command = [sys.executable, "-m", "millpond", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def interrupted(env: dict[str, str], run: Path, *args: str) -> list[int]:
    """Stop it by SIGINT after two lines: the steps of every line about training."""

    def steps() -> list[int]:
        metrics = run / "metrics.jsonl"
        return [line["steps"] for line in read_metrics(metrics, "train")] if run.exists() else []

    before, said = len(steps()), run.with_name("said.txt")
    command = [sys.executable, "-m", "millpond", *args]
    with open(said, "wb") as file:
        process = subprocess.Popen(command, env=env, stdout=file, stderr=file)
    try:
        deadline = time.monotonic() + 240
        while len(steps()) < before + 2:
            assert process.poll() is None, said.read_text()
            assert time.monotonic() < deadline, said.read_text()
            time.sleep(0.05)  # looking, not waiting for a moment to pass
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130, said.read_text()
    finally:
        if process.poll() is None:
            os.kill(process.pid, signal.SIGKILL)
            process.wait(timeout=30)
    return steps()


def test_an_installed_package_trains_resumes_and_is_examined(installed, tmp_path):
    run = tmp_path / "run"
    long = ["--steps", "10M", "--eval-every", "10M", "--run", str(run)]
    first = interrupted(installed, run, "train", *PARTS, *TWO, *SMALL, *long)
    config = json.loads((run / "config.json").read_text())
    assert config["parts"]["agent"] == {"class": "pond_plugin.soft_q:SoftQ", "version": "1.0"}
    assert config["parts"]["sampler"]["class"] == "pond_plugin.newest:Newest"
    assert interrupted(installed, run, "resume", str(run))[-1] > first[-1]
    verdicts = json.loads(millpond(installed, "doctor", str(run), "--json"))  # nothing is red
    states = {verdict["name"]: verdict["state"] for verdict in verdicts}
    assert states["stack-parity"] == states["nstep-oracle"] == "green", states
    lost = [line for line in (run / "events.jsonl").read_text().splitlines() if '"lost"' in line]
    assert not lost


def test_its_lockstep_run_is_the_sequential_one(installed, tmp_path):
    short = ["--steps", "800", "--eval-every", "800", "--run", str(tmp_path / "run")]
    said = millpond(installed, "train", *PARTS, *TWO, *SMALL, *short, "--check")
    assert "identical: " in said
