"""RLDS: episodes of steps in TFRecord files, in the layout of TensorFlow Datasets.

dataset_info.json                      splits, their files, and the episodes in each
features.json                          the features of a step
NAME-SPLIT.tfrecord-00000-of-00001     an episode per record, as a tf.train.Example

The last step of an episode holds only the last observation, without action or reward. So an episode
of T + 1 steps in RLDS is one of T steps here.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..rows import Rows
from .columns import cut_rows, fields_of
from .episodes import Episode, Episodes, per_observation, rows_of
from .exporting import LakeRows
from .importing import Progress
from .rlds_features import CORE, MARKS, OWN, Feature, Steps, feature_of, json_of, obs_features
from .source import StreamInfo, damaged, no_source
from .tf_example import Values, decode_example, encode_example, entries_of, length_of
from .tfrecord import RecordFile, RecordPlace, write_record

_FILE = "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}"
_SHARD_BYTES = 256 << 20


@contextlib.contextmanager
def _reading(path: Path) -> Generator[None]:
    """Turn whatever is raised for a bad file into one error."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, zlib.error, OSError) as error:
        if isinstance(error, BadConfig):
            raise
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def open_source(path: Path) -> RldsSource:
    """Open the folder of one version of a dataset."""
    if not all((path / name).is_file() for name in ("dataset_info.json", "features.json")):
        raise no_source(path, "an RLDS dataset, with dataset_info.json and features.json")
    with _reading(path):
        about = json.loads((path / "features.json").read_text(encoding="utf-8"))
        top = about["featuresDict"]["features"]
        steps = Steps(top["steps"]["sequence"]["feature"]["featuresDict"]["features"])
        info = json.loads((path / "dataset_info.json").read_text(encoding="utf-8"))
        if (form := info.get("fileFormat", "tfrecord")) != "tfrecord":
            raise BadConfig(f"{path} stores its episodes as {form}; convert it to tfrecord first")
        steps.losses += [f"'{name}' of episodes" for name in top if name != "steps"]
        splits = [_Split(path, info["name"], split, steps) for split in info["splits"]]
    return RldsSource(steps, splits, {"name": info["name"]})


class _Split:
    """The episodes of a split."""

    def __init__(self, folder: Path, name: str, about: Mapping[str, Any], steps: Steps) -> None:
        lengths = [int(number) for number in about["shardLengths"]]
        self._episodes: list[tuple[RecordFile, RecordPlace, Path]] = []
        sizes: list[int] = []
        count = f"steps/{min(steps.marks, default='reward')}"  # a feature with one number per step
        for index, number in enumerate(lengths):
            path = folder / _file_name(name, about, index, len(lengths))
            file = RecordFile(path)
            if len(file.places) != number:
                raise damaged(path, f"{len(file.places)} episodes, dataset_info.json says {number}")
            for place in file.places:
                self._episodes.append((file, place, path))
                with _reading(path):
                    sizes.append(length_of(dict(entries_of(file.peek(place)))[count]))
        self.steps = np.array(sizes, np.int64)
        self.alone = int((self.steps == 1).sum())
        self.ends = np.cumsum(np.where(self.steps > 1, self.steps, 0))
        self.rows = int(self.ends[-1]) if sizes else 0

    def examples(self, start: int) -> Iterator[tuple[Path, dict[str, Values], int, int]]:
        """Episodes from row `start` on: the file, features, number of steps, and rows to skip."""
        first = int(np.searchsorted(self.ends, start, side="right"))
        for index in range(first, len(self._episodes)):
            steps = int(self.steps[index])
            if steps > 1:
                file, place, path = self._episodes[index]
                skip = max(0, start - int(self.ends[index]) + steps)
                with _reading(path):
                    lists = decode_example(file.read(place))
                yield path, lists, steps, skip


def _file_name(name: str, about: Mapping[str, Any], index: int, number: int) -> str:
    values = {
        "DATASET": name,
        "SPLIT": about["name"],
        "FILEFORMAT": "tfrecord",
        "SHARD_INDEX": f"{index:05d}",
        "NUM_SHARDS": f"{number:05d}",
        "SHARD_X_OF_Y": f"{index:05d}-of-{number:05d}",
    }
    found = str(about.get("filepathTemplate") or _FILE)
    for key, value in values.items():
        found = found.replace(f"{{{key}}}", value)
    if "/" in found:
        raise ValueError(f"a file '{found}' outside the dataset's folder")
    return found


class RldsSource:
    """All episodes, with a stream per split, in the group `rlds`."""

    def __init__(self, steps: Steps, splits: list[_Split], about: dict[str, Any]) -> None:
        self._steps, self._splits = steps, splits
        self.spec, self.about = steps.spec, {"rlds": about}
        there = [split for split in splits if split.rows]
        self._there = there
        self.streams = [StreamInfo("rlds", env, one.rows) for env, one in enumerate(there)]
        self.losses = [*steps.losses]
        if "discount" in steps.marks:
            self.losses.append("discounts, since samples from a Lake compute their own")
        reward = steps.columns.get("reward")
        if reward and reward.dtype != np.float32:
            self.losses.append(f"rewards are {reward.dtype}; rounded to float32")
        self._counts = [Counter[str]() for _ in there]

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        if not start:
            self._counts[stream].clear()
        for path, lists, steps, skip in self._there[stream].examples(start):
            with _reading(path):
                episode = self._episode(lists, steps, self._counts[stream])
                rows = cut_rows(rows_of(self.spec, episode), skip)
            yield rows

    def _episode(self, lists: Mapping[str, Values], steps: int, counts: Counter[str]) -> Episode:
        columns = {
            path: one.decode(lists[self._steps.names[path]], steps)
            for path, one in self._steps.columns.items()
        }
        last, over = (self._mark(lists, name, steps) for name in ("is_last", "is_terminal"))
        if (last | over)[:-1].any():
            raise ValueError(f"an episode that ends at step {(last | over).argmax()} of {steps}")
        reward = columns.get("reward", np.zeros(steps, np.float32))
        narrow = reward.astype(np.float32)
        counts["rewards changed by rounding"] += int(np.count_nonzero(narrow != reward))
        what = "episodes have a reward in their last step, which is left out"
        counts[what] += int(reward[-1] != 0)
        ended = bool(last[-1] | over[-1])
        counts["episodes have no end; the action of their last step is left out"] += not ended
        columns["reward"] = narrow
        columns["terminated"] = _at_last(steps, over[-1])
        columns["truncated"] = _at_last(steps, ended and not over[-1])
        return Episode(
            {
                p: value if per_observation(p) else value[: steps - 1]
                for p, value in columns.items()
            },
            steps - 1,
        )

    def _mark(self, lists: Mapping[str, Values], name: str, steps: int) -> np.ndarray:
        if name not in self._steps.marks:
            return np.zeros(steps, bool)
        found = np.asarray(lists[f"steps/{name}"])
        if found.shape != (steps,):
            raise ValueError(f"{found.shape} of '{name}' in {steps} steps")
        return found != 0

    def lost(self) -> list[str]:
        total = sum(self._counts, Counter[str]())
        found = [f"{number:,} {what}" for what, number in total.items() if number]
        if alone := sum(split.alone for split in self._splits):
            found.append(f"{alone:,} episodes have only one step and are left out")
        return found


def _at_last(steps: int, value: Any) -> np.ndarray:
    """bool[steps]: `value` at the last step with an action, the second to last; else False."""
    found = np.zeros(steps, bool)
    found[steps - 2] = value
    return found


class RldsPlan:
    """Writes a Lake's episodes as one split, `train`."""

    def __init__(self, rows: LakeRows) -> None:
        self._rows, self._episodes = rows, Episodes(rows, one_end=True)
        spec = rows.spec
        kept = [name for name in spec.extras if name not in OWN]
        tree: dict[str, Any] = {
            "observation": obs_features(spec.obs),
            "action": feature_of(spec.action),
            "reward": Feature(np.dtype(np.float32), (), "none"),
            "discount": Feature(np.dtype(np.float32), (), "none"),
            **{name: Feature(np.dtype(bool), (), "none") for name in MARKS[:3]},
            **{name: feature_of(fields_of(spec)[f"extras/{name}"]) for name in kept},
        }
        self._features = {name: json_of(one) for name, one in tree.items()}
        self._steps = Steps(self._features)
        self.spec = self._steps.spec
        self.losses = self._episodes.losses()
        if self._episodes.open:
            self.losses.append("episodes without an end become truncated")
        mine = spec.columns
        if changed := [p for p, f in self.spec.columns.items() if f != mine[p]]:
            self.losses.append(f"bounds of {', '.join(changed)}")
        if gone := [name for name in spec.extras if name not in self.spec.extras]:
            self.losses.append(f"extras {', '.join(gone)}, whose names have other meanings in RLDS")

    def write(self, part: Path, progress: Progress) -> None:
        name = (self._rows.about.get("rlds") or {}).get("name", "lake")
        lengths: list[int] = []
        size = done = total = 0
        file = None
        try:
            for episode in self._episodes:
                if file is None or size >= _SHARD_BYTES:
                    if file:
                        file.close()
                    file, size = (part / f"{len(lengths):05d}").open("xb"), 0
                    lengths.append(0)
                wrote = write_record(file, encode_example(self._lists(episode)))
                size, total = size + wrote, total + wrote
                lengths[-1] += 1
                done += episode.steps + 1
                progress("exporting", done, self._rows.total)
        finally:
            if file:
                file.close()
        split = {"name": "train", "filepathTemplate": _FILE, "numBytes": str(total)}
        split |= {"shardLengths": [str(number) for number in lengths]}
        for index in range(len(lengths)):
            final = _file_name(name, split, index, len(lengths))
            (part / f"{index:05d}").rename(part / final)
        steps = {"pythonClassName": f"{CORE}dataset_feature.Dataset"}
        inner = {"pythonClassName": f"{CORE}features_dict.FeaturesDict"}
        inner |= {"featuresDict": {"features": self._features}}
        steps |= {"sequence": {"feature": inner, "length": "-1"}}
        top = {"pythonClassName": inner["pythonClassName"]}
        top |= {"featuresDict": {"features": {"steps": steps}}}
        info = {"name": name, "version": "1.0.0", "fileFormat": "tfrecord"}
        info |= {"moduleName": "millpond", "releaseNotes": {"1.0.0": "a Lake"}}
        info |= {"description": "Rows of a millpond Lake.", "splits": [split]}
        for target, about in (("features.json", top), ("dataset_info.json", info)):
            (part / target).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")

    def _lists(self, episode: Episode) -> dict[str, Values]:
        columns, number = _closed(episode), episode.steps + 1
        marks = {
            "is_first": np.arange(number) == 0,
            "is_last": np.arange(number) == episode.steps,
            "is_terminal": np.append(np.zeros(episode.steps, bool), columns["terminated"][-1]),
            "discount": np.append(~columns["terminated"], True),
        }
        found: dict[str, Values] = {}
        for path, one in self._steps.columns.items():
            values = columns[path]
            if not per_observation(path):  # the last step has no action and no reward
                none = self.spec.action.lowest() if path == "action" else np.zeros((), "f4")
                values = np.concatenate([values, none[None].astype(values.dtype)])
            found[self._steps.names[path]] = one.encode(values)
        for name, values in marks.items():
            kind = np.float32 if name == "discount" else np.int64
            found[f"steps/{name}"] = values.astype(kind)
        return found

    def expected(self, stream: int) -> Iterator[Rows]:
        for episode in self._episodes:
            yield rows_of(self.spec, Episode(_closed(episode), episode.steps))


def _closed(episode: Episode) -> dict[str, np.ndarray]:
    """The columns of an episode; one without an end is marked as truncated."""
    columns = dict(episode.columns)
    if not (columns["terminated"][-1] or columns["truncated"][-1]):
        columns["truncated"] = columns["truncated"].copy()
        columns["truncated"][-1] = True
    return columns


def plan(rows: LakeRows) -> RldsPlan:
    """Plan an export."""
    return RldsPlan(rows)
