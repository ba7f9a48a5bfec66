"""Data in and out of a Lake: equal both ways, whole or not there, and every loss is named."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest

from millpond import Field, Flag, Lake, Rows, Spec, next_flags
from millpond.cli.main import main
from millpond.errors import BadConfig, BadState, LakeFailed, LakeLocked
from millpond.exchange import export_lake, exporting, import_lake, importing, parquet
from millpond.exchange.columns import difference

PLAIN = Spec(Field("float32", (3,)), Field("int32", (), 0, 4))
RICH = Spec(
    {
        "image": Field("uint8", (40, 33, 3)),
        "pose": {"xy": Field("float64", (2,), allow_nan=True), "z": Field("float16")},
        "map": Field("bool", (9,)),
    },
    Field("float32", (2,), -1, 1),
    {"seen": Field("uint16", (2, 2)), "life_lost": Field("bool"), "id": Field("int64")},
)


def value(rng, field: Field, lead):
    if field.dtype.kind == "b":
        return rng.random((*lead, *field.shape)) < 0.5
    if field.dtype.kind == "f":
        found = rng.uniform(-1, 1, (*lead, *field.shape)).astype(field.dtype)
        if field.allow_nan:
            found[rng.random(found.shape) < 0.1] = np.nan
        return found
    low, high = (field.low or 0, 100 if field.high is None else field.high)
    return rng.integers(low, high, (*lead, *field.shape), endpoint=True).astype(field.dtype)


def fill(lake: Lake, group: str, streams: int, turns: int, seed: int, cuts: bool = True) -> None:
    """Episodes that terminate, are truncated, are cut, and at last one that goes on."""
    rng, spec = np.random.default_rng(seed), lake.spec
    with lake.writer(group, streams) as writer:
        flags = np.full(streams, Flag.FIRST, np.uint8)
        for turn in range(turns):
            border = (flags & Flag.BORDER) != 0
            ended = (rng.random(streams) < 0.1) & ~border
            clock = ended & (rng.random(streams) < 0.5)
            lead = (streams,)
            columns = {path: value(rng, field, lead) for path, field in spec.columns.items()}
            extras = {name: columns.get(f"extras/{name}") for name in spec.extras}
            if "life_lost" in extras:
                extras["life_lost"] = (rng.random(streams) < 0.2) & ~border
            reward = np.where(border, 0, rng.normal(size=streams)).astype("f4")
            obs = spec.obs_tree(columns)
            writer.append(
                Rows(obs, columns["action"], reward, ended & ~clock, clock, flags, extras)
            )
            flags = next_flags(flags, ended & ~clock, clock)
            if cuts and turn in (20, 45):
                writer.cut()
                flags = np.full(streams, Flag.FIRST, np.uint8)
    lake.refresh()


def lake_of(path: Path, spec: Spec = PLAIN, turns: int = 60, **how) -> Lake:
    lake = Lake.create(path, spec, 100_000, groups=2)
    fill(lake, "one", 3, turns, 1, **how)
    fill(lake, "two", 1, turns // 2, 2, **how)
    return lake


def assert_equal(one: Lake, other: Lake) -> None:
    assert one.spec.to_json() == other.spec.to_json()
    mine, theirs = one.streams, other.streams
    assert [(s.group, s.env) for s in mine] == [(s.group, s.env) for s in theirs]
    for here, there in zip(mine, theirs, strict=True):
        rows = one.read(here.number, here.first, here.stop)
        back = other.read(there.number, there.first, there.stop)
        assert len(rows.flags) == len(back.flags) > 0
        assert difference(one.spec, rows, back) is None


def left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if "port" in path.suffix)


# --- Parquet -------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [PLAIN, RICH], ids=["plain", "rich"])
def test_parquet_gives_back_every_bit(spec, tmp_path):
    lake = lake_of(tmp_path / "lake", spec)
    out = export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    assert (out.rows, out.streams, out.losses) == (210, 4, [])
    back = import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert (back.rows, back.losses, back.resumed) == (210, [], 0)
    assert_equal(lake, Lake.open(tmp_path / "back"))
    assert not left_over(tmp_path)


def test_parquet_is_read_by_others(tmp_path):
    import pyarrow.parquet

    lake = lake_of(tmp_path / "lake", RICH)
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    table = pyarrow.parquet.read_table(tmp_path / "table" / "one" / "00001")
    rows = lake.read(1, 0, 60)
    assert table.column("reward").to_numpy().tolist() == rows.reward.tolist()
    image = np.frombuffer(table.column("obs/image")[7].as_py(), np.uint8)
    assert (image.reshape(40, 33, 3) == rows.obs["image"][7]).all()
    assert table.column("extras/id").to_pylist() == rows.extras["id"].tolist()


def test_a_long_stream_has_several_files_and_is_entered_anywhere(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_FILE_ROWS", 25)
    monkeypatch.setattr(exporting, "_PIECE_ROWS", 10)
    lake = lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    assert len(list((tmp_path / "table" / "one" / "00000").iterdir())) > 1
    source = parquet.open_source(tmp_path / "table")
    for start in (0, 1, 24, 25, 30, 59, 60):
        size = sum(len(rows.flags) for rows in source.rows(0, start))
        assert size == 60 - start
    import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert_equal(lake, Lake.open(tmp_path / "back"))


# --- interrupted ---------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 20, 100, 180, 210])
@pytest.mark.parametrize("during", ["importing", "verifying"])
def test_an_interrupted_import_goes_on_and_nothing_is_twice(rows, during, tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "_PIECE_ROWS", 7)
    monkeypatch.setattr(importing, "_COMMIT", 15)
    lake = lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")

    def stop(what: str, done: int, total: int) -> None:
        if what == during and done >= rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_lake("parquet", tmp_path / "table", tmp_path / "back", progress=stop)
    assert not (tmp_path / "back").exists()
    assert left_over(tmp_path) == ["back.importing"]
    seen: list[int] = []
    back = import_lake(
        "parquet",
        tmp_path / "table",
        tmp_path / "back",
        progress=lambda what, done, total: seen.append(done),
    )
    assert back.resumed == 210 if during == "verifying" else back.resumed <= rows
    assert_equal(lake, Lake.open(tmp_path / "back"))
    assert not left_over(tmp_path)


KILLED = """
import os, signal, sys
from millpond.exchange import import_lake, importing
importing._COMMIT = 1000
def stop(what, done, total):
    if done >= int(sys.argv[3]):
        os.kill(os.getpid(), signal.SIGKILL)
import_lake("parquet", sys.argv[1], sys.argv[2], progress=stop)
"""


def test_a_killed_import_goes_on(tmp_path):
    lake = Lake.create(tmp_path / "lake", PLAIN, 100_000)
    fill(lake, "one", 2, 6000, 3)
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "table"), str(tmp_path / "back")]
    for rows in (4000, 9000):
        done = subprocess.run([*command, str(rows)], timeout=120, check=False)
        assert done.returncode == -signal.SIGKILL
        assert not (tmp_path / "back").exists()
    back = import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert 4000 <= back.resumed < 12_000
    assert_equal(lake, Lake.open(tmp_path / "back"))


def test_an_import_goes_on_only_with_the_same_data(tmp_path):
    lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_lake("parquet", tmp_path / "table", tmp_path / "back", progress=stop)
    os.utime(next((tmp_path / "table").rglob("*.parquet")), ns=(1, 1))
    with pytest.raises(BadConfig, match="interrupted import with another stamp"):
        import_lake("parquet", tmp_path / "table", tmp_path / "back")
    (tmp_path / "other.importing").mkdir()
    with pytest.raises(BadConfig, match="exists but is not from an import"):
        import_lake("parquet", tmp_path / "table", tmp_path / "other")


@pytest.mark.parametrize("during", ["exporting", "verifying"])
def test_an_interrupted_export_leaves_nothing(during, tmp_path):
    lake_of(tmp_path / "lake")
    (tmp_path / "table.exporting").mkdir()  # of one that was killed
    (tmp_path / "table.exporting" / "half").write_text("")

    def stop(what: str, done: int, total: int) -> None:
        if what == during:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_lake("parquet", tmp_path / "lake", tmp_path / "table", progress=stop)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lake"]


def test_only_committed_rows_are_exported(tmp_path):
    lake = lake_of(tmp_path / "lake")
    more = Lake.open(tmp_path / "lake", "a")
    with more.writer("two", 1) as writer:
        none = np.zeros(1, bool)
        obs, action = np.zeros((1, 3), "f4"), np.zeros(1, "i4")
        row = Rows(obs, action, np.ones(1, "f4"), none, none, np.array([1], "u1"))
        writer.append(row)  # and not committed yet

        def commits(what: str, done: int, total: int) -> None:
            writer.commit()

        export_lake("parquet", tmp_path / "lake", tmp_path / "table", progress=commits)
    import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert_equal(lake, Lake.open(tmp_path / "back"))  # `lake` was not refreshed since
    lake.refresh()
    assert len(lake) == 211


# --- what goes wrong -----------------------------------------------------------------------------


def test_a_value_that_changes_on_the_way_is_found(tmp_path, monkeypatch):
    lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    right = parquet.to_rows

    def wrong(spec, columns):
        columns["obs"] = columns["obs"].copy()
        columns["obs"][3, 1] = np.nextafter(columns["obs"][3, 1], np.float32(9))
        return right(spec, columns)

    monkeypatch.setattr(parquet, "to_rows", wrong)
    with pytest.raises(BadState, match="'obs' differs from the Lake"):
        export_lake("parquet", tmp_path / "lake", tmp_path / "again")
    assert not (tmp_path / "again").exists()
    calls = []

    def sometimes(spec, columns):
        calls.append(1)
        return (wrong if len(calls) > 4 else right)(spec, columns)

    monkeypatch.setattr(parquet, "to_rows", sometimes)
    with pytest.raises(BadState, match=r"stream 0, row 3: 'obs' differs from the source"):
        import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_a_full_disk_is_told_and_nothing_is_half_there(tmp_path, monkeypatch):
    lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(parquet, "_encoded", full)
        with pytest.raises(LakeFailed, match=r"No space left on device.*nothing was left behind"):
            export_lake("parquet", tmp_path / "lake", tmp_path / "again")
    with monkeypatch.context() as patch:
        patch.setattr(importing.os, "rename", full)
        with pytest.raises(LakeFailed, match=r"No space left on device.*same command again"):
            import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert not (tmp_path / "again").exists()
    assert not (tmp_path / "back").exists()
    assert import_lake("parquet", tmp_path / "table", tmp_path / "back").resumed == 210


# The last ones are what millpond-rows.json says: of its first stream, and of where it came from.
HARMS = ["short", "flipped", "gone", "about", "json", ("origin", 10**12), ("streams", {})]
HARMS += [
    ("streams", one)
    for one in (["one", 0], ["one", 0, None], ["one", -1, 60], ["../one", 0, 60], [None, 0, 60])
]


@pytest.mark.parametrize("harm", HARMS, ids=str)
def test_damaged_parquet_is_refused(harm, tmp_path):
    lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    file, about = (
        next((tmp_path / "table").rglob("*.parquet")),
        tmp_path / "table/millpond-rows.json",
    )
    data = bytearray(file.read_bytes())
    if harm == "short":
        file.write_bytes(data[: len(data) // 2])
    elif harm == "flipped":
        data[:400] = bytes(400)
        file.write_bytes(data)
    elif harm == "gone":
        file.unlink()
    elif harm == "about" or not isinstance(harm, str):
        plain = json.loads(about.read_text())
        if harm == "about":
            plain["streams"][0][2] += 1
        else:
            name, value = harm
            plain[name] = [value, *plain[name][1:]] if name == "streams" else value
        about.write_text(json.dumps(plain))
    else:
        about.write_text("{")
    with pytest.raises((BadState, BadConfig)):
        import_lake("parquet", tmp_path / "table", tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_wrong_calls_are_refused(tmp_path, capsys):
    lake_of(tmp_path / "lake")
    export_lake("parquet", tmp_path / "lake", tmp_path / "table")
    Lake.create(tmp_path / "empty", PLAIN, 100_000)
    lake, table = str(tmp_path / "lake"), str(tmp_path / "table")
    for args, why in (
        (["export", lake, table, "--format", "parquet"], "already exists"),
        (["import", table, lake, "--format", "parquet"], "already exists"),
        (["export", lake, f"{table}2", "--format", "parket"], "did you mean 'parquet'?"),
        (["import", lake, f"{table}2", "--format", "parquet"], "with millpond-rows.json"),
        (["import", f"{lake}9", f"{table}2", "--format", "minari"], "nothing exists there"),
        (["export", str(tmp_path / "empty"), f"{table}2", "--format", "parquet"], "no committed"),
        (["export", lake, f"{table}2", "--format", "vault"], "there is no format 'vault'"),
        (["import", table, f"{table}2", "--format", "parquet", "--env", "tmaze"], "env tmaze"),
        (["import", table, f"{table}2", "--format", "parquet", "--env", "nope"], "no env 'nope'"),
        (["import", table, f"{table}2", "--format", "parquet", "--capacity", "7"], "two segments"),
    ):
        assert main(["lake", *args]) == 2, args
        assert why in capsys.readouterr().err, args
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        *("empty", "lake", "table"),
    ]


def test_two_exports_at_once_are_refused(tmp_path):
    lake_of(tmp_path / "lake")

    def again(*_: object) -> None:
        export_lake("parquet", tmp_path / "lake", tmp_path / "table")

    with pytest.raises(LakeLocked):
        export_lake("parquet", tmp_path / "lake", tmp_path / "table", progress=again)


@pytest.mark.parametrize(("form", "package"), [("parquet", "pyarrow"), ("minari", "minari")])
def test_a_missing_package_is_named(form, package, tmp_path):
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from millpond.exchange import import_lake\n"
        f"import_lake({form!r}, sys.argv[1], sys.argv[2])"
    )
    command = [sys.executable, "-c", code, str(tmp_path), str(tmp_path / "back")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert f"pip install 'millpond[{form}]'" in done.stderr


# --- Minari --------------------------------------------------------------------------------------


def dataset(path: Path, form: str, spaces, episodes, env_spec=None):
    """A dataset by Minari's own writer."""
    from minari.dataset.minari_storage import MinariStorage

    (path / "data").mkdir(parents=True)
    storage = MinariStorage.new(
        path / "data", *spaces, data_format=form, jpeg_encoding=False, env_spec=env_spec
    )
    storage.update_episodes(episodes)
    storage.update_metadata({"dataset_id": "made/up-v3", "minari_version": "0.5.4"})
    return path


def episodes(obs_of, action_of, form="hdf5"):
    from minari.data_collector import EpisodeBuffer

    rng = np.random.default_rng(0)
    for number in range(7):
        steps = int(rng.integers(1, 12))
        ends = np.arange(1, steps + 1) == steps
        rewards = rng.normal(size=steps).astype(np.float32).astype(np.float64)
        infos = {"x": rng.normal(size=steps + 1), "deep": {"y": np.zeros((steps + 1, 2), "i4")}}
        if form == "arrow":  # Minari cannot read other infos of its own from it
            infos = {"x": infos["x"].tolist()}
        yield EpisodeBuffer(
            observations=obs_of(rng, steps + 1),
            actions=action_of(rng, steps),
            rewards=rewards,
            terminations=ends & (number % 3 == 0),
            truncations=ends & (number % 3 == 1),  # every third goes on
            infos=infos,
            seed=number,
        )


BOX = gymnasium.spaces.Box
KINDS = {
    "vector": (
        (BOX(-1, 1, (4,), np.float64), gymnasium.spaces.Discrete(3, start=-1)),
        lambda rng, n: rng.normal(size=(n, 4)),
        lambda rng, n: rng.integers(-1, 2, n),
    ),
    "image": (
        (BOX(0, 255, (36, 40, 3), np.uint8), BOX(-2, 2, (2,), np.float32)),
        lambda rng, n: rng.integers(0, 256, (n, 36, 40, 3)).astype(np.uint8),
        lambda rng, n: rng.normal(size=(n, 2)).astype(np.float32),
    ),
    "dict": (
        (
            gymnasium.spaces.Dict(
                {
                    "a": BOX(-9, 9, (2,), np.float32),
                    "b": gymnasium.spaces.Dict({"c": gymnasium.spaces.MultiBinary(5)}),
                }
            ),
            gymnasium.spaces.MultiDiscrete([3, 4]),
        ),
        lambda rng, n: {
            "a": rng.normal(size=(n, 2)).astype(np.float32),
            "b": {"c": rng.integers(0, 2, (n, 5)).astype(np.int8)},
        },
        lambda rng, n: np.stack([rng.integers(0, 3, n), rng.integers(0, 4, n)], 1),
    ),
}


def flat(tree, path=""):
    if isinstance(tree, dict):
        inner = [flat(value, f"{path}/{key}") for key, value in tree.items()]
        return {key: value for one in inner for key, value in one.items()}
    return {path: tree}


@pytest.mark.parametrize("form", ["hdf5", "arrow"])
@pytest.mark.parametrize("kind", KINDS)
def test_minari_there_and_back_is_equal(kind, form, tmp_path):
    from minari import MinariDataset

    spaces, obs_of, action_of = KINDS[kind]
    dataset(tmp_path / "data", form, spaces, episodes(obs_of, action_of, form))
    moved = import_lake("minari", tmp_path / "data", tmp_path / "lake")
    assert any("float64; rounded to float32" in loss for loss in moved.losses)
    assert any("infos 'deep/y'" in loss for loss in moved.losses) == (form == "hdf5")
    assert not any("changed by rounding" in loss for loss in moved.losses)
    export_lake("minari", tmp_path / "lake", tmp_path / "back")
    one, other = (MinariDataset(tmp_path / name / "data") for name in ("data", "back"))
    assert other.spec.dataset_id == "made/up-v3"
    assert other.spec.total_steps == one.spec.total_steps
    assert other.spec.action_space.shape == one.spec.action_space.shape
    for here, there in zip(one.iterate_episodes(), other.iterate_episodes(), strict=True):
        assert here.infos["x"].tolist() == there.infos["x"].tolist()
        for name in ("observations", "actions", "rewards", "terminations", "truncations"):
            mine, theirs = flat(getattr(here, name)), flat(getattr(there, name))
            assert mine.keys() == theirs.keys()
            for key in mine:
                assert np.array_equal(mine[key], theirs[key]), (name, key)
                assert mine[key].dtype == theirs[key].dtype, (name, key)


def test_rewards_that_change_are_counted(tmp_path):
    spaces, obs_of, action_of = KINDS["vector"]
    some = list(episodes(obs_of, action_of))
    some[2].rewards[0] = 1 / 3
    dataset(tmp_path / "data", "hdf5", spaces, some)
    said: list[list[str]] = []
    moved = import_lake("minari", tmp_path / "data", tmp_path / "lake", said=said.append)
    assert any("rounded" in loss for loss in said[0])  # before anything was written
    assert any(loss.startswith("1 of ") and "rewards" in loss for loss in moved.losses)


def test_what_minari_cannot_keep_is_named(tmp_path):
    lake = lake_of(tmp_path / "lake", RICH)
    moved = export_lake("minari", tmp_path / "lake", tmp_path / "out")
    text = "; ".join(moved.losses)
    dropped = ends = 0
    for stream in lake.streams:  # counted here by the rows alone
        flags = lake.read(stream.number, stream.first, stream.stop).flags
        cut = np.flatnonzero(flags & (Flag.BORDER | Flag.CUT))
        cut = [*cut, len(flags) - 1] if not cut.size or cut[-1] != len(flags) - 1 else [*cut]
        dropped += sum(not flags[i] & Flag.BORDER for i in cut)
        ends += len(cut)
    assert dropped
    assert f"{dropped:,} last steps without an observation after them" in text
    assert "which stream each episode belongs to" in text
    assert "bounds of" in text
    import_lake("minari", tmp_path / "out", tmp_path / "back")
    again = export_lake("minari", tmp_path / "back", tmp_path / "out2")
    assert not any("last steps" in loss for loss in again.losses)


def test_an_env_makes_the_rows_its_own(tmp_path):
    spaces = (BOX(-9, 9, (4,), np.float64), gymnasium.spaces.Discrete(2))
    some = list(
        episodes(lambda rng, n: rng.normal(size=(n, 4)), lambda rng, n: rng.integers(0, 2, n))
    )
    dataset(tmp_path / "data", "hdf5", spaces, some)
    moved = import_lake("minari", tmp_path / "data", tmp_path / "lake", env="gym:CartPole-v1")
    assert any(
        "'obs' is float64 in the data and float32 in the Lake" in loss for loss in moved.losses
    )
    assert any("extras/x, which env gym:CartPole-v1 does not have" in loss for loss in moved.losses)
    spec = Lake.open(tmp_path / "lake").spec
    assert (spec.obs.dtype, spec.action.dtype) == (np.float32, np.int32)
    with pytest.raises(BadConfig, match=r"field 'obs' is .*the data has"):
        import_lake("minari", tmp_path / "data", tmp_path / "other", env="gym:Acrobot-v1")


@pytest.mark.parametrize("harm", ["short", "empty", "json", "none"])
def test_damaged_minari_is_refused(harm, tmp_path):
    spaces, obs_of, action_of = KINDS["vector"]
    some = [] if harm == "none" else episodes(obs_of, action_of)
    path = dataset(tmp_path / "data", "hdf5", spaces, some)
    file = path / "data" / "main_data.hdf5"
    if harm == "short":
        file.write_bytes(file.read_bytes()[:3000])
    elif harm == "empty":
        file.write_bytes(b"")
    elif harm == "json":
        (path / "data" / "metadata.json").write_text("{}")
    with pytest.raises((BadState, BadConfig)):
        import_lake("minari", path, tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


# --- Vault ---------------------------------------------------------------------------------------


def vault(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    """A Vault as flashbax writes it: zarr in one key-value store, and what is in it as JSON."""
    import tensorstore

    path.mkdir(parents=True)
    shape: dict = {}
    dtype: dict = {}
    turns = 0
    for name, values in arrays.items():
        *parents, last = name.split("/")
        for tree, said in ((shape, str((values.shape[0], 8, *values.shape[2:]))), (dtype, None)):
            node = tree
            for parent in parents:
                node = node.setdefault(parent, {})
            node[last] = said or values.dtype.name
        turns = values.shape[1]
        store = _stored(tensorstore, path, f"{name.replace('/', '.')}.", values, 10**13)
        store[:, :turns].write(values).result()
    index = _stored(tensorstore, path, "vault_index", np.zeros(1, np.int32), None)
    index.write(turns).result()
    about = {"version": 1.2, "structure_shape": shape, "structure_dtype": dtype}
    (path / "metadata.json").write_text(json.dumps(about))
    return path


def _stored(tensorstore, path: Path, name: str, values, longest):
    where = {"driver": "ocdbt", "base": f"file://{path}", "path": name}
    shape = values.shape if longest is None else (values.shape[0], longest, *values.shape[2:])
    spec = {"driver": "zarr", "kvstore": where}
    spec["metadata"] = {"compressor": {"id": "gzip", "level": 5}}
    return tensorstore.open(spec, shape=shape, dtype=values.dtype.name, create=True).result()


def vault_arrays(turns: int = 50, batch: int = 2) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    ended = rng.random((batch, turns)) < 0.15
    clock = ended & (rng.random((batch, turns)) < 0.4)
    return {
        "obs/agent/pose": rng.normal(size=(batch, turns, 3)).astype("f4"),
        "obs/map": rng.integers(0, 9, (batch, turns, 2, 2)).astype("u1"),
        "action": rng.integers(0, 5, (batch, turns)).astype("i4"),
        "reward": rng.normal(size=(batch, turns)).astype("f4"),
        "terminated": ended & ~clock,
        "truncated": clock,
        "value": rng.normal(size=(batch, turns)).astype("f4"),
    }


def test_a_vault_becomes_a_lake_and_no_transition_is_wrong(tmp_path, monkeypatch):
    from millpond import Window
    from millpond.exchange import vault as module

    monkeypatch.setattr(module, "_TURNS", 7)
    arrays = vault_arrays()
    vault(tmp_path / "vaults" / "one", arrays)
    moved = import_lake("vault", tmp_path / "vaults", tmp_path / "lake")
    clock, over = arrays["truncated"], arrays["terminated"]
    assert f"{clock.sum()} truncated steps are followed by a cut" in "; ".join(moved.losses)
    assert "the observation after an episode's end" in "; ".join(moved.losses)
    lake = Lake.open(tmp_path / "lake")
    assert len(lake) == 100 + over.sum()
    for b in range(2):
        rows = lake.read(b, 0, lake.streams[b].stop)
        step = (rows.flags & Flag.BORDER) == 0
        for name in ("action", "reward", "terminated", "truncated"):
            assert np.array_equal(getattr(rows, name)[step], arrays[name][b]), name
        assert np.array_equal(rows.obs["agent"]["pose"][step], arrays["obs/agent/pose"][b])
        assert np.array_equal(rows.extras["value"][step], arrays["value"][b])
    # Every transition that can be drawn is one of the Vault's, with the observation after it.
    seen = 0
    for batch in lake.iterate(16, Window(), epochs=1):
        for i in range(len(batch.reward)):
            b = int(batch.draw.stream[i])
            t = int(np.flatnonzero(arrays["reward"][b] == batch.reward[i])[0])
            assert not clock[b, t]
            assert batch.terminated[i] == over[b, t]
            if not over[b, t]:
                after = arrays["obs/agent/pose"][b, t + 1]
                assert np.array_equal(batch.next_obs["agent"]["pose"][i, 0], after)
            seen += 1
    assert seen == 100 - clock.sum() - (~(clock | over)[:, -1]).sum()


@pytest.mark.parametrize("stop", [1, 30, 60])
def test_an_interrupted_import_of_a_vault_goes_on(stop, tmp_path, monkeypatch):
    from millpond.exchange import vault as module

    monkeypatch.setattr(module, "_TURNS", 9)
    monkeypatch.setattr(importing, "_COMMIT", 5)
    path = vault(tmp_path / "one", vault_arrays())
    import_lake("vault", path, tmp_path / "whole")

    def stops(what: str, done: int, total: int) -> None:
        if done >= stop:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_lake("vault", path, tmp_path / "lake", progress=stops)
    import_lake("vault", path, tmp_path / "lake")
    assert_equal(Lake.open(tmp_path / "whole"), Lake.open(tmp_path / "lake"))


def test_a_vault_that_cannot_be_used_is_refused(tmp_path):
    arrays = vault_arrays()
    done = {name: value for name, value in arrays.items() if name != "truncated"}
    done["done"] = done.pop("terminated")
    moved = import_lake("vault", vault(tmp_path / "done", done), tmp_path / "lake")
    assert any("'done' is taken as terminated" in loss for loss in moved.losses)
    none = {name: value for name, value in arrays.items() if name != "action"}
    with pytest.raises(BadConfig, match="none named action or actions"):
        import_lake("vault", vault(tmp_path / "none", none), tmp_path / "other")
    with pytest.raises(BadConfig, match="the folder of one Vault"):
        import_lake("vault", tmp_path, tmp_path / "other")
    (tmp_path / "done" / "metadata.json").write_text("{}")
    with pytest.raises(BadState, match="cannot be read"):
        import_lake("vault", tmp_path / "done", tmp_path / "other")
