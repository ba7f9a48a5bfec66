"""The 41 causes that were suspected elsewhere: each has a check that a planted fault or a test has
turned red, a refusal, or an honest word that it cannot be seen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from millpond.doctor import CHECKS
from millpond.doctor.plants import PLANTS
from millpond.doctor.plants_probe import PROBE_PLANTS

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "seed-analysis.md"
EACH = {0: 4, 1: 3, 2: 3, 3: 3, 4: 4, 5: 3, 6: 3, 7: 3, 8: 3, 9: 4, 10: 3, 11: 2, 12: 3}
CAUSES = [f"{part}.{n + 1}" for part, last in EACH.items() for n in range(last)]
PLANTED = {plant.fires for plant in (*PLANTS, *PROBE_PLANTS)}
# No plant must fire these; a test of made-up evidence or rows turns them red.
TESTED = {
    "row-order": "test_play_checks.py",
    "env-resets": "test_play_checks.py",
    "bellman-fit": "test_value_checks.py",
    "learning": "test_doctor.py",
    "transfer-share": "test_doctor.py",
}
REFUSALS = ("SpecMismatch", "JAX refuses", "not a fault", "accumulate", "cannot be seen")


def answers() -> dict[str, str]:
    """What the page says of each cause."""
    table = PAGE.read_text().partition("## The 41 causes")[2].partition("\n## ")[0]
    found: dict[str, str] = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if re.match(r"\d", cells[0]):
            found |= dict.fromkeys(cells[0].split(", "), cells[3])
    return found


def test_the_page_answers_every_cause():
    assert len(CAUSES) == 41
    assert sorted(answers()) == sorted(CAUSES)


@pytest.mark.parametrize("cause", CAUSES)
def test_each_has_a_check_that_was_seen_red_or_an_honest_word(cause):
    answer = answers()[cause]
    checks = [name for name in re.findall(r"`([a-z-]+)`", answer) if "-" in name]
    known = {*CHECKS, *PLANTED, *TESTED}
    for check in checks:
        assert check in known, f"{check} is no check"
        if check not in PLANTED:
            assert check in (HERE / TESTED[check]).read_text(), check
    assert checks or any(word in answer for word in REFUSALS), answer
