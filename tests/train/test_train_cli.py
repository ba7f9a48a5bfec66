"""`millpond train`, `resume`, `eval`, `runs` and `presets`: what they do, and what they refuse."""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

from millpond import Lake
from millpond.cli._options import in_digits, whole
from millpond.cli.main import main
from millpond.envs import Staghunt, minatar, spec_of
from millpond.metrics import read_metrics
from millpond.train import Run
from millpond.train.presets import settings_for

TINY = """
agent = "pqn"
steps = 96
envs = 4
log_every = 48
eval_every = 48
eval_episodes = 3
eval_turns = 6
checkpoint_every = 48
resume_every = 48
world = { size = 5, agents = 2, turns = 5, spawn = 0.2 }
network = { width = 8 }
pqn = { rollout = 4, minibatches = 2, epochs = 1 }
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch) -> Path:
    """An empty folder to work in; nothing is to appear there unasked."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def call(capsys, *args):
    try:
        code = main([str(arg) for arg in args])
    except SystemExit as stop:  # how the option parsers end
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A small run made by the command itself."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "tiny.toml").write_text(TINY)
    args = ["--preset", str(folder / "tiny.toml"), "--run", str(folder / "run"), "--seed", "3"]
    assert main(["train", "treasurehunt-small", *args, "--world.gem", "7"]) == 0
    return folder / "run"


# --- from train to film ------------------------------------------------------------------------


def test_train_makes_a_whole_run(trained):
    run = Run.open(trained)
    assert (run.settings.seed, run.settings.world.gem, run.settings.world.size) == (3, 7.0, 5)
    assert run.status()["state"] == "finished"
    assert len(run.checkpoints()) == 2
    assert [line["steps"] >= 48 for line in read_metrics(run.metrics, "eval")] == [True, True]
    for line in read_metrics(run.metrics):
        assert {"kind", "steps", "frames"} <= line.keys()
    with Image.open(trained / "curve.png") as picture:
        assert picture.width > 300


def test_a_finished_run_shows_its_curve_again(trained, capsys):
    before = {path: path.read_bytes() for path in trained.glob("*.safetensors")}
    code, out, err = call(capsys, "resume", trained)
    assert code == 0
    assert "greedy return by env steps" in out
    assert f"next: millpond eval {trained}" in out
    assert err.startswith(f"{trained} is finished; nothing to do\n")
    last = list(read_metrics(trained / "metrics.jsonl", "eval"))[-1]
    line = f"greedy {last['return']:.2f} (worst agent {last['least']:.2f})"
    line += f" after {last['steps']:,} steps"
    assert (
        out.index("by env steps")
        < out.index(f"\n{line}\n")
        < out.index("\nhash of the parameters ")
    )
    assert before == {path: path.read_bytes() for path in trained.glob("*.safetensors")}


def test_eval_compares_with_the_references(trained, capsys):
    code, out, err = call(capsys, "eval", trained, "--episodes", 4, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["episodes"] == 4
    assert found["steps"] == Run.open(trained).checkpoint().steps
    assert found["references"] == ["forager"]
    assert [row["agent"] for row in found["policies"]] == [0, 1]
    assert found["unfinished"] == 0
    for row in found["policies"]:
        span = row["forager"] - row["random"]
        assert row["normalised"] == pytest.approx((row["greedy"] - row["random"]) / span)
    assert found["team"]["least"] == min(row["normalised"] for row in found["policies"])

    first = Run.open(trained).checkpoints()[0].steps
    code, out, _ = call(capsys, "eval", trained, "--episodes", 4, "--checkpoint", first)
    assert code == 0
    assert f"treasurehunt-small, pqn after {first} steps: 4 greedy episodes" in out
    for word in (
        "policy",
        "random",
        "forager",
        "normalised (random 0, forager 1): mean",
        "worst agent",
    ):
        assert word in out


@pytest.mark.full
def test_what_the_env_counts_is_told(capsys, here):
    (here / "tiny.toml").write_text(TINY.replace("spawn = 0.2", "hares = 1, stags = 2"))
    args = ["--preset", here / "tiny.toml", "--run", here / "run", "--members", 2]
    code, _, err = call(capsys, "train", "staghunt", *args)
    assert code == 0
    assert "  stags " in err
    lines = list(read_metrics(here / "run" / "metrics.jsonl", "eval"))
    assert [len(line["counts"]["stags"]) for line in lines] == [2, 2]
    code, out, _ = call(capsys, "eval", here / "run", "--episodes", 40, "--json")
    assert code == 0
    found = json.loads(out)["events"]["stags"]
    assert list(found) == ["greedy", "random", "hare", "stag"]
    assert all(len(members) == 2 for members in found.values())
    assert min(found["stag"]) > max(found["hare"])
    code, out, _ = call(capsys, "eval", here / "run", "--episodes", 40)
    assert code == 0
    assert f"stags per episode: greedy {sum(found['greedy']) / 2:.2f}, random " in out
    assert f"; worst member {min(found['greedy']):.2f}\n" in out


def test_a_film_shows_the_whole_episode(trained, capsys, here):
    code, out, _ = call(capsys, "eval", trained, "--episodes", 4, "--video", here / "new" / "a.gif")
    assert code == 0
    assert "6 frames in" in out
    with Image.open(here / "new" / "a.gif") as film:
        assert film.n_frames > 1
        assert film.size == (80, 80)
        sizes = set()
        for number in range(film.n_frames):
            film.seek(number)
            sizes.add(film.size)
    assert sizes == {(80, 80)}


def test_a_film_that_cannot_be_made_is_refused(trained, capsys, here, monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    code, _, err = call(capsys, "eval", trained, "--video", here / "a.mp4")
    assert code == 2
    assert "an .mp4 needs ffmpeg, which is not installed; run: pip install" in err
    assert "'millpond[film]'; or install ffmpeg itself, or write a .gif" in err
    code, _, err = call(capsys, "eval", trained, "--video", here / "a.avi")
    assert code == 2
    assert "film: expected the name of a .gif or an .mp4, got 'a.avi'" in err
    assert not list(here.iterdir())


def test_eval_refuses_what_it_cannot_play(trained, capsys, here):
    code, _, err = call(capsys, "eval", trained, "--checkpoint", 1)
    assert code == 1
    assert "has no checkpoint at 1 steps; it has 80, 96" in err
    code, _, err = call(capsys, "eval", trained, "--episodes", 1)
    assert code == 2
    assert "--episodes must be at least 2, for a standard error, got 1" in err
    code, _, err = call(capsys, "eval", here)
    assert code == 1
    assert "is not a run: it has no config.json; millpond runs lists all runs" in err
    copy = Run.create(here / "new", Run.open(trained).settings)
    code, _, err = call(capsys, "eval", copy.path)
    assert code == 1
    assert "has no checkpoint yet; train it for longer" in err
    copy.checkpoint_path(8).parent.mkdir()
    copy.checkpoint_path(8).write_bytes(b"damaged")
    code, _, err = call(capsys, "eval", copy.path)
    assert code == 1
    assert "000000000008.safetensors cannot be read as a checkpoint" in err
    assert call(capsys, "runs", here)[0] == 0, "one damaged file hides all runs"


def test_runs_are_listed(trained, capsys, here):
    code, out, _ = call(capsys, "runs", trained.parent, "--json")
    assert code == 0
    (one,) = json.loads(out)
    best = max(line["return"] for line in read_metrics(trained / "metrics.jsonl", "eval"))
    assert one["run"] == str(trained)
    assert (one["state"], one["steps"], one["of"], one["best"]) == ("finished", 96, 96, best)
    assert one["checkpoints"] == [80, 96]
    code, out, _ = call(capsys, "runs", trained.parent)
    assert code == 0
    for word in (str(trained), "treasurehunt-small", "pqn", "finished", f"{best:.2f}"):
        assert word in out
    code, out, _ = call(capsys, "runs", here)
    assert (code, out) == (0, f"no runs in {here}; start one with millpond train ENV\n")
    code, _, err = call(capsys, "runs")
    assert code == 1
    assert "there is no folder runs; millpond train creates runs" in err


# --- presets and debugging ---------------------------------------------------------------------


def test_presets_are_shown(capsys, here):
    code, out, _ = call(capsys, "presets")
    assert code == 0
    text = re.sub(r"\n +", " ", out)  # long ones go on in the next line
    lines = dict(line.split(maxsplit=1) for line in text.splitlines())
    assert lines["minatar"] == "Every MinAtar game."
    assert all(text.endswith(".") for text in lines.values())
    code, out, _ = call(capsys, "presets", "minatar")
    assert code == 0
    assert out.startswith("# Every MinAtar game.")
    assert "[pqn]" in out
    code, out, _ = call(capsys, "presets", "--json")
    assert "minatar" in [one["name"] for one in json.loads(out)]
    code, out, _ = call(capsys, "presets", "minatar", "--json")
    assert json.loads(out)["agent"] == "pqn"
    code, _, err = call(capsys, "presets", "minatr")
    assert code == 2
    assert "there is no preset 'minatr'; did you mean 'minatar'?" in err


# Without jit every operation is a call of its own: as few turns as there can be.
SHORT = ["--steps", "8", "--eval-turns", "1", "--world.agents", "1"]


@pytest.mark.full
def test_a_debug_run_ends_and_folders_get_numbers(capsys, here):
    (here / "runs" / "treasurehunt-small-pqn-0").mkdir(parents=True)
    code, out, err = call(
        capsys, "train", "treasurehunt-small", "--debug", "--agent", "pqn", *SHORT
    )
    assert code == 0, err
    assert "parameters " in out
    run = Run.open(here / "runs" / "treasurehunt-small-pqn-0-2")
    assert run.status()["state"] == "finished"
    assert run.settings.debug
    assert run.settings.envs == 4


# --- help and refusals: nothing is created ------------------------------------------------------


def test_help_lists_the_envs_and_their_settings(capsys, here):
    code, out, _ = call(capsys, "train", "--help")
    assert code == 0
    for name in ("treasurehunt-small", "staghunt", "minatar/breakout", "atari/GAME", "gym:ID"):
        assert name in out
    assert call(capsys, "train")[:2] == (2, out)
    code, out, _ = call(capsys, "train", "treasurehunt", "--help")
    assert code == 0
    for option in ("--world.size", "--world.spawn", "--dqn.n-step", "--sampling.tries", "--steps"):
        assert option in out
    assert "--world.hares" not in out
    assert "--pqn" not in out
    assert "--pqn.rollout" in call(capsys, "train", "treasurehunt", "--agent", "pqn", "--help")[1]
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["treasurhunt"], "there is no env 'treasurhunt'; did you mean 'treasurehunt'?"),
        (["CartPole-v1"], "there is no env 'CartPole-v1'; did you mean 'gym:CartPole-v1'?"),
        (
            ["staghunt", "--agent", "dqn", "--lr", "1e-4"],
            "there is no option --lr; use --dqn.optimizer.rate.start",
        ),
        (
            ["staghunt", "--learning-rate=1e-4", "--agent=pqn"],
            "there is no option --learning-rate; use --pqn.optimizer.rate.start",
        ),
        (["minatar/brekout"], "no game 'brekout'; did you mean 'breakout'?"),
        (
            ["--steps", "5", "staghunt"],
            "name the env before its options: millpond train ENV --step",
        ),
        (
            ["staghunt", "--stepz", "5"],
            "there is no option --stepz; did you mean --steps?",
        ),
        (["staghunt", "--world.hars", "5"], "no option --world.hars; did you mean --world.hares?"),
        (["staghunt", "--steps", "five"], "--steps: expected a whole number, got five"),
        (["staghunt", "--envs", "0"], "envs must be at least 1, got 0"),
        (["staghunt", "--agent", "ppo"], "train: there is no agent 'ppo'; known are dqn, iqn, pqn"),
        (["staghunt", "--preset", "minatr"], "no preset 'minatr'; did you mean 'minatar'?"),
        (["staghunt", "--preset", "a.toml"], "a.toml cannot be read: No such file or directory"),
        (["staghunt", "--track", "wandb"], "pip install 'millpond[trackers]'"),
    ],
)
def test_a_wrong_call_says_what_to_do(args, said, capsys, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    code, out, err = call(capsys, "train", *args)
    assert code == 2
    assert said in err + out
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--seed", "3", "train", "staghunt"], "after the env: millpond train ENV --seed ..."),
        (["--json", "runs"], "after the command: millpond runs --json ..."),
        (["--nonsense"], "after the command: millpond COMMAND --nonsense ..."),
    ],
)
def test_options_before_the_command_are_sent_after_it(args, said, capsys, here):
    code, out, err = call(capsys, *args)
    assert (code, out) == (2, "")
    assert err == f"millpond: options go {said}; see millpond --help\n"


def test_a_folder_that_is_not_empty_is_left_alone(trained, capsys, here):
    before = sorted(trained.iterdir())
    code, _, err = call(capsys, "train", "staghunt", "--run", trained)
    assert code == 1
    assert f"{trained} is not empty; millpond resume {trained} continues it" in err
    assert sorted(trained.iterdir()) == before


def test_what_is_no_run_is_not_resumed(capsys, here):
    code, _, err = call(capsys, "resume", here)
    assert code == 1
    assert f"{here} is not a run: it has no config.json" in err
    code, _, err = call(capsys, "resume", here / "gone")
    assert code == 1
    assert f"there is no folder {here / 'gone'}; millpond runs lists" in err
    Lake.create(here / "lake", spec_of(Staghunt()), 10_000)
    code, _, err = call(capsys, "resume", here / "lake")
    assert code == 1
    assert f"is a Lake, not a run; millpond lake info {here / 'lake'}" in err


def test_a_missing_package_is_named(capsys, here, monkeypatch):
    original = importlib.import_module

    def missing(name, package=None):
        if name.startswith("pgx"):
            raise ImportError(name)
        return original(name, package)

    monkeypatch.setattr(importlib, "import_module", missing)
    minatar._game.cache_clear()
    minatar._shapes.cache_clear()
    code, _, err = call(capsys, "train", "minatar/breakout")
    assert code == 2
    said = "minatar needs pgx, which is not installed; run: pip install 'millpond[minatar]'"
    assert err == f"millpond train: {said}\n"
    assert not list(here.iterdir())


@pytest.mark.parametrize(
    ("source", "said"),
    [("nowhere", "nowhere"), ("other", "this Lake holds"), ("empty", "holds no rows; write some")],
)
def test_a_lake_that_cannot_be_learned_from_leaves_no_folder(source, said, capsys, tmp_path, here):
    ours = settings_for("treasurehunt-small").world
    Lake.create(tmp_path / "other", spec_of(Staghunt()), 10_000)
    Lake.create(tmp_path / "empty", spec_of(ours), 10_000)
    lake, only = tmp_path / source, ["--agent", "dqn", "--world.agents", "1"]
    code, _, err = call(capsys, "train", "treasurehunt-small", *only, "--from-lake", lake)
    assert code == 1
    assert str(lake) in err
    assert said in err
    assert not list(here.iterdir())
    assert source == "nowhere" or not Lake.open(lake).streams


@pytest.mark.parametrize("given", ["run", "run/lake"])
def test_a_run_in_the_place_of_its_lake_is_explained(given, capsys, tmp_path, here):
    lake = tmp_path / "run" / "lake" / "policy-0"
    Lake.create(lake, spec_of(settings_for("treasurehunt-small").world), 10_000)
    path, only = tmp_path / given, ["--agent", "dqn", "--world.agents", "1"]
    code, _, err = call(capsys, "train", "treasurehunt-small", *only, "--from-lake", path)
    assert code == 1
    assert f"{path}: not a Lake (no lake.json); did you mean {lake}?" in err


@pytest.mark.parametrize(
    ("text", "digits"),
    [("20k", "20000"), ("1.5M", "1500000"), ("2e5", "200000"), ("7", "7")]
    + [(same, same) for same in ("1e-3", "0.5", "1.2345k", "k", "runs/20k", "--steps")],
)
def test_large_numbers_may_be_written_short(text, digits):
    assert in_digits(text) == digits


@pytest.mark.parametrize("text", ["0", "-3", "1.5", "many", "1e-3"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises(argparse.ArgumentTypeError, match="whole number of at least 1"):
        whole(text)


def test_ctrl_c_before_anything_can_be_saved_says_so_and_no_more(monkeypatch, capsys):
    def stopped(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("millpond.cli.runs.main", stopped)
    assert main(["runs"]) == 130
    assert capsys.readouterr().err == "millpond runs: stopped\n"
