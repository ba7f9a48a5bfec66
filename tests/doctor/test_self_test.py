"""`millpond doctor --self-test`: every planted bug is found, and nothing else is."""

from __future__ import annotations

import json

import pytest

from millpond.agents import dqn
from millpond.cli import _self_test_text
from millpond.cli.main import main
from millpond.doctor import CHECKS, Evidence, Verdict, examine, plants_modes
from millpond.doctor.plants import HEALTHY, PLANTS, Plant
from millpond.doctor.plants_modes import compiled_again, in_mode, plants_in
from millpond.doctor.plants_probe import PROBE_PLANTS
from millpond.doctor.self_test import Result, chosen, planted
from millpond.engine import device_actor, pond_updates

# What takes longest is left to --full: processes, and programs that must be compiled again. Of
# those that the catalogue marks, the ones without processes are always run.
LONG = (
    "learning rate 1000",
    "epsilon comes late",
    "learning rate 0",
    "min_fill never reached",
    "rewards 1000 times",
)


def named(plant: Plant):
    if plant.probed:
        return pytest.param(plant, id=plant.name, marks=[pytest.mark.full])
    short = plant.settings.mode == "sequential" and not plant.name.startswith(LONG)
    always = not short if plant.all_green else short  # of the healthy ones, that in processes
    marks = [] if always else [pytest.mark.full]
    return pytest.param(plant, id=plant.name, marks=marks)


@pytest.mark.parametrize("plant", [named(plant) for plant in (*PLANTS, *PROBE_PLANTS)])
def test_exactly_the_declared_checks_fire(plant, tmp_path):
    result = planted(plant, tmp_path / "run")
    assert result.wrong == [], (result.ended, result.verdicts)


def test_every_bug_marked_in_the_catalogue_is_planted():
    assert len({plant.name for plant in PLANTS}) == len(PLANTS)
    fires = [plant.fires for plant in PLANTS]
    assert {name for name in fires if name} <= set(CHECKS)
    for name, least in (
        ("stack-parity", 1),
        ("target-cadence", 1),
        ("channel-integrity", 2),  # a bit flip, a half-written slot
        ("shared-memory", 1),
        ("episode-borders", 1),
        ("nstep-oracle", 1),
        ("process-health", 3),  # SIGKILL, an exception, a hang
    ):
        assert fires.count(name) >= least, name
    for plant in PLANTS:
        little = {"process-health", "reward-scale", "settings-fit"}
        assert set(plant.may) <= little, "little may fire besides"


def test_plants_of_a_probe_are_many_and_apart():
    names = [plant.name for plant in (*PLANTS, *PROBE_PLANTS)]
    assert len(set(names)) == len(names)
    faults = [plant for plant in PROBE_PLANTS if plant.fires]
    assert len(faults) >= 50
    assert len({plant.fires for plant in faults}) >= 15, "every kind of check is put to the test"
    assert any(not plant.outlives for plant in faults), "some are gone when the doctor looks"


def result_of(plant: Plant, ended: str = "", **states: str) -> Result:
    """A made-up result; checks that are not named are green."""
    verdicts = {name: Verdict(name, "green", "", {}) for name in CHECKS}
    for name, state in states.items():
        name = name.replace("_", "-")
        verdicts[name] = Verdict(name, state, "", {})  # pyright: ignore
    return Result(plant, verdicts, ended, 1.0)


def test_a_result_says_what_is_wrong():
    plant = Plant("bug", "stack-parity", may=("learning",))
    assert result_of(plant, stack_parity="red").wrong == []
    assert result_of(plant, "RunFailed", stack_parity="yellow", learning="red").wrong == []
    assert result_of(plant).wrong == ["stack-parity is quiet"]
    assert result_of(plant, stack_parity="unknown").wrong == ["stack-parity is quiet"]
    assert result_of(plant, stack_parity="red", policy_lag="yellow").wrong == ["policy-lag fired"]
    well = Plant("healthy")
    assert result_of(well, learning="unknown").wrong == []
    assert result_of(well, "RunFailed: x").wrong == ["the run ended: RunFailed: x"]
    green = Plant("healthy", all_green=True)
    assert result_of(green, learning="unknown").wrong == ["learning is unknown"]


def test_plants_are_chosen_by_name_or_check():
    assert chosen() == [*PLANTS, *PROBE_PLANTS]
    assert [plant.fires for plant in chosen("missing done")] == ["episode-borders"]
    assert {plant.fires for plant in chosen("channel-integrity")} == {"channel-integrity"}
    assert len(chosen("healthy")) == 7


def test_plants_of_a_probe_are_planted_in_other_modes_too():
    assert {plant.settings.mode for plant in plants_in("ray")} == {"ray"}
    there = plants_in("processes")
    assert {plant.settings.mode for plant in there} == {"processes"}
    named = {plant.name: plant for plant in there}
    assert {p.name for p in PROBE_PLANTS} - set(named) == {
        p.name for p in PROBE_PLANTS if p.settings.agent == "pqn"
    }
    bug = named["no bootstrap in the goal"]
    where = "millpond.doctor.plants_modes:millpond.doctor.sabotage_agent:no_bootstrap"
    assert bug.opener.keywords == {"hook": dict.fromkeys(("actor", "learner", "shard"), where)}
    assert named["a gamma of 0.1"].opener.keywords == {"hook": {}}
    assert "stack-parity" in named["stacks are never cleared"].may, "it is recorded there"
    in_one_program = next(p for p in PROBE_PLANTS if p.name == bug.name)
    assert in_mode(in_one_program, "fused") is in_one_program


def test_programs_kept_by_their_settings_are_forgotten():
    kept = device_actor._program, pond_updates._program
    with compiled_again():
        assert [len(one) for one in kept] == [0, 0]


def test_a_process_that_asks_for_a_bug_has_it(monkeypatch):
    right = dqn.td_target
    monkeypatch.setattr(plants_modes, "_planted", [])
    hook = getattr(plants_modes, "millpond.doctor.sabotage_agent:no_bootstrap")
    try:
        assert dqn.td_target is not right
        assert hook(None) is None
    finally:
        plants_modes._planted[0].__exit__(None, None, None)
    assert dqn.td_target is right


def fake(monkeypatch, *results: Result) -> None:
    monkeypatch.setattr(_self_test_text, "self_test", lambda *given: iter(results))


def test_the_command_prints_the_matrix(monkeypatch, capsys):
    plant = Plant("a bug", "stack-parity")
    fake(monkeypatch, result_of(Plant("healthy")), result_of(plant, stack_parity="red"))
    assert main(["doctor", "--self-test"]) == 0
    out = capsys.readouterr().out
    (row,) = (line.split() for line in out.splitlines() if line.startswith("a bug"))
    assert row == ["a", "bug", "stack-parity", *".....R...........", "yes"]
    assert "f stack-parity" in out
    assert "2 runs, 0 not as declared" in out


def test_the_command_fails_if_a_bug_is_not_found(monkeypatch, capsys):
    fake(monkeypatch, result_of(Plant("a bug", "stack-parity"), learning="yellow"))
    assert main(["doctor", "--self-test"]) == 1
    out, err = capsys.readouterr()
    assert "a bug: stack-parity is quiet (the run finished)" in out
    assert "a bug: learning fired (the run finished)" in out
    assert "stack-parity is quiet; learning fired" in err
    fake(monkeypatch, result_of(Plant("a bug", "stack-parity"), learning="yellow"))
    assert main(["doctor", "--self-test", "--json"]) == 1
    (found,) = json.loads(capsys.readouterr().out)
    assert found["wrong"] == ["stack-parity is quiet", "learning fired"]
    assert found["states"]["learning"] == "yellow"


def test_a_run_that_never_began_is_not_called_healthy():
    states = {verdict.name: verdict.state for verdict in examine(Evidence(HEALTHY))}
    assert {name for name, state in states.items() if state == "green"} == {"process-health"}
