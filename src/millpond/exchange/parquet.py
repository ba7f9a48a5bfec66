"""Parquet: a folder per stream and a column per field, readable by any Parquet tool.

millpond-rows.json                       the Spec, and the streams
GROUP/ENV/00000000.parquet, ...          rows in order: obs or obs/KEY, action, reward, terminated,
                                         truncated, flags, extras/NAME

Small fields are lists; fields of 64 elements or more, such as images, are bytes in NumPy's layout.
Folders of this form that other tools wrote are read, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadConfig
from ..rows import Rows
from ..spec import Field, Spec
from .columns import cut_rows, fields_of, to_columns, to_rows
from .exporting import LakeRows
from .importing import Progress
from .source import StreamInfo, damaged, no_source, package

_MARK, _VERSION = "millpond_parquet", 1
_WIDE = 64  # elements from which on a field is stored as bytes
_FILE_ROWS = 1 << 18  # most rows in a file, roughly


def _arrow() -> tuple[Any, Any]:
    return package("pyarrow", "parquet"), package("pyarrow.parquet", "parquet")


def open_source(path: Path) -> ParquetSource:
    """Open a folder of the form that an export writes."""
    _arrow()
    if path.is_dir() and (path / "millpond-rows.json").exists():
        try:
            about = json.loads((path / "millpond-rows.json").read_text(encoding="utf-8"))
            if about[_MARK] != _VERSION:
                raise BadConfig(
                    f"{path} has version {about[_MARK]}, but this millpond reads version {_VERSION}"
                )
            spec = Spec.from_json(about["spec"])
            streams = [_stream(*one) for one in about["streams"]]
            origin = dict(about.get("origin") or {})
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, BadConfig):
                raise
            raise damaged(path / "millpond-rows.json", error) from error
        folders = [sorted(path.joinpath(*_place(one)).glob("*.parquet")) for one in streams]
        return ParquetSource(spec, streams, folders, origin)
    raise no_source(path, "a folder that millpond lake export wrote, with millpond-rows.json")


def _stream(group: Any, env: Any, rows: Any) -> StreamInfo:
    """A stream from its description; ValueError if that is invalid or names another folder."""
    if not isinstance(group, str) or Path(group).name != group:
        raise ValueError(f"a group named {group!r}")
    for number in (env, rows):
        if type(number) is not int or number < 0:
            raise ValueError(f"a stream with env {env!r} and {rows!r} rows")
    return StreamInfo(group, env, rows)


def _place(stream: StreamInfo) -> tuple[str, str]:
    return stream.group, f"{stream.env:05d}"


class ParquetSource:
    """Rows from Parquet files; only row ids are lost, they begin at 0."""

    def __init__(
        self,
        spec: Spec,
        streams: list[StreamInfo],
        files: list[list[Path]],
        about: dict[str, Any],
    ) -> None:
        self.spec, self.streams, self._files = spec, streams, files
        self.about = {name: value for name, value in about.items() if name != "format"}
        self.losses: list[str] = []

    def rows(self, stream: int, start: int) -> Iterator[Rows]:
        arrow, parquet = _arrow()
        at = 0
        for file in self._files[stream]:
            try:
                with parquet.ParquetFile(file) as table:
                    number = table.metadata.num_rows
                    if at + number <= start:
                        at += number
                        continue
                    for batch in table.iter_batches(batch_size=2048):
                        rows = to_rows(self.spec, _decoded(self.spec, batch))
                        skip = min(max(start - at, 0), batch.num_rows)
                        at += batch.num_rows
                        if skip < batch.num_rows:
                            yield cut_rows(rows, skip)
            except (arrow.ArrowException, KeyError, OSError, ValueError) as error:
                raise damaged(file, error) from error

    def lost(self) -> list[str]:
        return []


class ParquetPlan:
    """Writes every row unchanged."""

    def __init__(self, rows: LakeRows) -> None:
        self._rows, self.spec = rows, rows.spec
        self.losses: list[str] = []

    def write(self, part: Path, progress: Progress) -> None:
        done = 0
        for number, stream in enumerate(self._rows.streams):
            folder = part.joinpath(*_place(stream))
            folder.mkdir(parents=True)
            for rows in _Files(folder, self.spec).write(self._rows.rows(number)):
                done += rows
                progress("exporting", done, self._rows.total)
        about = {
            _MARK: _VERSION,
            "spec": self.spec.to_json(),
            "streams": [list(stream) for stream in self._rows.streams],
            "origin": self._rows.about,
        }
        (part / "millpond-rows.json").write_text(
            json.dumps(about, indent=1) + "\n", encoding="utf-8"
        )

    def expected(self, stream: int) -> Iterator[Rows]:
        return self._rows.rows(stream)


def plan(rows: LakeRows) -> ParquetPlan:
    """Plan an export."""
    _arrow()
    return ParquetPlan(rows)


class _Files:
    """Writes the files of one stream."""

    def __init__(self, folder: Path, spec: Spec) -> None:
        self._folder, self._spec = folder, spec

    def write(self, pieces: Iterator[Rows]) -> Iterator[int]:
        """Write all pieces; yields the number of rows of each."""
        arrow, parquet = _arrow()
        schema = _schema(arrow, self._spec)
        file, held, number = None, 0, 0
        try:
            for rows in pieces:
                if file is None or held >= _FILE_ROWS:
                    if file is not None:
                        file.close()
                    path = self._folder / f"{number:08d}.parquet"
                    file = parquet.ParquetWriter(path, schema, compression="zstd")
                    held, number = 0, number + 1
                columns = to_columns(self._spec, rows)
                fields = fields_of(self._spec)
                arrays = [_encoded(arrow, fields[path], columns[path]) for path in schema.names]
                file.write_batch(arrow.record_batch(arrays, schema=schema))
                held += len(rows.flags)
                yield len(rows.flags)
        finally:
            if file is not None:
                file.close()


def _schema(arrow: Any, spec: Spec) -> Any:
    def kind(field: Field) -> Any:
        if not field.shape:
            return arrow.from_numpy_dtype(field.dtype)
        if field.size >= _WIDE:
            return arrow.binary(field.size * field.dtype.itemsize)
        return arrow.list_(arrow.from_numpy_dtype(field.dtype), field.size)

    told = {path: json.dumps(field.to_json()) for path, field in fields_of(spec).items()}
    return arrow.schema(
        [
            arrow.field(path, kind(field), nullable=False, metadata={"millpond": told[path]})
            for path, field in fields_of(spec).items()
        ]
    )


def _encoded(arrow: Any, field: Field, values: np.ndarray) -> Any:
    """Values [time, *shape] as an Arrow array."""
    if not field.shape:
        return arrow.array(values)
    if field.size >= _WIDE:
        data = np.ascontiguousarray(values)
        kind = arrow.binary(field.size * field.dtype.itemsize)
        return arrow.Array.from_buffers(kind, len(values), [None, arrow.py_buffer(data)])
    flat = arrow.array(np.ascontiguousarray(values).reshape(-1))
    return arrow.FixedSizeListArray.from_arrays(flat, field.size)


def _decoded(spec: Spec, batch: Any) -> dict[str, np.ndarray]:
    """The columns of an Arrow record batch."""
    fields = fields_of(spec)
    return {path: decode(field, batch.column(path)) for path, field in fields.items()}


def decode(field: Field, column: Any) -> np.ndarray:
    """An Arrow column as [time, *shape]; an error if it does not fit the field."""
    if column.null_count:
        raise BadConfig(f"a column has {column.null_count} missing values; fill them or drop rows")
    if not field.shape:
        return column.to_numpy(zero_copy_only=False).astype(field.dtype, copy=False)
    if field.size >= _WIDE and column.type.byte_width == field.size * field.dtype.itemsize:
        data = column.buffers()[1]
        width, start = field.size * field.dtype.itemsize, column.offset
        flat = np.frombuffer(data, np.uint8)[start * width : (start + len(column)) * width]
        return flat.view(field.dtype).reshape(len(column), *field.shape)
    values = column.flatten().to_numpy(zero_copy_only=False)
    return values.astype(field.dtype, copy=False).reshape(len(column), *field.shape)
