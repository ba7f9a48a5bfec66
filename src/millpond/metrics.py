"""`Metrics`: one JSON line per event, with its env steps and frames, also sent to trackers.

The file is the source of truth. Nothing in it depends on the clock, so a resumed run writes the
same lines; speed is logged in a separate file next to it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import time
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from .errors import BadConfig, RunFailed
from .extras import import_extra


class Sink(Protocol):
    """A tracker to send numbers to, with env steps as the x axis."""

    def log(self, steps: int, values: Mapping[str, float]) -> None:
        """Record values by name at this number of env steps."""
        ...

    def close(self) -> None:
        """Send whatever is still buffered."""
        ...


class Metrics:
    """Appends lines to a `.jsonl` file and passes their numbers on to the sinks.

    `metrics.write("train", steps, frames, {"return": 12.5})`. NaN and infinities become null.
    """

    def __init__(self, path: Path, sinks: list[Sink] | None = None) -> None:
        self.path, self.sinks = path, sinks or []
        with self._translated_errors():
            self._file = open(path, "ab")  # noqa: SIM115 - open for as long as the run

    def write(self, kind: str, steps: int, frames: int, values: Mapping[str, Any]) -> None:
        """Write one line; it survives a kill once this returns, but not yet a power loss."""
        line = {"kind": kind, "steps": steps, "frames": frames, **_finite(values)}
        with self._translated_errors():
            self._file.write(json.dumps(line).encode() + b"\n")
            self._file.flush()
        numbers = {f"{kind}/{name}": value for name, value in values.items() if _is_number(value)}
        for sink in self.sinks:
            sink.log(steps, numbers)

    def position(self) -> int:
        """Sync, and return the bytes written so far: the position a checkpoint resumes from."""
        with self._translated_errors():
            self._file.flush()
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file and the sinks."""
        with contextlib.suppress(OSError):  # from a write that has failed and raised already
            self._file.close()
        for sink in self.sinks:
            sink.close()

    @contextlib.contextmanager
    def _translated_errors(self) -> Generator[None]:
        try:
            yield
        except OSError as error:
            raise RunFailed(
                f"could not write to {self.path}: {error.strerror}; what was saved before is "
                "untouched; free some disk space or make the folder writable, then resume"
            ) from error


def read_metrics(path: Path, kind: str | None = None) -> Iterator[dict[str, Any]]:
    """The lines of one kind, or all; an incomplete last line is skipped.

    `[line["return"] for line in read_metrics(run.metrics, "eval")]`.
    """
    if not path.exists():
        return
    with open(path, encoding="utf-8") as file:
        for text in file:
            if not text.endswith("\n"):
                return
            line = json.loads(text)
            if kind is None or line["kind"] == kind:
                yield line


def make_sink(name: str, folder: Path, title: str) -> Sink:
    """TensorBoard, Weights & Biases or MLflow, if their package is installed."""
    if name == "tensorboard":
        return TensorBoard(folder)
    if name == "wandb":
        return Wandb(folder, title)
    if name == "mlflow":
        return MLflow(folder, title)
    raise BadConfig(f"there is no tracker '{name}'; use tensorboard, wandb or mlflow")


class TensorBoard:
    """TensorBoard event files in the run's folder."""

    def __init__(self, folder: Path) -> None:
        self._writer = import_tracker("tensorboard").SummaryWriter(str(folder / "tensorboard"))

    def log(self, steps: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, steps)

    def close(self) -> None:
        self._writer.close()


class Wandb:
    """A run in Weights & Biases, with env steps as the x axis of every plot."""

    def __init__(self, folder: Path, title: str) -> None:
        wandb = import_tracker("wandb")
        project = os.environ.get("WANDB_PROJECT", "millpond")
        self._run: Any = wandb.init(project=project, name=title, dir=str(folder))
        self._run.define_metric("steps")
        self._run.define_metric("*", step_metric="steps")

    def log(self, steps: int, values: Mapping[str, float]) -> None:
        self._run.log({"steps": steps, **values})

    def close(self) -> None:
        self._run.finish()


class MLflow:
    """A run in MLflow, in the store named by MLFLOW_TRACKING_URI or in `mlflow.db` in `folder`.

    Numbers are sent in batches: a store writes a thousand about as fast as one.
    """

    def __init__(self, folder: Path, title: str) -> None:
        mlflow = import_tracker("mlflow")
        self._metric: Any = importlib.import_module("mlflow.entities").Metric
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.resolve()}/mlflow.db"
        self._client: Any = mlflow.MlflowClient(tracking_uri=uri)
        known = self._client.get_experiment_by_name("millpond")
        experiment = known.experiment_id if known else self._client.create_experiment("millpond")
        self._run: str = self._client.create_run(experiment, run_name=title).info.run_id
        self._waiting: list[Any] = []
        self._sent = time.monotonic()

    def log(self, steps: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        for name, value in values.items():
            plain = re.sub(r"[^\w\-./ ]", "_", name)  # MLflow refuses other characters
            self._waiting.append(self._metric(plain, float(value), now, steps))
        if len(self._waiting) >= _PACK or time.monotonic() - self._sent > _PACK_S:
            self._send()

    def _send(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_PACK])
            del self._waiting[:_PACK]
        self._sent = time.monotonic()

    def close(self) -> None:
        self._send()
        self._client.set_terminated(self._run)


_PACK, _PACK_S = 1000, 5.0  # numbers, seconds; MLflow accepts no more numbers per call


def import_tracker(name: str) -> Any:
    """The package behind a tracker; if it is missing, BadConfig says how to install it."""
    package = {"tensorboard": "tensorboardX"}.get(name, name)
    extra = "mlflow" if name == "mlflow" else "trackers"
    return import_extra(f"--track {name}", extra, package)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    def plain(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [plain(inner) for inner in value]
        if isinstance(value, float):
            return round(value, 9) if math.isfinite(value) else None
        return value

    return {name: plain(value) for name, value in values.items()}
