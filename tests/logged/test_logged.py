"""`millpond.run`: what a loop logs is found by all that reads runs, however the loop ends."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import millpond
from millpond import Field, Flag, HostPond, Pond, Rows, Sequence, Spec, Window, next_flags
from millpond.cli.main import main
from millpond.doctor import LogEvidence, examine_logged
from millpond.doctor.logged_checks import divergence, learning, process_health, replay_turnover
from millpond.errors import BadConfig, BrokenEpisode, RunFailed, RunRefused
from millpond.logged import LoggedRun, WatchedPond, find_logged
from millpond.metrics import read_metrics
from millpond.run_folder import read_status
from millpond.samplers import prioritized
from millpond.train import Run
from millpond.view.figures import figures_of
from millpond.view.history import RunHistory
from millpond.view.run_report import read_runs
from millpond.view.runs import Runs
from millpond.view.summary import summary
from millpond.view.water import water

SPEC = Spec(Field("float32", (2,)), Field("int32", (), 0, 3))
ENVS = 3


def play(pond, turns: int, seed: int = 0, learn: int = 4, each=lambda turn, ended: None) -> None:
    """Made-up episodes through a pond, with draws; rewards are known from the generator alone."""
    rng = np.random.default_rng(seed)
    flags = np.full(ENVS, Flag.FIRST, np.uint8)
    for turn in range(turns):
        border = (flags & Flag.BORDER) != 0
        ended = (rng.random(ENVS) < 0.15) & ~border
        cut_off = ended & (rng.random(ENVS) < 0.5)
        reward = np.where(border, 0, rng.normal(size=ENVS)).astype(np.float32)
        obs, action = rng.normal(size=(ENVS, 2)).astype(np.float32), rng.integers(0, 4, ENVS)
        pond.add(Rows(obs, action.astype(np.int32), reward, ended & ~cut_off, cut_off, flags))
        flags = next_flags(flags, ended & ~cut_off, cut_off)
        if turn >= 8 and learn:
            pond.sample(learn)
        each(turn, ended)


def verdicts(path: Path) -> dict[str, str]:
    return {one.name: one.state for one in examine_logged(LoggedRun.open(path))}


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """A run that ended well and one that failed."""
    root = tmp_path_factory.mktemp("runs")
    options = argparse.Namespace(rate=1e-3, sizes=(64, 64), where=Path("x"))
    pond = HostPond(SPEC, 60, ENVS, Window(n_step=3, gamma=0.9))
    with millpond.run(
        "well", env="Made-up-v0", agent="mine", seed=3, steps=1200, config=options, root=root
    ) as run:
        watched = run.watch(pond)

        def each(turn, ended):
            run.log(ENVS * turn, loss=1 / (turn + 1), q=np.array([1.0, 2.0]))
            for _ in range(int(ended.sum())):
                run.log(ENVS * turn, episodic_return=turn / 10)

        play(watched, 400, each=each)
        run.evaluated(1200, [3.0, 5.0])
    with pytest.raises(ZeroDivisionError), millpond.run("bad", root=root) as run:
        run.log(7, loss=1 / (run.path is None))
    return root


def test_every_reader_of_runs_knows_it(root, capsys):
    assert main(["runs", str(root), "--json"]) == 0
    bad, well = json.loads(capsys.readouterr().out)
    assert well["env"] == "Made-up-v0"
    assert (well["agent"], well["seed"], well["of"]) == ("mine", 3, 1200)
    assert (well["state"], well["steps"], well["greedy"]) == ("finished", 1200, 4.0)
    assert (bad["state"], bad["of"], bad["greedy"]) == ("failed", 0, None)
    assert main(["runs", str(root)]) == 0
    assert {run.path.name for run in find_logged(root)} == {"well", "bad"}
    cards = {one["name"]: one for one in looked_at(root).cards()["runs"]}
    assert cards["well"]["state"] == "finished"
    assert cards["well"]["greedy"] == 4.0
    status = read_status(root / "bad")
    assert status["why"] == "ZeroDivisionError: division by zero"
    assert "test_logged.py" in status["traceback"]
    assert "killed" not in str(cards)
    config = json.loads((root / "well" / "config.json").read_text())["settings"]["config"]
    assert config == {"rate": 1e-3, "sizes": [64, 64], "where": "x"}
    assert (root / "well" / "curve.png").stat().st_size > 1000


def looked_at(root: Path) -> Runs:
    runs = Runs(root)
    runs.look()
    return runs


def test_the_page_and_the_report_show_all_that_was_logged(root, tmp_path, capsys):
    history = RunHistory(root / "well")
    history.look()
    figures = {one["title"] for one in figures_of(history)}
    assert {"Return", "q", "Loss and gradient", "Reuse", "Speed"} <= figures
    assert dict(summary(history))["greedy return"].startswith("4.00")
    places = water(history)["places"]
    assert [one["name"] for one in places] == ["Your loop", "HostPond", "Your loop"]
    assert places[1]["level"] == 1.0
    target = tmp_path / "report.html"
    assert main(["report", str(root / "well"), "-o", str(target)]) == 0
    text = target.read_text()
    assert "only a run of millpond train records" in text
    assert "was logged by your own loop" in text  # in the place of a film
    with pytest.raises(RunRefused, match="no evaluation yet"):
        read_runs([root / "bad"])  # nothing was logged there


def test_metrics_that_no_figure_knows_get_one_each(tmp_path):
    with millpond.run("own", root=tmp_path) as run:
        for step in range(5):
            run.log(step, {"td/<b>error</b>": step, "entropy": [0.1, 0.5]})
            run.log(step, late=step) if step > 2 else None
    history = RunHistory(run.path)
    history.look()
    titles = [one["title"] for one in figures_of(history)]
    assert titles[-3:] == ["td/<b>error</b>", "entropy", "late"]  # which is set as text
    assert "<b>" not in json.dumps([one["data"] for one in figures_of(history)])
    late = next(one for one in figures_of(history) if one["title"] == "late")
    assert late["data"][0]["x"] == [3, 4]


def test_the_doctor_checks_the_replay_and_says_what_it_cannot_know(root, capsys):
    found = verdicts(root / "well")
    green = {"process-health", "divergence", "episode-borders", "nstep-oracle", "reward-scale"}
    assert {name for name in green if found[name] == "green"} == green
    assert found["replay-turnover"] == "green"
    assert found["stack-parity"] == found["target-cadence"] == "unknown"
    assert main(["doctor", str(root / "well"), "--json"]) == 0
    capsys.readouterr()
    assert main(["doctor", str(root / "bad")]) == 1
    said = capsys.readouterr().out
    assert "the loop failed: ZeroDivisionError: division by zero" in said
    assert "no replay was shown" in said


@pytest.mark.parametrize("command", ["eval", "resume"])
def test_what_only_the_loop_itself_can_do_is_refused(command, root, capsys):
    assert main([command, str(root / "well")]) == 1
    assert "was logged by your own loop (millpond.run)" in capsys.readouterr().err
    with pytest.raises(RunRefused, match="your own loop"):
        Run.open(root / "well")


def test_a_comparison_does_not_take_its_folder(root, capsys):
    out = str(root / "well")
    assert main(["compare", "--env", "treasurehunt-small", "--arms", "dqn,pqn", "--out", out]) == 1
    assert "is not empty; choose another folder" in capsys.readouterr().err


# --- what is logged ------------------------------------------------------------------------------


class Tensor:
    """As much of a tensor of another library as is asked: on a device, and with gradients."""

    def __init__(self, value):
        self.value, self.plain = value, False

    def detach(self):
        return self

    def cpu(self):
        self.plain = True
        return self

    def __array__(self, dtype=None, copy=None):
        assert self.plain, "moved to the host before NumPy sees it"
        return np.asarray(self.value, dtype)


def test_numbers_of_any_library_are_numbers(tmp_path):
    with millpond.run("numbers", root=tmp_path, frames_per_step=4) as run:
        values = dict(a=np.float32(0.5), b=jnp.float32(2), c=np.int64(3), d=True, e=None)
        run.log(2, **values, f=Tensor(1.5), g=np.array([[1, 2]]), h=jnp.bfloat16(0.25), i=np.nan)
        run.log(np.int64(2), {"return": 1})
    one, two = read_metrics(run.path / "metrics.jsonl", "train")
    assert (one["steps"], one["frames"]) == (2, 8)
    assert [one[name] for name in "abcdefghi"] == [
        *(0.5, 2.0, 3, True, None, 1.5),
        *([[1, 2]], 0.25, None),
    ]
    assert two["return"] == 1


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (
            {"x": "text"},
            "'x' must be a number or a list of numbers, got str; text belongs in config",
        ),
        ({"x": {"y": 1}}, "'x' must be a number or a list of numbers, got dict"),
        ({"x": np.zeros(2000)}, "'x' has 2,000 numbers, more than 1,000"),
        ({"steps": 3}, "cannot be named 'steps'"),
        ({"": 3}, "cannot be named ''"),
        ({"episode_return": 1, "return": 1}, "are the same metric"),
    ],
)
def test_what_is_no_number_is_refused_and_nothing_is_written(values, why, tmp_path):
    with millpond.run("strict", root=tmp_path) as run:
        run.log(1, a=1)
        with pytest.raises(BadConfig, match=why):
            run.log(2, values)
        run.log(1, a=2)
    assert [line["a"] for line in read_metrics(run.path / "metrics.jsonl")] == [1, 2]


@pytest.mark.parametrize("step", [-1, 3, 2.5, True, "4", None])
def test_steps_count_up(step, tmp_path):
    with millpond.run("steps", root=tmp_path) as run:
        run.log(4, a=1)
        with pytest.raises(BadConfig, match="step must be a whole number of at least 4"):
            run.log(step, a=2)
        with pytest.raises(BadConfig, match="step must be a whole number of at least 4"):
            run.evaluated(step, [1.0])


@pytest.mark.parametrize("returns", [[], "x", {}, [[1.0], [2.0]], None])
def test_an_evaluation_has_returns(returns, tmp_path):
    with millpond.run("eval", root=tmp_path) as run, pytest.raises(BadConfig):
        run.evaluated(1, returns)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "/tmp/x", None, 3])
def test_a_name_is_a_name(name, tmp_path):
    with pytest.raises(BadConfig, match="expected a name such as 'my-dqn'"):
        millpond.run(name, root=tmp_path)
    assert not list(tmp_path.iterdir())


def test_settings_that_cannot_be_are_refused(tmp_path):
    for wrong in ({"steps": -1}, {"steps": 1.5}, {"frames_per_step": 0}, {"config": 7}):
        with pytest.raises(BadConfig):
            millpond.run("x", root=tmp_path, **wrong)
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadConfig, match="no tracker 'comet'"):
        millpond.run("x", root=tmp_path, track="comet")
    assert LoggedRun.open(tmp_path / "x").status()["state"] == "failed"
    (tmp_path / "file").write_text("")
    with pytest.raises(RunFailed, match="could not create"):
        millpond.run("x", root=tmp_path / "file")
    with pytest.raises(RunRefused, match="cannot contain runs"):
        millpond.run("x/inner", root=tmp_path)


def test_two_that_begin_at_once_get_a_folder_each(tmp_path):
    runs, start = [], threading.Barrier(8, timeout=30)

    def begin():
        start.wait()
        runs.append(millpond.run("same", root=tmp_path))

    threads = [threading.Thread(target=begin) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({run.path for run in runs}) == 8
    assert {run.path.name for run in runs} == {"same", *(f"same-{i}" for i in range(2, 9))}
    for run in runs:
        run.close()


def test_a_dataclass_is_a_config(tmp_path):
    @dataclasses.dataclass
    class Options:
        rate: float = 0.1
        many: float = float("inf")

    with millpond.run("x", root=tmp_path, config=Options()) as run:
        pass
    assert LoggedRun.open(run.path).settings["config"] == {"rate": 0.1, "many": "inf"}


# --- how it ends ---------------------------------------------------------------------------------


def test_an_interrupt_and_an_exit_are_no_failures(tmp_path):
    for error, state in ((KeyboardInterrupt(), "stopped"), (SystemExit(0), "finished")):
        with pytest.raises(type(error)), millpond.run("x", root=tmp_path) as run:
            raise error
        assert LoggedRun.open(run.path).status()["state"] == state
    with pytest.raises(SystemExit), millpond.run("x", root=tmp_path) as run:
        raise SystemExit(3)
    assert LoggedRun.open(run.path).status()["state"] == "failed"


def test_after_its_end_it_refuses(tmp_path):
    run = millpond.run("x", root=tmp_path)
    assert LoggedRun.open(run.path).status()["state"] == "running"
    run.close()
    run.close()
    with pytest.raises(RunRefused, match="is closed"):
        run.log(1, a=1)
    with pytest.raises(RunRefused, match="is closed"):
        run.watch(HostPond(SPEC, 60, ENVS))


def test_an_error_of_ours_does_not_hide_the_loops(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    def fails(run) -> int:
        run.log(1, episode_return=1)
        raise ZeroDivisionError

    monkeypatch.setattr("millpond.logged.logger.save_curve", full)
    with pytest.raises(ZeroDivisionError), millpond.run("x", root=tmp_path) as run:
        run.log(1, episode_return=1 + 0 * fails(run))
    assert LoggedRun.open(run.path).status()["state"] == "failed"
    with (
        pytest.raises(RunFailed, match="No space left"),
        millpond.run("x", root=tmp_path) as run,
    ):
        run.log(1, episode_return=1)
    assert LoggedRun.open(run.path).status()["state"] == "finished"


CHILD = """
import os, sys
import millpond
with millpond.run("child", root=sys.argv[1]) as run:
    for step in range(100):
        run.log(step, loss=step)
    if sys.argv[2] == "fork":
        child = os.fork()
        if not child:
            try:
                run.log(100, loss=0)
            except millpond.RunRefused as error:
                print(error)
                sys.stdout.flush()
                run.close()  # nothing of the parent's is closed
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        run.log(200, loss=1)
    else:
        print("ready", flush=True)
        sys.stdin.read()
"""


def test_a_killed_loop_is_killed_and_what_it_logged_is_there(tmp_path):
    command = [sys.executable, "-c", CHILD, str(tmp_path), "kill"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        logged = LoggedRun.open(tmp_path / "child")
        assert logged.status()["state"] == "running"
        os.kill(child.pid, signal.SIGKILL)
        child.wait(30)
    assert logged.status()["state"] == "killed"
    assert verdicts(logged.path)["process-health"] == "red"
    assert [line["loss"] for line in read_metrics(logged.metrics)] == list(range(100))


def test_a_forked_child_leaves_the_run_alone(tmp_path):
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tmp_path), "fork"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "but this is its child" in done.stdout
    logged = LoggedRun.open(tmp_path / "child")
    assert logged.status() == {"state": "finished", "steps": 200}
    assert len(list(read_metrics(logged.metrics))) == 101


def test_importing_millpond_stays_light():
    code = (
        "import sys, millpond; assert 'millpond.logged' not in sys.modules;"
        "millpond.run; left = {'flax', 'optax', 'gymnasium', 'matplotlib', 'millpond.train'};"
        "raise SystemExit(1 if left & set(sys.modules) else 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0
    with pytest.raises(AttributeError, match="no attribute 'runs'"):
        _ = millpond.runs


# --- the replay ----------------------------------------------------------------------------------


def watched(tmp_path, pond) -> tuple[millpond.logged.Logger, WatchedPond]:
    run = millpond.run("pond", root=tmp_path)
    return run, run.watch(pond)


@pytest.mark.parametrize("window", [Window(n_step=3, reward_clip=0.5), Sequence(4, end="stop")])
@pytest.mark.parametrize("sampler", [None, prioritized()])
def test_returns_are_recomputed_from_rows_as_they_came(window, sampler, tmp_path):
    run, pond = watched(tmp_path, HostPond(SPEC, 60, ENVS, window=window, sampler=sampler))
    with run:
        play(pond, 300, learn=64)
    evidence = LogEvidence.of(LoggedRun.open(run.path))
    assert evidence.total("returns_checked") > 10
    assert evidence.total("returns_wrong") == 0
    assert evidence.total("rows") == 900
    assert evidence.total("overwritten") > 500


def test_a_ring_that_does_not_hold_what_came_is_found(tmp_path):
    run, pond = watched(tmp_path, HostPond(SPEC, 60, ENVS, Window(n_step=3)))

    def spoil(turn, _):
        if turn == 195:
            pond.pond._ring.stores["reward"].ring[...] *= 1.5

    with run:
        play(pond, 200, learn=64, each=spoil)
    found = verdicts(run.path)
    assert found["nstep-oracle"] == "red"


def test_rows_that_went_past_are_named(tmp_path):
    run, pond = watched(tmp_path, HostPond(SPEC, 60, ENVS, Window()))
    with run:
        play(pond.pond, 20, learn=0)
    assert verdicts(run.path)["nstep-oracle"] == "unknown"


def test_a_broken_episode_is_told(tmp_path):
    rows = Rows(*[np.zeros((ENVS, 2), "f"), np.zeros(ENVS, "i"), np.zeros(ENVS, "f")], *[None] * 3)
    none = np.zeros(ENVS, bool)
    rows = rows._replace(terminated=~none, truncated=none, flags=np.ones(ENVS, np.uint8))
    run, pond = watched(tmp_path, HostPond(SPEC, 60, ENVS))
    with pytest.raises(BrokenEpisode), run:
        _ = [pond.add(rows) for _ in range(2)]
    assert verdicts(run.path)["episode-borders"] == "red"
    assert verdicts(run.path)["process-health"] == "red"


def test_every_way_to_add_is_counted_as_the_pond_counts(tmp_path):
    rng = np.random.default_rng(0)

    def rows(*lead, end=False):
        none = np.zeros(lead, bool)
        obs, reward = rng.normal(size=(*lead, 2)).astype("f"), rng.normal(size=lead).astype("f")
        flags = np.zeros(lead, np.uint8)
        return Rows(obs, np.zeros(lead, "i"), reward, none | end, none, flags | end)

    stream = WatchedPond(HostPond(SPEC, 60, ENVS))
    stream.add(rows(5, ENVS)._replace(flags=np.eye(5, 1, dtype="u1") + np.zeros((5, ENVS), "u1")))
    # An env that resets in the same step: border rows are made.
    ends = rows(ENVS)._replace(terminated=np.array([True] * ENVS))
    stream.add(ends, final_obs=np.zeros((ENVS, 2), "f"))
    each = WatchedPond(HostPond(SPEC, 60, ENVS, layout="per_env"))
    for env in range(ENVS):
        each.add(rows()._replace(flags=np.uint8(Flag.FIRST)), env=env)
    each.add(rows(4), env=1)
    each.add(rows(ENVS), mask=np.array([True, False, True]))
    whole = WatchedPond(HostPond(SPEC, 60, layout="shared"))
    whole.add(rows(7)._replace(flags=np.zeros(7, "u1")), next_obs=np.zeros((7, 2), "f"))
    for pond in (stream, each, whole):
        assert pond._audit.added.tolist() == pond.added.tolist()
        pond.sample(8)
        found = pond.report()
        assert found["unseen"] == 0
        assert found["returns_wrong"] == 0
        assert found["stored"] == pond.size
    assert isinstance(copy.deepcopy(stream), HostPond)


def test_what_is_no_pond_is_refused(tmp_path):
    with millpond.run("x", root=tmp_path) as run:
        with pytest.raises(BadConfig, match=r"run\.look"):
            run.watch(Pond(SPEC, 60, ENVS))
        with pytest.raises(BadConfig, match="got list"):
            run.watch([])


def test_a_device_pond_is_looked_into(tmp_path):
    pond = Pond(SPEC, 60, ENVS, Window(n_step=3))
    state = pond.init()

    class Adds:
        def add(self, rows):
            nonlocal state
            state = add(state, rows)

    add = jax.jit(pond.add)
    play(Adds(), 40, learn=0)
    with millpond.run("well", root=tmp_path) as well:
        well.look(pond, state)
    found = verdicts(well.path)
    assert found["nstep-oracle"] == found["episode-borders"] == "green"
    assert found["replay-turnover"] == "unknown"
    with millpond.run("bad", root=tmp_path) as bad:
        faulty = state._replace(faults=state.faults + 1)
        bad.look(pond, faulty)
    assert verdicts(bad.path)["episode-borders"] == "red"


# --- verdicts of made-up evidence ----------------------------------------------------------------


def made_up(state: str = "finished", **lines) -> LogEvidence:
    return LogEvidence({"state": state, "steps": 100}, 100, lines)


def test_a_number_that_is_lost_is_named():
    lines = [{"steps": i, "loss": 1.0 if i < 5 else None, "other": None} for i in range(9)]
    found = divergence(made_up(train=lines))
    assert found.state == "red"
    assert found.message == "'loss' is no finite number since step 5"
    assert divergence(made_up(train=lines[:5])).state == "green"
    back = [*lines, {"steps": 9, "loss": 0.5}]
    assert divergence(made_up(train=back)).state == "green"


@pytest.mark.parametrize(
    ("slope", "state", "wanted"),
    [(1, "finished", "green"), (0, "finished", "yellow"), (-1, "running", "yellow")],
)
def test_learning_is_judged_by_returns(slope, state, wanted):
    rng = np.random.default_rng(0)
    lines = [{"steps": i, "return": slope * i + rng.normal()} for i in range(100)]
    assert learning(made_up(state, train=lines)).state == wanted
    assert learning(made_up(state, train=lines[:30])).state == "unknown"


def test_draws_that_miss_a_part_are_found():
    line = dict(rows=1000, overwritten=1000, sampled=2000, stored=1000, ranked=False, capacity=1000)
    health = [{"learners": [line | {"overwritten_unsampled": lost}]} for lost in [135] * 9]
    assert replay_turnover(made_up(health=health)).state == "green"
    worse = [{"learners": [line | {"overwritten_unsampled": 500}]}] * 9
    assert replay_turnover(made_up(health=worse)).state == "yellow"
    assert replay_turnover(made_up(health=worse[:1])).state == "unknown"


def test_how_it_ended_is_health():
    assert process_health(made_up("killed")).state == "red"
    assert process_health(made_up("running")).state == "green"
