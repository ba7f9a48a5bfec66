"""Parts from outside the package: an env, an agent and a sampler, each one file, in every mode."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from mix_runs import crash_where, mixture
from plugin_package import PLUGIN, install
from tiny_runs import Crash, crash_at, settings

from millpond import BadConfig, RunRefused
from millpond.agents import agent_names, find_agent
from millpond.cli.eval import compare
from millpond.doctor import Evidence, Probe, examine
from millpond.doctor.draw_checks import draws
from millpond.envs import make_env
from millpond.mixture import MixRun, mix
from millpond.mixture.params import load_params
from millpond.mixture.programs import Programs
from millpond.plugins import find_part, origin, short_name
from millpond.samplers import make_sampler
from millpond.train import Run, Settings, train
from millpond.view.history import RunHistory

pytestmark = pytest.mark.usefixtures("compiled_once")

NAMES = dict(
    env="pond_plugin.corridor:Corridor",
    agent="pond_plugin.soft_q:SoftQ",
    sampler="pond_plugin.newest:Newest",
)


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> dict[str, str]:
    """The environment of a process that has the package installed, entry points and all."""
    return install(tmp_path_factory.mktemp("plugin"))


@pytest.fixture
def importable(monkeypatch):
    """The package's modules can be imported here, as from the folder that holds them."""
    monkeypatch.syspath_prepend(str(PLUGIN))


def millpond(env: dict[str, str], folder: Path, *args: str) -> str:
    command = [sys.executable, "-m", "millpond", *args]
    done = subprocess.run(
        command, env=env, cwd=folder, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SMALL = ["--envs", "8", "--eval-episodes", "8", "--log-every", "400", "--eval-every", "4000"]


@pytest.mark.parametrize(
    "mode",
    [
        "auto",
        pytest.param("sequential", marks=pytest.mark.full),
        "lockstep",
        pytest.param("lockstep --check", marks=pytest.mark.full),
        pytest.param("processes --actors 2", marks=pytest.mark.full),
    ],
)
def test_an_installed_package_trains_by_its_names(installed, tmp_path, mode):
    steps = "6000" if mode == "auto" else "800"
    parts = ["--agent", "softq", "--sampler", "newest", "--mode", *mode.split()]
    out = millpond(
        installed, tmp_path, "train", "corridor", *parts, *SMALL, "--steps", steps, "--run", "r"
    )
    if "check" in mode:
        assert "identical: " in out
    if mode == "auto":
        assert "greedy 1.00 after" in out, "it learns to walk to the end"
    config = json.loads((tmp_path / "r" / "config.json").read_text())
    assert config["settings"]["agent"] == "softq"
    assert config["settings"]["softq"]["gamma"] == 0.9
    assert config["parts"]["agent"] == {"class": "pond_plugin.soft_q:SoftQ", "version": "1.0"}
    assert config["learns"]["capacity"] == 8192


def test_its_settings_are_options_like_ours(installed, tmp_path):
    help_ = ["train", "corridor", "--agent", "softq", "--sampler", "newest", "--help"]
    out = millpond(installed, tmp_path, *help_)
    for option in ("--world.length", "--softq.batch", "--softq.heat.start", "--sampling.share"):
        assert option in out
    assert "--dqn" not in out, "of agents that are not used nothing is shown"


@pytest.mark.usefixtures("importable")
def test_crashed_and_resumed_equals_uninterrupted(tmp_path):
    whole, crashed = (Run.create(tmp_path / name, _small()) for name in ("whole", "crashed"))
    digest = train(whole)
    crash_at(crashed, 240)
    again = Run.open(crashed.path)
    assert again.settings == crashed.settings
    assert train(again) == digest


def _small() -> Settings:
    named = {name: NAMES[name] for name in ("agent", "sampler")}
    learning = find_agent(NAMES["agent"]).Settings(min_fill=64, capacity=512, batch=4, updates=1)
    return settings(NAMES["env"], make_env(NAMES["env"]), learning=learning, **named, envs=8)


@pytest.mark.usefixtures("importable")
def test_the_doctor_examines_it_without_asking_who_it_is(tmp_path):
    run = Run.create(tmp_path / "run", dataclasses.replace(_small(), mode="sequential"))
    train(run)
    verdicts = {verdict.name: verdict for verdict in examine(Evidence.of(run))}
    assert not [name for name, verdict in verdicts.items() if verdict.state == "red"]
    for name in ("stack-parity", "nstep-oracle", "replay-fill"):
        assert verdicts[name].state == "green", verdicts[name]
    assert "explores without an epsilon" in verdicts["epsilon-applied"].message
    scores = compare(run, load_params(run, run.checkpoint().path), 4)
    assert {"greedy", "random"} <= set(scores["policies"][0])
    history = RunHistory(run.path)
    history.look()
    assert "loss" in history.train, "what it reports is drawn"
    assert "heat" in history.train


@pytest.mark.full
@pytest.mark.usefixtures("importable")
def test_it_unites_a_mixture(tmp_path):
    """As the BigAgent, with an env and a sampler of the same package; resumed, it ends alike."""
    sizes = dict(gamma=0.99, min_fill=16, capacity=400, batch=4, updates=1)
    learning = find_agent(NAMES["agent"]).Settings(**sizes)
    of = dict(world=make_env(NAMES["env"]), big_agent=NAMES["agent"], sampler=NAMES["sampler"])
    settings = dataclasses.replace(mixture(**of, big_learning=learning), env=NAMES["env"])
    whole, crashed = (MixRun.create(tmp_path / name, settings) for name in ("whole", "crashed"))
    programs = Programs(settings)
    digest = mix(whole, programs=programs)
    crash_where(crashed, programs, lambda line: line["kind"] == "eval" and line["frames"] > 1_500)
    assert mix(MixRun.open(crashed.path), programs=programs) == digest


@pytest.mark.usefixtures("importable")
def test_its_sampler_may_be_as_uneven_as_it_likes(tmp_path):
    """More rows than in `_small`, so that the doctor sees where draws go."""
    small = _small()
    learning = dataclasses.replace(small.learning, min_fill=256, capacity=8192)
    run = Run.create(tmp_path / "run", dataclasses.replace(small, learning=learning, steps=3200))
    train(run)
    verdicts = {verdict.name: verdict for verdict in draws(Probe.of(run))}
    assert verdicts["replay-transitions"].state == "green", verdicts
    assert verdicts["replay-draws"].state == "green", verdicts
    assert "Newest need not be even" in verdicts["replay-draws"].message


@pytest.mark.usefixtures("importable")
def test_a_run_is_not_resumed_with_other_parts(tmp_path):
    run = Run.create(tmp_path / "run", _small())
    with pytest.raises(Crash):
        train(run, report=_crash)
    config = json.loads((run.path / "config.json").read_text())
    config["parts"]["agent"]["version"] = "0.9"
    (run.path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RunRefused, match=r"agent pond_plugin.soft_q:SoftQ of version 0.9, inst"):
        train(Run.open(run.path))


def _crash(line) -> None:
    raise Crash


def test_what_cannot_be_imported_is_named(tmp_path):
    cases = {
        "nowhere.at_all:Agent": "module nowhere.at_all cannot be imported; install its package",
        "millpond.agents:DqnAgent": r"millpond.agents has no DqnAgent; did you mean",
        "millpond.window:Window": "it lacks Settings, continuous, reports",
        "millpond.agents:agent_names": "expected a class with Settings",
        "sarsa": r"there is no agent 'sarsa'; .*your own: package.module:Name",
    }
    for name, said in cases.items():
        with pytest.raises(BadConfig, match=said):
            find_agent(name)
    with pytest.raises(BadConfig, match=r"expected an Env .* got Window"):
        make_env("millpond.window:Window")
    with pytest.raises(BadConfig, match="could not be made without arguments"):
        make_env("millpond.window:Stacker")
    for name in ("", ":", "a:", ":b", "..x:y", "a b:c", "1:2"):
        with pytest.raises(BadConfig, match="there is no agent"):
            find_agent(name)
    with pytest.raises(BadConfig, match="sampler 'os:path': expected a class, got <module"):
        make_sampler("os:path")
    with pytest.raises(BadConfig, match=r"sampler 'millpond.samplers:Recent': could not be made"):
        make_sampler("millpond.samplers:Recent")
    with pytest.raises(BadConfig, match="a dataclass with tries and propose"):
        make_sampler("millpond.window:Window")


def test_names_and_origins():
    assert {"dqn", "pqn"} <= set(agent_names())
    assert short_name("package.module:MyAgent") == "myagent"
    assert origin(find_part("agent", "dqn", {"dqn": Run}))["class"] == "millpond.train.run:Run"
