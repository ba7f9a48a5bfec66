"""A run's folder: what it refuses, what it says of itself, and no file half written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from tiny_runs import Arms, crash_at, files_of, settings

from millpond import recent
from millpond.engine.checkpoint import about_file, hash_of, load_tree, save_tree, write_whole
from millpond.errors import BadState, RunFailed, RunRefused
from millpond.train import Run, find_runs, train

pytestmark = pytest.mark.usefixtures("compiled_once")

PLAIN = settings()
ARMS = settings("arms", Arms(), agent="pqn", stack=1)


def config(path: Path, **changes) -> None:
    """Write other things into a run's config.json."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


# --- the folder --------------------------------------------------------------------------------


def test_a_run_is_opened_as_it_was_created(tmp_path):
    run = Run.create(tmp_path / "new" / "run", PLAIN)
    assert Run.open(tmp_path / "new" / "run") == run
    assert run.settings == PLAIN
    assert run.status() == {"state": "new", "steps": 0}
    assert run.checkpoints() == []
    (tmp_path / "empty").mkdir()
    assert Run.create(tmp_path / "empty", PLAIN).settings == PLAIN


def test_create_refuses_what_is_there(tmp_path):
    ours = Run.create(tmp_path / "ours", PLAIN)
    with pytest.raises(RunRefused, match=r"ours is not empty; millpond resume .*ours continues it"):
        Run.create(ours.path, PLAIN)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "thesis.tex").write_text("my work")
    with pytest.raises(RunRefused, match=r"foreign is not empty; choose another folder with --run"):
        Run.create(tmp_path / "foreign", PLAIN)
    assert os.listdir(tmp_path / "foreign") == ["thesis.tex"]
    (tmp_path / "file").write_text("")
    with pytest.raises(RunRefused, match=r"file is a file; choose a new folder with --run"):
        Run.create(tmp_path / "file", PLAIN)
    with pytest.raises(RunFailed, match=r"config.json .*Not a directory.*; make the folder writ"):
        Run.create(tmp_path / "file" / "run", PLAIN)


def test_open_refuses_what_is_no_run(tmp_path):
    with pytest.raises(RunRefused, match=r"there is no folder .*gone; millpond runs"):
        Run.open(tmp_path / "gone")
    run = Run.create(tmp_path / "run", PLAIN)
    config(run.path, millpond_run=7)
    with pytest.raises(RunRefused, match=r"a run of version 7, this millpond reads version 2; use"):
        Run.open(run.path)
    config(run.path, millpond_run=1, settings={"env": "treasurehunt-small", "stepz": 3})
    with pytest.raises(RunRefused, match=r"no setting 'stepz'; did you mean 'steps'\?"):
        Run.open(run.path)
    for damaged in ([], 3, {}, {"env": 3}, {"env": "no such"}, {"env": "staghunt", "world": 1}):
        config(run.path, settings=damaged)
        with pytest.raises(RunRefused, match=r"config.json cannot be used"):
            Run.open(run.path)
    for damaged in (b"", b"{", b"[]", b"{}", b"\xff\xfe", b"null"):
        (run.path / "config.json").write_bytes(damaged)
        with pytest.raises(RunRefused, match=r"config.json was not written by millpond train"):
            Run.open(run.path)


def test_a_run_belongs_to_one_process(tmp_path):
    run = Run.create(tmp_path / "run", PLAIN)
    code = (
        "import sys; from pathlib import Path; from millpond.train import Run\n"
        "lock = Run.open(Path(sys.argv[1])).lock(); print('locked', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(run.path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        try:
            assert other.stdout.readline() == "locked\n"
            run.say("running", 40)
            assert run.status() == {"state": "running", "steps": 40}
            with pytest.raises(RunRefused, match=r"run is in use by another process; wait for it"):
                train(run)
            assert not run.metrics.exists()
        finally:
            other.communicate(timeout=60)
    assert run.status() == {"state": "killed", "steps": 40}
    os.close(run.lock())


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"state": "running"}', "null"])
def test_a_damaged_status_is_no_obstacle(text, tmp_path):
    run = Run.create(tmp_path / "run", PLAIN)
    (run.path / "status.json").write_text(text)
    assert run.status() == {"state": "new", "steps": 0}


def test_checkpoints_are_listed_and_found(tmp_path):
    run = Run.create(tmp_path / "run", PLAIN)
    with pytest.raises(RunRefused, match=r"run has no checkpoint yet; train it for longer"):
        run.checkpoint()
    for steps in (1_000_000, 80, 9):
        save_tree(run.checkpoint_path(steps), {"w": np.zeros(2)}, {"steps": steps})
    (run.path / "checkpoints" / "notes.safetensors").write_bytes(b"mine")
    assert [kept.steps for kept in run.checkpoints()] == [9, 80, 1_000_000]
    assert run.checkpoint().steps == 1_000_000
    assert run.checkpoint(80).path == run.checkpoint_path(80)
    with pytest.raises(RunRefused, match=r"no checkpoint at 81 steps; it has 9, 80, 1000000"):
        run.checkpoint(81)


def test_runs_are_found_by_name(tmp_path):
    with pytest.raises(RunRefused, match=r"there is no folder .*gone; millpond train creates runs"):
        list(find_runs(tmp_path / "gone"))
    assert list(find_runs(tmp_path)) == []
    for name in ("b", "deep/er/a", "c"):
        Run.create(tmp_path / name, PLAIN)
    config(tmp_path / "c", millpond_run=3)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text("{}")
    found = [run.path.relative_to(tmp_path).as_posix() for run in find_runs(tmp_path)]
    assert found == ["b", "deep/er/a"]


def test_a_run_of_version_0_1_is_read_and_not_resumed(tmp_path):
    """As 0.1 wrote it: both agents' tables, the sampler among DQN's, `fused` for one process."""
    run = Run.create(tmp_path / "run", settings(replay="host"))
    plain = json.loads((run.path / "config.json").read_text())["settings"]
    sampling = {"sampler": "recent", "half_life": 77.0, "alpha": 0.6}
    for name in ("sampler", "sampling"):
        del plain[name]
    plain |= {"mode": "fused", "dqn": plain["dqn"] | sampling, "pqn": {"rollout": 8}}
    config = {"millpond_run": 1, "settings": plain}
    (run.path / "config.json").write_text(json.dumps(config))
    old = Run.open(run.path)
    assert (old.settings.sampling, old.settings.way) == (recent(77.0), "sequential")
    with pytest.raises(RunRefused, match=r"begun by millpond 0.1, .* finish it with 0.1, or start"):
        train(old)


# --- trees of arrays ---------------------------------------------------------------------------


def some_tree():
    tricky = np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32)
    return {
        "agent": (tricky, [np.uint32(2**32 - 1), np.zeros((0, 3), bool)]),
        "half": jnp.asarray(tricky, jnp.bfloat16),
        "none": None,
        "wide": np.arange(24, dtype=np.int64).reshape(2, 3, 4).T,
    }


def test_trees_come_back_bit_for_bit(tmp_path):
    tree, path = some_tree(), tmp_path / "tree.safetensors"
    save_tree(path, tree, {"steps": 7, "name": "ü"})
    back, about = load_tree(path, tree)
    assert about == about_file(path) == {"steps": 7, "name": "ü"}
    assert hash_of(back) == hash_of(tree)
    assert back["none"] is None
    assert back["half"].dtype == jnp.bfloat16
    for old, new in ((tree["agent"][0], back["agent"][0]), (tree["wide"], back["wide"])):
        assert new.dtype == old.dtype
        assert new.shape == old.shape
        assert new.tobytes() == np.asarray(old).tobytes()
    assert os.listdir(tmp_path) == ["tree.safetensors"]
    save_tree(tmp_path / "again", tree, {"name": "ü", "steps": 7})
    assert (tmp_path / "again").read_bytes() == path.read_bytes()


def test_hashes_tell_trees_apart():
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    trees = [{"a": zero}, {"b": zero}, {"a": one}, {"a": zero, "b": zero}, {"a": -zero}]
    assert len({hash_of(tree) for tree in trees}) == len(trees)


@pytest.mark.parametrize(
    ("like", "said"),
    [
        ({"w": np.zeros((3, 2), np.float32)}, r"'w'\] should be float32 \(3, 2\), got float32 \(2"),
        ({"w": np.zeros((2, 3), np.float64)}, r"should be float64 \(2, 3\), got float32 \(2, 3\)"),
        ({"b": np.zeros((2, 3), np.float32)}, r"'b'\] should be float32 \(2, 3\), got nothing; "),
    ],
)
def test_a_tree_of_another_shape_is_refused(like, said, tmp_path):
    path = tmp_path / "tree"
    save_tree(path, {"w": np.zeros((2, 3), np.float32)}, {})
    with pytest.raises(BadState, match=said) as caught:
        load_tree(path, like)
    assert "the settings of this run do not fit the file" in str(caught.value)


def test_a_damaged_file_is_refused(tmp_path):
    path, tree = tmp_path / "tree", {"w": np.zeros((2, 3), np.float32)}
    save_tree(path, tree, {})
    whole = path.read_bytes()
    for damaged in (b"", whole[:7], whole[:-1], b"\xff" * len(whole), whole + b"!"):
        path.write_bytes(damaged)
        for read in (lambda: load_tree(path, tree), lambda: about_file(path)):
            with pytest.raises(BadState, match="tree cannot be read as a checkpoint"):
                read()
    path.unlink()
    with pytest.raises(BadState, match="cannot be read as a checkpoint"):
        load_tree(path, tree)


# --- a full disk -------------------------------------------------------------------------------


def full(*_args):
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file(call, tmp_path, monkeypatch):
    path = tmp_path / "state"
    write_whole(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RunFailed, match=r"state \(3 bytes\) .*No space left.*free some space"):
            write_whole(path, b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["state"]
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"


def test_a_run_survives_a_full_disk(tmp_path, monkeypatch):
    """The checkpoint cannot be written; with space again the run goes on and ends as any other."""
    whole, short = Run.create(tmp_path / "whole", ARMS), Run.create(tmp_path / "short", ARMS)
    digest = train(whole)
    crash_at(short, 100)
    before = short.resume_state.read_bytes()
    original = os.replace

    def replace(draft, path):
        if "checkpoints" in str(path):
            full()
        original(draft, path)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", replace)
        with pytest.raises(RunFailed, match=r"safetensors .* No space left on device"):
            train(short)
    told = short.status()
    assert told["state"] == "failed"
    assert "No space left on device" in told["why"]
    assert not list(short.path.rglob("*.tmp"))
    assert short.resume_state.read_bytes() == before
    shutil.copy(short.resume_state, short.checkpoint_path(10**6))  # of a lost future
    assert train(short) == digest
    assert files_of(short.path) == files_of(whole.path)
    assert train(short) == digest, "a run that had ended went on"
    assert files_of(short.path) == files_of(whole.path)
