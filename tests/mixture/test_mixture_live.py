"""Transfer live, what is measured, and the commands around a mixture."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mix_runs import PLAIN, crash_where, files_of, mixture

from millpond import Field, Spec
from millpond.agents import DQN, DQNSettings, Network
from millpond.cli.main import main
from millpond.engine.episode_stats import no_sums
from millpond.metrics import read_metrics
from millpond.mixture import MixRun, mix
from millpond.mixture.best import Best
from millpond.mixture.measure import disagreement, dormant
from millpond.mixture.position import Position
from millpond.mixture.programs import Programs
from millpond.mixture.reset import passes_gate, replacements
from millpond.mixture.settings import BigSettings
from millpond.rows import BORDER


@pytest.fixture(scope="module")
def live() -> Programs:
    """One member of two agents; the BigAgent plays in two envs of its own beside their eight."""
    big = BigSettings(21.0, capacity=400)
    small = dict(members=1, stack=1, big_agent="dqn", big_learning=DQNSettings(batch=4))
    return Programs(mixture(**small, transfer="live", big=big, frames=3 * 2 * 16 * 10))


@pytest.fixture(scope="module")
def flown(live, tmp_path_factory) -> MixRun:
    run = MixRun.create(tmp_path_factory.mktemp("live") / "run", live.settings)
    mix(run, lambda line: None, live)
    return run


def test_live_has_no_break_resumes_exactly_and_commands_know_it(
    live, flown, tmp_path, capsys, monkeypatch
):
    """One test, because what it needs takes long to compile."""
    settings = live.settings
    assert (settings.own_envs, settings.big_streams, settings.init) == (2, 10, "scratch")
    assert not flown.lakes.exists(), "rows go straight to the BigAgent"
    other = MixRun.create(tmp_path / "run", settings)
    for kind, cycle in (("train", 0), ("reset", 1), ("train", 1), ("measure", 1)):
        crash_where(
            other, live, lambda line, k=kind, c=cycle: (line["kind"], line.get("cycle")) == (k, c)
        )
    mix(other, lambda line: None, live)
    assert files_of(other.path) == files_of(flown.path)
    kinds = {line["kind"] for line in read_metrics(flown.folder.metrics)}
    assert kinds == {"train", "eval", "measure", "reset", "recovery"}
    *_, last = read_metrics(flown.folder.metrics, "train")
    updates = last["updates"] // settings.minibatches
    assert last["big_updates"] == updates // 2 * settings.minibatches, "every second update"
    commands_know(flown, capsys, monkeypatch)


def commands_know(flown, capsys, monkeypatch):
    """resume, runs and eval on a mixture that has ended."""
    monkeypatch.setattr("millpond.mixture.settings.make_env", lambda name: PLAIN)
    assert main(["resume", str(flown.path)]) == 0
    out, err = capsys.readouterr()
    assert "parameters " in out
    assert err.startswith(f"{flown.path} is finished; nothing to do\n")
    assert (flown.path / "curve.png").stat().st_size > 1000
    assert main(["runs", str(flown.path.parent), "--json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["agent"], one["state"], one["of"]) == ("mixture", "finished", flown.settings.frames)
    assert one["checkpoints"] == sorted(set(one["checkpoints"])) != []
    first = one["checkpoints"][0]
    assert main(["eval", str(flown.path), "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["policies"]) == 3, "two agents and the BigAgent"
    *_, final = read_metrics(flown.folder.metrics, "eval")
    got = [row["greedy"] for row in found["policies"]]
    assert got == pytest.approx([*final["returns"][0], *final["big"]], rel=1e-5)
    assert main(["eval", str(flown.path), "--episodes", "3", "--checkpoint", str(first)]) == 0


@pytest.mark.full
def test_live_rows_are_those_the_agents_and_the_bigagent_played(live):
    """BigPond holds the streams of agent 0, agent 1 and the BigAgent side by side."""
    settings, state = live.settings, live.init()
    _, _, rows = jax.jit(live.agents.update)(state.agents, _sums(settings.policies))
    _, own = jax.jit(live.big.own_rows)(state.big)
    agents, big, pond, _, _ = live.live_loop.round(*state, 1)
    held = everything(live, pond)
    assert np.array_equal(held.action[:4, :8], np.concatenate(np.moveaxis(rows.action, 1, 0), 1))
    assert np.array_equal(held.obs[:4, :8], np.concatenate(np.moveaxis(rows.obs, 1, 0), 1))
    assert np.array_equal(held.action[:4, 8:], own.action[:, 0])
    held = jax.tree.map(lambda leaf: leaf[:4], held)
    steps = int((np.asarray(held.flags) & BORDER == 0).sum())
    assert steps == int(agents.acting.tally.steps.sum() + big.acting.tally.steps.sum())


def _sums(policies):
    return jax.tree.map(jnp.asarray, no_sums(policies))


def everything(live, pond):
    """All rows of the only member's BigPond, [time, env], in the order of the ring."""
    time = np.arange(live.big.pond.length, dtype=np.int32)[:, None]
    read = jax.jit(lambda state: live.big.pond.read(state, np.arange(10), time))
    return jax.device_get(read(only(live, pond)))


def only(live, pond):
    axes = live.big.pond.axes
    return jax.tree.map(
        lambda axis, leaf: leaf if axis is None else leaf[0],
        axes,
        pond,
        is_leaf=lambda axis: axis is None,
    )


# --- what is measured --------------------------------------------------------------------------


@pytest.mark.full
def test_realised_returns_are_those_that_followed(live):
    """Of every row whose episode ended, by hand from the rows themselves."""
    settings = live.settings
    _, _, pond, _, _ = live.live_loop.round(*live.init(), 10)
    one, rows = only(live, pond), everything(live, pond)

    @jax.jit
    def found(one):
        _, batch = live.big.pond.sample(one, jax.random.key(0), 64)
        return batch.draw, live.measures._realised(one, batch)

    draw, (got, known) = jax.device_get(found(one))
    assert 0.5 < known.mean() < 1
    for i in np.flatnonzero(known):
        stream, at = int(draw.stream[i]), int(draw.row[i, 1])
        total, factor = 0.0, 1.0
        while True:
            total += factor * rows.reward[at, stream]
            if rows.terminated[at, stream] or rows.truncated[at, stream]:
                break
            at, factor = at + 1, factor * settings.learning.gamma
        assert got[i] == pytest.approx(total, rel=1e-5)


def test_disagreement_and_dormant_units_by_known_values():
    actions = np.array([[[0, 1, 2, 0], [0, 1, 0, 0], [1, 1, 2, 0]], [[1] * 4] * 3])
    everything = np.ones((2, 4), bool)
    assert disagreement(actions, everything) == pytest.approx([(1 + 1 + 2) / 12, 0])
    first = np.array([[True, False, False, False]] * 2)
    assert disagreement(actions, first)[0] == pytest.approx(2 / 3)
    assert disagreement(actions[:, :1], everything).tolist() == [0, 0]

    network = Network(width=8, depth=1, norm=False)
    obs = np.ones((5, 1, 3), np.float32)
    spec = Spec(Field("float32", (3,)), Field("int32", (), 0, 1))
    agent = DQN(DQNSettings(), network, spec, 1)
    params = jax.jit(agent.init)(jax.random.key(0)).params
    bias = np.array([1, 1, 1, 1, 1, 1e-3, -1, -1], np.float32)
    layer = {"kernel": np.zeros((3, 8), np.float32), "bias": bias}
    assert float(dormant(agent, params | {"Dense_0": layer}, obs)) == 3 / 8


def test_gates_stand_ins_recovery_and_the_best():
    # Three members, two agents, two episodes. Standard errors: agents 1 each, BigAgents 1, 1, 0.
    agents = np.tile(np.array([[4.0, 6.0], [6.0, 8.0]]), (3, 1, 1))  # means 6
    big = np.array([[3.0, 5.0], [1.0, 3.0], [-9.0, -9.0]])  # means 4, 2, -9
    assert passes_gate(big, agents, 2.0).tolist() == [True, False, False]
    assert passes_gate(big, agents, 1.0).tolist() == [False, False, False], "2 is more than sqrt(2)"
    assert passes_gate(big, agents, 0.0).all(), "without a gate nothing is refused"
    assert passes_gate(-big, -agents, 2.0).all(), "returns below 0 are compared like any others"
    bad = np.array([False, True, True, False, True, True])
    assert replacements(bad, 3).tolist() == [0, 0, 0, 3, 3, 3]
    assert replacements(np.array([True, True]), 2).tolist() == [-1, -1]
    at = Position(since=100, target=(5.0, 2.0), recovered=(-1, -1))
    at = at.judge([4.0, 2.0], 150).judge([6.0, 9.0], 180).judge([0.0, 0.0], 190)
    assert at.recovered == (80, 50)
    assert Position.from_json(json.loads(json.dumps(at.to_json()))) == at
    best = Best()
    for scores, value in (([1.0, 5.0], 1.0), ([2.0, 4.0], 2.0), ([1.0, 1.0], 3.0)):
        best.take(np.array(scores), {"a": jnp.full((2, 3), value)})
    assert best.params["a"][:, 0].tolist() == [2, 1]
    assert best.age == 1


# --- commands ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["atari/pong", "--transfer", "live"], "is stepped on the host"),
        (["treasurehunt"], "needs an env with one agent"),
        (["minatar/breakout", "--big.network.width", "8"], "no option --big.network.width"),
        (["minatar/breakout", "--frames", "0.5"], "expected a whole number"),
        (["minatar/breakout", "--pond", "100"], "--pond 100: pond must be a multiple of 32 envs"),
    ],
)
def test_mix_refuses(args, said, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["mix", *args])
    except SystemExit as stop:
        code = stop.code
    assert code == 2
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
