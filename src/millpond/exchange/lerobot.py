"""LeRobot's format, version 2: a Parquet file per episode, with JSON metadata.

meta/info.json                                 the features of a frame
meta/episodes.jsonl, tasks.jsonl               lengths of episodes, descriptions of tasks
meta/episodes_stats.jsonl                      min, max, mean and std per episode
data/chunk-000/episode_000000.parquet          a frame per row

There is no observation after an episode's last frame. A terminated episode needs none; other
episodes are followed by a cut.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..rows import CUT, FIRST, Rows
from ..spec import Field, Spec, walk
from .columns import border_like, cut_rows, fields_of, to_rows
from .episodes import Episodes
from .exporting import LakeRows
from .importing import Progress
from .lerobot_frames import COUNTS, NO_LAST, OWN, Frames, json_of
from .pictures import decode_picture
from .source import StreamInfo, damaged, no_source, package

_DATA = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
_CHUNK = 1000
_SUMMED = 1024  # most elements of a feature with statistics


@contextlib.contextmanager
def _reading(path: Path) -> Generator[None]:
    """Turn whatever is raised for a bad file into one error."""
    arrow = package("pyarrow", "lerobot")
    try:
        yield
    except (arrow.ArrowException, ValueError, KeyError, TypeError, OSError) as error:
        if isinstance(error, BadConfig):
            raise
        raise damaged(path, f"{type(error).__name__}: {error}") from error


def open_source(path: Path) -> LerobotSource:
    """Open the folder of a dataset."""
    if not (path / "meta" / "info.json").is_file():
        raise no_source(path, "a LeRobot dataset, with meta/info.json")
    with _reading(path / "meta"):
        info = json.loads((path / "meta" / "info.json").read_text(encoding="utf-8"))
        if not str(info["codebase_version"]).startswith("v2"):
            raise BadConfig(
                f"{path} has LeRobot's version {info['codebase_version']}, but only version 2 is "
                "supported; convert it with LeRobot's own tools first"
            )
        tasks = [one["task"] for one in _lines(path, "tasks")]
        episodes = sorted((one["episode_index"], one["length"]) for one in _lines(path, "episodes"))
        return LerobotSource(path, info, Frames(info["features"], len(tasks)), tasks, episodes)


def _lines(path: Path, name: str) -> list[dict[str, Any]]:
    text = (path / "meta" / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines() if line.strip()]


class LerobotSource:
    """All episodes, in one stream of the group `lerobot`."""

    def __init__(
        self,
        path: Path,
        info: Mapping[str, Any],
        frames: Frames,
        tasks: list[str],
        episodes: list[tuple[int, int]],
    ) -> None:
        self._frames, self.spec, self.losses = frames, frames.spec, [*frames.losses]
        self.about = {"lerobot": {name: info.get(name) for name in ("fps", "robot_type")}}
        self.about["lerobot"]["tasks"] = tasks
        episodes = [one for one in episodes if one[1] > 0]
        self._files = [_file_of(path, info, number) for number, _ in episodes]
        self._frames_of = np.array([length for _, length in episodes], np.int64)
        rows = self._frames_of.copy()
        if frames.over:  # a terminated episode gets a border row
            for index, file in enumerate(self._files):
                rows[index] += bool(self._table(file, index, [frames.over])[frames.over][-1])
        self._ends = np.cumsum(rows)
        self._sizes = rows
        self.streams = [StreamInfo("lerobot", 0, int(rows.sum()))]

    def _table(self, file: Path, index: int, names: list[str]) -> dict[str, np.ndarray]:
        """Columns of one episode: flat numbers, or encoded images."""
        with _reading(file):
            table = package("pyarrow.parquet", "lerobot").read_table(file, columns=names)
            if table.num_rows != self._frames_of[index]:
                raise ValueError(f"{table.num_rows} frames, but meta says {self._frames_of[index]}")
            return {name: _flat(table.column(name)) for name in names}

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        first = int(np.searchsorted(self._ends, start, side="right"))
        for index in range(first, len(self._files)):
            skip = max(0, start - int(self._ends[index] - self._sizes[index]))
            file = self._files[index]
            with _reading(file):
                yield cut_rows(_rows_of(self.spec, self._columns(file, index)), skip)

    def _columns(self, file: Path, index: int) -> dict[str, np.ndarray]:
        frames, number = self._frames, int(self._frames_of[index])
        marks = [name for name in (frames.over, frames.reward) if name]
        marks += [frames.done] * bool(frames.over and frames.done != frames.over)
        found = self._table(file, index, [*frames.names.values(), *marks])
        fields, columns = fields_of(self.spec), dict[str, np.ndarray]()
        for path, name in frames.names.items():
            field, values = fields[path], found[name]
            if path in frames.pictures:
                values = np.stack(
                    [decode_picture(one["bytes"], field.shape, "lerobot") for one in values]
                )
            if values.size and not field.accepts(values.dtype):
                raise ValueError(f"'{name}' is {values.dtype}, expected {field.dtype}")
            columns[path] = values.astype(field.dtype).reshape(number, *field.shape)
        none = np.zeros(number)
        columns["reward"] = np.asarray(found.get(frames.reward or "", none), np.float32)
        over = np.asarray(found.get(frames.over or "", none), bool)
        done = np.asarray(found.get(frames.done, over), bool)
        if (over | done)[:-1].any():
            raise ValueError(f"an episode that ends at frame {(over | done).argmax()} of {number}")
        return columns | {"terminated": over, "truncated": done & ~over}

    def lost(self) -> list[str]:
        return []


def _file_of(path: Path, info: Mapping[str, Any], number: int) -> Path:
    chunk = number // int(info.get("chunks_size") or _CHUNK)
    name = str(info.get("data_path") or _DATA)
    file = path / name.format(episode_chunk=chunk, episode_index=number)
    if not file.resolve().is_relative_to(path.resolve()):
        raise ValueError(f"a file '{file}' outside the dataset's folder")
    return file


def _flat(column: Any) -> np.ndarray:
    """A column's numbers, with nested lists flattened; or encoded images."""
    if column.null_count:
        raise ValueError(f"{column.null_count} missing values")
    column = column.combine_chunks()
    if str(column.type).startswith("struct"):
        found = np.empty(len(column), object)
        found[:] = column.to_pylist()
        return found
    while "list" in str(column.type).partition("<")[0]:
        column = column.flatten()
    return column.to_numpy(zero_copy_only=False)


def _rows_of(spec: Spec, columns: Mapping[str, np.ndarray]) -> Rows:
    """The frames [time] of an episode as rows, with a border row if it terminated, else a cut."""
    columns = dict(columns)
    flags = np.zeros(len(columns["reward"]), np.uint8)
    flags[0] = FIRST
    obs = {path: columns[path][-1:] for path, _ in walk(spec.obs, "obs")}
    if columns["terminated"][-1]:
        border = border_like(spec, obs)
        columns = {path: np.concatenate([one, border[path]]) for path, one in columns.items()}
        flags = np.append(flags, border["flags"])
    else:
        flags[-1] |= CUT
    return to_rows(spec, columns | {"flags": flags})


class LerobotPlan:
    """Writes a Lake's episodes, one file each."""

    def __init__(self, rows: LakeRows) -> None:
        self._rows, self._episodes = rows, Episodes(rows, whole=True, one_end=True)
        spec, about = rows.spec, rows.about.get("lerobot") or {}
        self._fps, self._robot = about.get("fps") or 1, about.get("robot_type")
        self._tasks: list[str] = [str(one) for one in about.get("tasks") or ["play"]]
        kept = {name: f"extras/{name}" for name in spec.extras if name not in (*COUNTS, *OWN)}
        alone = isinstance(spec.obs, Field)
        self._paths = (
            {  # by feature
                "observation.state" if alone else f"observation{path[3:].replace('/', '.')}": path
                for path, _ in walk(spec.obs, "obs")
            }
            | {"action": "action"}
        )
        self._paths |= {n: p for n, p in kept.items() if not n.startswith("observation.")}
        fields = fields_of(spec)
        features = {name: json_of(fields[path]) for name, path in self._paths.items()}
        features |= {"next.reward": json_of(Field("float32"))}
        features |= {name: json_of(Field("bool")) for name in ("next.done", "next.terminated")}
        features |= {"timestamp": json_of(Field("float32"))}
        features |= {name: json_of(Field("int64")) for name in COUNTS[1:]}
        self._features = features
        self._task = "extras/task_index" if len(self._tasks) > 1 else ""
        if self._task not in fields:
            self._task, self._tasks = "", self._tasks[:1]
        frames = Frames(features, len(self._tasks))
        self.spec = frames.spec
        self._back = {path: self._paths.get(name, "") for path, name in frames.names.items()}
        self.losses = [*self._episodes.losses(), NO_LAST]
        if not about.get("fps"):
            self.losses.append("timestamps: one frame per second is assumed")
        self.losses += self._changed(spec)

    def _changed(self, spec: Spec) -> list[str]:
        """Descriptions of the columns that read back differently."""
        mine, theirs, found = fields_of(spec), fields_of(self.spec), list[str]()
        pairs = [(mine[old], theirs[new], old) for new, old in self._back.items() if old]
        if shaped := [old for one, other, old in pairs if one.shape != other.shape]:
            found.append(f"that {', '.join(shaped)} are single numbers; they become lists of one")
        if bounds := [p for a, b, p in pairs if a.shape == b.shape and a != b]:
            found.append(f"bounds of {', '.join(bounds)}")
        if gone := [name for name in spec.extras if name not in self.spec.extras]:
            found.append(f"extras {', '.join(gone)}, whose names have other meanings in LeRobot")
        return found

    def write(self, part: Path, progress: Progress) -> None:
        arrow, parquet = package("pyarrow", "lerobot"), package("pyarrow.parquet", "lerobot")
        (part / "meta").mkdir()
        number = index = done = 0
        with contextlib.ExitStack() as files:
            listed, stats = (
                files.enter_context((part / "meta" / f"{name}.jsonl").open("x", encoding="utf-8"))
                for name in ("episodes", "episodes_stats")
            )
            for number, episode in enumerate(self._episodes):
                found = self._table(episode.columns, episode.steps, number, index)
                file = part / _DATA.format(episode_chunk=number // _CHUNK, episode_index=number)
                file.parent.mkdir(parents=True, exist_ok=True)
                arrays = {name: _listed(arrow, values) for name, values in found.items()}
                parquet.write_table(arrow.table(arrays), file, compression="zstd")
                task = self._tasks[int(found["task_index"][0])]
                one = {"episode_index": number, "tasks": [task], "length": episode.steps}
                listed.write(json.dumps(one) + "\n")
                one = {"episode_index": number, "stats": _summed(found)}
                stats.write(json.dumps(one) + "\n")
                index, done = index + episode.steps, done + episode.steps + 1
                progress("exporting", done, self._rows.total)
        episodes = number + 1 if index else 0
        tasks = [{"task_index": i, "task": task} for i, task in enumerate(self._tasks)]
        (part / "meta" / "tasks.jsonl").write_text(
            "".join(json.dumps(one) + "\n" for one in tasks), encoding="utf-8"
        )
        info = {
            "codebase_version": "v2.1",
            "robot_type": self._robot,
            "total_episodes": episodes,
            "total_frames": index,
            "total_tasks": len(tasks),
            "total_videos": 0,
            "total_chunks": -(-episodes // _CHUNK),
            "chunks_size": _CHUNK,
            "fps": self._fps,
            "splits": {"train": f"0:{episodes}"},
            "data_path": _DATA,
            "video_path": None,
            "features": self._features,
        }
        (part / "meta" / "info.json").write_text(json.dumps(info, indent=4), encoding="utf-8")

    def _table(
        self, columns: Mapping[str, np.ndarray], steps: int, number: int, index: int
    ) -> dict[str, np.ndarray]:
        """The frames of an episode, by feature."""
        over = columns["terminated"]
        found = {name: columns[path][:steps] for name, path in self._paths.items()}
        found |= {"next.reward": columns["reward"], "next.done": over | columns["truncated"]}
        found |= {"next.terminated": over}
        count, whole = np.arange(steps), np.ones(steps, np.int64)
        found |= {"timestamp": (count / self._fps).astype(np.float32), "frame_index": count}
        found |= {"episode_index": whole * number, "index": index + count}
        task = columns[self._task][:steps] if self._task else whole * 0
        return found | {"task_index": task.astype(np.int64)}

    def expected(self, stream: int) -> Iterator[Rows]:
        fields = fields_of(self.spec)
        for episode in self._episodes:
            columns = {
                path: episode.columns[self._back[path] or self._task][: episode.steps]
                for path in self._back
            }
            columns |= {p: episode.columns[p] for p in ("reward", "terminated", "truncated")}
            shaped = {
                path: value.reshape(episode.steps, *fields[path].shape)
                for path, value in columns.items()
            }
            yield _rows_of(self.spec, shaped)


def _listed(arrow: Any, values: np.ndarray) -> Any:
    """Values [time, *shape] as nested Arrow lists, or as plain numbers."""
    found = arrow.array(np.ascontiguousarray(values).reshape(-1))
    shape = () if values.shape[1:] == (1,) else values.shape[1:]
    for size in reversed(shape):
        found = arrow.FixedSizeListArray.from_arrays(found, size)
    return found


def _summed(found: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Statistics of each feature over an episode."""
    told: dict[str, Any] = {}
    for name, values in found.items():
        flat = values.reshape(len(values), *(values.shape[1:] or (1,)))
        if flat[0].size > _SUMMED:
            continue
        wide = flat.astype(np.float64)
        parts = {"min": flat.min(0), "max": flat.max(0), "mean": wide.mean(0), "std": wide.std(0)}
        told[name] = {part: value.tolist() for part, value in parts.items()}
        told[name]["count"] = [len(values)]
    return told


def plan(rows: LakeRows) -> LerobotPlan:
    """Plan an export."""
    package("pyarrow.parquet", "lerobot")
    return LerobotPlan(rows)
