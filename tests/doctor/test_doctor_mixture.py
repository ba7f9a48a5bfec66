"""The doctor on mixtures: every check green on good lines, and fired by the bad ones it is for."""

from __future__ import annotations

import json
from typing import Any

import pytest
from mix_runs import mixture

from millpond.cli.main import main
from millpond.doctor import MIXTURE_CHECKS, MixEvidence
from millpond.mixture import MixRun, mix_for

CYCLE = 1_000  # frames


def lines(**changes: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """One reset of two members that went well, with changes to the line of a kind."""
    good = {
        "train": {"updates": 64, "change": 1e-4, "rate": 1e-3, "gradient": 1.0},
        "eval": {
            "when": "after",
            "cycle": 1,
            "returns": [[9.8, 10.2], [9.5, 10.5]],
            "return": 10.0,
        },
        "big": {"samples_per_row": 3.0, "diverged": [False, False]},
        "measure": {
            "big_max_q": [2.0, 2.0],
            "realised": [1.8, 2.2],
            "disagreement": [0.3, 0.2],
            "dormant": [[0.1, 0.2], [0.0, 0.1]],
            "big_dormant": [0.1, 0.0],
        },
        "reset": {"cycle": 1, "cloned": [True, True], "target": [10.0, 10.0]},
        "recovery": {"cycle": 1, "frames_to_recovery": [CYCLE // 4, CYCLE // 3]},
    }
    found = {kind: [{"kind": kind, **line, **changes.get(kind, {})}] for kind, line in good.items()}
    return found | {kind: [line] for kind, line in changes.items() if kind not in good}


def evidence(**changes: dict[str, Any]) -> MixEvidence:
    settings = mixture()
    found = lines(**changes)
    scale = settings.updates * settings.frames_per_update / CYCLE
    for line in found["recovery"]:  # in cycles of these settings
        took = line["frames_to_recovery"]
        line["frames_to_recovery"] = [None if one is None else one * scale for one in took]
    return MixEvidence(settings, found)


def states(found: MixEvidence) -> dict[str, str]:
    return {name: check(found).state for name, check in MIXTURE_CHECKS.items()}


def test_a_healthy_mixture_is_green():
    assert set(states(evidence()).values()) == {"green"}


def test_nothing_is_said_of_a_mixture_that_has_just_begun():
    assert set(states(MixEvidence(mixture())).values()) == {"unknown"}


@pytest.mark.parametrize(
    ("changes", "check", "state"),
    [
        ({"eval": {"returns": [[2.0, 3.0], [2.0, 1.0]]}}, "hand-over", "yellow"),
        (
            {"reset": {"target": [-10.0, -10.0]}, "eval": {"returns": [[-12.0], [-12.0]]}},
            "hand-over",
            "yellow",
        ),
        ({"recovery": {"frames_to_recovery": [None, None]}}, "recovery", "red"),
        ({"recovery": {"frames_to_recovery": [900, 800]}}, "recovery", "yellow"),
        ({"recovery": {"frames_to_recovery": [100, None]}}, "recovery", "yellow"),
        ({"big": {"samples_per_row": 0.2}}, "big-reuse", "yellow"),
        ({"big": {"diverged": [False, True]}}, "divergence", "red"),
        ({"recloned": {"policy": 1, "copy_of": 0}}, "divergence", "yellow"),
        ({"measure": {"big_max_q": [9.0, 8.0]}}, "big-values", "yellow"),
        ({"measure": {"disagreement": [0.01, 0.0]}}, "diversity", "yellow"),
        ({"measure": {"big_dormant": [0.9, 0.8]}}, "dormant-units", "yellow"),
    ],
)
def test_each_check_fires_for_what_it_watches_alone(changes, check, state):
    found = evidence(**changes)
    assert states(found) == dict.fromkeys(MIXTURE_CHECKS, "green") | {check: state}
    fired = [check(found) for check in MIXTURE_CHECKS.values()]
    assert all(verdict.remedy for verdict in fired if verdict.fired)


def test_the_command_tells_it_of_a_real_folder(tmp_path, capsys):
    settings = mix_for("minatar/breakout")
    run = MixRun.create(tmp_path / "run", settings)
    bad = lines(recovery={"frames_to_recovery": [None, None]})
    place = {"steps": 4, "frames": 8, "return": 10.0}
    text = "".join(json.dumps(line | place) + "\n" for some in bad.values() for line in some)
    run.folder.metrics.write_text(text)
    assert main(["doctor", str(run.path), "--json"]) == 1
    told = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert told["recovery"]["state"] == "red"
    assert told["others"]["state"] == "unknown"
