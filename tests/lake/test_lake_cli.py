"""`millpond lake`: its figures are counted again here, its errors read well, JSON is only JSON."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from plain_lake import PlainLake
from test_lake_verify import SPEC, STREAMS, Quick, file_of, fill, flip, some_rows

from millpond import Lake, LakeFailed, Rows
from millpond.cli import lake as cli
from millpond.cli.main import find_commands, main
from millpond.lake import survey, survey_lake

FIRST, BORDER, CUT, TERMINATED, TRUNCATED, LOST = 1, 2, 8, 16, 32, 128


def run(capsys, *args):
    try:
        code = main(["lake", *(str(arg) for arg in args)])
    except SystemExit as stop:  # how the option parser ends
        code = stop.code
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(scope="session")
def made(tmp_path_factory) -> Path:
    """Several sessions, so that there are cuts inside episodes; three segments and an open one."""
    path = tmp_path_factory.mktemp("cli") / "lake"
    fill(path, [5, 6])
    rng = np.random.default_rng(1)
    for begin, continues in ((11, True), (0, False), (3, False)):
        lake = Lake.open(path, "a", files=Quick())
        with lake.writer("g", STREAMS, continues=continues) as writer:
            rows: Rows = some_rows(rng, 6, begin)
            cuts = np.zeros_like(rows.flags)
            cuts[3, ::7] = CUT
            writer.append(rows._replace(flags=rows.flags | cuts))
    return path


@pytest.fixture
def lake(made, tmp_path) -> Path:
    shutil.copytree(made, tmp_path / "lake")
    return tmp_path / "lake"


def count(path: Path) -> dict:
    """Steps and episodes, one row after the other."""
    plain = PlainLake(path)
    steps = finished = terminated = truncated = 0
    returns, lengths = [], []
    for rows in plain.rows().values():
        before, episode = None, None
        for number, row in rows.items():
            flags = row.record[0]
            gap = before is None or before[0] + 1 != number or before[1] & CUT or flags & LOST
            if gap:
                episode = None
            if flags & FIRST:
                episode = []
            if not flags & BORDER:
                steps += 1
                if episode is not None:
                    episode.append(float(plain.field(row, "reward")))
            if flags & (TERMINATED | TRUNCATED):
                finished += 1
                terminated += bool(flags & TERMINATED)
                truncated += bool(flags & TRUNCATED)
                if episode is not None:
                    returns.append(sum(episode))
                    lengths.append(len(episode))
                episode = None
            before = (number, flags)

    def three(values):
        return {"mean": np.mean(values), "least": min(values), "most": max(values)}

    return {
        "steps": steps,
        "finished": finished,
        "terminated": terminated,
        "truncated": truncated,
        "whole": len(returns),
        "returns": three(returns),
        "lengths": three(lengths),
    }


@pytest.mark.parametrize("together", [1 << 20, 1000, 7])
def test_info_counts_what_is_there(made, together, monkeypatch):
    """However many rows are looked at together: episodes go on from one lot to the next."""
    monkeypatch.setattr(survey, "_SCAN", together)
    found, wanted = survey_lake(made), count(made)
    episodes = found.episodes
    assert found.steps == wanted["steps"] < found.stats.rows
    for name in ("finished", "terminated", "truncated", "whole"):
        assert getattr(episodes, name) == wanted[name] > 0
    assert episodes.whole < episodes.finished
    for name in ("returns", "lengths"):
        assert vars(getattr(episodes, name)) == pytest.approx(wanted[name])


def test_info_in_json(made, capsys):
    code, out, err = run(capsys, "info", made, "--json")
    found = json.loads(out)
    assert (code, err) == (0, "")
    plain, stats = PlainLake(made), found["stats"]
    segments = plain.segments(plain.groups[0])
    files = list((made / "groups" / "g").glob("*.seg")) + list((made / "groups/g").glob("*.open"))
    assert stats["rows"] == sum(sum(s.count) for s in segments)
    assert (stats["segments"], stats["sealed"]) == (len(segments), len(segments) - 1)
    assert stats["bytes_on_disk"] == sum(f.stat().st_blocks * 512 for f in files)
    parts = {part["name"]: part for part in found["parts"]}
    assert list(parts) == [column.name for column in plain.columns]
    for column in plain.columns:
        assert parts[column.name]["raw"] == stats["rows"] * column.width
    image = [s.meta["columns"]["obs/image"] for s in segments if s.kind == "sealed"]
    assert parts["obs/image"]["index"] == sum(stored["offsets"][1] for stored in image)
    assert parts["obs/image"]["dictionary"] == sum(s["dictionary"][1] for s in image)
    assert parts["obs/image"]["dictionaries"] == len({s["dictionary_sum"] for s in image})
    (group,) = found["groups"]
    newest = max(f + c for s in segments for f, c in zip(s.meta["first"], s.count, strict=True))
    assert (group["oldest"], group["newest"], group["open"]) == (0, newest - 1, 1)
    assert found["use"] == stats["rows"] / 10**6
    assert group["first_time"] == min(f.stat().st_mtime for f in files)


def test_info_reads_well(made, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, err = run(capsys, "info", made)
    assert (code, err) == (0, "")
    wanted = count(made)
    assert f"{512 * 29:,} rows ({wanted['steps']:,} steps) of 512 streams in 1 group" in out
    assert f"{wanted['finished']:,} episodes finished: {wanted['terminated']:,} terminated" in out
    assert f"Of the {wanted['whole']:,} that are stored completely:" in out
    assert "1.5% of its capacity of 1,000,000 rows" in out
    assert "…" not in out


def test_info_of_an_empty_lake(tmp_path, capsys):
    Lake.create(tmp_path / "lake", SPEC, "1GB")
    code, out, _ = run(capsys, "info", tmp_path / "lake")
    assert code == 0
    assert "0 rows (0 steps) of 0 streams in 0 groups" in out
    assert "its capacity of 1.00 GB" in out


def test_verify_and_repair_from_the_command_line(lake, capsys):
    assert run(capsys, "verify", lake)[0] == 0
    flip(file_of(lake, 1, ".seg"), [5000])
    end = file_of(lake, 2, ".seg").stat().st_size
    flip(file_of(lake, 2, ".seg"), [end - 46])
    code, out, err = run(capsys, "verify", lake)
    assert (code, err) == (1, "")
    assert f"groups/g/{1:016d}.seg: bytes 4096-8191: record: checksum differs (456 rows)" in out
    header = f"bytes {end - 48}-{end - 1}: this is not a segment header"
    assert f"groups/g/{2:016d}.seg: {header} (an unknown number of rows)" in out
    assert "2 damaged ranges" in out
    assert "1 segment cannot be read at all. Nothing was changed." in out

    code, out, _ = run(capsys, "verify", lake, "--json")
    found = json.loads(out)
    assert (code, found["clean"], len(found["damages"])) == (1, False, 2)
    assert found["damages"][0] == {
        "path": f"groups/g/{1:016d}.seg",
        "start": 4096,
        "stop": 8192,
        "what": "record: checksum differs",
        "rows": 456,
    }

    code, out, _ = run(capsys, "repair", lake, "--dry-run")
    assert code == 0
    assert "would be rewritten" in out
    assert "Nothing was changed: this was a dry run" in out
    assert run(capsys, "verify", lake)[0] == 1

    code, out, _ = run(capsys, "repair", lake)
    assert code == 0
    assert f"{1:016d}.seg: rewritten, original in {1:016d}.damaged" in out
    assert "streams 0-56, each: rows lost 8-15" in out
    assert "streams 57-511, each: rows kept 8-15" in out
    assert "the number of rows it held is unknown" in out
    assert "3,640 rows kept, 456 lost, and an unknown number in 1 segment" in out
    assert "no damage, nothing was changed" in run(capsys, "repair", lake)[1]
    assert json.loads(run(capsys, "repair", lake, "--json")[1])["segments"] == []
    assert run(capsys, "verify", lake)[0] == 0
    assert "2 damaged files that repair moved aside" in run(capsys, "info", lake)[1]


def test_repair_in_json(lake, capsys):
    flip(file_of(lake, 0, ".seg"), [5000])
    code, out, err = run(capsys, "repair", lake, "--json")
    (one,) = json.loads(out)["segments"]
    assert (code, err) == (0, "")
    assert (one["action"], one["number"], one["group"]) == ("rewritten", 0, "g")
    assert one["aside"] == f"groups/g/{0:016d}.damaged"
    assert [k + n for k, n in zip(one["kept"], one["lost"], strict=True)] == [8] * STREAMS


def test_a_living_writer_is_named(lake, capsys):
    with Lake.open(lake, "a", files=Quick()).writer("g", STREAMS):
        code, out, err = run(capsys, "repair", lake)
    assert (code, out) == (1, "")
    assert "writer group 'g' is open in process" in err
    assert "close() the writer" in err


@pytest.mark.parametrize("command", ["info", "verify", "repair"])
def test_wrong_paths_are_wrong_calls(command, lake, capsys, tmp_path):
    code, out, err = run(capsys, command, tmp_path / "nowhere")
    assert (code, out) == (2, "")
    assert "nowhere: there is no such folder" in err
    code, _, err = run(capsys, command, lake / "lake.json")
    assert (code, "this is a file" in err) == (2, True)
    code, _, err = run(capsys, command, tmp_path)
    assert code == 2
    assert f"not a Lake (no lake.json); did you mean {lake}?" in err
    code, _, err = run(capsys, command, lake / "groups")
    assert "give the folder that Lake.create made" in err


def test_typos_are_answered(lake, capsys):
    code, _, err = run(capsys, "inof", lake)
    assert (code, "did you mean 'info'?" in err) == (2, True)
    code, _, err = run(capsys, "shrink", lake)
    assert (code, "use one of info, verify, repair" in err) == (2, True)
    code, _, err = run(capsys)
    assert (code, "info, verify, repair" in err) == (2, True)
    code, _, err = run(capsys, "repair", lake, "--dryrun")
    assert (code, "--dry-run" in err) == (2, True)
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert all(name in out for name in ("info", "verify", "repair"))
    assert find_commands()["lake"].startswith("inspect, verify or repair")


def test_other_errors_have_no_traceback(lake, capsys):
    text = (lake / "lake.json").read_text().replace('"slots"', '"slotz"')
    (lake / "lake.json").write_text(text)
    for command in ("info", "repair"):
        code, _, err = run(capsys, command, lake)
        assert (code, "damaged" in err, "Traceback" in err) == (1, True, False)
    code, out, _ = run(capsys, "verify", lake)
    assert (code, "lake.json" in out) == (1, True)


@pytest.mark.parametrize("error", [LakeFailed("the disk does not answer"), ZeroDivisionError()])
def test_what_could_not_be_verified_is_not_called_damaged(lake, capsys, monkeypatch, error):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli, "verify_lake", fail)
    code, _, err = run(capsys, "verify", lake)
    assert code == 3
    assert str(error) in err


def test_as_its_own_process(lake):
    """No bar where stderr is no terminal."""
    done = subprocess.run(
        [sys.executable, "-m", "millpond", "lake", "verify", str(lake), "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["clean"] is True
