"""Metrics: every line with its steps and frames, nothing that JSON lacks, and the other sinks."""

from __future__ import annotations

import json
import math
import sys
import types
from pathlib import Path

import pytest

from millpond.errors import BadConfig, RunFailed
from millpond.metrics import Metrics, make_sink, read_metrics


def no_constants(name):
    raise ValueError(f"{name} is not JSON")


def test_what_is_not_finite_becomes_null(tmp_path):
    metrics = Metrics(tmp_path / "m.jsonl")
    values = {"a": math.nan, "b": [1.5, -math.inf, [math.inf]], "c": None, "d": 3, "e": True}
    metrics.write("train", 7, 28, values)
    metrics.close()
    (text,) = (tmp_path / "m.jsonl").read_text().splitlines()
    line = json.loads(text, parse_constant=no_constants)
    assert line == {
        "kind": "train",
        "steps": 7,
        "frames": 28,
        **{"a": None, "b": [1.5, None, [None]], "c": None, "d": 3, "e": True},
    }


def test_lines_are_appended_and_a_torn_one_is_left_out(tmp_path):
    path = tmp_path / "m.jsonl"
    assert list(read_metrics(path)) == []
    for steps in (1, 2):
        metrics = Metrics(path)
        metrics.write("train" if steps == 1 else "eval", steps, steps * 4, {"return": 0.5})
        assert metrics.position() == path.stat().st_size
        metrics.close()
    with path.open("a") as file:
        file.write('{"kind": "train", "steps": 3')
    assert [line["steps"] for line in read_metrics(path)] == [1, 2]
    assert [line["frames"] for line in read_metrics(path, "eval")] == [8]
    assert list(read_metrics(path, "diverged")) == []


def test_a_full_disk_is_reported_and_closing_hides_nothing():
    metrics = Metrics(Path("/dev/full"))
    with pytest.raises(RunFailed, match=r"No space left on device; .*free some disk space"):
        metrics.write("train", 1, 1, {})
    with pytest.raises(RunFailed, match="No space left on device"):
        metrics.position()
    metrics.close()


def test_a_folder_that_is_gone_is_told(tmp_path):
    with pytest.raises(RunFailed, match=r"could not write to .*gone.*: No such file or directory"):
        Metrics(tmp_path / "gone" / "m.jsonl")


class Recorder:
    """Stands for the writers of both packages and keeps what it is told."""

    def __init__(self, *args, **options):
        self.made, self.told, self.closed = (args, options), [], False

    def add_scalar(self, name, value, step):
        self.told.append((name, value, step))

    def define_metric(self, name, step_metric=None):
        self.told.append(("define", name, step_metric))

    def log(self, values):
        self.told.append(values)

    def close(self):
        self.closed = True

    finish = close


@pytest.fixture
def recorder(monkeypatch):
    """Both packages, as far as they are used; the recorder that is made is the last item."""
    made = []

    def make(*args, **options):
        made.append(Recorder(*args, **options))
        return made[-1]

    monkeypatch.setitem(sys.modules, "tensorboardX", types.SimpleNamespace(SummaryWriter=make))
    monkeypatch.setitem(sys.modules, "wandb", types.SimpleNamespace(init=make))
    return made


VALUES = {"return": 2.5, "loss": math.nan, "returns": [1.0], "done": True, "updates": 4}


def test_tensorboard_gets_env_steps_as_x(recorder, tmp_path):
    metrics = Metrics(tmp_path / "m.jsonl", [make_sink("tensorboard", tmp_path, "run")])
    metrics.write("train", 120, 480, VALUES)
    metrics.close()
    (writer,) = recorder
    assert writer.made == ((str(tmp_path / "tensorboard"),), {})
    assert writer.told == [("train/return", 2.5, 120), ("train/updates", 4, 120)]
    assert writer.closed


def test_wandb_gets_env_steps_as_x(recorder, tmp_path):
    metrics = Metrics(tmp_path / "m.jsonl", [make_sink("wandb", tmp_path, "run")])
    metrics.write("eval", 120, 480, VALUES)
    metrics.close()
    (run,) = recorder
    assert run.made[1] == {"project": "millpond", "name": "run", "dir": str(tmp_path)}
    assert run.told == [
        ("define", "steps", None),
        ("define", "*", "steps"),
        {"steps": 120, "eval/return": 2.5, "eval/updates": 4},
    ]
    assert run.closed


@pytest.mark.parametrize(
    ("name", "package", "extra"),
    [
        ("tensorboard", "tensorboardX", "trackers"),
        ("wandb", "wandb", "trackers"),
        ("mlflow", "mlflow", "mlflow"),
    ],
)
def test_a_missing_tracker_says_what_to_install(name, package, extra, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    said = rf"--track {name} needs {package}, .*pip install 'millpond\[{extra}\]'"
    with pytest.raises(BadConfig, match=said):
        make_sink(name, tmp_path, "run")


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(BadConfig, match="no tracker 'comet'; use tensorboard, wandb or mlflow"):
        make_sink("comet", tmp_path, "run")
