"""RLDS and LeRobot: what is in their files comes in, what is in a Lake goes out, losses named."""

from __future__ import annotations

import io
import json
import re
import zlib
from pathlib import Path

import numpy as np
import PIL.Image
import pyarrow
import pyarrow.parquet
import pytest
from test_exchange import PLAIN, RICH, assert_equal, lake_of, left_over, value

from millpond import Flag, Lake, Rows, Window
from millpond.errors import BadConfig, BadState
from millpond.exchange import export_lake, import_lake, importing
from millpond.exchange.crc32c import crc32c
from millpond.exchange.tf_example import decode_example, encode_example
from millpond.exchange.tfrecord import RecordFile, write_record

FORMS = ("rlds", "lerobot")


def transitions(lake: Lake) -> dict[bytes, tuple]:
    """All that can be drawn, by observation and action."""
    found = {}
    for batch in lake.iterate(128, Window(), epochs=1):
        names = ("obs", "next_obs")
        obs, after = (leaves(getattr(batch, name)) for name in names)
        for i in range(len(batch.reward)):
            key = b"".join(part[i].tobytes() for part in [*obs, batch.action])
            then = b"".join(part[i].tobytes() for part in after)
            ends = bool(batch.terminated[i]), bool(batch.truncated[i])
            extras = [batch.extras[name][i].tobytes() for name in sorted(batch.extras)]
            assert key not in found
            found[key] = (float(batch.reward[i]), *ends, b"" if ends[0] else then, extras)
    return found


def leaves(tree):
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    return [tree]


@pytest.mark.parametrize("spec", [PLAIN, RICH], ids=["plain", "rich"])
@pytest.mark.parametrize("form", FORMS)
def test_every_transition_that_the_format_can_hold_is_the_lakes(form, spec, tmp_path):
    lake = lake_of(tmp_path / "lake", spec)
    out = export_lake(form, tmp_path / "lake", tmp_path / "out")
    import_lake(form, tmp_path / "out", tmp_path / "back")
    want, found = transitions(lake), transitions(Lake.open(tmp_path / "back"))
    assert any(one[2] for one in want.values())
    if form == "lerobot":  # which has no observation after a truncated step
        want = {key: one for key, one in want.items() if not one[2]}
        # What follows a terminated step is not needed, so that a cut behind it does not matter.
        assert all(one[1] for key, one in found.items() if key not in want)
        found = {key: one for key, one in found.items() if key in want}
    else:  # which has truncated episodes where ours are cut
        cut = [key for key, one in found.items() if one[2] and not want[key][2]]
        assert 0 < len(cut) <= 11
        found |= {key: (*found[key][:2], False, *found[key][3:]) for key in cut}
    assert found == want
    assert any(one[1] for one in found.values())
    text = "; ".join(out.losses)
    assert "which stream each episode belongs to" in text
    assert "bounds of" in text
    assert ("the observation after an episode's end" in text) == (form == "lerobot")
    assert ("last steps without an observation" in text) == (form == "rlds")
    # What was lost the first time is all that is: there and back again is the same to the bit.
    export_lake(form, tmp_path / "back", tmp_path / "again")
    for path in (tmp_path / "out").rglob("*"):
        twin = tmp_path / "again" / path.relative_to(tmp_path / "out")
        assert path.is_dir() or path.read_bytes() == twin.read_bytes(), path.name


@pytest.mark.parametrize("form", [*FORMS, "minari", "parquet"])
def test_a_step_that_ends_twice_and_a_context_row_are_kept_or_counted(form, tmp_path):
    """A time limit truncates in the very step that terminates: Gymnasium says both."""
    lake = Lake.create(tmp_path / "lake", PLAIN, 10_000)
    flags = np.array([Flag.FIRST, Flag.CONTEXT, 0, Flag.BORDER], np.uint8)
    last = np.array([False, False, True, False])
    columns = {p: value(np.random.default_rng(3), f, (4,)) for p, f in PLAIN.columns.items()}
    extras = {name: columns[f"extras/{name}"] for name in PLAIN.extras}
    obs, reward = PLAIN.obs_tree(columns), np.float32([1, 2, 3, 0])
    with lake.writer("g", 1) as writer:
        rows = Rows(obs, columns["action"], reward, last, last, flags, extras)
        writer.append(rows, env=0)
    out = export_lake(form, tmp_path / "lake", tmp_path / "out")
    import_lake(form, tmp_path / "out", tmp_path / "back")
    back = Lake.open(tmp_path / "back").read(0, 0, 4)
    np.testing.assert_array_equal(back.terminated, last)
    np.testing.assert_array_equal(back.truncated, last & (form not in FORMS))
    assert ("1 steps that are both terminated and truncated" in str(out.losses)) == (form in FORMS)
    assert ("1 rows marked CONTEXT" in str(out.losses)) == (form != "parquet")


@pytest.mark.parametrize("rows", [1, 90, 195])
@pytest.mark.parametrize("form", FORMS)
def test_an_interrupted_import_goes_on(form, rows, tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "_COMMIT", 15)
    lake_of(tmp_path / "lake")
    export_lake(form, tmp_path / "lake", tmp_path / "out")
    import_lake(form, tmp_path / "out", tmp_path / "whole")

    def stop(what: str, done: int, total: int) -> None:
        if done >= rows:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_lake(form, tmp_path / "out", tmp_path / "back", progress=stop)
    back = import_lake(form, tmp_path / "out", tmp_path / "back")
    assert bool(back.resumed) == (rows > 1)
    assert_equal(Lake.open(tmp_path / "whole"), Lake.open(tmp_path / "back"))
    assert not left_over(tmp_path)


# --- RLDS ----------------------------------------------------------------------------------------


def test_checksums_are_those_of_rfc_3720():
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"\xff" * 32) == 0x62A8AB43
    assert crc32c(bytes(range(32))) == 0x46DD794E
    assert crc32c(bytes(range(31, -1, -1))) == 0x113FDB5C
    data = np.random.default_rng(0).integers(0, 256, 70_001, np.uint8).tobytes()
    for size in (0, 1, 2047, 2048, 2049, 4096, 70_001):  # of which long ones are cut up
        crc = 0xFFFFFFFF
        for byte in data[:size]:
            crc ^= byte
            for _ in range(8):
                crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
        assert crc32c(data[:size]) == crc ^ 0xFFFFFFFF, size


def test_records_and_examples_are_those_of_tensorflow(tmp_path):
    """The bytes of an empty record, and three Examples as protobuf's own library writes them."""
    golden = {
        "0a180a160a016e12111a0f0a0d01ffffffffffffffffff01ac02": {"n": np.array([1, -1, 300])},
        "0a0f0a0d0a0166120812060a040000c03f": {"f": np.array([1.5], np.float32)},
        "0a0f0a0d0a016212080a060a0261620a00": {"b": [b"ab", b""]},
    }
    with (tmp_path / "records").open("wb") as file:
        write_record(file, b"")
        for text, lists in golden.items():
            assert encode_example(lists).hex() == text
            found = decode_example(memoryview(bytes.fromhex(text)))
            assert [*found] == [*lists]
            for name, values in lists.items():
                assert list(found[name]) == list(values)
            write_record(file, bytes.fromhex(text))
    assert (tmp_path / "records").read_bytes()[:16].hex() == "000000000000000029039807d8ea82a2"
    records = RecordFile(tmp_path / "records")
    assert [bytes(records.read(place)).hex() for place in records.places] == ["", *golden]
    # Numbers of which each is a part of its own, as proto2 writes them.
    apart = memoryview(bytes.fromhex("0a0e0a0c0a016e12071a0508010 8ac02".replace(" ", "")))
    assert decode_example(apart)["n"].tolist() == [1, 300]
    edge = np.array([0, 127, 128, 2**63 - 1, -(2**63), -1])
    assert decode_example(memoryview(encode_example({"e": edge})))["e"].tolist() == edge.tolist()


def tensor(dtype: str, *shape: int, encoding: str = "none") -> dict:
    about = {"shape": {"dimensions": [str(n) for n in shape]} if shape else {}, "dtype": dtype}
    return {"pythonClassName": "a.Tensor", "tensor": about | {"encoding": encoding}}


IMAGE = {"image": {"shape": {"dimensions": ["4", "5", "3"]}, "dtype": "uint8"}}
STEP = {
    "observation": {
        "pythonClassName": "a.FeaturesDict",
        "featuresDict": {
            "features": {
                "camera": {"pythonClassName": "a.Image", **IMAGE},
                "arm": tensor("float64", 2, encoding="zlib"),
            }
        },
    },
    "action": tensor("float32", 2),
    "reward": tensor("float64"),
    "discount": tensor("float32"),
    "is_first": tensor("bool"),
    "is_last": tensor("bool"),
    "is_terminal": tensor("bool"),
    "phase": tensor("uint8"),
    "language": {"pythonClassName": "a.Text", "text": {}},
}


def rlds(path: Path, step: dict = STEP, lengths: tuple = (3, 1, 5, 4), shards: int = 2) -> dict:
    """A dataset of two splits, and what is in the first one by name, episode after episode."""
    path.mkdir()
    rng, content = np.random.default_rng(0), {"train": [], "test": []}
    splits = []
    for split in content:
        for number, n in enumerate(lengths):
            one = {
                "camera": rng.integers(0, 256, (n, 4, 5, 3), np.uint8),
                "arm": rng.normal(size=(n, 2)),
                "action": rng.normal(size=(n, 2)).astype(np.float32),
                "reward": np.r_[rng.normal(size=n - 1), float(number == 2)].astype(np.float32),
                "phase": rng.integers(0, 256, n),
                "is_last": np.arange(n) == (n if number == 3 else n - 1),
                "is_terminal": (np.arange(n) == n - 1) & (number == 0),
            }
            content[split].append(one)
        sizes = [len(part) for part in np.array_split(np.arange(len(lengths)), shards)]
        at = 0
        for shard, size in enumerate(sizes):
            name = f"arms-{split}.tfrecord-{shard:05d}-of-{shards:05d}"
            with (path / name).open("wb") as file:
                for one in content[split][at : at + size]:
                    write_record(file, encode_example(lists_of(one)))
            at += size
        splits.append({"name": split, "shardLengths": [str(size) for size in sizes]})
    info = {"name": "arms", "fileFormat": "tfrecord", "splits": splits}
    (path / "dataset_info.json").write_text(json.dumps(info))
    inner = {"featuresDict": {"features": step}}
    steps = {"pythonClassName": "a.Dataset", "sequence": {"feature": inner, "length": "-1"}}
    top = {"featuresDict": {"features": {"steps": steps, "episode_metadata": tensor("int64")}}}
    (path / "features.json").write_text(json.dumps(top))
    return content


def lists_of(one: dict) -> dict:
    n, first = len(one["reward"]), np.arange(len(one["reward"])) == 0
    ints = {name: one[name].astype(np.int64) for name in ("phase", "is_last", "is_terminal")}
    found = ints | {"is_first": first.astype(np.int64), "language": [b"go"] * n}
    found |= {"action": one["action"].reshape(-1), "reward": one["reward"]}
    found |= {
        "discount": np.ones(n, np.float32),
        "observation/camera": list(map(png, one["camera"])),
    }
    found |= {"observation/arm": [zlib.compress(arm.tobytes()) for arm in one["arm"]]}
    lists = {f"steps/{name}": value for name, value in found.items()}
    return lists | {"episode_metadata": np.array([7])}


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    PIL.Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_a_dataset_of_rlds_becomes_a_lake(tmp_path):
    content = rlds(tmp_path / "data")
    moved = import_lake("rlds", tmp_path / "data", tmp_path / "lake")
    text = "; ".join(moved.losses)
    for loss in (
        "'language' of steps: of kind Text",
        "'episode_metadata' of episodes",
        "2 episodes have only one step",
        "2 episodes have a reward in their last step, which is left out",
        "2 episodes have no end",
        "rewards are float64; rounded to float32",
    ):
        assert loss in text
    assert "rounding" not in text
    lake = Lake.open(tmp_path / "lake")
    assert [stream.stop for stream in lake.streams] == [12, 12]  # a split each
    for stream, episodes in enumerate(content.values()):
        at = 0
        for number, one in enumerate(episodes):
            n = len(one["reward"])
            if n == 1:
                continue
            rows = lake.read(stream, at, at + n)
            assert np.array_equal(rows.obs["camera"], one["camera"])
            assert np.array_equal(rows.obs["arm"], one["arm"])
            assert np.array_equal(rows.extras["phase"], one["phase"])
            assert np.array_equal(rows.action[:-1], one["action"][:-1])
            assert np.array_equal(rows.reward, np.r_[one["reward"][:-1], np.float32(0)])
            assert rows.terminated.nonzero()[0].tolist() == ([n - 2] if number == 0 else [])
            assert rows.truncated.nonzero()[0].tolist() == ([n - 2] if number == 2 else [])
            last = Flag.CONTEXT | Flag.CUT if number == 3 else Flag.BORDER
            assert rows.flags.tolist() == [Flag.FIRST, *[0] * (n - 2), last]
            at += n


@pytest.mark.parametrize(
    "harm", ["flip", "short", "lengths", "gone", "json", "size", "middle", "shape"]
)
def test_damaged_rlds_is_refused(harm, tmp_path):
    rlds(tmp_path / "data")
    file = tmp_path / "data" / "arms-train.tfrecord-00001-of-00002"
    data = bytearray(file.read_bytes())
    if harm == "flip":
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
    elif harm == "short":
        file.write_bytes(data[:-5])
    elif harm == "gone":
        file.unlink()
    elif harm == "shape":
        features = tmp_path / "data" / "features.json"
        text = re.sub(r'"dimensions": \[[^]]*\]', '"dimensions": []', features.read_text())
        assert text != features.read_text()
        features.write_text(text)
    elif harm in ("lengths", "json"):
        info = tmp_path / "data" / "dataset_info.json"
        text = info.read_text().replace('"2"', '"3"') if harm == "lengths" else "{}"
        info.write_text(text)
    else:
        lists = {"steps/is_last": np.array([0, 0, 1]), "steps/is_terminal": np.array([0, 1, 0])}
        one = RecordFile(file)
        whole = decode_example(one.read(one.places[0]))
        if harm == "middle":
            whole["steps/is_terminal"] = np.array([0, 1, 0, 0, 0])
        else:
            whole["steps/action"] = whole["steps/action"][:-1]
        with file.open("wb") as out:
            write_record(out, encode_example(whole))
            write_record(out, encode_example(lists))
    with pytest.raises((BadState, BadConfig)):
        import_lake("rlds", tmp_path / "data", tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


def test_rlds_that_a_lake_cannot_hold_is_refused(tmp_path):
    deep = {"featuresDict": {"features": {"arm": tensor("float32", 2)}}}
    for number, (change, match) in enumerate(
        [
            ({"action": deep}, "'action' of steps is a dict"),
            ({"observation": {"pythonClassName": "a.Text", "text": {}}}, "of kind Text"),
        ]
    ):
        rlds(tmp_path / f"{number}", STEP | change)
        with pytest.raises(BadConfig, match=match):
            import_lake("rlds", tmp_path / f"{number}", tmp_path / "lake")
    without = {name: one for name, one in STEP.items() if name not in ("reward", "language")}
    rlds(tmp_path / "none", without)
    moved = import_lake("rlds", tmp_path / "none", tmp_path / "lake")
    assert "the data has no rewards; all become 0" in moved.losses
    with pytest.raises(BadConfig, match="an RLDS dataset"):
        import_lake("rlds", tmp_path, tmp_path / "other")


# --- LeRobot -------------------------------------------------------------------------------------


def lerobot(path: Path, **change) -> list[dict]:
    """A dataset of version 2.0 with images, two tasks and `next.done`."""
    rng, episodes = np.random.default_rng(0), []
    (path / "meta").mkdir(parents=True)
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": ["x", "y"]},
        "observation.images.top": {"dtype": "image", "shape": [4, 5, 3], "names": None},
        "action": {"dtype": "float32", "shape": [1], "names": None},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "next.success": {"dtype": "bool", "shape": [1], "names": None},
        "language": {"dtype": "string", "shape": [1], "names": None},
        "timestamp": {"dtype": "float32", "shape": [1], "names": None},
        **{
            name: {"dtype": "int64", "shape": [1], "names": None}
            for name in ("frame_index", "episode_index", "index", "task_index")
        },
    }
    for number, n in enumerate((3, 1, 4)):
        one = {
            "state": rng.normal(size=(n, 2)).astype(np.float32),
            "top": rng.integers(0, 256, (n, 4, 5, 3), np.uint8),
            "action": rng.normal(size=n).astype(np.float32),
            "reward": rng.normal(size=n).astype(np.float32),
            "done": (np.arange(n) == n - 1) & (number != 2),
            "success": rng.random(n) < 0.5,
            "task": np.full(n, number % 2),
        }
        episodes.append(one)
        images = [{"bytes": png(pixels), "path": None} for pixels in one["top"]]
        table = {
            "observation.state": list(one["state"]),
            "observation.images.top": images,
            "action": [[float(a)] for a in one["action"]],
            "next.reward": one["reward"],
            "next.done": one["done"],
            "next.success": one["success"],
            "language": ["go"] * n,
            "timestamp": (np.arange(n) / 10).astype(np.float32),
            "frame_index": np.arange(n),
            "episode_index": np.full(n, number),
            "index": np.arange(n),
            "task_index": one["task"],
        }
        file = path / "data" / f"chunk-00{number // 2}" / f"episode_00000{number}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        pyarrow.parquet.write_table(pyarrow.table(table), file)
    info = {"codebase_version": "v2.0", "robot_type": "arm", "fps": 10, "chunks_size": 2}
    info |= {"features": features | change.pop("features", {})} | change
    lines = {
        "tasks": [{"task_index": i, "task": name} for i, name in enumerate(("pick", "place"))],
        "episodes": [
            {"episode_index": i, "tasks": [], "length": len(one["reward"])}
            for i, one in enumerate(episodes)
        ],
    }
    (path / "meta" / "info.json").write_text(json.dumps(info))
    for name, values in lines.items():
        text = "".join(json.dumps(value) + "\n" for value in values)
        (path / "meta" / f"{name}.jsonl").write_text(text)
    return episodes


def test_a_dataset_of_lerobot_becomes_a_lake_and_goes_back(tmp_path):
    episodes = lerobot(tmp_path / "data")
    moved = import_lake("lerobot", tmp_path / "data", tmp_path / "lake")
    text = "; ".join(moved.losses)
    for loss in (
        "'next.done' is taken as terminated",
        "'language': string",
        "the observation after an episode's end",
        "timestamps of frames",
    ):
        assert loss in text
    lake, at = Lake.open(tmp_path / "lake"), 0
    assert lake.spec.action.shape == (1,)
    for number, one in enumerate(episodes):
        n = len(one["reward"])
        over = number != 2
        rows = lake.read(0, at, at + n + over)
        at += n + over
        assert np.array_equal(rows.obs["state"][:n], one["state"])
        assert np.array_equal(rows.obs["images"]["top"][:n], one["top"])
        assert np.array_equal(rows.action[:n, 0], one["action"])
        assert np.array_equal(rows.reward[:n], one["reward"])
        assert np.array_equal(rows.extras["next.success"][:n], one["success"])
        assert np.array_equal(rows.extras["task_index"][:n], one["task"])
        assert rows.terminated.nonzero()[0].tolist() == ([n - 1] if over else [])
        flags = np.zeros(n + over, int)
        flags[0] = Flag.FIRST
        flags[-1] |= Flag.BORDER if over else Flag.CUT
        assert rows.flags.tolist() == flags.tolist()
    assert at == lake.streams[0].stop
    export_lake("lerobot", tmp_path / "lake", tmp_path / "back")
    info = json.loads((tmp_path / "back" / "meta" / "info.json").read_text())
    assert (info["fps"], info["robot_type"], info["total_tasks"]) == (10, "arm", 2)
    assert (info["total_episodes"], info["total_frames"]) == (3, 8)
    told = (tmp_path / "back" / "meta" / "episodes.jsonl").read_text().splitlines()
    assert [json.loads(line)["tasks"] for line in told] == [["pick"], ["place"], ["pick"]]
    file = tmp_path / "back" / "data" / "chunk-000" / "episode_000002.parquet"
    table = pyarrow.parquet.read_table(file)
    assert np.array_equal(np.array(table["observation.state"].to_pylist()), episodes[2]["state"])
    assert table["next.reward"].to_numpy().tolist() == episodes[2]["reward"].tolist()
    stats = (tmp_path / "back" / "meta" / "episodes_stats.jsonl").read_text().splitlines()
    mean = json.loads(stats[0])["stats"]["action"]["mean"]
    assert mean == pytest.approx([episodes[0]["action"].mean()])
    import_lake("lerobot", tmp_path / "back", tmp_path / "again")
    one, other = transitions(lake), transitions(Lake.open(tmp_path / "again"))
    assert one == other


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"codebase_version": "v3.0"}, "only version 2 is supported"),
        ({"features": {"observation.v": {"dtype": "video", "shape": [4, 5, 3]}}}, "is a video"),
        ({"data_path": "../{episode_index}.parquet"}, "outside the dataset's folder"),
        ({"features": {"observation.state": {"dtype": "string", "shape": [1]}}}, "holds numbers"),
        ({"features": {"observation.state": {"dtype": "float32", "shape": [3]}}}, "reshape"),
    ],
)
def test_lerobot_that_cannot_be_read_is_refused(change, match, tmp_path):
    lerobot(tmp_path / "data", **change)
    with pytest.raises((BadConfig, BadState), match=match):
        import_lake("lerobot", tmp_path / "data", tmp_path / "lake")
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("harm", ["gone", "short", "frames"])
def test_damaged_lerobot_is_refused(harm, tmp_path):
    lerobot(tmp_path / "data")
    file = tmp_path / "data" / "data" / "chunk-000" / "episode_000001.parquet"
    if harm == "gone":
        file.unlink()
    elif harm == "short":
        file.write_bytes(file.read_bytes()[:200])
    else:
        lines = tmp_path / "data" / "meta" / "episodes.jsonl"
        lines.write_text(lines.read_text().replace('"length": 1', '"length": 2'))
    with pytest.raises(BadState, match="cannot be read"):
        import_lake("lerobot", tmp_path / "data", tmp_path / "lake")
