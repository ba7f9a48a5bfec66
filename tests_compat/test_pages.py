"""The how-to guides about these packages: every block, as a reader would run it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "docs"))

from run_blocks import blocks_of, like_a_clone, run_page  # noqa: E402

PAGES = ["replay-in-pytorch.md", "stable-baselines3.md"]


@pytest.mark.filterwarnings("ignore")  # a reader's are not errors either
@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_runs(page, tmp_path, capsys):
    path = ROOT / "docs" / "how-to" / page
    assert [block.missing() for block in blocks_of(path)] == [None] * len(blocks_of(path))
    run_page(path, like_a_clone(tmp_path))
    assert "skipped" not in capsys.readouterr().out
