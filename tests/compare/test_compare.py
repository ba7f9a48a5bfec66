"""`millpond compare`: statistics by known values, arms as told, nothing run twice."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
from many_runs import swept
from PIL import Image
from scipy import stats as known
from tiny_runs import settings

from millpond import BadConfig, RunRefused
from millpond.cli.main import main
from millpond.compare import PRESETS, Arm, Grid, Study, make_arms, results, stats
from millpond.compare.arms import changed
from millpond.compare.norm import Norm
from millpond.metrics import Metrics
from millpond.mixture import MixSettings
from millpond.view.arm_figures import sweep
from millpond.view.report import grid_table, save_picture, save_report

RNG = np.random.default_rng(5)
FEW, MANY = RNG.normal(10, 3, 7), RNG.normal(12, 1, 10)

# --- statistics --------------------------------------------------------------------------------


def test_iqm_is_the_mean_of_the_middle_half():
    assert stats.iqm([1, 2, 3, 100]) == 2.5
    assert stats.iqm([5]) == 5
    assert stats.iqm([0, 10, 20, 30, 1000, -1000, 15, 16]) == pytest.approx((10 + 15 + 16 + 20) / 4)
    for scores in (FEW, MANY, RNG.normal(size=(6, 5))):
        assert stats.iqm(scores) == pytest.approx(known.trim_mean(scores, 0.25, axis=None))


def test_probability_of_improvement_is_mann_whitneys():
    assert stats.improvement([3, 4], [1, 2]) == 1
    assert stats.improvement([1, 2], [1, 2]) == 0.5
    assert stats.improvement([1, 5], [2, 2]) == 0.5
    u = known.mannwhitneyu(FEW, MANY).statistic
    assert stats.improvement(FEW, MANY) == pytest.approx(u / (len(FEW) * len(MANY)))
    two = stats.improvement(np.stack([FEW, FEW + 100], 1), np.stack([FEW, FEW], 1))
    assert two == pytest.approx(0.75), "tasks count alike"


@pytest.mark.parametrize("freedom", [1, 1.5, 4, 9.7, 30, 1000])
def test_students_t(freedom):
    assert stats.t_quantile(0.975, freedom) == pytest.approx(known.t.ppf(0.975, freedom), rel=1e-4)


def test_welchs_interval_is_scipys():
    wanted = known.ttest_ind(FEW, MANY, equal_var=False).confidence_interval(0.95)
    assert stats.welch(FEW, MANY) == pytest.approx((wanted.low, wanted.high), rel=1e-4)
    assert stats.welch(np.array([2.0, 2.0]), np.array([1.0, 1.0])) == (1, 1)
    assert stats.welch(np.array([2.0]), np.array([1.0, 3.0])) == (-np.inf, np.inf)


def test_bootstrap_intervals_are_scipys_and_stratified():
    low, high = stats.interval(MANY, mean=True, draws=4000)
    wanted = known.bootstrap((MANY,), np.mean, n_resamples=4000, method="percentile", rng=1)
    assert (low, high) == pytest.approx(tuple(wanted.confidence_interval), abs=0.08)
    # Two tasks that differ by 100: drawn without strata the mean would swing by tens.
    tasks = np.stack([MANY, MANY + 100], 1)
    low, high = stats.interval(tasks, mean=True, draws=1000)
    assert high - low < 2
    low, high = stats.interval(MANY)
    again = known.bootstrap(
        (MANY,), lambda x, axis: known.trim_mean(x, 0.25, axis), method="percentile", rng=2
    )
    assert (low, high) == pytest.approx(tuple(again.confidence_interval), abs=0.1)
    against = stats.versus(MANY, FEW, draws=1000)
    assert against.difference == pytest.approx(MANY.mean() - FEW.mean())
    assert against.bootstrap[0] < against.difference < against.bootstrap[1]
    assert against.probability_interval[0] <= against.probability <= 1


# --- arms --------------------------------------------------------------------------------------


def test_the_preset_gives_equal_frames_and_batches():
    texts = list(PRESETS["mixture-vs-single"])
    arms = make_arms(texts, "minatar/breakout", 10**8, {"lake.envs": "32"})
    single, mixture, apart, alone = (arm.settings for arm in arms)
    assert [arm.name for arm in arms] == ["A", "B", "C", "D"]
    assert (single.steps, apart.steps) == (10**8, 25 * 10**6)
    assert (mixture.frames, alone.frames) == (10**8, 10**8)
    assert (mixture.agents, alone.agents, arms[2].per_seed) == (4, 1, 4)
    assert mixture.playing.steps == apart.steps, "learning rates over each agent's own frames"
    assert single.learning == apart.learning
    for one in (mixture, alone):  # their clones explore less than beginners, all else is equal
        assert one.learning.epsilon.restart == (0.1,)
        epsilon = dataclasses.replace(one.learning.epsilon, restart=())
        assert dataclasses.replace(one.learning, epsilon=epsilon) == single.learning
    assert [one.envs for one in (single, mixture, apart, alone)] == [128, 32, 32, 128]
    assert mixture.lake.envs == 32
    every = [one.updates * one.frames_per_update for one in (mixture, alone)]
    assert every[0] == every[1], "resets come at the same frames"
    assert arms[2].runs_of(3, 10).members == 40
    assert arms[1].runs_of(3, 10).members == 10
    assert all(arm.at_once for arm in arms)


def test_arms_by_agent_and_by_setting():
    dqn, pqn = make_arms(["dqn", "pqn"], "treasurehunt-small", 1000, {})
    assert (dqn.settings.agent, pqn.settings.agent) == ("dqn", "pqn")
    assert (dqn.settings.steps, dqn.per_seed, dqn.runs_of(0, 3).members) == (1000, 5, 3)
    one, other = make_arms(["sequential", "processes"], "treasurehunt-small", 1000, {"actors": "2"})
    assert (one.settings.mode, other.settings.mode) == ("sequential", "processes")
    assert (other.settings.actors, other.at_once, dqn.at_once) == (2, False, True)
    texts = ["none=mixture", "some=mixture big.own_fraction=0.2 big.init=scratch"]
    none, some = make_arms(texts, "minatar/breakout", 200_000, {"clone.gate": "0.5"})
    assert isinstance(some.settings, MixSettings)
    assert (some.settings.own_fraction, some.settings.init) == (0.2, "scratch")
    assert none.settings.clone.gate == some.settings.clone.gate == 0.5
    assert "big.init=scratch" in some.about
    assert changed(none.settings, {"pqn.epsilon.restart": "[0.3, 0.1]"}).epsilon.restart == (
        0.3,
        0.1,
    )


@pytest.mark.parametrize(
    ("texts", "common", "said"),
    [
        (["dqn", "pqm"], {}, "there is no arm 'pqm'; did you mean 'pqn'"),
        (["dqn"], {}, "at least two arms with different names"),
        (["dqn", "dqn"], {}, "different names"),
        (["single", "dqn"], {}, "single needs an env with one agent"),
        (["dqn", "pqn"], {"big.init": "scratch"}, "no arm has a setting 'big.init'"),
        (["dqn", "a=pqn pqn.lamb=1"], {}, "no setting 'pqn.lamb'; did you mean 'pqn.lam'"),
        (["dqn", "a=pqn quick"], {}, "expected KEY=VALUE, got 'quick'"),
    ],
)
def test_arms_refuse(texts, common, said):
    with pytest.raises(BadConfig, match=said):
        make_arms(texts, "treasurehunt-small", 1000, common)


# --- sweeps --------------------------------------------------------------------------------------


def test_a_grid_makes_an_arm_of_every_combination():
    grid = Grid.of(["dqn.batch=32,64", "dqn.gamma=0.9,0.99,0.999"])
    arms = make_arms(["dqn"], "treasurehunt-small", 1000, {"dqn.gamma": "0.5"}, grid=grid)
    found = {(arm.settings.learning.batch, arm.settings.learning.gamma) for arm in arms}
    assert found == {(batch, gamma) for batch in (32, 64) for gamma in (0.9, 0.99, 0.999)}
    assert arms[0].name == "batch=32,gamma=0.9"
    assert arms[0].values == (("dqn.batch", 32), ("dqn.gamma", 0.9))
    assert arms[0].about == "agent dqn, dqn.batch=32 dqn.gamma=0.9"
    texts = ["fast=dqn dqn.tau=0.1", "pqn"]
    with pytest.raises(BadConfig, match="dqn"):  # which a PQN has not
        make_arms(texts, "treasurehunt-small", 1000, {}, grid=Grid.of(["dqn.batch=32,64"]))
    both = make_arms(texts, "treasurehunt-small", 1000, {}, grid=Grid.of(["network.width=8,16"]))
    assert [arm.name for arm in both] == [
        "fast,width=8",
        "fast,width=16",
        "pqn,width=8",
        "pqn,width=16",
    ]
    assert both[1].settings.learning.tau == 0.1
    alike = Grid.of(["a.rate=1,2", "b.rate=[0.3, 0.1],[0.2]"])
    assert next(name for name, _ in alike.arms(["dqn"])) == "a.rate=1,b.rate=0.3_0.1=dqn"
    assert alike.points()[0] == {"a.rate": "1", "b.rate": "[0.3,0.1]"}
    long = Grid.of([f"dqn.{'x' * 60}=1,2", f"dqn.{'y' * 60}=1,2"])
    assert [name for name, _ in long.arms(["dqn"])] == [f"dqn-{i}=dqn" for i in (1, 2, 3, 4)]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["dqn.batch"], "expects KEY=VALUE,VALUE such as dqn.batch=32,64, got 'dqn.batch'"),
        (["dqn.batch="], "expects KEY=VALUE,VALUE"),
        (["dqn.batch=32,,64"], "expects KEY=VALUE,VALUE"),
        (["dqn.batch=32,32"], "has a value twice"),
        (["dqn.batch=32", "dqn.batch=64"], "names 'dqn.batch' twice"),
        (["seed=1,2"], "cannot vary 'seed', .* --seeds"),
        (["members=1,2"], "cannot vary 'members'"),
        (["network.kind=a b,c"], "contains a space"),
        ([f"{key}=1,2,3,4,5,6,7,8,9" for key in "abc"], "729 points, more than 500"),
    ],
)
def test_a_grid_refuses(texts, said):
    with pytest.raises(BadConfig, match=said):
        Grid.of(texts)


def test_a_sweep_is_a_table_and_parallel_coordinates(tmp_path):
    whole = swept(14)
    assert [pair["over"] for pair in whole["pairs"]] == ["batch=13"] * 13, "each against the best"
    heads, rows = grid_table(whole)
    assert heads == ["arm", "dqn.batch", "dqn.kind", "IQM", "95%", "mean", "seeds"]
    assert [row[1] for row in rows] == [f"{i}" for i in reversed(range(14))], "the best first"
    figure = sweep(whole)
    assert figure["data"][0]["x"] == ["dqn.batch", "dqn.kind", "IQM"]
    assert [line["y"][0] for line in figure["data"]] == pytest.approx([i / 13 for i in range(14)])
    assert [line["y"][2] for line in figure["data"]] == pytest.approx([i / 13 for i in range(14)])
    assert {line["y"][1] for line in figure["data"]} == {0.5}, "one value: in the middle"
    assert "<i>" not in json.dumps(figure)
    save_report(tmp_path / "report.html", whole)
    save_picture(tmp_path / "report.png", whole)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "Settings and score" in text
    assert "<i>k" not in text
    assert grid_table(swept(0)) is None
    assert sweep(swept(1)) is None, "one line shows nothing"


# --- a study -----------------------------------------------------------------------------------


def two_arms() -> list[Arm]:
    small = settings(agent="pqn", steps=96)
    slow = dataclasses.replace(small, learning=dataclasses.replace(small.learning, lam=0.1))
    return [Arm("fast", "lam 0.65", small, 2), Arm("slow", "lam 0.1", slow, 2)]


def pretend(run, told) -> None:
    """What `train` leaves behind, with returns that tell seed, policy and arm apart."""
    of = run.settings
    metrics = Metrics(run.metrics)
    for steps in (48, 96):
        level = steps * of.learning.lam + of.seed
        returns = [level + policy for policy in range(of.policies)]
        metrics.write("train", steps, steps * of.members, {"updates": steps // 8})
        metrics.write("eval", steps, steps * of.members, {"returns": returns, "return": level})
    metrics.close()
    run.say("finished", 96)


def test_a_study_is_resumed_and_runs_nothing_twice(tmp_path, monkeypatch):
    monkeypatch.setattr("millpond.compare.study.train", pretend)
    monkeypatch.setattr("millpond.compare.study.Norm.of", lambda *_: None)
    args = ("treasurehunt-small", 96, 3, 0, 0)
    arms, begun = two_arms(), []

    def stop(arm, first, last):
        begun.append((arm.name, first, last))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return lambda line: None

    with pytest.raises(KeyboardInterrupt):
        Study.open(tmp_path / "study", arms, *args).go(stop)
    half = json.loads((tmp_path / "study" / "results.json").read_text())
    assert [arm["name"] for arm in half["arms"]] == ["fast"]
    found = Study.open(tmp_path / "study", arms, *args).go(stop)
    assert begun == [("fast", 0, 2), ("slow", 0, 2), ("slow", 0, 2)]
    assert Study.open(tmp_path / "study", arms, *args).go(stop) == found
    assert len(begun) == 3
    fast, slow = found["arms"]
    assert fast["scores"] == pytest.approx([96 * 0.65 + x for x in (0.5, 2.5, 4.5)])
    assert slow["scores"] == pytest.approx([96 * 0.1 + x for x in (0.5, 2.5, 4.5)])
    assert fast["curve"] == [[48, pytest.approx([31.7, 33.7, 35.7])], [96, fast["scores"]]]
    assert (fast["frames"], fast["gradient_steps"], fast["iqm"]) == (96, 24, fast["mean"])
    (pair,) = found["pairs"]
    assert (pair["of"], pair["over"], pair["probability"]) == ("slow", "fast", 0)
    assert pair["difference"] == pytest.approx(-96 * 0.55)
    for other in (arms[:1], arms[1:], arms):
        names = [arm["name"] for arm in Study.open(tmp_path / "study", other, *args).go()["arms"]]
        assert names == [arm.name for arm in other], "fewer arms, then all again"
    assert len(begun) == 3
    strange = [arms[0], dataclasses.replace(arms[0], name="slow")]
    for wrong in ((strange, *args), (arms, "treasurehunt-small", 96, 4, 0, 0)):
        with pytest.raises(RunRefused, match="with other seeds, frames or settings"):
            Study.open(tmp_path / "study", *wrong)

    apart = Study.open(tmp_path / "apart", arms[:1], "treasurehunt-small", 96, 2, 5, 1).go()
    there = sorted(path.name for path in (tmp_path / "apart/arms/fast").iterdir())
    assert there == ["seeds-0-0", "seeds-1-1"]
    assert apart["arms"][0]["scores"] == pytest.approx([96 * 0.65 + 5.5, 96 * 0.65 + 6.5])
    assert apart["arms"][0]["curve"][1][1] == apart["arms"][0]["scores"]


def test_the_report_is_one_file_and_a_picture(tmp_path):
    def arm(name, level, resets):
        curve = [[100.0 * i, [level + i, level + 2 * i]] for i in range(4)]
        points = [[0.0, [1.0, 2.0]], [50.0, [5.0, 6.0]]]
        about = Arm(name, "<b>what</b>", settings(), 1)
        plain = {"scores": [level + 3.0, level + 6.0], "frames": 300}
        plain |= {"gradient_steps": 12, "row_updates": 600}
        more = {"big": [1.0, 3.0], "agents": [1.5, 3.5], "big_curve": curve, "resets": []}
        for cycle in range(resets):
            more["resets"].append({"cycle": cycle + 1, "target": [4.0, 4.0], "points": points})
        return results.summary(about, plain | {"curve": curve} | (more if resets else {}))

    arms = [arm("A", 1.0, 0), arm("B", 5.0, 2)]
    whole = {"env": "arms", "frames": 300, "seeds": 2, "arms": arms, "pairs": results.pairs(arms)}
    save_report(tmp_path / "report.html", whole)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "&lt;b&gt;what" in text
    assert "<b>what" not in text.replace("&lt;b&gt;what", "")
    for word in ("B over A", "reset 2", "BigAgent", "Plotly.react"):
        assert word in text
    assert "<script src" not in text, "it would need a network"
    assert "300 frames, 2 seeds: A vs B" in text
    assert '"yaxis":{"title":{"text":"return"}}' in text
    one = {**whole, "seeds": 1, "arms": [{**arms[0], "worst_agent": 0.5}], "pairs": []}
    save_report(tmp_path / "one.html", one)
    text = (tmp_path / "one.html").read_text(encoding="utf-8")
    assert "300 frames, 1 seed: A" in text
    assert '"yaxis":{"title":{"text":"normalised score"}}' in text
    assert text.count("<table>") == 1, "there is no pair"
    save_picture(tmp_path / "report.png", whole)
    with Image.open(tmp_path / "report.png") as picture:
        assert picture.width > 1000


def test_the_command_prints_its_results_as_json(tmp_path, monkeypatch, capsys):
    curve = [[100.0, [1.0, 2.0]], [200.0, [2.0, 4.0]]]
    plain = {"scores": [2.0, 4.0], "frames": 200, "curve": curve}
    plain |= {"gradient_steps": 4, "row_updates": 600}
    arms = [results.summary(Arm(name, name, settings(), 1), plain) for name in ("dqn", "pqn")]
    about = {"env": "staghunt", "frames": 200, "seeds": 2}
    found = {**about, "arms": arms, "pairs": results.pairs(arms)}
    monkeypatch.setattr(Study, "go", lambda study, begun: found)
    args = ["compare", "--env", "staghunt", "--frames", "200", "--seeds", "2", "--arms", "dqn,pqn"]
    assert main([*args, "--out", str(tmp_path / "out"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out) == json.loads(json.dumps(found))
    assert (tmp_path / "out" / "report.html").exists()


def test_the_command_refuses_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    common = ["compare", "--env", "minatar/breakout", "--frames", "1e4"]
    for more, said in (
        ([], "name the arms with one of --preset"),
        (["--arms", "dqn,pqn", "--only", "A"], "--only selects arms of a --preset"),
        (["--preset", "mixture-vs-single", "--only", "A,X"], "has no arm X"),
        (["--arms", "dqn,pnq"], "millpond compare: there is no arm 'pnq'; did you mean 'pqn'?"),
        (["--grid", "pqn.gama=0.9,0.99"], "no setting 'pqn.gama'; did you mean 'pqn.gamma'"),
        (["--grid", "pqn.gamma=0.9,hot"], "pqn.gamma"),
        (["--grid", "pqn.gamma=0.9"], "at least two arms"),
        (["--grid", "pqn.gamma=0.9,0.99", "--only", "A"], "name the arms with one of --preset"),
    ):
        assert main([*common, *more]) == 2
        assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_scores_are_normalised_by_the_agents_place(tmp_path):
    """The mean of the last three evaluations, of two seeds of two agents, by hand."""
    returns = [[9, 9, 9, 9], [6, 30, 2, 10], [8, 30, 2, 10], [10, 30, 2, 10]]
    lines = [{"kind": "eval", "returns": one, "frames": 4.0 * i} for i, one in enumerate(returns)]
    lines.append({"kind": "train", "frames": 16, "updates": 3})
    text = "".join(json.dumps({"steps": 1, **line}) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(text)
    norm = Norm(random=(2.0, 10.0), script=(10.0, 30.0))
    found = results.of_run(tmp_path, two_arms()[0], 2, norm)
    assert found["scores"] == pytest.approx([(0.75 + 1.0) / 2, 0.0])
    assert found["worst"] == pytest.approx([0.75, 0.0])
    assert found["curve"][-1] == [6.0, pytest.approx([1.0, 0.0])]  # frames of one seed
