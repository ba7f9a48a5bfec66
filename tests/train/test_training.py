"""Training: who is who in a population, what is counted, that it learns, and when it must stop."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file
from tiny_runs import Arms, HostArms, settings

from millpond.agents import DQNSettings, PQNSettings
from millpond.agents.optimizer import Optimizer
from millpond.cli._train_text import train_and_show
from millpond.engine.checkpoint import about_file
from millpond.engine.device_loop import DeviceLoop
from millpond.engine.episode_stats import count, new_stats, no_sums
from millpond.engine.population import Population
from millpond.envs import HostedVector
from millpond.errors import Diverged
from millpond.metrics import read_metrics
from millpond.rows import BORDER, FIRST, Rows
from millpond.schedule import constant
from millpond.train import Run, train
from millpond.train.session import summary

pytestmark = pytest.mark.usefixtures("compiled_once")

# --- who is who --------------------------------------------------------------------------------


def test_every_agent_of_every_env_has_its_place():
    """2 members x 2 agents x 3 envs; a number says agent, member and env."""
    population = Population(members=2, agents=2, envs=3)
    by_env = np.array([[0, 1, 2, 10, 11, 12], [100, 101, 102, 110, 111, 112]])
    by_policy = np.array([[0, 1, 2], [100, 101, 102], [10, 11, 12], [110, 111, 112]])
    np.testing.assert_array_equal(population.by_policy(by_env), by_policy)
    np.testing.assert_array_equal(population.by_env(by_policy), by_env)
    assert (population.policies, population.all_envs) == (4, 6)


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.sampled_from([(), (2,), (1, 3)]))
def test_there_and_back(members, agents, envs, tail):
    population = Population(members, agents, envs)
    shape = (agents, members * envs, *tail)
    tree = {"a": np.arange(np.prod(shape)).reshape(shape), "b": np.zeros(shape, bool)}
    policies = population.by_policy(tree)
    assert policies["a"].shape == (members * agents, envs, *tail)
    back = population.by_env(policies)
    flat = population.flat(policies)
    assert flat["a"].shape == (members * agents * envs, *tail)
    for name in tree:
        np.testing.assert_array_equal(back[name], tree[name])
        np.testing.assert_array_equal(population.deep(flat)[name], policies[name])


# --- what is counted ---------------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1), st.sampled_from([1, 4, 30]))
def test_steps_and_episodes_are_counted_as_by_hand(seed, at_once):
    """Turn by turn or many at once."""
    rng = np.random.default_rng(seed)
    policies, envs = 2, 3
    tally, sums = new_stats(policies, envs), no_sums(policies)
    steps, episodes, returns, lengths, nonzero = ([0] * policies for _ in range(5))
    running = {(p, e): [] for p in range(policies) for e in range(envs)}
    flags = np.full((policies, envs), FIRST, np.uint8)
    seen = []
    for turn in range(30):
        border = flags == BORDER
        reward = np.where(border, 0, rng.integers(-2, 3, flags.shape)).astype(np.float32)
        terminated = (rng.random(flags.shape) < 0.15) & ~border
        truncated = (rng.random(flags.shape) < 0.15) & ~border
        seen.append(Rows(None, None, reward, terminated, truncated, flags))
        if len(seen) == at_once or turn == 29:
            rows = jax.tree.map(lambda *leaves: np.stack(leaves), *seen)
            tally, sums = count(tally, sums, rows, np)
            seen.clear()
        for (p, e), episode in running.items():
            if border[p, e]:
                continue
            steps[p] += 1
            nonzero[p] += reward[p, e] != 0
            episode.append(float(reward[p, e]))
            if terminated[p, e] or truncated[p, e]:
                episodes[p] += 1
                returns[p] += sum(episode)
                lengths[p] += len(episode)
                episode.clear()
        ended = terminated | truncated
        flags = np.where(ended, BORDER, np.where(border, FIRST, 0)).astype(np.uint8)
    assert tally.steps.tolist() == sums.steps.tolist() == steps
    assert sums.episodes.tolist() == episodes
    assert sums.reward.tolist() == returns
    assert sums.length.tolist() == lengths
    assert sums.nonzero.tolist() == nonzero
    assert {k: sum(v) for k, v in running.items()} == dict(np.ndenumerate(tally.reward))
    assert {k: len(v) for k, v in running.items()} == dict(np.ndenumerate(tally.length))
    line = summary(sums, ())
    total = sum(episodes)
    assert line["episodes"] == total
    assert line["return"] == (pytest.approx(sum(returns) / total) if total else None)
    assert line["returns"] == [
        pytest.approx(r / n) if n else None for r, n in zip(returns, episodes, strict=True)
    ]
    assert "loss" not in line


def test_counting_is_the_same_inside_jit():
    flags = np.array([[[0, FIRST, BORDER]], [[BORDER, 0, FIRST]]], np.uint8)
    no, ended = np.zeros((2, 1, 3), bool), flags == 0
    rows = Rows(None, None, np.float32([[[1, 2, 0]], [[0, 4, 8]]]), no, ended, flags)

    def counted(rows, xp):
        return count(new_stats(1, 3), no_sums(1), rows, xp)

    plain = counted(rows, np)
    inside = jax.jit(lambda rows: counted(rows, jnp))(rows)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(inside), strict=True):
        np.testing.assert_array_equal(one, other)
        assert one.dtype == other.dtype


# --- members -----------------------------------------------------------------------------------


def test_members_do_not_know_of_each_other():
    """With other parameters for member 1, nothing of member 0 changes."""
    loop = DeviceLoop(settings(agent="pqn", members=2))

    def played(factor):
        state = jax.tree.map(np.asarray, loop.init())
        params = jax.tree.map(lambda p: np.concatenate([p[:2], p[2:] * factor]), state.agent.params)
        state = loop.unpack(state._replace(agent=state.agent._replace(params=params)))
        return jax.device_get(loop.round(state, 5))

    (one, sums), (other, others) = played(np.float32(1)), played(np.float32(-3))
    jax.tree.map(
        lambda a, b: np.testing.assert_array_equal(a[:2], b[:2]),
        (one.agent, sums),
        (other.agent, others),
    )
    np.testing.assert_array_equal(one.envs.obs[:, :4], other.envs.obs[:, :4])
    assert (one.envs.obs[:, 4:] != other.envs.obs[:, 4:]).any()
    first = [np.asarray(leaf) for leaf in jax.tree.leaves(one.agent.params)]
    assert any((leaf[0] != leaf[2]).any() for leaf in first), "both members are the same"


# --- learning ----------------------------------------------------------------------------------

PAY = (0.1, -0.2, 1.0, 0.4)
FAST = Optimizer("adam", constant(0.01))
LEARNERS = {
    "pond": dict(learning=DQNSettings(batch=16, min_fill=32, capacity=512, optimizer=FAST)),
    "host": dict(replay="host"),
    "pqn": dict(agent="pqn", learning=PQNSettings(rollout=4, minibatches=2, optimizer=FAST)),
}
LEARNERS["host"] |= LEARNERS["pond"]


@pytest.mark.parametrize("name", ["pond", pytest.param("host", marks=pytest.mark.full), "pqn"])
def test_the_best_arm_is_found(name, tmp_path):
    """Values of a one-step env are its pay, for every one of three members."""
    world = Arms(pay=PAY, boost=1)
    every = dict(steps=800, log_every=200, eval_every=800, checkpoint_every=800, resume_every=800)
    of = settings("arms", world, members=3, stack=1, **every, **LEARNERS[name])
    run = Run.create(tmp_path / "run", of)
    train(run)
    (last,) = read_metrics(run.metrics, "eval")
    assert last["returns"] == [1.0, 1.0, 1.0]
    assert last["least"] == 1.0
    lines = list(read_metrics(run.metrics, "train"))
    assert lines[-1]["loss"] < lines[0]["loss"] / 4
    for line in [*lines, last]:
        assert line["frames"] == 3 * 3 * line["steps"], "frames of all members, 3 per step"


class LooseArms(Arms):
    __hash__ = None


def test_an_env_that_cannot_be_hashed_trains(tmp_path):
    """As a dataclass that is not frozen: programs are kept by settings, and these are no key."""
    loose = LooseArms()
    with pytest.raises(TypeError, match="unhashable"):
        hash(loose)
    train(Run.create(tmp_path / "run", settings("arms", loose, steps=40, mode="sequential")))
    assert HostedVector(loose, 2, seed=1).obs.shape == (1, 2, 2)


# --- divergence --------------------------------------------------------------------------------


def floats_of(path):
    return [array for array in load_file(path).values() if array.dtype.kind == "f"]


@pytest.mark.parametrize("replay", ["pond", pytest.param("host", marks=pytest.mark.full)])
def test_a_run_that_diverges_stops_and_keeps_the_evidence(replay, tmp_path, capsys):
    """The second agent's rewards are so large that its first squared error is infinite."""
    dqn = DQNSettings(batch=4, min_fill=48, capacity=64, loss="squared")
    of = settings("arms", Arms(agents=2, boost=1e30), stack=1, replay=replay, learning=dqn)
    of = dataclasses.replace(of, resume_every=1, log_every=8, eval_every=8, checkpoint_every=200)
    run = Run.create(tmp_path / "run", of)
    assert train_and_show(run) == 3
    said = " ".join(capsys.readouterr().err.split())
    assert "diverged: update 1 of policy 1, between " in said
    assert "Lower the learning rate" in said
    assert run.status()["state"] == "diverged"
    *_, last = read_metrics(run.metrics)
    assert last == {**last, "kind": "diverged", "policy": 1, "update": 1}

    evidence = run.path / "diverged.safetensors"
    assert str(evidence) in said
    assert {"policy": 1, "update": 1}.items() <= about_file(evidence).items()
    saved = load_file(evidence)
    assert saved["['batch'].reward"].shape == (2, 4)
    assert (saved["['batch'].reward"][1] > 1e29).any()
    assert saved["['agent'].bad"].tolist() == [False, True]
    assert run.checkpoints() == []
    assert run.resume_state.exists()
    for array in floats_of(run.resume_state):
        assert np.isfinite(array).all()


@pytest.mark.parametrize("world", [Arms, pytest.param(HostArms, marks=pytest.mark.full)])
def test_a_rollout_that_diverges_is_the_evidence(world, tmp_path):
    arms = Arms(agents=2, boost=1e30)
    of = settings("arms", arms if world is Arms else HostArms(arms), agent="pqn", stack=1)
    run = Run.create(tmp_path / "run", of)
    with pytest.raises(Diverged, match="update 1 of policy 1, between 0 and "):
        train(run)
    saved = load_file(run.path / "diverged.safetensors")
    assert (saved["['batch'].goal"][1] > 1e29).any()
    assert (saved["['batch'].goal"][0] < 2).all()
    assert sorted(path.name for path in run.path.glob("*.safetensors")) == ["diverged.safetensors"]
    assert run.checkpoints() == []


def test_parameters_that_overflow_are_not_saved(tmp_path):
    """The gradient is finite, the step is not, and no later update shows it before the save."""
    rule = Optimizer("sgd", constant(3e38), clip=0)
    dqn = DQNSettings(batch=4, min_fill=16, capacity=64, loss="squared", optimizer=rule)
    of = settings("arms", Arms(pay=(1e5, 1e5)), stack=1, learning=dqn)
    of = dataclasses.replace(of, resume_every=1, checkpoint_every=1, log_every=1)
    run = Run.create(tmp_path / "run", of)
    with pytest.raises(Diverged, match="update 1 of policy 0, between"):
        train(run)
    kept = [run.resume_state, *(checkpoint.path for checkpoint in run.checkpoints())]
    assert len(kept) > 1
    for path in kept:
        for array in floats_of(path):
            assert np.isfinite(array).all()
