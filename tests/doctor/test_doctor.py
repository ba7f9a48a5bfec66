"""The doctor's checks on made-up evidence, its command, and what it says while a run goes on."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable
from typing import Any

import pytest
from tiny_runs import at_rate, dqn, settings

from millpond import RunFailed
from millpond.cli._train_text import train_and_show
from millpond.cli.main import main
from millpond.doctor import CHECKS, Evidence, Watch, chance, examine, noise_scale
from millpond.doctor.examine import folded
from millpond.doctor.plants import HEALTHY
from millpond.doctor.verdict import ORDER
from millpond.schedule import constant, linear
from millpond.train import Run, train

SETTINGS = dqn(settings(mode="processes", steps=10_000), updates=2, batch=32)
PEOPLE = ("actor 0", "learner 0", "learner 1")


def learner(number: int) -> dict[str, Any]:
    """What a healthy policy reports in line 1, 2, ...: 1,000 rows, drawn 4 times each."""
    updates = 125 * number
    return {
        "rows": 1000,
        "border_breaks": 0,
        "overwritten": 1000 if number > 1 else 968,
        "overwritten_unsampled": 18,
        "sampled": 4000,
        "stack_mismatches": 0,
        "rewards_nonzero": 100,
        "lag": [400, 300, 300, 0, 0, 0, 0, 0, 0, 0, 0],
        "lag_max": 10,
        "epsilon_off": 1e-7,
        "reward_mean": 0.1,
        "reward_max": 2.0,
        "target_reward_max": 3.9,
        "returns_checked": 16,
        "returns_wrong": 0,
        "stored": 32,
        "min_fill": 16,
        "samples_per_insert": 4.0,
        "torn": 0,
        "updates": updates,
        "target_updates": updates,
        "q": 1.0,
        "gradient": 2.0,
        "change": 0.003,
    }


def healthy(mode: Any = "processes") -> Evidence:
    """A run of ten lines that has learned."""
    found = Evidence(
        dataclasses.replace(SETTINGS, mode=mode), {"state": "finished", "steps": 10**4}
    )
    for number in range(1, 11):
        steps = 1000 * number
        one = learner(number)
        line = {name: one[name] for name in ("updates", "target_updates", "q", "change")}
        line |= {"gradient": 2.0, "rate": 0.001, "loss": 0.1}
        found.train.append({"kind": "train", "steps": steps, **line})
        shares = {process: [0.7, 0.2, 0.1] for process in PEOPLE}
        found.speed.append({"steps": steps, "shares": shares, "weights_torn": 0, "restarts": 0})
        if mode != "fused":
            both = [one, copy.deepcopy(one)]
            found.health.append({"kind": "health", "steps": steps, "learners": both})
    for steps, value in ((5000, 20.0), (10_000, 30.0)):
        greedy = {"return": value, "returns": [value] * 2, "errors": [1.0, 1.0]}
        found.eval.append({"kind": "eval", "steps": steps, **greedy})
    found.chance = {"return": 5.0, "returns": [5.0] * 2, "errors": [1.0, 1.0]}
    return found


def lost(why: str = "killed by SIGKILL", index: int = 0) -> dict[str, Any]:
    return {"event": "lost", "process": "actor", "index": index, "incarnation": 0, "why": why}


def say(**values: Any) -> Callable[[Evidence], None]:
    """The second policy's last report says otherwise."""
    return lambda e: e.health[-1]["learners"][1].update(values)


def say_all(**values: Any) -> Callable[[Evidence], None]:
    def change(e: Evidence) -> None:
        for line in e.health:
            for one in line["learners"]:
                one.update(values)

    return change


def put(name: str, value: Any) -> Callable[[Evidence], None]:
    return lambda e: setattr(e, name, value)


def last(kind: str, **values: Any) -> Callable[[Evidence], None]:
    return lambda e: getattr(e, kind)[-1].update(values)


def other(**changes: Any) -> Callable[[Evidence], None]:
    return lambda e: setattr(e, "settings", dataclasses.replace(e.settings, **changes))


ROLLOUTS = other(agent="pqn", learning=None, mode="fused")


def other_dqn(**changes: Any) -> Callable[[Evidence], None]:
    return lambda e: setattr(e, "settings", dqn(e.settings, **changes))


def both(*changes: Callable[[Evidence], None]) -> Callable[[Evidence], None]:
    return lambda e: [change(e) for change in changes] and None


def events(*lines: dict[str, Any]) -> Callable[[Evidence], None]:
    return put("events", list(lines))


NEVER_EXPLORES = both(
    other_dqn(epsilon=constant(0.0)),
    lambda e: [line.update(epsilon=[0.0, 0.0]) for line in e.train],
)
TO_ZERO = dataclasses.replace(at_rate(1.0), rate=linear(1.0, 0.0))
FAILED = {"state": "failed", "steps": 10, "why": "RunFailed: actor 0: gone\nTraceback"}
NOT_YET = both(*(put(kind, []) for kind in ("train", "health", "eval", "speed")))
NO_UPDATES = both(say_all(updates=0, target_updates=0, sampled=0), put("train", []))


def begun(stored: int, state: str = "running") -> Callable[[Evidence], None]:
    """A run of one line in which nothing was learned yet."""

    def change(e: Evidence) -> None:
        e.status["state"] = state
        e.health, e.train = e.health[:1], e.train[:1]
        e.train[0] |= {"updates": 0, "target_updates": 0, "steps": stored}
        say_all(updates=0, target_updates=0, sampled=0, stored=stored, rows=stored)(e)

    return change


def evaluated(value: float, steps: int = 10_000, updates: int = 1250) -> Any:
    def change(e: Evidence) -> None:
        e.eval = [{**e.eval[-1], "return": value, "steps": steps}]
        e.train[-1]["updates"] = updates

    return change


CASES = [
    ("process-health", put("status", FAILED), "red", "failed: RunFailed: actor 0: gone"),
    ("process-health", put("status", {"state": "killed", "steps": 1}), "red", "said nothing"),
    ("process-health", events(lost()), "yellow", "actor 0 was lost: killed by SIGKILL; it was"),
    ("process-health", events(*[lost()] * 3), "red", "actor 0 is lost again and again"),
    ("process-health", events(lost(), lost(index=1), lost()), "yellow", "it was replaced"),
    ("shared-memory", events({"event": "not shared", "why": ""}), "red", "private copy"),
    ("shared-memory", events(lost("ChannelBroken: ... travelled by value")), "red", "private copy"),
    ("shared-memory", NOT_YET, "unknown", "no round has ended yet"),
    ("shared-memory", other(mode="sequential"), "unknown", "share one process"),
    ("channel-integrity", say(torn=1), "red", "1 pushes were not what was written"),
    ("channel-integrity", events({"event": "broken channel", "why": "push 7"}), "red", "push 7"),
    ("channel-integrity", NOT_YET, "unknown", "no round has ended yet"),
    ("weights-hash", last("speed", weights_torn=2), "red", "2 published parameters"),
    ("weights-hash", events(lost("WeightsBroken: weights: ...")), "red", "1 published parameters"),
    ("weights-hash", other(mode="sequential"), "unknown", "share one process"),
    ("episode-borders", say(border_breaks=1), "red", "1 of 20,000 rows cannot follow"),
    ("episode-borders", events(lost("BrokenEpisode: env 0: ...")), "red", "a row cannot follow"),
    ("episode-borders", NOT_YET, "unknown", "no round has ended yet"),
    ("stack-parity", say(stack_mismatches=1), "red", "1 of 80,000 sampled stacks are not"),
    ("stack-parity", NO_UPDATES, "unknown", "nothing was sampled yet"),
    ("nstep-oracle", say(returns_wrong=1), "red", "1 of 320 returns are not"),
    ("nstep-oracle", say_all(returns_checked=0), "unknown", "no return was checked yet"),
    ("nstep-oracle", other(replay="lake"), "unknown", "a Lake outlives the run"),
    ("reward-scale", say(target_reward_max=4.0), "red", "the loss saw 4, more than the 3.98"),
    ("reward-scale", other_dqn(reward_clip=1.0), "red", "more than the 1.99 that rows, clip"),
    ("reward-scale", other_dqn(reward_scale=0.5), "red", "more than the 1.99 that rows, clip"),
    (
        "reward-scale",
        both(put("whole", False), say(target_reward_max=4.0)),
        "green",
        "up to 4 in the loss",
    ),
    ("reward-scale", say_all(reward_max=600.0, target_reward_max=600.0), "yellow", "is large"),
    ("reward-scale", say_all(reward_max=1e-4, target_reward_max=1e-4, q=0), "yellow", "is small"),
    ("reward-scale", say(q=-700.0), "yellow", "values of 700 are more than any rewards"),
    (
        "reward-scale",
        say_all(reward_max=0.0, target_reward_max=0.0, rewards_nonzero=0),
        "unknown",
        "no reward came yet",
    ),
    (
        "reward-scale",
        events(lost("SpecMismatch: field 'reward': expected finite numbers, got nan")),
        "red",
        "no finite number",
    ),
    ("policy-lag", say(lag_max=11), "red", "11 updates old; 10 are allowed"),
    ("policy-lag", both(say(lag_max=18), events(lost())), "green", "at most 18 updates old"),
    ("policy-lag", both(say(lag_max=19), events(lost())), "red", "19 updates old; 18 are"),
    ("policy-lag", other(mode="lockstep"), "red", "10 updates old; 0 are allowed"),
    ("epsilon-applied", say(epsilon_off=0.001), "red", "0.001 away from the schedule"),
    ("epsilon-applied", both(say(epsilon_off=0.001), events(lost())), "green", "at most 0.001"),
    ("epsilon-applied", both(say(epsilon_off=0.1), events(lost())), "red", "0.1 away"),
    ("replay-fill", begun(8), "green", "filling: 8 of 16 rows"),
    ("replay-fill", begun(24), "red", "nothing is learned"),
    ("replay-fill", begun(8, "finished"), "red", "learning begins at 16 rows, the run ends at"),
    ("replay-fill", say(stored=15), "red", "1,250 updates from 15 rows"),
    (
        "replay-fill",
        ROLLOUTS,
        "unknown",
        "pqn has no replay",
    ),
    ("replay-fill", NOT_YET, "unknown", "no round has ended yet"),
    # exp(-4) = 1.8% are never drawn by chance, and 18 of 1,000 were not.
    ("replay-turnover", say_all(overwritten_unsampled=60), "red", "6.0% of the rows were"),
    ("replay-turnover", say_all(overwritten_unsampled=30), "green", "3.0% never drawn, 1.8%"),
    ("replay-turnover", say_all(sampled=2000, overwritten_unsampled=135), "red", "2.00 times each"),
    ("replay-turnover", other(replay="lake"), "unknown", "a Lake keeps its rows"),
    ("replay-turnover", put("health", healthy().health[:1]), "unknown", "too few to judge"),
    (
        "replay-turnover",
        both(other_dqn(sampler="prioritized"), say_all(overwritten_unsampled=600)),
        "green",
        "as their priorities would have it",
    ),
    ("target-cadence", say(target_updates=1251), "red", "1,251 target updates in 1,250 updates"),
    ("target-cadence", other_dqn(target_every=100), "red", "there should be 12"),
    (
        "target-cadence",
        both(other_dqn(target_every=125), lambda e: _synced_every(e, 125)),
        "green",
        "10 target updates in 1,250 updates",
    ),
    (
        "target-cadence",
        ROLLOUTS,
        "unknown",
        "pqn has no target",
    ),
    ("target-cadence", begun(8), "unknown", "nothing was learned yet"),
    ("update-norm", say(change=0.0), "red", "policy 1: updates change nothing, at a learning"),
    ("update-norm", say(change=0.6), "red", "policy 1: an update moves 0.6 of the parameters"),
    ("update-norm", say(change=0.06), "red", "policy 1: an update moves 0.06 of the parameters"),
    ("update-norm", say(change=0.02), "green", "an update moves 0.02"),
    ("update-norm", say(change=math.nan), "red", "policy 1: an update was no finite number"),
    ("update-norm", last("train", gradient=2000.0), "yellow", "a norm of 2e+03"),
    ("update-norm", begun(8), "unknown", "nothing was learned yet"),
    (
        "update-norm",
        put("diverged", [{"kind": "diverged", "steps": 7, "policy": 1, "update": 70}]),
        "red",
        "update 70 of policy 1 was no finite number",
    ),
    (
        "update-norm",  # a schedule that has come to its end
        both(other_dqn(optimizer=TO_ZERO), say(change=0.0), last("train", rate=0.0)),
        "green",
        "an update moves",
    ),
    ("transfer-share", last("speed", shares={"actor 0": [0.4, 0, 0.6]}), "yellow", "60% of its"),
    ("transfer-share", last("speed", shares={"actor 0": [0.2, 0, 0.8]}), "red", "actor 0 spends"),
    ("transfer-share", other(mode="sequential"), "unknown", "share one process"),
    ("settings-fit", other_dqn(gamma=0.1), "green", "nothing that could not work"),
    (
        "settings-fit",  # one step of 20 is rewarded, and 1.1 steps are looked ahead
        both(other_dqn(gamma=0.1), last("train", length=40.0, nonzero_rewards=0.05)),
        "yellow",
        "gamma 0.1 looks 1.1 steps ahead; one of 20 steps is rewarded",
    ),
    ("settings-fit", other_dqn(n_step=24), "yellow", "n-step sums of 24 rows"),
    ("settings-fit", both(other_dqn(n_step=12), last("train", length=4.0)), "yellow", "last 4:"),
    ("settings-fit", both(other_dqn(n_step=5), last("train", length=4.0)), "green", "nothing"),
    ("settings-fit", other_dqn(batch=2), "yellow", "a batch of 2 transitions is mostly noise"),
    ("settings-fit", other_dqn(updates=1, batch=8, update_every=40), "yellow", "less than one is"),
    ("settings-fit", last("train", length=40.0), "yellow", "the replay keeps the last 8 turns"),
    ("settings-fit", last("train", epsilon=[0.6, 0.6]), "yellow", "60% of the actions are random"),
    ("settings-fit", NEVER_EXPLORES, "red", "epsilon is 0 from the first step to the last"),
    ("settings-fit", last("train", rate=0.08), "yellow", "a learning rate of 0.08"),
    ("settings-fit", last("train", rate=0.3), "red", "a learning rate of 0.3"),
    ("settings-fit", NOT_YET, "unknown", "no round has ended yet"),
    ("learning", evaluated(5.0), "red", "no better than random: greedy 5.00, random 5.00"),
    ("learning", evaluated(9.0), "red", "no better than random"),  # within 3 standard errors
    ("learning", evaluated(9.3), "green", "improved: greedy 9.30"),
    ("learning", evaluated(5.0, steps=6000), "yellow", "no better than random"),
    ("learning", evaluated(5.0, steps=4000), "unknown", "too early"),
    ("learning", evaluated(5.0, updates=499), "unknown", "too early"),
    ("learning", put("chance", None), "unknown", "a random policy was not played"),
    ("learning", put("eval", []), "unknown", "no evaluation yet"),
]


def _synced_every(e: Evidence, every: int) -> None:
    for line in e.train:
        line["target_updates"] = line["updates"] // every
    for line in e.health:
        for one in line["learners"]:
            one["target_updates"] = one["updates"] // every


def test_a_healthy_run_is_all_green():
    verdicts = {verdict.name: verdict for verdict in examine(healthy())}
    assert set(verdicts) == set(CHECKS)
    for verdict in verdicts.values():
        assert verdict.state == "green", verdict
        assert verdict.message
        assert all(isinstance(value, (int, float, list)) for value in verdict.evidence.values())


@pytest.mark.parametrize(("name", "change", "state", "said"), CASES)
def test_a_check_says_what_is_wrong(name, change, state, said):
    evidence = healthy()
    change(evidence)
    verdict = CHECKS[name](evidence)
    assert (verdict.name, verdict.state) == (name, state), verdict
    assert said in verdict.message
    assert bool(verdict.remedy) == verdict.fired


def test_every_check_was_red_green_and_unknown():
    """`process-health` always knows."""
    seen = {name: {"green"} for name in CHECKS}
    for name, _, state, _ in CASES:
        seen[name].add(state)
    for name in ("policy-lag", "epsilon-applied"):
        evidence = healthy()
        NOT_YET(evidence)
        seen[name].add(CHECKS[name](evidence).state)
    for name, states in seen.items():
        wanted = {"red", "green"} | (set() if name == "process-health" else {"unknown"})
        assert wanted <= states, name


def test_a_fused_run_is_judged_by_what_it_shows():
    verdicts = {verdict.name: verdict for verdict in examine(healthy("fused"))}
    green = {name for name, verdict in verdicts.items() if verdict.state == "green"}
    seen = {"process-health", "replay-fill", "target-cadence", "update-norm", "learning"}
    seen |= {"settings-fit"}
    assert green == seen
    for name in CHECKS.keys() - seen:
        assert verdicts[name].state == "unknown"
        assert "one program" in verdicts[name].message or "one process" in verdicts[name].message


def test_a_reason_that_checks_share_is_told_once():
    verdicts = examine(healthy("fused"))
    (*apart, others) = folded(verdicts)
    missing = {verdict.name for verdict in verdicts if verdict.state == "unknown"}
    assert (others.name, others.state) == ("others", "unknown")
    assert set(others.evidence["checks"]) == missing
    assert {verdict.name for verdict in apart} == CHECKS.keys() - missing
    assert others.message.count("mode fused is one program") == 1
    assert "7 checks: mode fused" in others.message
    assert folded(apart) == apart


def test_worst_comes_first():
    evidence = healthy()
    evidence.events, evidence.chance = [lost()], None
    say(torn=1)(evidence)
    states = [verdict.state for verdict in examine(evidence)]
    assert states == sorted(states, key=ORDER.index)
    assert states[:3] == ["red", "yellow", "unknown"]


# --- a run ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    """A small sequential run that was made in earnest."""
    path = tmp_path_factory.mktemp("doctor") / "run"
    found = Run.create(path, dataclasses.replace(HEALTHY, steps=480, eval_every=480))
    train(found)
    return found


def test_the_command_shows_every_check(run, capsys):
    assert main(["doctor", str(run.path), "--no-probe"]) == 0
    out = capsys.readouterr().out
    for name in CHECKS:
        assert name in out
    assert (run.path / "random.json").exists()
    assert main(["doctor", str(run.path), "--no-probe", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (*apart, others) = found
    assert others["name"] == "others"
    assert {one["name"] for one in apart} | set(others["evidence"]["checks"]) == set(CHECKS)
    assert {verdict["state"] for verdict in found} <= {"green", "unknown"}
    (learning,) = (verdict for verdict in found if verdict["name"] == "learning")
    assert learning["evidence"]["random"] == round(chance(run)["return"], 3)
    (norm,) = (verdict for verdict in found if verdict["name"] == "update-norm")
    assert [scale > 0 for scale in norm["evidence"]["noise_scale"]] == [True, True]
    assert "gradient noise scale per policy, in transitions: " in out


@pytest.mark.full
def test_a_probe_answers_what_was_not_recorded(run, capsys):
    assert main(["doctor", str(run.path), "--json", "--seconds", "600"]) == 0
    found = {one["name"]: one["state"] for one in json.loads(capsys.readouterr().out)}
    assert {"red", "yellow"}.isdisjoint(found.values())
    known = {name for name, state in found.items() if state == "green"}
    assert known >= {"layers-move", "target-network", "env-rows", "update-audit", "row-order"}
    assert known >= {"replay-transitions", "replay-draws", "exploration", "stacks-acted-on"}


def test_noise_is_measured_only_where_a_replay_can_be_read(run, tmp_path):
    fused = dataclasses.replace(run.settings, mode="fused")
    assert noise_scale(Run(run.path, fused)) is None
    other = Run.create(tmp_path / "run", run.settings)
    assert noise_scale(other) is None
    other.resume_state.write_bytes(b"damaged")
    assert noise_scale(other) is None


def test_the_command_ends_with_1_if_anything_is_red(run, capsys):
    events = run.path / "events.jsonl"
    lines = [json.dumps(lost("BrokenEpisode: env 3")) + "\n", '{"event": "torn']
    events.write_text("".join(lines))
    try:
        assert main(["doctor", str(run.path), "--no-probe"]) == 1
    finally:
        events.unlink()
    out = capsys.readouterr().out
    assert out.index("episode-borders") < out.index("process-health") < out.index("stack-parity")
    assert "1. episode-borders: " in out
    assert "what to do:   set terminated or truncated in exactly the last row" in out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "name one run, or use one of --env, --replay and --self-test"),
        (["somewhere", "--self-test"], "name one run, or use one of --env"),
        (["somewhere", "--only", "done"], "--only and --mode are options of --self-test"),
        (
            ["--self-test", "--only", "nonsense"],
            "no planted bug or check has 'nonsense' in its name",
        ),
    ],
)
def test_a_wrong_call_says_what_to_do(args, said, capsys):
    assert main(["doctor", *args]) == 2
    assert said in capsys.readouterr().err


def test_a_run_that_gave_up_says_why(tmp_path):
    broken = Run.create(tmp_path / "run", settings(steps=8))

    def opener(*_: Any) -> Any:
        raise RunFailed("no processes today")

    with pytest.raises(RunFailed):
        train(broken, opener=opener)
    status = broken.status()
    assert 'raise RunFailed("no processes today")' in status.pop("traceback")
    assert status == {
        "state": "failed",
        "steps": 0,
        "why": "RunFailed: no processes today",
    }
    (worst, *_) = examine(Evidence.of(broken))
    assert (worst.name, worst.state) == ("process-health", "red")
    assert "no processes today" in worst.message


# --- while it goes -------------------------------------------------------------------------------


def test_the_watch_speaks_once_when_a_check_gets_worse(tmp_path):
    run = Run.create(tmp_path / "run", SETTINGS)
    watch, lines = Watch(run), healthy()
    pairs = list(zip(lines.health, lines.train, lines.speed, strict=True))

    def tell(number: int) -> list[str]:
        health, line, speed = pairs[number]
        assert watch(health) == []
        return [f"{v.state} {v.name}" for v in watch({**line, **speed})]

    assert tell(0) == []
    say(torn=1)(lines)
    pairs[1][0]["learners"][0]["stack_mismatches"] = 2
    assert tell(1) == ["red stack-parity"]
    assert tell(2) == [], "it was said"
    (run.path / "events.jsonl").write_text(json.dumps(lost()) + "\n")
    assert tell(3) == ["yellow process-health"]
    assert tell(2) == [], "a run that went back tells the same lines again"
    assert [line["steps"] for line in watch.evidence.train] == [1000, 2000, 3000]


def test_the_watch_forgets_old_lines(tmp_path):
    watch, lines = Watch(Run.create(tmp_path / "run", SETTINGS)), healthy()
    for number in range(1, 80):
        for line in (lines.health[3], {**lines.train[3], **lines.speed[3]}):
            assert watch({**line, "steps": 1000 * number}) == []
    assert len(watch.evidence.health) == len(watch.evidence.speed) == 50
    assert not watch.evidence.whole


def test_training_prints_what_turns_red(tmp_path, capsys):
    still = dqn(dataclasses.replace(HEALTHY, steps=96, log_every=48), optimizer=at_rate(0.0))
    assert train_and_show(Run.create(tmp_path / "run", still)) == 0
    err = capsys.readouterr().err
    assert err.count("red update-norm: policy 0: updates change nothing") == 1
    assert "raise the learning rate" in err
