"""A writer belongs to one process and one folder, whatever forks, moves or is linked elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from lake_world import SLOTS, SPEC, append, check_all, snapshot

from millpond import LakeFailed
from millpond.lake import Lake

STREAMS = 16
LENGTH = SLOTS // STREAMS


def make(path: Path) -> Lake:
    return Lake.create(path, SPEC, 10**6, segment_rows=SLOTS)


def test_a_relative_path_stays_with_its_folder(tmp_path, monkeypatch):
    """Two folders with a Lake of the same name each; the process moves from one to the other."""
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        lake = make(Path("lake"))
        with lake.writer("g", STREAMS) as writer:
            append(writer, LENGTH + 3)
    before = snapshot(tmp_path / "other" / "lake" / "groups" / "g")
    monkeypatch.chdir(tmp_path / "one")
    lake = Lake.open("lake", "a")
    monkeypatch.chdir(tmp_path / "other")
    with lake.writer("g", STREAMS) as writer:
        monkeypatch.chdir(tmp_path)
        append(writer, 2 * LENGTH)
        writer.commit(sync=True)
    assert (check_all(lake).stop == 3 * LENGTH + 3).all()
    assert (check_all(Lake.open(tmp_path / "one" / "lake")).stop == 3 * LENGTH + 3).all()
    assert snapshot(tmp_path / "other" / "lake" / "groups" / "g") == before


@pytest.mark.parametrize("linked", [False, True])
def test_a_folder_put_in_the_place_of_a_writers_own_is_left_alone(tmp_path, linked):
    mine, others = tmp_path / "mine", tmp_path / "others"
    for path in (mine, others):
        with make(path).writer("g", STREAMS) as writer:
            append(writer, 3)
    before = snapshot(others / "groups" / "g")
    name = tmp_path / "name" if linked else mine
    if linked:
        name.symlink_to(mine)
    with Lake.open(name, "a").writer("g", STREAMS) as writer:
        append(writer, 1)
        writer.commit()
        if linked:
            name.unlink()
            name.symlink_to(others)
            append(writer, 2 * LENGTH)
            writer.commit(sync=True)
        else:
            mine.rename(tmp_path / "moved")
            others.rename(mine)
            with pytest.raises(LakeFailed, match="replaced"):
                append(writer, 2 * LENGTH)
            with pytest.raises(LakeFailed, match="replaced"):
                writer.commit(sync=True)
            writer.close(commit=False)
    left = others if linked else mine
    assert snapshot(left / "groups" / "g") == before
    kept = mine if linked else tmp_path / "moved"
    assert (check_all(Lake.open(kept)).stop == 4 + 2 * LENGTH * linked).all()
