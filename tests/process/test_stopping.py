"""SIGTERM, SIGINT and SIGHUP, to one process or to the group: the run is saved, once, and ends."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import replace

import gnu_timeout
import pytest
from process_runs import ALONE, events, hooks, living, lost, nothing_left_behind

from millpond.engine import stopping as module
from millpond.engine.stopping import SIGNALS, stop_asked
from millpond.train import Run, train
from millpond.train.loop import open_loop
from millpond.train.session import resume_point

__all__ = ["hooks", "nothing_left_behind"]

LONG = replace(ALONE, steps=10**6, resume_every=10**6, eval_every=10**6, checkpoint_every=10**6)
LONG = replace(LONG, crew=replace(LONG.crew, start_s=60.0))


def group(run: Run, number: int) -> None:
    """As GNU `timeout` does: to the process it started, then to the whole group."""
    for pid in [os.getpid(), *living(run).values(), os.getpid()]:
        os.kill(pid, number)


def stopped_by(run: Run, send) -> int:
    """Train until the second line, then `send(run)`; the steps at which the run was saved."""
    lines = []

    def told(line):
        lines.append(line)
        if [one["kind"] for one in lines].count("train") == 2:
            send(run)

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    assert run.status() == {"state": "stopped", "steps": resume_point(run)}
    assert lost(run) == []
    assert [line["kind"] for line in lines].count("restart") == 0
    return resume_point(run)


MODES = [
    pytest.param("fused", signal.SIGTERM, marks=pytest.mark.full),
    pytest.param("sequential", signal.SIGTERM, marks=pytest.mark.full),
    pytest.param("lockstep", signal.SIGTERM, marks=pytest.mark.full),
    ("processes", signal.SIGTERM),
    pytest.param("processes", signal.SIGINT, marks=pytest.mark.full),
    pytest.param("processes", signal.SIGHUP, marks=pytest.mark.full),
]


@pytest.mark.parametrize(("mode", "number"), MODES)
def test_a_signal_to_the_group_saves_the_run_once_and_it_resumes(tmp_path, mode, number):
    run = Run.create(tmp_path / "run", replace(LONG, mode=mode, actors=1))
    at = stopped_by(run, lambda run: group(run, number))
    assert at > 0
    again = stopped_by(run, lambda run: group(run, number))
    assert again > at


@pytest.mark.skipif(not gnu_timeout.there(), reason="needs GNU timeout")
@pytest.mark.full  # by default the same signal is sent to the group, above
@pytest.mark.parametrize("mode", ["processes", "fused", "sequential", "lockstep"])
def test_gnu_timeout_ends_a_run_that_is_saved_and_resumes(tmp_path, mode):
    """It sends SIGTERM to the command, then to the whole group."""
    reached = [0]
    for _ in range(2):
        reached.append(gnu_timeout.trained_until_time_is_up(tmp_path / "run", mode))
        run = Run.open(tmp_path / "run")
        assert run.status() == {"state": "stopped", "steps": resume_point(run)}
        assert resume_point(run) >= reached[-1] > reached[-2]
        assert lost(run) == []


@pytest.mark.full
@pytest.mark.parametrize("who", [("actor", 0), ("learner", 0)])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_to_one_worker_saves_the_run(tmp_path, who, number):
    run = Run.create(tmp_path / "run", replace(LONG, mode="processes"))
    assert stopped_by(run, lambda run: os.kill(living(run)[who], number)) > 0
    assert {e["number"] for e in events(run) if e["event"] == "signal"} == {number}


def test_signals_while_processes_start_end_the_run_without_a_loss(tmp_path, monkeypatch):
    """They reach every process as it is born, before Python could ignore any."""

    class Greeted(subprocess.Popen):
        def __init__(self, *args, **more):
            super().__init__(*args, **more)
            for number in SIGNALS:
                self.send_signal(number)

    run = Run.create(tmp_path / "run", LONG)
    monkeypatch.setattr(subprocess, "Popen", Greeted)
    with pytest.raises(KeyboardInterrupt):
        train(run)
    assert run.status() == {"state": "stopped", "steps": 0}
    assert lost(run) == []


def test_a_signal_before_anything_is_started_is_not_forgotten(tmp_path):
    run = Run.create(tmp_path / "run", LONG)

    @contextlib.contextmanager
    def opener(settings, folder):
        signal.raise_signal(signal.SIGTERM)
        with open_loop(settings, folder) as loop:
            yield loop

    with pytest.raises(KeyboardInterrupt):
        train(run, opener=opener)
    assert run.status() == {"state": "stopped", "steps": 0}


@pytest.mark.full
def test_a_learner_killed_after_the_signal_is_part_of_the_stop(tmp_path):
    """The run is not opened again; it goes on from what was saved before."""
    run = Run.create(tmp_path / "run", replace(LONG, resume_every=40))

    def told(line):
        if line["kind"] == "train" and run.resume_state.exists():
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(living(run)["learner", 0], signal.SIGKILL)

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    assert run.status() == {"state": "stopped", "steps": resume_point(run)}
    assert [e["event"] for e in events(run)].count("started") == 2


def test_the_same_signal_twice_at_once_is_one_request():
    with stop_asked() as asked:
        for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT, signal.SIGINT):
            signal.raise_signal(number)
        assert asked[0] == signal.SIGTERM
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.fixture(autouse=True)
def signals_as_in_a_terminal():
    """Whoever runs the tests may ignore some: `nohup`, or a shell that starts them behind it."""
    usual = {signal.SIGINT: signal.default_int_handler}
    usual |= dict.fromkeys((signal.SIGTERM, signal.SIGHUP), signal.SIG_DFL)
    before = {number: signal.signal(number, how) for number, how in usual.items()}
    yield
    for number, how in before.items():
        signal.signal(number, how)


def test_a_later_ctrl_c_ends_the_run_at_once(monkeypatch):
    with stop_asked() as asked:
        signal.raise_signal(signal.SIGINT)
        monkeypatch.setattr(module, "_TOGETHER_S", -1.0)
        signal.raise_signal(signal.SIGTERM)
        assert asked == [signal.SIGINT, signal.SIGTERM]
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_sighup_that_was_ignored_stays_ignored():
    """As under `nohup`."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_asked() as asked:
            signal.raise_signal(signal.SIGHUP)
            assert asked == []
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_display_that_is_gone_keeps_no_state_from_disk(tmp_path):
    """SIGHUP comes because the terminal was closed: writing to it fails from then on."""
    run = Run.create(tmp_path / "run", replace(LONG, mode="fused", actors=1))

    def told(line):
        if line["kind"] == "train":
            signal.raise_signal(signal.SIGHUP)
            raise OSError(5, "Input/output error")

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    assert run.status() == {"state": "stopped", "steps": resume_point(run)}
    assert resume_point(run) > 0
