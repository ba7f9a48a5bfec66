"""In which order findings are read."""

from __future__ import annotations

from millpond.doctor.verdict import green, red, unknown, worst_first, yellow


def test_causes_come_before_what_follows_from_them():
    found = [
        yellow("env-rewards", "", ""),
        green("env-ends", ""),
        unknown("bellman-fit", ""),
        red("dormant-units", "", ""),
        red("layers-move", "", ""),
        red("update-audit", "", ""),
        red("env-observations", "", ""),
    ]
    assert [verdict.name for verdict in worst_first(found)] == [
        "env-observations", "update-audit", "layers-move", "dormant-units", "env-rewards",
        "bellman-fit", "env-ends",
    ]  # fmt: skip
