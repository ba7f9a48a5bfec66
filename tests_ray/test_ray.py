"""Mode ray: equal to the sequential run, and whole after every fault."""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import gnu_timeout
import pytest
import ray
from mix_runs import mixture
from tiny_runs import WORLD, dqn, settings

from millpond.cluster.team import open_loop
from millpond.doctor.plants_modes import plants_in
from millpond.doctor.self_test import planted
from millpond.engine.settings import CrewSettings
from millpond.engine.supervised_crew import SupervisedCrew
from millpond.errors import BadConfig, RunFailed
from millpond.lake import Lake
from millpond.metrics import read_metrics
from millpond.mixture import MixRun, mix
from millpond.mixture.programs import Programs
from millpond.train import Run, train
from millpond.train.check_lockstep import compare
from millpond.train.session import resume_point

BASE = replace(
    settings(mode="ray", actors=2, replay_shards=2, world=replace(WORLD, agents=1)),
    crew=CrewSettings(hang_s=60.0, start_s=60.0, chunk=4),
    steps=1600,
    log_every=160,
    eval_every=1600,
    checkpoint_every=1600,
    resume_every=1600,
)
BASE = dqn(BASE, capacity=256, min_fill=64)
LAKE = dqn(replace(BASE, replay="lake"), capacity=65_536)
TURNS = BASE.learns.turns


@pytest.fixture(autouse=True)
def nobody_left(cluster):
    """No Ray actor outlives a test."""
    yield
    deadline = time.monotonic() + 20
    while left := [one for one in ray.util.list_named_actors() if one]:
        assert time.monotonic() < deadline, left


def evidence(run: Run, name: str) -> list:
    return [e[name] for line in read_metrics(run.metrics, "health") for e in line["learners"]]


def events(run: Run) -> Counter:
    lines = (run.path / "events.jsonl").read_text().splitlines()
    return Counter(f"{e['event']} {e['process']}" for e in map(json.loads, lines))


def quiet(run: Run) -> bool:
    """Nothing that the witness counted is wrong."""
    wrong = ("border_breaks", "stack_mismatches", "returns_wrong")
    return all(not any(evidence(run, name)) for name in wrong)


class Watched:
    """An opener that lets a test see the crew of the loop it opened."""

    def __init__(self) -> None:
        self.crew: SupervisedCrew | None = None
        self.opened = 0

    @contextlib.contextmanager
    def __call__(self, of, folder):
        with open_loop(of, folder) as loop:
            self.crew, self.opened = loop.crew, self.opened + 1
            yield loop

    def kill(self, role: str, index: int) -> None:
        """SIGKILL, as the kernel would when memory runs out."""
        os.kill(self.pid(role, index), signal.SIGKILL)

    def pid(self, role: str, index: int) -> int:
        """The process of a shard, the weights, an actor or a learner."""
        team = self.crew.team
        servers = {"shard": team.shards, "weights": [team.weights]}
        found = servers[role][index] if role in servers else self.crew.members[role, index].handle
        return ray.get(found.beat.remote(), timeout=30)["pid"]


CASES = [
    pytest.param(dqn(BASE, sampler="prioritized"), id="2 prioritised shards"),
    pytest.param(LAKE, id="2 lakes"),
]


@pytest.mark.parametrize("base", CASES)
def test_lockstep_over_ray_is_the_sequential_run_bit_by_bit(cluster, tmp_path, base):
    check_lockstep(base, tmp_path)


def check_lockstep(base, tmp_path):
    """Trained on Ray in lockstep and in sequence: every row, draw, agent and metric is the same."""
    crew = replace(base.crew, trace=True)
    base = replace(base, steps=320, eval_every=320, crew=crew)
    runs = {}
    for mode in ("sequential", "ray"):
        of = replace(base, mode=mode, crew=replace(crew, lockstep=mode == "ray"))
        runs[mode] = Run.create(tmp_path / mode, of)
        train(runs[mode])
    found = compare(*(run.path / "trace.jsonl" for run in runs.values()))
    assert found.identical, found.differs
    assert found.cycles > 320 // 8
    ones, twos = (list(read_metrics(run.metrics)) for run in runs.values())
    assert ones == twos


def test_free_running_learns_from_what_was_acted_and_resumes(cluster, tmp_path):
    base = dqn(replace(BASE, steps=800, resume_every=400), sampler="prioritized")
    run, seen = Run.create(tmp_path / "run", base), []

    def told(line):
        seen.append(line)
        if line["kind"] == "train" and line["steps"] >= 480:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    stopped = resume_point(run)
    assert 480 <= stopped < 800
    train(Run.open(run.path))
    assert resume_point(run) >= 800
    assert quiet(run)
    assert sum(evidence(run, "returns_checked")) > 0
    assert max(evidence(run, "lag_max")) <= base.ahead * base.learns.updates
    assert max(evidence(run, "epsilon_off")) < 1e-5
    assert events(run)["lost actor"] == 0
    pace = next(line for line in seen if line["kind"] == "train")
    shards = pace["shards"]
    assert sum(shards["each"]) == shards["stored"] <= 256  # no more than the ring's capacity
    assert shards["again"] == shards["refused"] == 0


def rows_in_lakes(run: Run, of) -> dict[tuple[int, int], int]:
    """Rows of every stream of every actor."""
    found = {}
    for shard in range(of.replay_shards):
        lake = Lake.open(run.path / "lake" / f"shard-{shard}" / "policy-0")
        for stream in lake.streams:
            found[int(stream.group.removeprefix("actor-")), stream.env] = stream.stop
    return found


def test_chaos(cluster, tmp_path):
    """Actors, shards and a node are killed; every row is stored and counted once."""
    run, watched, chance = Run.create(tmp_path / "run", LAKE), Watched(), random.Random(7)
    plan = ["actor", "shard", "actor", "shard", "node", "actor", "shard"]
    killed: Counter = Counter()
    before: dict = {}

    def told(line):
        if line["kind"] != "train" or not plan or line["steps"] >= LAKE.steps - 200:
            return
        what = plan.pop(0)
        killed[what] += 1
        if what == "node":
            cluster.remove_node(next(iter(cluster.worker_nodes)))
        else:
            number = LAKE.actors if what == "actor" else LAKE.replay_shards
            watched.kill(what, chance.randrange(number))
        before.update(line["shards"])

    train(run, told, opener=watched)
    assert killed["shard"] >= 2
    assert killed["node"] == 1
    assert events(run)["lost learner"] == 0
    assert watched.opened == 1  # the run went on; it was not taken back
    assert quiet(run)
    # What the learner counted is what was acted: every cycle of every actor once.
    taken = sum(evidence(run, "rows"))
    cycles = taken // (LAKE.envs * TURNS)
    assert taken == cycles * LAKE.envs * TURNS
    # And so is what the Lakes hold: rows that came twice would show here.
    stored = rows_in_lakes(run, LAKE)
    assert len(stored) == LAKE.envs
    assert set(stored.values()) == {cycles * TURNS}
    assert before["stored"] > 0
    print(f"chaos: killed {dict(killed)}, events {dict(events(run))}, {taken} rows once each")


def test_a_shard_in_memory_comes_back_empty_and_the_run_goes_on(cluster, tmp_path):
    run, watched = Run.create(tmp_path / "run", replace(BASE, steps=960)), Watched()
    stored = []

    def told(line):
        if line["kind"] == "train":
            stored.append(line["shards"]["each"])
            if len(stored) == 2:
                watched.kill("shard", 1)

    train(run, told, opener=watched)
    assert quiet(run)
    assert stored[-1] == [128, 128]  # full again
    taken = sum(evidence(run, "rows"))
    assert taken % (BASE.envs * TURNS) == 0


def test_a_lost_learner_takes_the_run_back_to_its_resume_state(cluster, tmp_path):
    base = replace(BASE, steps=960, resume_every=320)
    run, watched, lines = Run.create(tmp_path / "run", base), Watched(), []

    def told(line):
        lines.append(line)
        trained = [one for one in lines if one["kind"] == "train"]
        if line["kind"] == "train" and len(trained) == 4:
            watched.kill("learner", 0)

    train(run, told, opener=watched)
    assert watched.opened == 2
    assert [line["kind"] for line in lines].count("restart") == 1
    assert events(run)["lost learner"] == 1
    assert resume_point(run) >= 960
    assert quiet(run)


def test_a_state_saved_where_a_new_incarnation_begins_can_be_gone_on_from(cluster, tmp_path):
    """The shards in it end with a cut, so the actor's first row may follow."""
    of = replace(BASE, actors=1, replay_shards=1, crew=replace(BASE.crew, lockstep=True))
    watched = Watched()
    with watched(of, tmp_path) as loop:
        state, _ = loop.round(loop.init(), 7)  # mid-episode: one is 11 turns, a cycle is 2
        watched.kill("actor", 0)
        state = loop.init()  # asks every actor: the lost one is replaced
        assert watched.crew.members["actor", 0].incarnation == 1
        tree, cycle = loop.pack(state), state.cycle
    with watched(of, tmp_path) as loop:
        state, _ = loop.round(loop.unpack(tree), 8)
        assert state.cycle == cycle + 8
        assert watched.crew.restarts == 0  # a shard refused the rows of an actor that begins
        assert not any(one["border_breaks"] for one in loop.evidence)


def test_lost_weights_come_back_and_actors_soon_play_with_young_ones(cluster, tmp_path):
    """On a learner with a (logical) GPU that publishes after eight updates only."""
    crew = replace(BASE.crew, publish_every=8, gpus=0.5)
    base = replace(BASE, crew=crew, steps=10**7)  # it ends when all was seen
    run, watched, free = Run.create(tmp_path / "run", base), Watched(), []
    bound = base.ahead * base.learns.updates + crew.publish_every - 1
    until = time.monotonic() + 120

    def versions() -> list:
        return ray.get(watched.crew.team.weights.pull.remote([-1]), timeout=60)

    def told(line):
        if line["kind"] != "train":
            return
        assert time.monotonic() < until
        free.append(ray.available_resources()["GPU"])
        if len(free) == 2:
            ray.kill(watched.crew.team.weights, no_restart=False)
        elif len(free) > 4 and versions()[0] and evidence(run, "lag_max")[-1] <= bound:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told, opener=watched)
    assert min(free) == ray.cluster_resources()["GPU"] - 0.5
    assert quiet(run)
    assert {name for name in events(run) if name.startswith("lost")} <= {"lost weights"}


def test_an_actor_that_hangs_is_replaced(cluster, tmp_path):
    base = replace(BASE, crew=replace(BASE.crew, hang_s=5.0), steps=10**7)
    run, watched, stopped = Run.create(tmp_path / "run", base), Watched(), []
    until = time.monotonic() + 120

    def told(line):
        if line["kind"] != "train":
            return
        assert time.monotonic() < until
        if not stopped:
            if not watched.crew.members[
                "actor", 1
            ].starting:  # before that it is compiling, and has longer
                pid = watched.pid("actor", 1)
                stopped.append(os.pidfd_open(pid))
                os.kill(pid, signal.SIGSTOP)
        elif watched.crew.members["actor", 1].incarnation:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told, opener=watched)
    assert events(run)["hangs actor"] >= 1
    assert quiet(run)
    ended, _, _ = select.select(stopped, [], [], 60)
    os.close(stopped[0])
    assert ended, "the stopped process is still there, and with it its CPU"


@pytest.mark.parametrize(("role", "index"), [("shard", 1), ("weights", 0)])
def test_a_server_that_hangs_is_started_again_and_nobody_else_is_blamed(
    cluster, tmp_path, role, index
):
    base = replace(BASE, crew=replace(BASE.crew, hang_s=10.0), steps=10**7)
    run, watched, stopped, after = Run.create(tmp_path / "run", base), Watched(), [], []
    until = time.monotonic() + 200

    def told(line):
        if line["kind"] != "train":
            return
        assert time.monotonic() < until
        if not stopped:
            if any(one.starting for one in watched.crew.members.values()):
                return
            pid = watched.pid(role, index)
            stopped.append(os.pidfd_open(pid))
            os.kill(pid, signal.SIGSTOP)
        elif events(run)[f"back {role}"]:
            after.append(line["steps"])
            if len(after) == 2:
                signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(run, told, opener=watched)
    ended, _, _ = select.select(stopped, [], [], 60)
    os.close(stopped[0])
    assert ended, "the stopped process is still there"
    assert events(run)[f"hangs {role}"] == events(run)[f"lost {role}"] == 1
    assert {name for name in events(run) if "lost" in name} == {f"lost {role}"}
    assert watched.opened == 1
    assert quiet(run)


@pytest.mark.parametrize("moment", ["export", "cut"])
def test_a_shard_lost_while_a_state_is_saved_is_asked_again(cluster, tmp_path, moment):
    of = replace(BASE, actors=1, replay_shards=1, crew=replace(BASE.crew, lockstep=True))
    watched = Watched()
    with watched(of, tmp_path) as loop:
        state, _ = loop.round(loop.init(), 7)
        if moment == "cut":  # the export cuts what a replaced actor has left
            watched.kill("actor", 0)
            state = loop.init()
        pid = watched.pid("shard", 0)
        os.kill(pid, signal.SIGSTOP)  # so that it is there when it is asked, and dies then
        timer = threading.Timer(2.0, os.kill, (pid, signal.SIGKILL))
        timer.start()
        tree = loop.pack(state)
        timer.join()
        assert int(tree["learners"][0]["cycles"]) == state.cycle
        state, _ = loop.round(loop.init(), 8)
        assert state.cycle == 15


def test_a_replaced_actor_begins_otherwise_in_every_sitting(cluster, tmp_path):
    of = replace(BASE, actors=1, replay_shards=1, crew=replace(BASE.crew, lockstep=True))
    watched, begun, tree = Watched(), [], None
    for _ in range(2):
        with watched(of, tmp_path) as loop:
            loop.round(loop.init() if tree is None else loop.unpack(tree), 3)
            watched.kill("actor", 0)
            tree = loop.pack(loop.init())  # asks every actor: the lost one is replaced
            begun.append(tree["actors"][0])
    assert [int(one["turn"]) for one in begun] == [3 * TURNS, 6 * TURNS]
    assert any((begun[0][name] != begun[1][name]).any() for name in begun[0] if "inner" in name)


@pytest.mark.skipif(not gnu_timeout.there(), reason="needs GNU timeout")
def test_gnu_timeout_ends_a_run_that_is_saved_and_resumes(tmp_path):
    """A Ray of the run's own: its processes are in the group that is sent SIGTERM."""
    reached, more = [0], ("--actors", "2", "--replay-shards", "2")
    for _ in range(2):
        reached.append(gnu_timeout.trained_until_time_is_up(tmp_path / "run", "ray", *more))
        run = Run.open(tmp_path / "run")
        assert run.status() == {"state": "stopped", "steps": resume_point(run)}
        assert resume_point(run) >= reached[-1] > reached[-2]
        assert not any(name.startswith("lost") for name in events(run))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_starting_ray_leaves_signals_to_the_run(number):
    """In a process of its own: the signal comes to its whole group while Ray is up."""
    code = f"""
import os, signal
from millpond.cluster.ray import connected
from millpond.engine.stopping import stop_asked
with stop_asked() as asked, connected("", 1, "a test", 100) as ray:
    os.killpg(0, {int(number)})
    where = ray.remote(lambda: os.getpid())
    assert ray.get(where.remote(), timeout=60) != os.getpid()
    assert set(asked) == {{{int(number)}}}, asked
print("whole")
"""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    more = dict(env=environment, capture_output=True, text=True, start_new_session=True)
    done = subprocess.run([sys.executable, "-c", code], timeout=180, **more)
    assert "whole" in done.stdout, done.stderr


def test_a_mixture_with_a_killed_worker_ends_as_one_without(cluster, tmp_path):
    alone = mixture(world=replace(WORLD, agents=1), mode="ray", members=1, frames=700)
    of = replace(alone, env="treasurehunt-small")
    ends = []
    for name in ("whole", "killed"):
        programs, victims = Programs(of), [1] if name == "killed" else []

        def told(line, programs=programs, victims=victims):
            if line["kind"] == "train" and victims:
                worker = programs.agents._workers[victims.pop()]
                os.kill(ray.get(worker.pid.remote(), timeout=30), signal.SIGKILL)

        ends.append(mix(MixRun.create(tmp_path / name, of), told, programs))
        assert programs.agents.replaced == (name == "killed")
    assert ends[0] == ends[1]


def test_a_shard_that_cannot_start_stops_the_run_with_its_traceback(cluster, tmp_path):
    run = Run.create(tmp_path / "run", LAKE)
    wrong = run.path / "lake" / "shard-0" / "policy-0"
    wrong.mkdir(parents=True)
    (wrong / "lake.json").write_text("{}")
    with pytest.raises(RunFailed, match=r"shard 0 failed: .*LakeRefused"):
        train(run)


def test_a_cluster_that_is_too_small_is_told(cluster, tmp_path):
    many = replace(BASE, envs=64, actors=64, replay_shards=4)
    many = dqn(many, capacity=1024)
    with pytest.raises(BadConfig, match="64 actors, 4 shards and 1 learners need 69 CPUs"):
        train(Run.create(tmp_path / "run", many))
    greedy = replace(BASE, crew=replace(BASE.crew, gpus=4.0))
    with pytest.raises(BadConfig, match="need 4 GPUs, the cluster has"):
        train(Run.create(tmp_path / "greedy", greedy))


LOOPBACK = {
    "0100007F",  # 127.0.0.1, as the kernel writes it
    "0000000000000000FFFF00000100007F",  # ::ffff:127.0.0.1
    "00000000000000000000000001000000",  # ::1
}


def listening() -> dict[str, str]:
    """Where this machine listens: address by the socket's inode."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            _, local, _, state, *rest = line.split()
            if state == "0A":
                found[rest[5]] = local.partition(":")[0]
    return found


def sockets_of(names: tuple[str, ...]) -> dict[str, str]:
    """Of all processes with one of these in their command line: sockets' inodes, and whose."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is somebody else's
            command = (folder / "cmdline").read_bytes().decode(errors="replace")
            if any(name in command for name in names):
                for link in (folder / "fd").iterdir():
                    with contextlib.suppress(OSError):
                        kind, _, inode = os.readlink(link).partition(":[")
                        if kind == "socket":
                            found[inode.rstrip("]")] = command
    return found


def test_ray_listens_on_the_loopback_address_alone_and_wants_a_token(cluster):
    sockets, where = sockets_of(("raylet", "gcs_server", "ray::")), listening()
    ours = {inode: address for inode, address in where.items() if inode in sockets}
    whose = "".join(sockets[inode] for inode in ours)
    assert "gcs_server" in whose
    assert "raylet" in whose
    assert {sockets[i] for i, address in ours.items() if address not in LOOPBACK} == set()
    environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
    code = f"import ray; ray.init(address={cluster.address!r}, logging_level='ERROR')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "uthenticat" in done.stderr


@pytest.mark.parametrize(
    "name", ["no bootstrap in the goal", "stored rewards negated, gone by now"]
)
def test_the_doctor_names_faults_of_actors_learners_and_shards(cluster, tmp_path, name):
    (plant,) = (plant for plant in plants_in("ray") if plant.name == name)
    assert planted(plant, tmp_path / "run").wrong == []
