"""Learning from a Lake and a live Pond: the exact share of every minibatch, resumed exactly."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from counting_agent import FOREIGN
from tiny_runs import WORLD, crash_at, dqn, files_of, settings

from millpond import Field, Lake, Spec
from millpond.cli.main import main
from millpond.doctor import Evidence, examine
from millpond.engine.provenance import traced_spec
from millpond.envs import spec_of
from millpond.envs.hosted import HostedVector
from millpond.errors import BadConfig, LakeRefused, NotEnoughData
from millpond.metrics import read_metrics
from millpond.train import Run, train
from millpond.train.presets import settings_for

pytestmark = pytest.mark.usefixtures("compiled_once")

ALONE = dataclasses.replace(WORLD, agents=1)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    """Play by chance, whose rewards are all 500 or more: no env of ours gives such."""
    path = tmp_path_factory.mktemp("data") / "lake"
    lake, rng = Lake.create(path, spec_of(ALONE), 10_000), np.random.default_rng(0)
    envs = HostedVector(ALONE, 4, seed=1)
    with lake.writer("play", 4) as writer:
        for _ in range(200):
            rows = envs.step(rng.integers(0, 4, (1, 4)))
            rows = jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows)
            border = (rows.flags & 2) != 0
            writer.append(rows._replace(reward=np.where(border, 0, FOREIGN + 7).astype("f4")))
    return str(path)


def shared(data: str, share: float = 0.5, batch: int = 4, **changes):
    """`n_step` is 1, so that every return has a reward of its own Lake or Pond."""
    of = dqn(settings(world=ALONE, **changes), batch=batch, n_step=1)
    return dataclasses.replace(of, lake=data, lake_share=share)


@pytest.mark.parametrize(
    ("replay", "sampler", "share", "batch", "rows"),
    [
        ("pond", "uniform", 0.5, 5, 3),  # halves go up
        pytest.param("pond", "prioritized", 0.1, 8, 1, marks=pytest.mark.full),
        pytest.param("host", "uniform", 0.9, 6, 5, marks=pytest.mark.full),
        ("host", "prioritized", 0.25, 4, 1),
    ],
)
def test_every_minibatch_has_exactly_its_share(replay, sampler, share, batch, rows, data, tmp_path):
    name = "counting_agent:CountingDQN"
    of = settings(world=ALONE, replay=replay, sampler=sampler, steps=160, eval_every=160)
    learning = dataclasses.replace(of.learning, batch=batch, n_step=1)
    given = dict(agent=name, learning=learning, lake=data, lake_share=share)
    of = dataclasses.replace(of, **given)
    assert (of.lake_rows, of.played_rows, of.way) == (rows, batch - rows, "sequential")
    run = Run.create(tmp_path / "run", of)
    train(run)
    lines = [line for line in read_metrics(run.metrics, "train") if "foreign" in line]
    assert lines
    assert {line["foreign"] for line in lines} == {float(rows)}  # means of whole rounds
    # What the doctor sees is what was played.
    health = list(read_metrics(run.metrics, "health"))
    assert max(one["target_reward_max"] for line in health for one in line["learners"]) < FOREIGN
    assert sum(one["sampled"] for line in health for one in line["learners"]) == (
        (batch - rows) * lines[-1]["updates"]
    )
    red = [one.name for one in examine(Evidence.of(run)) if one.state == "red"]
    assert not red


@pytest.mark.parametrize(
    ("replay", "sampler"),
    [("pond", "uniform"), pytest.param("host", "prioritized", marks=pytest.mark.full)],
)
def test_killed_and_resumed_equals_uninterrupted(replay, sampler, data, tmp_path):
    of = shared(data, replay=replay, sampler=sampler)
    whole, crashed = Run.create(tmp_path / "whole", of), Run.create(tmp_path / "crashed", of)
    digest = train(whole)
    crash_at(crashed, 240)
    assert crashed.status()["state"] == "failed"
    assert train(crashed) == digest
    assert files_of(crashed.path) == files_of(whole.path)
    other = Run.create(tmp_path / "other", dataclasses.replace(of, lake_share=0.25))
    assert train(other) != digest, "the share decides what is learned"


@pytest.mark.full
def test_every_policy_draws_its_own(data, tmp_path):
    run = Run.create(tmp_path / "run", dqn(settings(lake=data), n_step=1))
    assert run.settings.policies == 2
    train(run)
    assert run.status()["state"] == "finished"


@pytest.mark.full
def test_lockstep_processes_equal_their_twin(data, tmp_path, capsys):
    command = ["train", "treasurehunt-small", "--mode", "lockstep", "--check", "--actors", "2"]
    command += ["--world.agents", "1", "--world.size", "5", "--world.turns", "11"]
    command += ["--steps", "2000", "--envs", "16", "--dqn.min-fill", "200", "--dqn.capacity", "800"]
    command += ["--eval-every", "2000", "--eval-episodes", "4", "--log-every", "500"]
    lake = play_by_chance(tmp_path / "lake")
    assert main([*command, "--run", str(tmp_path / "run"), "--lake", str(lake)]) == 0
    assert "identical: " in capsys.readouterr().out


def play_by_chance(path: Path) -> Path:
    """A Lake of the env that the command above plays."""
    world = settings_for("treasurehunt-small").world
    world = dataclasses.replace(world, agents=1, size=5, turns=11)
    lake, rng = Lake.create(path, spec_of(world), 10_000), np.random.default_rng(0)
    envs = HostedVector(world, 4, seed=1)
    with lake.writer("play", 4) as writer:
        for _ in range(200):
            rows = envs.step(rng.integers(0, 4, (1, 4)))
            writer.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows))
    return path


def test_what_a_run_of_ours_wrote_may_be_given(tmp_path):
    """Its rows say more of themselves than an env does."""
    of = settings(world=ALONE, replay="lake", steps=160)
    first = Run.create(tmp_path / "first", dqn(of, capacity=10_000))
    train(first)
    path = first.path / "lake" / "policy-0"
    assert Lake.open(path).spec == traced_spec(of)
    second = Run.create(tmp_path / "second", shared(str(path), steps=160))
    train(second)
    assert second.status()["state"] == "finished"


def test_a_lake_that_cannot_be_learned_from_is_refused(tmp_path, capsys):
    other = Spec(Field("float32", (3,)), Field("int32", (), 0, 1))
    Lake.create(tmp_path / "other", other, 10_000)
    Lake.create(tmp_path / "empty", spec_of(ALONE), 10_000)
    short = Lake.create(tmp_path / "short", spec_of(ALONE), 10_000)
    envs = HostedVector(ALONE, 1, seed=1)
    with short.writer("play", 1) as writer:  # one row, which nothing follows
        rows = envs.step(np.zeros((1, 1), np.int64))
        writer.append(jax.tree.map(lambda leaf: np.asarray(leaf[0]), rows))
    for name, error in (
        ("none", LakeRefused),
        ("other", LakeRefused),
        ("empty", NotEnoughData),
        ("short", NotEnoughData),
    ):
        run = Run.create(tmp_path / f"run-{name}", shared(str(tmp_path / name)))
        with pytest.raises(error):
            train(run)
    folder = tmp_path / "by-command"
    code = main(
        ["train", "treasurehunt-small", "--lake", str(tmp_path / "other"), "--run", str(folder)]
    )
    assert code == 1
    assert "spec" in capsys.readouterr().err
    assert not folder.exists()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"lake": "x", "from_lake": "x", "world": ALONE}, r"give one of --lake and --from-lake"),
        ({"lake_share": 0.3}, r"lake_share: got 0.3, but no Lake"),
        ({"lake": "x", "lake_share": 0.0}, r"lake_share: 0 of a batch of 4 leaves one"),
        ({"lake": "x", "lake_share": 1.0}, r"lake_share: 1 of a batch of 4 leaves one"),
        ({"lake": "x", "lake_share": 0.1}, r"lake_share: 0.1 of a batch of 4 leaves"),
        ({"lake": "x", "lake_share": float("nan")}, r"lake_share: nan of a batch"),
        ({"lake": "x", "lake_share": -3.0}, r"lake_share: -3 of a batch"),
        ({"lake": "x", "agent": "pqn"}, r"lake: pqn learns from its own play only"),
        ({"lake": "x", "mode": "fused"}, r"lake 'x'; use --mode sequential"),
        ({"lake": "x", "mode": "ray"}, r"a replay in shards draws whole minibatches"),
        ({"lake": "x", "mode": "sequential", "replay_shards": 1}, r"a replay in shards"),
    ],
)
def test_what_cannot_be_is_refused(changes, said):
    with pytest.raises(BadConfig, match=said):
        settings(**changes)


def test_the_share_is_a_setting_like_any_other(data):
    of = shared(data, 0.25)
    assert type(of).from_json(json.loads(json.dumps(of.to_json()))) == of
