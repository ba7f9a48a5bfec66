"""The live page without a browser: reading, thinning, figures, the door, events, the report."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from many_runs import write_many
from tiny_runs import settings
from watch_world import Page, grow, page_over, write_mixture, write_train

from millpond.cli.main import main
from millpond.engine.events import Events
from millpond.errors import BadConfig, RunRefused
from millpond.metrics import Metrics
from millpond.train import Run, train
from millpond.view import run_report
from millpond.view.address import check_door, listen
from millpond.view.card import pace_of, phase_of
from millpond.view.checkup import Checkup
from millpond.view.columns import MetricColumns
from millpond.view.decimate import thin, thin_band
from millpond.view.figures import figures_of
from millpond.view.greedy import Greedy
from millpond.view.groups import group_names, group_of
from millpond.view.guard import Guard, Tokens
from millpond.view.history import RunHistory, differences
from millpond.view.page_files import index_page, page_file, plotly_path
from millpond.view.parallel import settings_and_score
from millpond.view.picture import save_figure
from millpond.view.processes import processes
from millpond.view.projector import Projector, newest_checkpoint
from millpond.view.runs import Runs
from millpond.view.sketch import Sketch, compared
from millpond.view.tail import Tail, last_lines
from millpond.view.water import water
from millpond.view.x_values import XValues, elapsed


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    write_train(root / "plain")
    write_train(root / "deep" / "sick", seed=1, sick=True)
    write_mixture(root / "mixture")
    (root / "else").mkdir()
    (root / "else" / "config.json").write_text("{}")  # not ours
    return root


@pytest.fixture(scope="module")
def page(root):
    with page_over(root) as page:
        page.enter()
        yield page


def history_of(path: Path) -> RunHistory:
    history = RunHistory(path)
    history.look()
    return history


# --- reading -------------------------------------------------------------------------------------


def test_a_tail_reads_what_is_new_and_waits_for_whole_lines(tmp_path):
    path = tmp_path / "lines.jsonl"
    tail = Tail(path)
    assert tail.read() == ([], False)
    path.write_text('{"a": 1}\n{"a": 2')
    assert tail.read() == ([{"a": 1}], False)
    with open(path, "a") as file:
        file.write('}\nnot json\n[3]\n{"a": 4}\n')
    assert tail.read() == ([{"a": 2}, {"a": 4}], False)
    assert tail.read() == ([], False)


@pytest.mark.parametrize("after", ['{"a": 7}\n', '{"a": 7}\n{"a": 8}\n{"a": 9}\n{"a": 10}\n'])
def test_a_tail_notices_a_file_that_was_cut_back(tmp_path, after):
    path = tmp_path / "lines.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}\n')
    tail = Tail(path)
    tail.read()
    path.write_text(after)  # shorter than before, or cut and grown beyond it
    lines, anew = tail.read()
    assert anew
    assert lines[0] == {"a": 7}


def test_a_tail_of_some_lines_reads_on_to_the_next_of_them(tmp_path, monkeypatch):
    monkeypatch.setattr("millpond.view.tail._CHUNK", 64)
    path = tmp_path / "lines.jsonl"
    kinds = ["train"] * 50 + ["eval"] + ["train"] * 50 + ["eval"]
    path.write_text("".join(f'{{"kind": "{kind}", "a": {i}}}\n' for i, kind in enumerate(kinds)))
    tail = Tail(path, b'"kind": "eval"')
    assert [line["a"] for _ in range(3) for line in tail.read().lines] == [50, 101]
    path.write_text('{"kind": "train", "a": 1}\n')
    assert tail.read() == ([], True), "cut back, and nothing of it is ours"


def test_evaluations_alone_are_read_and_go_on(tmp_path):
    run = write_train(tmp_path / "a", 12)
    greedy = Greedy(run.path)
    assert greedy.curve(False) == {"x": [80, 160], "y": [1.0, 2.0]}
    grow(run, 13, 15)
    assert greedy.curve(False)["x"] == [80, 160, 240]
    assert Greedy(tmp_path / "nowhere").curve(False) == {"x": [], "y": []}


def test_time_is_counted_over_all_sittings():
    steps, seconds = np.array([10.0, 20, 30, 20, 30, 40]), np.array([1.0, 2, 3, 5, 6, np.nan])
    at, spent = elapsed(steps, seconds)  # killed after 30 steps, resumed from before
    assert at.tolist() == [10, 20, 30, 30, 30]
    assert spent.tolist() == [1, 2, 3, 5, 6]
    steps, seconds = np.array([10.0, 20, 30, 40]), np.array([1.0, 2, 0.5, 1])
    assert elapsed(steps, seconds)[1].tolist() == [1, 2, 2.5, 3]
    places = XValues(np.array([40.0, 80]), np.array([10.0, 20]), np.array([60.0, 90]))
    assert places.to_json() == {"x": [40, 80], "at": {"steps": [10, 20], "time": [1, 1.5]}}
    lost = XValues(np.array([1.0, np.nan]), None, np.array([np.nan, 6.0])).to_json()
    assert lost == {"x": [1, 0], "at": {"time": [None, 0.1]}}
    assert XValues(steps, steps).to_json() == {"x": [10, 20, 30, 40]}, "what is the same goes once"


def test_groups_are_runs_that_differ_in_their_seed():
    first = {"seed": 0, "members": 1, "dqn": {"batch": 32}}
    assert group_of(first) == group_of({**first, "seed": 3, "members": 5})
    assert group_of(first) != group_of({**first, "dqn": {"batch": 64}})
    for names, wanted in (
        (["a-width-8-0", "a-width-8-1"], "a-width-8"),
        (["run-10", "run-11"], "run"),
        (["x/arms/A/seeds-0-0", "x/arms/A/seeds-1-1"], "x/arms/A"),
        (["a", "a-2"], "a"),
        (["plain", "sick"], "plain and 1 more"),
        (["one-5"], "one-5"),
    ):
        assert group_names(("g", name) for name in names) == {"g": wanted}


def test_last_lines_begin_with_a_whole_one(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text("".join(f'{{"a": {i}}}\n' for i in range(100)) + '{"a"')
    assert last_lines(path, 30) == [{"a": 98}, {"a": 99}]
    assert len(last_lines(path)) == 100


def test_columns_hold_numbers_and_ends_of_lists():
    columns = MetricColumns(("a", "b", "deep", "yes"))
    columns.add({"kind": "x", "a": 1, "deep": [[1.0, None], [4.0]], "yes": True, "c": 3})
    columns.add({"b": 2.5})
    assert np.array_equal(columns.of("a"), [1, np.nan], equal_nan=True)
    assert np.array_equal(columns.of("b"), [np.nan, 2.5], equal_nan=True)
    assert columns.of("deep.low")[0] == 1
    assert columns.of("deep.high")[0] == 4
    assert columns.last("a") == 1
    assert "yes" not in columns
    assert "c" not in columns
    assert np.isnan(columns.of("nothing")).all()


def test_thinning_keeps_spikes_and_both_ends():
    x, y = np.arange(100_000), np.zeros(100_000)
    y[[777, 50_123]] = 9, -9
    y[5] = np.nan
    few_x, few_y = thin(x, y, 800)
    assert len(few_x) <= 800
    assert {777, 50_123, 0, 99_999} <= set(few_x.tolist())
    assert few_y.max() == 9
    assert few_y.min() == -9
    assert (np.diff(few_x) > 0).all()
    at, low, high = thin_band(y - 1, y + 1, 100)
    assert len(at) <= 100
    assert 5 not in at  # it has no height
    assert low.min() == -10
    assert high.max() == 10
    assert [len(one) for one in thin([1], [2])] == [1, 1]
    assert [len(one) for one in thin([], [])] == [0, 0]


def test_runs_are_found_and_versions_tell_what_changed(tmp_path):
    runs = Runs(tmp_path)
    assert runs.look() is False
    assert runs.cards()["order"] == []
    run = write_train(tmp_path / "study" / "a", 5)
    runs._searched = float("-inf")
    assert runs.look()
    (card,) = runs.cards()["runs"]
    assert card["name"] == "study/a"
    assert card["state"] == "finished"
    before = runs.version
    assert runs.look() is False
    assert runs.cards(before)["runs"] == []
    grow(run, 6, 6)
    assert runs.look()
    assert [one["id"] for one in runs.cards(before)["runs"]] == [card["id"]]
    with pytest.raises(RunRefused, match="there is no folder"):
        Runs(tmp_path / "nowhere")


def test_looking_at_a_run_neither_writes_nor_keeps_it_from_its_lock(tmp_path):
    run = write_train(tmp_path / "a", 5)
    run.say("running", 80)
    before = sorted(path.name for path in run.path.iterdir())
    runs = Runs(tmp_path)
    runs.look()
    assert runs.cards()["runs"][0]["state"] == "killed"
    Checkup()(run.path)
    runs.history(next(iter(runs.entries.values())))
    assert sorted(path.name for path in run.path.iterdir()) == before
    lock = run.lock()
    try:
        assert run.status()["state"] == "running"
        with pytest.raises(RunRefused, match="in use"):
            run.lock()
    finally:
        os.close(lock)
    stop = threading.Event()

    def look() -> None:
        while not stop.is_set():
            run.status()

    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(50):
            os.close(run.lock())
    finally:
        stop.set()
        looker.join(timeout=20)


def test_a_run_with_odd_lines_is_shown_as_unreadable(tmp_path):
    run = write_train(tmp_path / "odd", 5)
    write_train(tmp_path / "plain", 5)
    with open(run.metrics, "a") as file:
        file.write('{"kind": "train", "steps": "many"}\n')
    runs = Runs(tmp_path)
    assert runs.look()
    cards = {card["name"]: card for card in runs.cards()["runs"]}
    assert cards["odd"]["state"] == "unreadable"
    assert "many" in cards["odd"]["why"]
    assert cards["plain"]["state"] == "finished"


def test_pace_and_phase():
    lines = [{"seconds": s, "steps": 100 * s} for s in (7, 1, 2, 3)]
    assert pace_of(lines, "steps") == 100
    assert pace_of([], "steps") is None
    assert pace_of([{"seconds": 2.0, "frames": 10}], "frames") == 5
    assert phase_of({}, True) == "compiling"
    assert phase_of({"kind": "eval", "when": "before"}, True) == "fill"
    assert phase_of({"kind": "fill"}, True) == "big"
    assert phase_of({"kind": "train", "updates": 0}, False) == "filling replay"


# --- what is shown -------------------------------------------------------------------------------


def test_figures_of_a_run_in_processes(root):
    history = history_of(root / "plain")
    found = {figure["name"]: figure for figure in figures_of(history)}
    assert {"returns", "epsilon", "q", "loss", "lag", "age", "reuse", "turnover"} < set(found)
    json.dumps(list(found.values()), allow_nan=False)
    band, train, greedy = found["returns"]["data"]
    assert band["fill"] == "toself"
    assert greedy["x"] == [16 * i for i in range(5, 31, 5)]
    assert train["y"][-1] == 3.0
    half = 1.96 * np.hypot(0.3, 0.4) / 2
    assert max(band["y"]) == pytest.approx(6 + half, rel=1e-5)
    assert found["lag"]["data"][0]["y"] == [0.75, 0.25]
    assert found["reuse"]["data"][0]["y"][0] == 1.0
    assert found["turnover"]["data"][1]["y"][0] == 0.375
    assert found["epsilon"]["data"][-1]["y"][0] == pytest.approx(0.15)


def test_figures_of_a_mixture_mark_resets(root):
    history = history_of(root / "mixture")
    found = {figure["name"]: figure for figure in figures_of(history)}
    assert [one["x0"] for one in found["returns"]["layout"]["shapes"]] == [2400, 4800]
    first = found["recovery"]["data"][0]
    assert first["x"] == [800, 1600, 2400]
    assert first["y"][0] == pytest.approx(8 / 6 - 1, rel=1e-5)
    assert found["fill"]["data"][0]["name"] == "Ponds"
    assert found["shares"]["data"][0]["x"] == [0.7]


def test_what_any_agent_writes_has_a_figure(tmp_path):
    run = write_train(tmp_path / "a", 5)
    metrics = Metrics(run.metrics)
    for i in (6, 7):
        values = {"critic_loss": -1.0 * i, "alpha": [0.1, 0.3], "entropy": None, "name": "x"}
        metrics.write("train", 16 * i, 32 * i, values | {"loss": -1.0})
        metrics.write("eval", 16 * i, 32 * i, {"return": 1.0, "success <b>": 0.5})
        metrics.write("quantiles", 16 * i, 32 * i, {"spread": [[1.0, 3.0]], "why": "text"})
    metrics.close()
    found = {figure["name"]: figure for figure in figures_of(history_of(run.path))}
    critic = found["train-critic_loss"]
    assert (critic["title"], critic["more"]) == ("Critic loss", True)
    assert critic["data"][0]["y"] == [-6.0, -7.0]
    assert critic["layout"]["yaxis"]["title"]["text"] == "critic loss"
    assert found["train-alpha"]["data"][0]["fill"] == "toself"
    assert found["train-alpha"]["data"][1]["y"] == [0.2, 0.2]
    assert found["quantiles-spread"]["data"][0]["y"] == [2.0, 2.0]
    assert "<b>" not in json.dumps(found["eval-success <b>"]["data"])
    assert not {"train-entropy", "train-name", "quantiles-why", "train-loss"} & set(found)
    assert "type" not in found["loss"]["layout"]["yaxis"], "no logarithm of what is negative"
    sketch = Sketch.of(history_of(run.path))
    assert {"critic_loss", "alpha", "greedy-success <b>"} <= set(sketch.curves)


def test_water_tells_levels_and_what_moves(root, tmp_path):
    flows = water(history_of(root / "mixture"))
    assert [place["name"] for place in flows["places"]] == [
        "Agents",
        "Ponds",
        "Lake",
        "BigPond",
        "BigAgent",
    ]
    assert flows["places"][2]["level"] == pytest.approx(0.6)
    assert [flows["places"][i]["text"] for i in (0, 4)] == ["2 x PQN", "QLAMBDA"]
    assert not any(flow["moves"] for flow in flows["flows"])  # it has finished
    run = write_train(tmp_path / "a", 5)
    run.say("running", 80)
    lock = run.lock()
    try:
        flows = water(history_of(run.path))
    finally:
        os.close(lock)
    assert flows["places"][1]["level"] == 1.0
    assert all(flow["moves"] for flow in flows["flows"])


def test_processes_and_settings_that_differ(root):
    sick = history_of(root / "deep" / "sick")
    rows = {row["name"]: row for row in processes(sick)}
    assert rows["actor 0"]["losses"] == 3
    assert rows["actor 0"]["shares"] == {"a": 0.5, "b": 0.4, "c": 0.1}
    assert rows["learner 0"]["health"] == "ended"
    plain = history_of(root / "plain")
    assert differences([plain.settings, sick.settings]) == [("seed", ["0", "1"])]
    found = compared([("a", Sketch.of(plain)), ("b", Sketch.of(sick))])
    assert [figure["name"] for figure in found][:3] == [
        "compare-greedy",
        "compare-return",
        "compare-loss",
    ]
    assert len({trace["group"]["key"] for trace in found[0]["data"]}) == 1, "but for their seed"


def test_members_on_a_cluster_are_there_until_they_are_lost(tmp_path):
    """Their process may be on another machine, so events say no pid; they come back by `back`."""
    run = write_train(tmp_path / "a", 5)
    run.say("running", 80)
    note = Events(run.path).note
    for index in range(3):
        note("started", SimpleNamespace(role="shard", index=index, incarnation=0))
    for index in range(1, 3):
        note("lost", SimpleNamespace(role="shard", index=index, incarnation=0), why="hung")
    note("back", SimpleNamespace(role="shard", index=2, incarnation=1))
    lock = run.lock()
    try:
        rows = [row for row in processes(history_of(run.path)) if "shard" in row["name"]]
    finally:
        os.close(lock)
    assert [row["health"] for row in rows] == ["running", "lost", "replaced"]
    assert [row["incarnation"] for row in rows] == [0, 0, 1]


def test_the_doctor_is_asked_again_only_when_files_change(root):
    checkup = Checkup()
    verdicts = checkup(root / "deep" / "sick")
    worst = verdicts[0]
    assert (worst["name"], worst["state"]) == ("process-health", "red")
    assert worst["remedy"]
    assert checkup(root / "deep" / "sick") is verdicts
    assert {one["name"] for one in checkup(root / "mixture")} >= {"process-health", "others"}
    assert "could not read" in checkup(root / "else")[0]["message"]


def test_a_film_needs_a_checkpoint(root, tmp_path):
    projector = Projector()
    assert projector.film("x", root / "plain")["state"] == "none"
    (tmp_path / "checkpoints").mkdir()
    for name in ("000000000120.safetensors", "000000000040.safetensors", "odd.safetensors"):
        (tmp_path / "checkpoints" / name).write_bytes(b"")
    assert newest_checkpoint(tmp_path) == 120
    projector.close()
    assert projector.film("x", tmp_path)["state"] == "waiting"  # nothing is begun any more


@pytest.mark.full
def test_a_film_is_made_by_a_child_and_the_folder_stays_as_it_was(tmp_path):
    run = Run.create(tmp_path / "a", settings(agent="dqn"))
    train(run)
    before = sorted(path.name for path in run.path.rglob("*"))
    projector = Projector()
    try:
        until = time.monotonic() + 120
        while (found := projector.film("x", run.path))["state"] != "ready":
            assert found["state"] == "making", found
            assert time.monotonic() < until
            time.sleep(0.1)
    finally:
        projector.close()
    assert found["steps"] == 480
    assert projector.data("x")[:6] == b"GIF89a"
    assert sorted(path.name for path in run.path.rglob("*")) == before


# --- the door ------------------------------------------------------------------------------------


def test_what_the_door_refuses(page):
    cookie, page.cookie = page.cookie, ""
    try:
        for path in ("/", "/api/runs", "/plotly.js", "/api/events"):
            assert page.ask(path)[0] == 403
        assert page.ask("/?token=wrong")[0] == 403
        status, headers, _ = page.ask(f"/?token={page.tokens.token}")
        assert status == 303
        assert headers["location"] == "/"
        assert {"HttpOnly", "SameSite=Strict"} <= set(headers["set-cookie"].split("; "))
    finally:
        page.cookie = cookie
    for host in ("evil.example", f"evil.example:{page.port}", "127.0.0.1.evil.example", ""):
        assert page.ask("/api/runs", Host=host)[0] == 421
    for host in ("localhost", "localhost:9", "[::1]:80", f"127.0.0.1:{page.port}"):
        assert page.ask("/api/runs", Host=host)[0] == 200
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
        assert page.ask("/api/runs", method)[0] == 405
    assert page.ask("/api/runs", Cookie="x")[0] == 403


def test_a_token_works_once_and_a_chosen_one_always():
    tokens = Tokens()
    first = tokens.token
    session = tokens.trade(first)
    assert session
    assert tokens.knows(session)
    assert tokens.trade(first) is None
    assert tokens.token != first
    assert not tokens.knows("")
    chosen = Tokens("a long enough token")
    assert chosen.trade("a long enough token")
    assert chosen.trade("a long enough token")
    assert chosen.trade("ä") is None


def test_every_answer_has_the_policy(page):
    for path in ("/", "/api/runs", "/page.js", "/plotly.js", "/nothing"):
        _, headers, _ = page.ask(path)
        assert headers["content-security-policy"].startswith("default-src 'self';")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
    _, _, text = page.ask("/")
    assert not re.search(
        rb"<script(?![^>]* src=)|style=|<style| on\w+=|//", text.replace(b"<!", b"")
    )


def test_ids_are_looked_up_and_never_paths(page):
    for run in ("..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "plain", "0" * 12, "x" * 5000):
        for path in (f"/api/runs/{run}", f"/api/runs/{run}/doctor", f"/api/runs/{run}/film.gif"):
            assert page.ask(path)[0] == 404
    assert page.ask("/api/compare?runs=")[0] == 404
    assert page.ask("/api/compare?runs=../..,x")[0] == 404
    assert page.ask("/page/../../server.py")[0] == 404


def test_where_it_may_listen(capsys):
    with listen(port=0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadConfig, match=f"port {port} .* in use .* --port"):
            listen(port=port)
    for host in ("0.0.0.0", "::", "example.com"):
        with pytest.raises(BadConfig, match="needs a token"):
            check_door(host, "")
    with pytest.raises(BadConfig, match="at least 16"):
        check_door("0.0.0.0", "short")
    check_door("0.0.0.0", "long enough for all")
    check_door("127.0.0.1", "")
    assert main(["watch", "/nowhere/at/all"]) == 1
    assert capsys.readouterr().err.startswith("millpond watch: there is no folder /nowhere/at/all")
    open_door = Guard(None, Tokens(), 80, ["pond.example"])
    assert open_door._ours("pond.example:80")
    assert open_door._ours("192.168.1.5:80")
    assert not Guard(None, Tokens(), 80)._ours("192.168.1.5:80")


# --- what the page asks for ----------------------------------------------------------------------


def test_everything_of_a_run(page):
    status, headers, text = page.ask("/api/runs")
    cards = {card["name"]: card for card in json.loads(text)["runs"]}
    assert status == 200
    assert headers["cache-control"] == "no-store"
    assert set(cards) == {"plain", "deep/sick", "mixture"}
    run = cards["plain"]["id"]
    found = json.loads(page.ask(f"/api/runs/{run}")[2])
    assert ["greedy return", "6.00 ± 0.49"] in found["summary"]
    assert found["config"]["dqn.n_step"] == "2"
    assert page.ask(f"/api/runs/{run}/film")[0] == 200
    both = json.loads(page.ask(f"/api/compare?runs={run},{cards['mixture']['id']}")[2])
    assert both["names"] == ["plain", "mixture"]
    assert len(both["figures"][0]["data"]) == 2


def test_any_number_of_runs_is_compared_with_the_figures_asked_for(tmp_path):
    write_many(tmp_path, 30, 20)
    with page_over(tmp_path) as page:
        page.enter()
        found = json.loads(page.ask("/api/runs")[2])
        ids = ",".join(found["order"])
        assert len(found["groups"]) == 6
        while (both := json.loads(page.ask(f"/api/compare?runs={ids}")[2]))["unread"]:
            pass
        assert len(both["names"]) == 30
        figures = {figure["name"]: figure for figure in both["figures"]}
        assert {"compare-loss", "compare-entropy", "compare-speed"} <= set(figures)
        assert len(figures["compare-loss"]["data"]) == 30
        assert len({trace["group"]["key"] for trace in figures["compare-loss"]["data"]}) == 6
        assert {"env", "seed", "dqn.batch"} & {name for name, _ in both["differences"]}
        one = json.loads(page.ask(f"/api/compare?runs={ids}&figures=compare-loss")[2])
        filled = [figure["name"] for figure in one["figures"] if figure["data"]]
        assert [name for name in filled if name != "parallel"] == ["compare-loss"]
        assert len(one["figures"]) == len(both["figures"])
        greedy = json.loads(page.ask(f"/api/greedy?runs={ids},nonsense")[2])
        assert (len(greedy["runs"]), greedy["unread"]) == (30, 0)
        settings = json.loads(page.ask("/api/settings")[2])
        place = settings["names"].index("dqn.batch")
        assert {values[place] for values in settings["values"].values()} == {"32", "64"}
        assert "gym" not in settings["names"]


def test_settings_of_a_sweep_lie_side_by_side(tmp_path):
    base = settings()
    for i, batch in enumerate((4, 8, 16)):
        learning = dataclasses.replace(base.learning, batch=batch)
        run = Run.create(tmp_path / f"{i}", dataclasses.replace(base, learning=learning))
        metrics = Metrics(run.metrics)
        metrics.write("eval", 16, 16, {"return": 10.0 - i, "returns": [1.0, 2.0]})
        metrics.close()
    pairs = [(f"{i}", Sketch.of(history_of(tmp_path / f"{i}"))) for i in range(3)]
    (figure,) = settings_and_score(pairs, differences([s.settings for _, s in pairs]))
    assert figure["data"][0]["x"] == ["dqn.batch", "greedy return"]
    assert [line["name"] for line in figure["data"]] == ["2", "1", "0"], "the best on top"
    assert [line["y"] for line in figure["data"]] == [[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]
    assert settings_and_score(pairs[:1], []) == []
    rows = [("world.size", ["5", "5", "6"]), ("env", ["a", "a", "b"]), ("tau", ["1", "2", "1"])]
    (figure,) = settings_and_score(pairs, rows)
    assert figure["data"][0]["x"] == ["env", "tau", "greedy return"], "its size follows from an env"


def next_event(line: http.client.HTTPResponse) -> tuple[str, dict]:
    """The id and the data of the next event with data; the socket has a timeout."""
    name = ""
    while True:
        text = line.readline().decode()
        assert text, "the stream has ended"
        if text.startswith("id: "):
            name = text[4:].strip()
        elif text.startswith("data: "):
            return name, json.loads(text[6:])


@contextlib.contextmanager
def events(page, **headers):
    line = http.client.HTTPConnection("127.0.0.1", page.port, timeout=20)
    with contextlib.closing(line):
        line.request("GET", "/api/events", headers={"Cookie": page.cookie, **headers})
        yield line.getresponse()


def test_events_go_on_from_the_last_one_heard(tmp_path):
    run = write_train(tmp_path / "a", 5)
    write_train(tmp_path / "b", 5)
    with page_over(tmp_path) as page:
        page.enter()
        with events(page) as stream:
            name, first = next_event(stream)
            assert len(first["runs"]) == 2
            grow(run, 6, 7)
            later, news = next_event(stream)
            assert [card["name"] for card in news["runs"]] == ["a"]
            assert news["runs"][0]["x"] == 112
            assert later != name
        with events(page, **{"Last-Event-ID": name}) as stream:
            assert [card["name"] for card in next_event(stream)[1]["runs"]] == ["a"]
        with events(page, **{"Last-Event-ID": "other-3"}) as stream:
            assert len(next_event(stream)[1]["runs"]) == 2


@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)]
)
def test_a_server_that_ends_says_so_to_its_pages_and_nothing_to_the_terminal(tmp_path, how):
    run = write_train(tmp_path / "a", 5)
    command = [sys.executable, "-m", "millpond", "watch", str(tmp_path), "--port", "0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            server.stdout.readline()
            port, token = re.search(r":(\d+)/\?token=(\S+)", server.stdout.readline()).groups()
            door = SimpleNamespace(port=int(port), cookie="")
            _, headers, _ = Page.ask(door, f"/?token={token}")
            door.cookie = headers["set-cookie"].partition(";")[0]
            with events(door) as stream:
                next_event(stream)
                grow(run, 6, 6)
                server.send_signal(how)
                last = stream.read().decode()
            assert '"x":96.0' in last, "what was written last is sent"
            assert last.endswith("event: end\ndata: {}\n\n")
            assert server.stderr.read() == ""
            assert server.wait(timeout=20) == (0 if how == signal.SIGINT else -how)
        finally:
            server.kill()


def test_plotlys_own_sheets_are_kept_out():
    """It asks for an element of this id before it adds a sheet that our policy refuses."""
    ids = re.findall(r'<meta id="([0-9a-f]{64})">', index_page())
    assert ids
    assert f'getElementById("{ids[0]}")' in plotly_path().read_text("utf-8")
    assert all(name in index_page() for name in ("/plotly.js", "/charts.js", "/page.js"))
    assert 'exponentformat = "e"' in page_file("charts.js")


# --- the report, and beside a run ----------------------------------------------------------------


def test_the_report_is_one_file_without_addresses(root, tmp_path, capsys, monkeypatch):
    drawn = ("returns", "lag", "shares", "turnover")  # one of each kind: drawing takes long

    def some(path: Path, figure: dict) -> None:
        if figure["name"] in drawn:
            save_figure(path, figure)

    monkeypatch.setattr(run_report, "save_figure", some)
    out = tmp_path / "deep" / "report.html"
    runs = [str(root / "mixture"), str(root / "deep" / "sick")]
    assert main(["report", *runs, "-o", str(out), "--no-film"]) == 0
    text = out.read_text()
    assert "&lt;b&gt;SIGKILL" in text
    assert "<b>SIGKILL" not in text
    ours = re.sub(r"<script>.*?</script>", "", text, flags=re.S)
    assert not re.search(r"(src|href)=\"(?!data:)", ours)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1])
    assert len(data["figures"]) == 3
    assert (tmp_path / "deep" / "report-figures" / "mixture-returns.png").stat().st_size > 1000
    assert (tmp_path / "deep" / "report-figures" / "sick-lag.png").exists()
    assert "report:" in capsys.readouterr().out


def test_what_the_report_refuses(root, tmp_path, capsys):
    write_train(tmp_path / "young", 3)
    assert main(["report", str(tmp_path / "young")]) == 1
    assert "has no evaluation yet" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nowhere")]) == 1
    assert "is not a run" in capsys.readouterr().err
    assert main(["report", str(root / "plain"), "-o", "report.pdf"]) == 2
    assert "must name an .html file" in capsys.readouterr().err


PARENT = """
import sys, time
from pathlib import Path
from types import SimpleNamespace
from millpond.cli._watching import watching
with watching(Path(sys.argv[1]), True):
    print("going", flush=True)
    time.sleep(60)
"""


def ended(port: int) -> bool:
    """Whether nobody listens at a port any more, within a while."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as there:
                there.recv(1)  # until it is closed
        except ConnectionError:
            return True
        except TimeoutError:
            continue
    return False


def test_the_page_beside_a_run_is_there_at_once_and_dies_with_it(root):
    command = [sys.executable, "-c", PARENT, str(root / "plain")]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        told = parent.stderr.readline()
        port, token = re.search(r"http://127.0.0.1:(\d+)/\?token=(\S+)", told).groups()
        assert parent.stdout.readline() == "going\n"
        line = http.client.HTTPConnection("127.0.0.1", int(port), timeout=30)
        line.request("GET", f"/?token={token}")
        assert line.getresponse().status == 303
        line.close()
        parent.send_signal(signal.SIGKILL)
        parent.wait(timeout=20)
        assert ended(int(port))
    finally:
        parent.kill()
        parent.wait(timeout=20)
        parent.stdout.close()
        parent.stderr.close()


def test_a_run_goes_on_without_its_page(root, monkeypatch, capsys):
    from millpond.cli import _watching

    def refuse(*_, **__):
        raise OSError("no more processes")

    monkeypatch.setattr(_watching.subprocess, "Popen", refuse)
    with _watching.watching(root / "plain", True):
        pass
    assert "no live page: no more processes" in capsys.readouterr().err
