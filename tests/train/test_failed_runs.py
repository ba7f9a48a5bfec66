"""A run that fails tells why: in its status, and wherever runs are shown."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from failing import Breaks, BreaksInJax
from process_runs import hooks, nothing_left_behind  # noqa: F401
from tiny_runs import settings

from millpond.cli.main import main
from millpond.engine.settings import CrewSettings
from millpond.errors import FaultsFound, RunFailed, SpecMismatch
from millpond.train import Run, train
from millpond.view.card import card

HOST = dict(replay="host", mode="sequential", log_every=80)
CREW = CrewSettings(hang_s=60.0, restarts=3)


def failed(folder: Path, error: type[BaseException], **of) -> dict:
    """Train until the error; what the run says of itself then."""
    run = Run.create(folder / "run", settings(**of))
    with pytest.raises(error):
        train(run)
    status = run.status()
    assert status["state"] == "failed"
    assert status["traceback"].startswith("Traceback (most recent call last)")
    return status


def host(how: str, **more) -> dict:
    return HOST | dict(env="failing:Breaks", world=Breaks(how=how)) | more


DECLARED = "env failing:Breaks contradicts what it declares"


@pytest.mark.parametrize(
    ("how", "error", "why"),
    [
        ("reset", OSError, "OSError: the level file is gone"),
        ("step", ValueError, "ValueError: the pole fell off"),
        ("exit", SystemExit, "SystemExit: 7"),
        ("shape", SpecMismatch, f"{DECLARED}: field 'obs': expected shape (2, 4, 2)"),
        ("dtype", SpecMismatch, f"{DECLARED}: field 'obs': expected float32, got complex128"),
        ("nan", SpecMismatch, f"{DECLARED}: field 'obs': expected numbers, got nan"),
        ("bounds", SpecMismatch, f"{DECLARED}: field 'obs': expected values in [0.0, 3.0], got 4"),
        ("reward", SpecMismatch, f"{DECLARED}: field 'reward': expected finite numbers, got inf"),
    ],
)
def test_an_env_on_the_host(tmp_path, how, error, why):
    status = failed(tmp_path, error, **host(how))
    assert why in status["why"]
    if how in ("reset", "step", "exit"):
        assert "failing.py" in status["traceback"]


@pytest.mark.parametrize("mode", ["lockstep", "processes"])
@pytest.mark.parametrize("how", ["reset", "step", "nan"])
@pytest.mark.full
def test_an_env_in_a_process(tmp_path, mode, how):
    learning = dataclasses.replace(settings().learning, min_fill=32)  # none before it gives up
    of = host(how, mode=mode, crew=CREW, learning=learning)
    status = failed(tmp_path, RunFailed, **of)
    said = {"reset": "the level file is gone", "step": "the pole fell off", "nan": DECLARED}[how]
    assert said in status["why"]
    assert "Traceback" not in status["why"]
    assert "failing.py" in status["traceback"] or how == "nan"


@pytest.mark.full
def test_a_learner_that_ends_the_run_does_not_hide_the_actor(tmp_path):
    """Its rows are all cut off by an actor that fails again and again."""
    status = failed(tmp_path, RunFailed, **host("step", mode="processes", crew=CREW))
    assert "failed: ValueError: the pole fell off; then learner" in status["why"]
    assert "failing.py" in status["traceback"]


def test_an_env_in_a_process_fails_at_the_start(tmp_path):
    status = failed(tmp_path, RunFailed, **host("reset", mode="processes", crew=CREW))
    assert status["why"].startswith("RunFailed: actor 0 failed: OSError: the level file is gone")
    assert "failing.py" in status["traceback"]


@pytest.mark.parametrize("mode", ["fused", "sequential"])
@pytest.mark.parametrize(
    ("how", "error", "why"),
    [
        ("step", ValueError, "ValueError: the pole fell off"),
        ("shape", SpecMismatch, "'obs': expected float32 (4, 2, 2), got float32 (4, 2, 1)"),
        ("dtype", SpecMismatch, "'obs': expected float32 (4, 2, 2), got complex64 (4, 2, 2)"),
        ("reward", SpecMismatch, "'reward': expected float32 (4, 2), got float32 (4,)"),
        ("nan", (FaultsFound, SpecMismatch), "env failing:BreaksInJax contradicts what it"),
    ],
)
def test_an_env_in_jax(tmp_path, mode, how, error, why):
    world = BreaksInJax(how=how)
    of = dict(env=world.name, world=world, mode=mode, log_every=40)
    assert why in failed(tmp_path, error, **of)["why"]


@pytest.mark.parametrize(
    "mode", ["fused", "sequential", pytest.param("lockstep", marks=pytest.mark.full)]
)
def test_an_agent(tmp_path, mode):
    of = dict(agent="failing:BadLearner", learning=settings().learning, mode=mode, crew=CREW)
    error = RunFailed if mode == "lockstep" else ZeroDivisionError
    status = failed(tmp_path, error, **of)
    assert "ZeroDivisionError: the loss is divided by nothing" in status["why"]
    assert "failing.py" in status["traceback"]


def test_it_is_shown_wherever_runs_are(tmp_path, capsys):
    failed(tmp_path, ValueError, **host("step"))
    path = str(tmp_path / "run")
    assert main(["runs", str(tmp_path)]) == 0
    assert "failed: ValueError: the pole fell off; millpond doctor" in capsys.readouterr().out
    assert main(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["why"] == "ValueError: the pole fell off"
    assert main(["doctor", path]) == 1
    said = capsys.readouterr().out
    assert "the run failed: ValueError: the pole fell off, in failing.py:" in said
    assert 'raise ValueError("the pole fell off")' in said
    assert "events.jsonl" not in said
    shown = card(tmp_path / "run", False, {})
    assert (shown["state"], shown["why"]) == ("failed", "ValueError: the pole fell off")
    assert "failing.py" in shown["traceback"]


def test_the_command_line_says_it_and_a_mended_env_goes_on(tmp_path, capsys):
    folder = tmp_path / "run"
    args = ["train", "failing:Breaks", "--run", str(folder), "--steps", "40", "--envs", "4"]
    few = ["--eval-every", "40", "--eval-episodes", "2", "--eval-turns", "4", "--stack", "1"]
    more = ["--replay", "host", "--dqn.capacity", "32", "--dqn.min-fill", "16", "--dqn.batch", "4"]
    assert main([*args, *few, *more, "--world.how", "step"]) == 1
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert "failed: ValueError: the pole fell off; millpond doctor" in said
    config = folder / "config.json"
    config.write_text(config.read_text().replace('"how": "step"', '"how": "nothing"'))
    assert main(["resume", str(folder)]) == 0
    assert Run.open(folder).status() == {"state": "finished", "steps": 40}
