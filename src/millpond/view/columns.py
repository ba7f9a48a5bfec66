"""`MetricColumns`: the numbers of many lines as columns; 100,000 lines take a few megabytes."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import numpy as np

_NAN = float("nan")
_MOST = 400  # most columns, so that a run that keeps writing new names cannot fill the memory


class MetricColumns:
    """`MetricColumns()` keeps all numbers of all lines, `MetricColumns(names)` only these.

    A missing number is NaN. A list of numbers becomes three columns: `returns.mean`, `returns.low`
    and `returns.high`.
    """

    def __init__(self, names: tuple[str, ...] = ()) -> None:
        self._wanted = names
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    @property
    def names(self) -> list[str]:
        """The names of all columns, in order of appearance."""
        return list(self._columns)

    def add(self, line: dict[str, Any]) -> None:
        """Add one line."""
        self.extend([line])

    def extend(self, lines: list[dict[str, Any]]) -> None:
        """Add many lines, column by column, which is much faster than line by line."""
        for name in self._wanted or _names(lines):
            values = [line.get(name) for line in lines]
            kinds = set(map(type, values))
            if list in kinds:
                for part, column in zip(("mean", "low", "high"), _all_ends(values), strict=True):
                    self._put(f"{name}.{part}", column)
            else:
                if not kinds <= {int, float}:
                    values = [_number(value) for value in values]
                if name in self._columns or kinds & {int, float}:
                    self._put(name, values)
        self._length += len(lines)
        for column in self._columns.values():
            column.extend([_NAN] * (self._length - len(column)))

    def _put(self, name: str, values: Iterable[Any]) -> None:
        column = self._columns.get(name)
        if column is None and len(self._columns) >= _MOST:
            return
        if column is None:
            column = self._columns[name] = array("d", [_NAN]) * self._length
        column.extend(values)

    def of(self, name: str) -> np.ndarray:
        """A copy of one column; all NaN if no line had it."""
        found = self._columns.get(name)
        return np.full(self._length, _NAN) if found is None else np.array(found, np.float64)

    def last(self, name: str) -> float | None:
        """The newest value that is a number."""
        for value in reversed(self._columns.get(name, ())):
            if value == value:
                return value
        return None


def _names(lines: list[dict[str, Any]]) -> Iterable[str]:
    """All names in these lines; equal sets of names are looked at only once."""
    return dict.fromkeys(chain.from_iterable(dict.fromkeys(map(tuple, lines))))


def _number(value: Any) -> float:
    kind = type(value)
    return value if kind is float or kind is int else _NAN


def _all_ends(values: list[Any]) -> Sequence[Iterable[float]]:
    """The means, minima and maxima of many lists."""
    plain = (
        set(map(type, values)) == {list}
        and len(widths := set(map(len, values))) == 1
        and 0 not in widths
        and set(map(type, chain.from_iterable(values))) <= {int, float}
    )
    if plain:
        table = np.array(values, np.float64)
        return table.mean(1), table.min(1), table.max(1)
    return tuple(zip(*map(_ends, values), strict=True))


def _ends(value: Any) -> tuple[float, float, float]:
    """The mean, minimum and maximum of the numbers in a nested list."""
    if not isinstance(value, list):
        return _NAN, _NAN, _NAN
    numbers = value if set(map(type, value)) <= {int, float} else list(_numbers(value))
    if not numbers:
        return _NAN, _NAN, _NAN
    return sum(numbers) / len(numbers), min(numbers), max(numbers)


def _numbers(value: list[Any]) -> Any:
    for inner in value:
        if isinstance(inner, list):
            yield from _numbers(inner)
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
            yield inner
