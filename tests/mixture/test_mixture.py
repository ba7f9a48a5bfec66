"""The mixture: killed in any phase it ends the same; agents, Lake and BigAgent do as told."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mix_runs import crash_where, files_of, mixture
from tiny_runs import WORLD

from millpond import BadConfig, LakeRefused, RowsGone
from millpond.agents import PQNSettings
from millpond.cli.train import parse_phases
from millpond.compare import Arm
from millpond.compare.results import of_run, together
from millpond.engine.checkpoint import hash_of, load_tree
from millpond.errors import Diverged, Paused, RunRefused
from millpond.lake import Lake
from millpond.lake.files import Files
from millpond.metrics import read_metrics
from millpond.mixture import SEED_003, MixRun, MixSettings, mix, mix_for, with_frames
from millpond.mixture.drain import MixDrain, _copy, open_lakes
from millpond.mixture.phases import _Session
from millpond.mixture.programs import Programs
from millpond.mixture.settings import BigSettings, CloneSettings, LakeSettings
from millpond.rows import BORDER
from millpond.schedule import Schedule
from millpond.sequence import SequenceBatch


@pytest.fixture(scope="module")
def programs() -> Programs:
    """Compiled once: every sitting of the plain settings uses them."""
    return Programs(mixture())


@pytest.fixture(scope="module")
def whole(programs, tmp_path_factory):
    """A mixture that nothing interrupted, what it told, and its hash."""
    told = []
    run = MixRun.create(tmp_path_factory.mktemp("whole") / "run", programs.settings)
    digest = mix(run, told.append, programs)
    return run, told, digest


def lines(run, kind):
    return list(read_metrics(run.folder.metrics, kind))


# --- killed anywhere ---------------------------------------------------------------------------


def test_crashed_in_every_phase_and_resumed_equals_uninterrupted(whole, programs, tmp_path):
    """At the first event of every kind in every phase, one after the other, in one run."""
    run, _, digest = whole
    other = MixRun.create(tmp_path / "run", programs.settings)
    met: set[tuple[str, str]] = set()
    phase = ""

    def anew(line):
        nonlocal phase
        phase = line["phase"] if line["kind"] == "phase" else phase
        place = (phase, line["kind"])
        return place not in met and not met.add(place)

    crashes = 0
    while True:
        try:
            crash_where(other, programs, anew)
        except AssertionError:
            break  # nothing new was met: it has ended
        crashes += 1
        assert other.folder.status()["state"] == "failed"
    assert {where for where, _ in met} == {"agents", "fill", "big", "clone"}
    assert crashes == len(met) >= 14
    assert files_of(other.path) == files_of(run.path)
    assert mix(other, lambda line: None, programs) == digest, "done, and still the same"
    for lake, same in zip(lakes_of(other), lakes_of(run), strict=True):
        assert hash_of(everything(lake)) == hash_of(everything(same))


@pytest.mark.full
def test_killed_by_the_kernel_while_rows_drain_equals_uninterrupted(whole, programs, tmp_path):
    """SIGKILL in a process of its own, with rows in the Lake that no saved state knows."""
    run, _, _ = whole
    path = tmp_path / "run"
    other = MixRun.create(path, run.settings)
    code = f"""
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parents[1] / "helpers")!r})
from mix_runs import mixture
from millpond.mixture import MixRun, mix
from millpond.mixture.drain import MixDrain
write, number = MixDrain._write, 0
def kill(self, *args):
    global number
    write(self, *args)
    number += 1
    if number == 9:
        os.kill(os.getpid(), signal.SIGKILL)
MixDrain._write = kill
mix(MixRun(Path({str(path)!r}), mixture()))
"""
    done = subprocess.run([sys.executable, "-c", code], timeout=240, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    saved = sum(len(lake) for lake in lakes_of(other))
    assert saved > 0
    mix(other, lambda line: None, programs)
    assert files_of(path) == files_of(run.path)


def test_rows_played_again_are_not_written_twice(programs, tmp_path):
    """And where they were not the same, nothing crosses from the old ones to the new."""
    settings, agents = programs.settings, programs.agents
    spec, pond = agents.acting.spec, agents.pond
    lakes = open_lakes(settings, spec, tmp_path / "lakes")
    first = jax.jit(agents.init)()
    state, _ = agents.round(jax.tree.map(jnp.copy, first), 2)
    with MixDrain(settings, pond, lakes, 0) as drain:
        drain(state.ponds)
    before = [everything(lake) for lake in lakes]
    again, _ = agents.round(jax.tree.map(jnp.copy, first), 1)
    with MixDrain(settings, pond, lakes, 0) as drain:
        drain(again.ponds)
        again, _ = agents.round(again, 1)
        drain(again.ponds)
        drain.finish(sync=True)
        ahead, _ = agents.round(again, 1)
        drain(ahead.ponds)
    for lake, old in zip(lakes, before, strict=True):
        lake.refresh()
        new = everything(lake)
        assert len(lake) == 12 * settings.envs * settings.agents
        held = [jax.tree.map(lambda leaf: leaf[:8], rows) for rows in new]
        assert hash_of(held) == hash_of(old), "no cut, nothing doubled"

    strange = first._replace(agent=first.agent._replace(params=_negated(first.agent.params)))
    other, _ = agents.round(strange, 2)
    with MixDrain(settings, pond, lakes, 0) as drain:
        drain(other.ponds)  # 8 of the 12 rows that are there
        other, _ = agents.round(other, 2)
        drain(other.ponds)
    for lake in lakes:
        lake.refresh()
        assert len(lake) == 16 * settings.envs * settings.agents
        cuts = [bool(rows.flags[11] & 8) for rows in everything(lake)]
        assert any(cuts), "another life's rows follow without a cut"


def test_a_lake_that_lost_rows_is_told(whole, programs, tmp_path):
    run = MixRun.create(tmp_path / "run", programs.settings)
    crash_where(run, programs, lambda line: line["kind"] == "reset")
    for lake in lakes_of(run):
        os.rename(lake.path, lake.path.with_name("away-" + lake.path.name))
    crash_where(run, programs, lambda line: line["kind"] == "phase" and line["phase"] == "clone")
    with pytest.raises(RowsGone, match=r"had written 24 rows of every stream .* holds 0"):
        mix(run, lambda line: None, programs)


def _negated(params):
    return jax.tree.map(lambda leaf: -leaf, params)


def lakes_of(run) -> list[Lake]:
    return [Lake.open(path) for path in sorted(run.lakes.iterdir())]


def everything(lake: Lake):
    return [lake.read(s.number, s.first, s.stop) for s in lake.streams]


# --- what a cycle does -------------------------------------------------------------------------


def test_every_row_is_drained_into_its_agents_group(whole, programs):
    run, _, _ = whole
    settings = run.settings
    frames = []
    for lake in lakes_of(run):
        assert {s.group for s in lake.streams} == {"agent-0", "agent-1"}
        steps = sum(int(((rows.flags & BORDER) == 0).sum()) for rows in everything(lake))
        frames.append(steps * settings.world.frames_per_step)
    played = sum(
        big["frames"] - fill["frames"]
        for fill, big in zip(lines(run, "fill"), lines(run, "big"), strict=True)
    )
    assert min(frames) <= lines(run, "eval")[-1]["frames"] - played <= max(frames)


def test_the_lines_and_checkpoints_say_what_happened(whole, programs):
    run, told, _ = whole
    settings = run.settings
    when = [line["when"] for line in lines(run, "eval")]
    cycle = ["agents", "before", "after"]
    assert when[:6] == cycle * 2
    assert when[-2:] == ["before", "final"]
    for line in lines(run, None):
        assert {"kind", "steps", "frames"} <= line.keys()
    train = lines(run, "train")
    assert train[-1]["frames"] >= settings.frames
    assert train[-1]["frames"] - settings.frames_per_update < settings.frames
    taken = [line["minibatches"] for line in lines(run, "big")]
    assert train[-1]["big_updates"] == sum(taken[:2])
    assert {"epsilon", "rate", "pond_fill", "lake_fill"} <= train[0].keys()
    for line in lines(run, "measure"):
        for name in ("disagreement", "big_agreement", "big_max_q", "realised", "big_dormant"):
            assert len(line[name]) == settings.members
        for name in ("agreement", "max_q", "dormant"):
            assert np.shape(line[name]) == (settings.members, settings.agents)
        assert all(0 <= share <= 1 for share in line["disagreement"])
    assert [line["cycle"] for line in lines(run, "recovery")] == [1, 2]
    fills = [line["big_pond_fill"] for line in lines(run, "fill")]
    assert all(0 < fill < 1 for fill in fills), "the Lake has fewer rows than BigPond wants"
    for line in lines(run, "big"):
        samples = 2 * 4 * line["minibatches"]  # sequences of 4 rows
        rows = fills[line["cycle"]] * settings.big.capacity
        assert line["samples_per_row"] == pytest.approx(samples / rows)
        assert line["distilled"] == pytest.approx(line["minibatches"] / 4, abs=2)
    *_, last = run.folder.checkpoints()
    agents = jax.eval_shape(programs.init)
    both = {"agents": agents.agents.agent.params, "big": agents.big.agent.params}
    kept, _ = load_tree(last.path, both)
    final, _ = load_tree(run.folder.resume_state, agents)
    assert hash_of(kept["agents"]) == hash_of(final.agents.agent.params)
    assert hash_of(kept["big"]) == hash_of(final.big.agent.params)
    shares = list(read_metrics(run.folder.speed, "phase"))[-1]["share"]
    assert sum(shares.values()) == pytest.approx(1)
    assert {"agents", "fill", "big", "clone", "evaluate", "save"} == shares.keys()
    saved = [line["phase"] for line in told if line["kind"] == "saved"]
    assert saved[-4:] == ["agents", "fill", "clone", "done"]


def test_clones_are_the_bigagent_and_epsilon_restarts(programs):
    settings = programs.settings
    epsilon = Schedule("linear", 1.0, 0.1, 0.5, restart=(0.6, 0.4), agents=(1.0, 0.5))
    levels = dataclasses.replace(
        settings, learning=dataclasses.replace(settings.learning, epsilon=epsilon)
    )
    acting = Programs(levels).agents.acting
    state = acting.init()
    seen = []
    for _ in range(4):
        seen.append(np.asarray(acting.epsilon(state)))
        tally = state.tally._replace(steps=state.tally.steps + 1000)
        state = acting.restart(state._replace(tally=tally))
    wanted = [[1, 0.5, 1, 0.5], [0.6, 0.3, 0.6, 0.3], *[[0.4, 0.2, 0.4, 0.2]] * 2]
    np.testing.assert_allclose(seen, wanted, rtol=1e-6)

    spread = dataclasses.replace(settings, agents=3, clone=CloneSettings(spread=True)).epsilon
    begin = spread.at(np.zeros(3), 100, np.arange(3))
    assert begin == pytest.approx([1, max(0.05, 0.4**3.5), 0.05])

    state = programs.init()
    one = programs.clone(state, np.array([True, False]))
    big, old = state.big.agent.params, state.agents.agent.params
    for new, was, theirs in zip(
        *map(jax.tree.leaves, (one.agents.agent.params, old, big)), strict=True
    ):
        assert np.array_equal(new[0], theirs[0])
        assert np.array_equal(new[1], theirs[0])
        assert np.array_equal(new[2:], was[2:])
    assert int(one.agents.acting.restarts) == 1


@pytest.mark.parametrize(
    "init", ["scratch", "previous", "shrink_perturb", "best_agent", "best_or_average"]
)
def test_how_the_bigagent_begins(init, programs):
    settings = programs.settings
    settings = dataclasses.replace(settings, big=dataclasses.replace(settings.big, init=init))
    big = type(programs.big)(settings)
    state = big.init()
    noted = jax.tree.map(lambda leaf: leaf + 1, state.agent)._replace(bad=np.array([True, False]))
    best = jax.tree.map(lambda leaf: leaf - 7, state.agent.params)
    begun = big.begin(state._replace(agent=noted), 3, best, 4).agent
    fresh = big.begin(state, 3, best, 4).agent.params if init == "scratch" else None
    wanted = {
        "scratch": fresh,
        "previous": noted.params,
        "best_agent": best,
        "best_or_average": best,
        "shrink_perturb": None,
    }[init]
    if wanted is not None:
        assert hash_of(begun.params) == hash_of(wanted)
    else:
        scratch = dataclasses.replace(
            settings, big=BigSettings(28.0, 400, own_fraction=0.3, init="scratch")
        )
        other = type(big)(scratch).begin(state, 3, best, 4).agent.params
        half = jax.tree.map(lambda a, b: 0.5 * a + 0.5 * b, noted.params, other)
        for got, expected in zip(*map(jax.tree.leaves, (begun.params, half)), strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)
    assert hash_of(begun.target) == hash_of(begun.params)
    assert hash_of(begun.optimizer) == hash_of(state.agent.optimizer), "its moments begin at 0"
    assert not np.asarray(begun.bad).any()
    assert np.array_equal(begun.updates, noted.updates), "gradients are counted on"


def test_distilled_it_learns_the_mean_of_its_agents_values(programs):
    """Of every state but the one after a sequence's last row; the target follows at the end."""
    big, settings = programs.big, programs.settings
    agent = big.agent
    states = jax.vmap(agent.init)(jax.random.split(jax.random.key(5), 3))
    student = jax.tree.map(lambda leaf: leaf[2], states)
    teachers = jax.tree.map(lambda leaf: leaf[:2], states.params)
    shape = (2, 4 + 1, settings.stack, *agent.spec.obs.shape)
    obs = jax.random.randint(jax.random.key(6), shape, 0, 255).astype(agent.spec.obs.dtype)
    mask = np.array([[True] * 4, [True, False] * 2])
    nothing = dict.fromkeys(SequenceBatch._fields)
    batch = SequenceBatch(**nothing | {"obs": obs, "mask": mask})

    @jax.jit
    def learned(student):
        def one(_, student):
            return big._imitate(student, batch, {"rate": jnp.float32(3e-3)}, teachers)[0]

        return jax.lax.fori_loop(0, 1500, one, student)

    @jax.jit
    def values(params):
        return agent.values(params, obs[:, :-1].reshape(-1, *obs.shape[2:]))

    each = [values(jax.tree.map(lambda leaf, i=i: leaf[i], teachers)) for i in range(2)]
    wanted = np.asarray(each, np.float64).mean(0)[mask.reshape(-1)]
    after = learned(student)
    near, far = (
        np.abs(np.asarray(values(one.params))[mask.reshape(-1)] - wanted).mean()
        for one in (after, student)
    )
    assert near < 0.1 * far
    assert hash_of(after.target) == hash_of(student.target), "until it is over"
    renewed = jax.jit(big._with_new_optimizer)(after)
    assert hash_of(renewed.target) == hash_of(renewed.params) == hash_of(after.params)
    assert hash_of(renewed.optimizer) == hash_of(student.optimizer), "its moments begin at 0"


def test_the_bigagent_begins_as_the_average_where_that_plays_better(programs, monkeypatch):
    """Member 0's average beats its agents, member 1's does not."""
    settings = programs.settings
    big = dataclasses.replace(settings.big, init="best_or_average")
    settings = dataclasses.replace(settings, big=big)
    state = programs.init()
    ours = state.agents.agent.params
    judged = []

    def scores(referee, shown):
        judged.append(shown.big.agent.params)
        return np.array([[1.0, 2.0], [1.0, 2.0]]), np.array([3.0, 1.5])

    monkeypatch.setattr(programs, "scores", scores)
    session = SimpleNamespace(settings=settings, programs=programs, state=state)
    session._candidates = lambda: _Session._candidates(session)
    assert _Session._chosen(session) == (2, 1)
    for average, leaf in zip(jax.tree.leaves(judged[0]), jax.tree.leaves(ours), strict=True):
        each = np.asarray(leaf, np.float64).reshape(2, 2, *leaf.shape[1:])
        np.testing.assert_allclose(average, each.mean(1), rtol=1e-6, atol=1e-7)
    for all_of_them, leaf in zip(
        jax.tree.leaves(session._candidates()), jax.tree.leaves(ours), strict=True
    ):
        assert np.array_equal(all_of_them[:, :2].reshape(leaf.shape), leaf)


def test_an_annealed_bigagent_begins_each_phase_with_a_lower_rate(programs, whole, tmp_path):
    plain, _, digest = whole
    assert {line["rate_share"] for line in lines(plain, "big")} == {1.0}
    settings = programs.settings
    settings = dataclasses.replace(settings, big=dataclasses.replace(settings.big, anneal=True))
    run = MixRun.create(tmp_path / "run", settings)
    assert mix(run, lambda line: None, programs) != digest
    resets = [0, *(line["frames"] for line in lines(run, "reset"))]
    for line, since in zip(lines(run, "big"), resets, strict=True):
        assert line["rate_share"] == pytest.approx(1 - since / settings.frames)


def test_a_share_of_the_rate_reaches_the_gradient_step(programs):
    state, big = programs.init(), programs.big
    pond = big.pond.init_many(2)
    rows = jax.jit(programs.agents.update)(state.agents, programs.agents.no_sums())[2]
    rows = jax.tree.map(lambda leaf: np.asarray(leaf)[:, [0, 2]], rows)
    add = jax.jit(big.add)
    for _ in range(4):
        pond = add(pond, rows)
    learn = jax.jit(lambda share: big.learn(state.big, pond, share)[0].agent.params)
    begun = hash_of(state.big.agent.params)
    assert hash_of(learn(0.0)) == begun, "no rate, no change"
    assert begun != hash_of(learn(0.5)) != hash_of(learn(1.0)) != begun


def test_own_play_counts_as_frames(whole):
    run, _, _ = whole
    settings = run.settings
    assert (settings.own_envs, settings.own_turns) == (4, round(0.3 * 100 / 4))
    for fill, big in zip(lines(run, "fill"), lines(run, "big"), strict=True):
        rows = big["minibatches"] // settings.minibatches * settings.own_turns * settings.own_envs
        own = big["frames"] - fill["frames"]
        assert 0.5 * 3 * rows < own < 3 * rows, "own steps count, border rows do not"
        filled = settings.big.capacity * min(1.0, fill["big_pond_fill"] + rows / 400)
        assert big["own_share"] == pytest.approx(rows / filled)
        assert big["epsilon"] < 0.9, "it falls as the BigAgent plays"


def test_gates_plateaus_and_the_best_by_evaluation(programs, tmp_path, monkeypatch):
    """These decide outside of what is compiled."""
    gates = []

    def closed(big, agents, gate):
        gates.append((big.shape, agents.shape, gate))
        return np.zeros(len(big), bool)

    monkeypatch.setattr("millpond.mixture.phases.passes_gate", closed)
    settings = programs.settings
    big = dataclasses.replace(settings.big, choice="balanced", eval_every=4, plateau=1)
    big = dataclasses.replace(big, keep_best=True)
    settings = dataclasses.replace(settings, big=big, clone=CloneSettings(gate=3.0))
    settings = dataclasses.replace(settings, frames=1_500, eval_updates=6)
    run, again = MixRun.create(tmp_path / "a", settings), MixRun.create(tmp_path / "b", settings)
    mix(run, lambda line: None, programs)
    assert [line["cloned"] for line in lines(run, "reset")] == [[False, False]], "a closed gate"
    assert gates == [((2, 3), (2, 2, 3), 3.0)], "returns of every episode"
    before, after = (
        next(line["returns"] for line in lines(run, "eval") if line["when"] == when)
        for when in ("before", "after")
    )
    assert after == before, "agents that were not cloned are as they were"
    for line in lines(run, "big"):
        tried = [x["big"] for x in lines(run, "big_eval") if x["cycle"] == line["cycle"]]
        best = np.maximum.accumulate(tried, 0)
        better = [True, *(best[1:] > best[:-1]).any(1)]
        assert line["minibatches"] == len(tried) * settings.minibatches
        assert all(better[:-1]), "it goes on as long as any member gets better"
        assert not better[-1] or len(tried) >= 4
    crash_where(again, programs, lambda line: line["kind"] == "big_eval" and line["cycle"] == 1)
    mix(again, lambda line: None, programs)
    assert files_of(again.path) == files_of(run.path)


@pytest.mark.parametrize(
    ("roles", "said"),
    [
        (dict(agent="dqn"), "its agents must learn from rollouts, and dqn does not"),
        (dict(big_agent="pqn"), "the BigAgent must learn from replay, and pqn does not"),
    ],
)
def test_who_cannot_play_a_role_is_refused_by_name(roles, said):
    with pytest.raises(BadConfig, match=said):
        mix_for("minatar/breakout", **roles)


def test_the_first_mixture_and_one_agent_with_a_lake():
    first = with_frames(mix_for("minatar/breakout", SEED_003), 10**7)
    assert (first.big_agent, first.init, first.big.choice) == ("dqn", "previous", "uniform")
    assert (first.clone.gate, first.epsilon.restart) == (0, ())
    assert first.updates == -(-(10**7) // first.frames_per_update) // 4, "four cycles"
    assert first.big_steps * first.minibatches == pytest.approx(6_400 * 152 / 500, rel=0.04)
    one = parse_phases("minatar/breakout", None, ["--steps", "10M"])
    four = with_frames(mix_for("minatar/breakout"), 10**7)
    assert (one.agents, one.frames, one.updates) == (1, 10**7, four.updates)
    assert (one.envs, four.envs) == (128, 32), "four share the envs that one has"
    assert one.big_steps == four.big_steps, "as much learning from the Lake"
    old = parse_phases("minatar/breakout", SEED_003, ["--steps", "10M"])
    assert (first.envs, old.envs) == (128, 128), "there each agent had all of them"
    assert old.updates == pytest.approx(4 * first.updates, abs=2)
    old = parse_phases("minatar/breakout", SEED_003, ["--debug", "--clone.gate", "3"])
    assert (old.agents, old.big_agent, old.clone.gate, old.debug) == (1, "dqn", 3, True)


def few_updates(settings, frames):
    few = with_frames(settings, frames)
    return few.updates, few.eval_updates


def test_few_frames_make_shorter_cycles():
    settings = mixture(updates=500, big=BigSettings(1.0, 400), eval_updates=50)
    whole = settings.updates * settings.frames_per_update
    assert with_frames(settings, 16 * whole) == dataclasses.replace(settings, frames=16 * whole)
    assert few_updates(settings, whole) == (31, 15), "sixteen cycles"
    assert few_updates(settings, whole // 10) == (8, 4), "of eight updates at least"
    assert few_updates(settings, whole // 25) == (5, 2), "but four cycles in any case"
    assert with_frames(settings, whole).big_steps == round(settings.big_steps / 500 * 31)
    with pytest.raises(BadConfig, match="1 updates between two resets give 4 rows of each env"):
        with_frames(settings, 1)


def test_a_lake_may_keep_some_of_the_envs(programs, tmp_path):
    settings, agents = programs.settings, programs.agents
    settings = dataclasses.replace(settings, lake=LakeSettings(20_000, envs=3))
    lakes = open_lakes(settings, agents.acting.spec, tmp_path / "lakes")
    state, _ = agents.round(programs.init().agents, 2)
    with MixDrain(settings, agents.pond, lakes, 0) as drain:
        drain(state.ponds)
    held = jax.device_get(_copy(agents.pond, settings.envs, state.ponds))
    for member, lake in enumerate(lakes):
        lake.refresh()
        assert len(lake.streams) == 2 * 3
        for stream in lake.streams:
            policy = 2 * member + int(stream.group[-1])
            rows = lake.read(stream.number, 0, 8)
            assert np.array_equal(rows.obs, held.obs[policy, :, stream.env])
            assert np.array_equal(rows.action, held.action[policy, :, stream.env])


@pytest.mark.full
def test_a_lake_that_has_dropped_rows_resumes_exactly(tmp_path):
    """Each agent's group keeps two segments of 4096 rows; they play 12,800."""
    lake = LakeSettings(capacity=16_384)
    sizes = dict(envs=64, pond=1024, updates=20, frames=150_000, members=1, eval_updates=20)
    settings = mixture(**sizes, big=BigSettings(8.0, 6400), resume_updates=8, lake=lake)
    programs = Programs(settings)
    run, again = MixRun.create(tmp_path / "a", settings), MixRun.create(tmp_path / "b", settings)
    mix(run, lambda line: None, programs)
    dropped = [stream.first for lake in lakes_of(run) for stream in lake.streams]
    assert min(dropped) > 0, "nothing was dropped"
    for frames in range(20_000, 150_000, 13_000):
        crash_where(
            again,
            programs,
            lambda line, f=frames: line["kind"] in ("train", "big") and line["frames"] > f,
        )
    mix(again, lambda line: None, programs)
    assert files_of(again.path) == files_of(run.path)
    for lake, same in zip(lakes_of(again), lakes_of(run), strict=True):
        assert hash_of(everything(lake)) == hash_of(everything(same))


@pytest.mark.full
def test_the_defaults_resume_exactly_too(tmp_path):
    settings = mixture(big=BigSettings(14.0, 400))
    programs = Programs(settings)
    run, again = MixRun.create(tmp_path / "a", settings), MixRun.create(tmp_path / "b", settings)
    mix(run, lambda line: None, programs)
    for phase in ("fill", "big", "clone"):
        crash_where(again, programs, lambda line, p=phase: line.get("phase") == p)
    mix(again, lambda line: None, programs)
    assert files_of(again.path) == files_of(run.path)


# --- bad situations ----------------------------------------------------------------------------


def test_an_agent_that_diverges_becomes_a_copy_of_another(programs, tmp_path, monkeypatch):
    run = MixRun.create(tmp_path / "run", programs.settings)
    plain, calls = programs.agents.round, []

    def poisoned(state, updates):
        calls.append(updates)
        if len(calls) == 2:
            params = jax.tree.map(lambda leaf: leaf.at[3].set(np.nan), state.agent.params)
            state = state._replace(agent=state.agent._replace(params=params))
        return plain(state, updates)

    monkeypatch.setattr(programs.agents, "round", poisoned)
    mix(run, lambda line: None, programs)
    (event,) = lines(run, "recloned")
    assert (event["policy"], event["copy_of"], event["cycle"]) == (3, 2, 0)
    final = lines(run, "eval")[-1]["returns"]
    assert np.isfinite(final).all()

    monkeypatch.setattr(
        programs.agents,
        "round",
        lambda state, updates: plain(
            state._replace(agent=state.agent._replace(bad=jnp.array([False, False, True, True]))),
            updates,
        ),
    )
    other = MixRun.create(tmp_path / "other", programs.settings)
    with pytest.raises(Diverged, match="all 2 agents of member 1"):
        mix(other, lambda line: None, programs)
    assert other.folder.status()["state"] == "diverged"


class FullDisk(Files):
    """A disk that is full after so many writes."""

    def __init__(self, room: int) -> None:
        self.room = room

    def pwrite(self, fd, data, offset):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(fd, data, offset)


def test_a_full_disk_pauses_the_run_and_it_goes_on(whole, programs, tmp_path):
    run, _, digest = whole
    other = MixRun.create(tmp_path / "run", programs.settings)
    with pytest.raises(Paused, match=r"free some space, then run millpond resume") as caught:
        mix(other, lambda line: None, programs, FullDisk(120))
    assert str(other.path) in str(caught.value)
    assert other.folder.status()["state"] == "paused"
    assert mix(other, lambda line: None, programs) == digest
    assert files_of(other.path) == files_of(run.path)


def test_a_lake_of_another_spec_is_refused(programs, tmp_path):
    run = MixRun.create(tmp_path / "run", programs.settings)
    spec = programs.agents.acting.spec
    strange = dataclasses.replace(spec, action=dataclasses.replace(spec.action, high=1))
    Lake.create(run.lakes / "member-0", strange, 20_000, groups=2)
    with pytest.raises(LakeRefused, match="create another Lake"):
        mix(run, lambda line: None, programs)
    full = dataclasses.replace(programs.settings.lake, path=str(run.lakes))
    settings = dataclasses.replace(programs.settings, lake=full)
    with pytest.raises(RunRefused, match=r"is not empty, .*--lake.path"):
        MixRun.create(tmp_path / "other", settings)


def test_settings_survive_json_and_refuse_what_cannot_work():
    settings = mixture(clone=CloneSettings(gate=0.5), big=BigSettings(14.0, 400, init="scratch"))
    world = dataclasses.replace(WORLD, agents=1)
    settings = dataclasses.replace(settings, env="treasurehunt-small", world=world)
    assert MixSettings.from_json(json.loads(json.dumps(settings.to_json()))) == settings
    for wrong, said in {
        "agents must be at least 1": dict(agents=0),
        "needs an env with one agent": dict(world=WORLD),
        "pqn.gamma is 0.5, qlambda.gamma is 0.99": dict(learning=PQNSettings(4, 2, gamma=0.5)),
        r"pond must be a multiple of 4 envs .* at least one update \(16 rows\), got 12": dict(
            pond=12
        ),
        "big.capacity 401 is not a multiple of its 4 streams; use 400": dict(
            big=BigSettings(14.0, 401)
        ),
        "need evaluations within the phase": dict(big=BigSettings(14.0, 400, keep_best=True)),
        "fewer than 2,147,483,648 minibatches over 2,300 frames, got inf": dict(
            big=BigSettings(float("inf"), 400)
        ),
        "frames, got 1000000000000.0": dict(big=BigSettings(1e12, 400)),
        "minibatches over 2,300 frames, got nan": dict(big=BigSettings(float("nan"), 400)),
        "lake.envs must lie in": dict(lake=LakeSettings(envs=5)),
        "no phases in which": dict(transfer="live", big=BigSettings(14.0, 380, init="best_agent")),
        "big.distill must lie in": dict(big=BigSettings(14.0, 400, distill=1.5)),
        "big.anneal and big.distill act on phases": dict(
            transfer="live", big=BigSettings(14.0, 380, init="scratch", anneal=True)
        ),
        "prioritized is not supported": dict(sampler="prioritized", sampling=None),
        "own_fraction must lie in": dict(big=BigSettings(14.0, 400, own_fraction=1.0)),
    }.items():
        with pytest.raises(BadConfig, match=wrong):
            mixture(**said)


def test_stopped_by_ctrl_c_it_saves_and_goes_on(whole, programs, tmp_path):
    _, _, digest = whole
    other = MixRun.create(tmp_path / "run", programs.settings)

    def told(line):
        if line["kind"] == "train" and line["cycle"] == 1:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mix(other, told, programs)
    assert other.folder.status()["state"] == "stopped"
    assert mix(other, lambda line: None, programs) == digest


def test_what_a_comparison_reads_of_a_mixture(whole):
    run, _, _ = whole
    settings = run.settings
    found = of_run(run.path, Arm("B", "mixture", settings, settings.agents), settings.members)
    final = lines(run, "eval")[-1]
    means = np.mean(final["returns"], 1)
    assert found["agents"] == pytest.approx(means)
    assert found["big"] == final["big"]
    chosen = np.array(found["chosen"]) == "big"
    assert found["scores"] == pytest.approx(np.where(chosen, final["big"], means))
    last = lines(run, "train")[-1]
    phases = sum(line["minibatches"] for line in lines(run, "big"))
    assert found["gradient_steps"] == 2 * last["updates"] + phases
    assert found["row_updates"] == 2 * last["updates"] * 8 + phases * 2 * 4
    assert [reset["cycle"] for reset in found["resets"]] == [1, 2]
    after = [line for line in lines(run, "eval") if line["when"] == "after"]
    first = found["resets"][0]
    assert first["points"][0] == [0, pytest.approx(np.mean(after[0]["returns"], 1))]
    before = [line for line in lines(run, "eval") if line["when"] == "before"]
    assert first["points"][-1][0] == before[1]["frames"] - first["frames"]
    both = together([found, found])
    assert both["scores"] == found["scores"] * 2
    assert len(both["resets"][1]["points"][0][1]) == 4
