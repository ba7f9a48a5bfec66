"""Runs of processes for tests: their settings, fixtures, and what became of their processes."""

from __future__ import annotations

import functools
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_runs import WORLD, settings

from millpond.engine.crew import CrewLoop
from millpond.engine.settings import CrewSettings
from millpond.metrics import read_metrics
from millpond.process import team
from millpond.train import Run

CREW = replace(
    settings(mode="processes", actors=2, steps=640, world=replace(WORLD, agents=1)),
    crew=CrewSettings(hang_s=20.0),
    eval_every=640,
    checkpoint_every=640,
    resume_every=640,
)
ALONE = replace(CREW, actors=1)


@pytest.fixture(autouse=True)
def hooks(monkeypatch):
    """The processes find `process_hooks` where this file lies."""
    here = str(Path(__file__).parent)
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", here if path is None else f"{here}{os.pathsep}{path}")


@pytest.fixture(autouse=True)
def nothing_left_behind():
    """No process and no shared memory outlives a test."""
    before = set(os.listdir("/dev/shm"))
    yield
    assert workers() == []
    deadline = time.monotonic() + 30  # tests beside this one may have memory there for a while
    while left := set(os.listdir("/dev/shm")) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def workers(parent: int | None = None) -> list[int]:
    """Living workers that this test's processes, or a given parent, have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            status = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ours = words[-2:-1] == [str(parent or os.getpid()).encode()]
        if ours and b"millpond.process.worker" in words and status[0] != "Z":
            found.append(int(entry.name))
    return found


def events(run: Run) -> list[dict]:
    path = run.path / "events.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def with_hook(**hook: str):
    named = {role.replace("_", " "): f"process_hooks:{name}" for role, name in hook.items()}
    return functools.partial(team.open_loop, hook=named)


def evidence(run: Run, name: str) -> list:
    return [e[name] for line in read_metrics(run.metrics, "health") for e in line["learners"]]


def quiet(run: Run) -> bool:
    """Nothing that the witnesses counted is wrong."""
    wrong = ("border_breaks", "stack_mismatches", "returns_wrong", "torn")
    return all(not any(evidence(run, name)) for name in wrong)


def living(run: Run) -> dict[tuple[str, int], int]:
    """The newest process of each part."""
    started = (e for e in events(run) if e["event"] == "started")
    return {(e["process"], e["index"]): e["pid"] for e in started}


def lost(run: Run) -> list[tuple[str, int]]:
    return [(e["process"], e["index"]) for e in events(run) if e["event"] == "lost"]


def kill_actor(loop: CrewLoop, index: int = 0) -> None:
    """SIGKILL, and wait until the next incarnation is there."""
    process = loop.crew.team.children["actor", index].process
    process.kill()
    process.wait(timeout=30)
    loop.crew.check()
