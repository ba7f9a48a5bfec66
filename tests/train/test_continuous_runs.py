"""Runs of agents with real actions: every way of running them, what is refused, who is usual."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from process_runs import nothing_left_behind
from tiny_runs import Crash, crash_at, files_of

from millpond import BadConfig, Lake
from millpond.agents import Network, SACSettings, TD3Settings
from millpond.cli.eval import compare as compare_players
from millpond.cli.train import main as train_command
from millpond.doctor import Evidence, examine
from millpond.engine.make_agent import make_agent
from millpond.engine.settings import Settings, tiny, usual_agent
from millpond.envs import GymEnv, HostedVector, Pendulum, TMaze, make_env, spec_of
from millpond.metrics import read_metrics
from millpond.mixture import MixSettings
from millpond.mixture.params import load_params
from millpond.train import Run, presets, settings_for, train
from millpond.train.check_lockstep import compare
from millpond.view.history import RunHistory

__all__ = ["nothing_left_behind"]

SIZES = dict(batch=4, min_fill=16, capacity=64, update_every=2, n_step=2)
SAC = Settings(
    "pendulum",
    Pendulum(turns=7),
    agent="sac",
    learning=SACSettings(**SIZES),
    steps=160,
    envs=4,
    network=Network(width=8),
    log_every=40,
    eval_every=80,
    eval_episodes=3,
    eval_turns=7,
    checkpoint_every=80,
    resume_every=40,
    sampler="prioritized",
)
TD3 = replace(
    SAC,
    agent="td3",
    learning=TD3Settings(**SIZES, correlation=0.5),
    mode="sequential",
    replay="host",
    actors=2,
)
OTHERS = [
    pytest.param(replace(SAC, mode="sequential", sampler="uniform", sampling=None), id="pond"),
    pytest.param(replace(SAC, replay="host", sampler="stratified", sampling=None), id="host"),
    pytest.param(replace(SAC, members=2, sampler="recent", sampling=None), id="members"),
    pytest.param(replace(SAC, env="gym:Pendulum-v1", world=GymEnv("Pendulum-v1")), id="gym"),
]


def play(path, settings) -> Run:
    run = Run.create(path, settings)
    train(run)
    return run


def learned(run: Run) -> dict:
    lines = list(read_metrics(run.metrics, "train"))
    assert lines[-1]["updates"] > 0
    assert all(np.isfinite(lines[-1][name]) for name in run.settings.reports)
    return lines[-1]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, compiled_once) -> Run:
    return play(tmp_path_factory.mktemp("runs") / "sac", SAC)


def test_crashed_and_resumed_equals_uninterrupted(whole, tmp_path):
    """Prioritised replay in one program, saved in mid-episode."""
    run = Run.create(tmp_path / "broken", SAC)
    crash_at(run, 120)
    train(run)
    assert files_of(run.path) == files_of(whole.path)
    learned(run)


def test_what_a_run_is_asked_about(whole):
    """Evaluation beside a random player, the doctor, and the page's history."""
    params = load_params(whole, whole.checkpoint(None).path)
    found = compare_players(whole, params, 4)
    assert found["policies"][0]["random"] < 0
    verdicts = {verdict.name: verdict for verdict in examine(Evidence.of(whole))}
    assert verdicts["epsilon-applied"].state == "unknown"
    assert verdicts["target-cadence"].state == "green"
    assert {"saturated-actions", "policy-sees", "temperature", "critic-values"} <= set(verdicts)
    history = RunHistory(whole.path)
    history.look()
    for name in ("actor_loss", "temperature", "entropy", "saturated", "spread"):
        assert name in history.train


@pytest.mark.full
def test_lockstep_is_the_sequential_run_bit_by_bit(tmp_path):
    base = replace(TD3, crew=replace(TD3.crew, trace=True), sampler="prioritized")
    modes = ("sequential", "lockstep")
    runs = [play(tmp_path / mode, replace(base, mode=mode)) for mode in modes]
    found = compare(*(run.path / "trace.jsonl" for run in runs))
    assert found.identical, found.differs
    assert learned(runs[1])["updates"] > 10


@pytest.mark.full
def test_a_crew_resumes_exactly(tmp_path):
    """TD3 with correlated noise, two actors, replay on the host."""
    one, two = (Run.create(tmp_path / name, TD3) for name in ("whole", "broken"))
    train(one)

    def crash(line):
        if line["kind"] == "train" and line["steps"] >= 120:
            raise Crash

    with pytest.raises(Crash):
        train(two, crash)
    train(two)
    for name in ("metrics.jsonl", "resume.safetensors"):
        assert (one.path / name).read_bytes() == (two.path / name).read_bytes()
    learned(one)


@pytest.mark.full
@pytest.mark.parametrize("settings", OTHERS)
def test_every_other_way(settings, tmp_path):
    run = play(tmp_path / "run", settings)
    learned(run)
    wrong = [v for v in examine(Evidence.of(run)) if v.state == "red"]
    assert not [v for v in wrong if v.name not in ("learning", "update-norm")], wrong


@pytest.mark.full
def test_processes_run_free(tmp_path):
    learned(play(tmp_path / "run", replace(TD3, mode="processes", steps=400)))


@pytest.mark.full
def test_offline_from_a_lake(tmp_path):
    """Rows that somebody left behind, learned from by an agent that never acts."""
    world, rng = SAC.world, np.random.default_rng(0)
    lake = Lake.create(tmp_path / "lake", spec_of(world), 10_000)
    envs = HostedVector(world, 4, seed=1)
    with lake.writer("play", 4) as writer:
        for _ in range(200):
            rows = envs.step(rng.uniform(-2, 2, (1, 4, 1)))
            writer.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows))
    offline = replace(SAC, sampler="uniform", sampling=None, steps=12, log_every=4, eval_every=12)
    offline = replace(offline, from_lake=str(tmp_path / "lake"))
    assert learned(play(tmp_path / "run", offline))["updates"] == 12


def test_offline_from_the_lake_of_a_run(tmp_path):
    """Its rows say more of themselves than those of others do."""
    learning = replace(SAC.learning, capacity=8_192)  # a Lake's least
    settings = replace(SAC, learning=learning, envs=1, sampler="uniform", sampling=None, steps=40)
    settings = replace(settings, replay="lake")
    play(tmp_path / "run", settings)
    offline = replace(settings, replay="pond", steps=8, log_every=4, eval_every=8)
    offline = replace(offline, from_lake=str(tmp_path / "run" / "lake" / "policy-0"))
    assert learned(play(tmp_path / "offline", offline))["updates"] == 8


@pytest.mark.full
@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_debug_is_small_and_has_no_nan(agent, tmp_path):
    of = SAC if agent == "sac" else replace(TD3, mode="auto", replay="pond", actors=1)
    learned(play(tmp_path / "run", tiny(of)))


def test_agents_that_do_not_fit_are_told_which_do():
    wrong = replace(SAC, agent="dqn", learning=None)
    with pytest.raises(BadConfig, match=r"pendulum takes real vectors; agents that fit .*sac, td3"):
        make_agent(wrong)
    wrong = replace(SAC, env="tmaze", world=TMaze())
    with pytest.raises(BadConfig, match=r"acts with real vectors, but tmaze .* fit are dqn, "):
        make_agent(wrong)


def test_the_wrong_kind_of_agent_is_named_before_its_network():
    with pytest.raises(BadConfig, match=r"sac: acts with real vectors, but tmaze .* fit are dqn, "):
        settings_for("tmaze", agent="sac")  # whose preset has a memory


def test_a_command_that_does_not_fit_leaves_no_folder(tmp_path):
    args = ["pendulum", "--agent", "dqn", "--run", str(tmp_path / "run")]
    with pytest.raises(BadConfig, match="agents that fit are sac, td3"):
        train_command(args)
    assert not (tmp_path / "run").exists()


def test_who_is_usual():
    envs = ("pendulum", "gym:MountainCarContinuous-v0", "tmaze", "gym:CartPole-v1")
    assert [usual_agent(make_env(name)) for name in envs] == ["sac", "sac", "dqn", "dqn"]
    assert settings_for("gym:Pendulum-v1").agent == "sac"
    assert settings_for("gym:CartPole-v1").agent == "dqn"
    assert settings_for("pendulum", agent="td3").learning.noise.start == 0.1
    assert Settings.from_json(SAC.to_json()) == SAC


def test_a_family_s_preset_gives_way_to_an_agent_that_fits(monkeypatch):
    monkeypatch.setattr(presets, "preset_names", lambda: ["gym"])
    found = settings_for("gym:Pendulum-v1")
    assert (found.agent, found.learning.batch) == ("sac", 256)
    assert settings_for("gym:CartPole-v1").agent == "dqn"
    assert settings_for("gym:Pendulum-v1", agent="td3").agent == "td3"


def test_a_mixture_refuses_real_actions():
    with pytest.raises(BadConfig, match=r"mixture: .* pendulum takes real vectors"):
        MixSettings("pendulum", Pendulum())
