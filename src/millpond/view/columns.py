"""`Columns`: the numbers of many lines, by name; 100,000 lines take a few megabytes."""

from __future__ import annotations

from array import array
from typing import Any

import numpy as np

_NAN = float("nan")


class Columns:
    """`Columns(names)` keeps these of every line; what a line does not say is NaN.

    A list of numbers becomes three columns: `returns.mean`, `returns.low` and `returns.high`.
    """

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names
        self._columns: dict[str, array[float]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __contains__(self, name: str) -> bool:
        return name in self._columns

    def add(self, line: dict[str, Any]) -> None:
        """Take one line."""
        for name in self.names:
            value = line.get(name)
            if isinstance(value, list):
                numbers = list(_numbers(value))
                if numbers:
                    self._put(f"{name}.mean", sum(numbers) / len(numbers))
                    self._put(f"{name}.low", min(numbers))
                    self._put(f"{name}.high", max(numbers))
            elif isinstance(value, (int, float)) and not isinstance(value, bool):
                self._put(name, float(value))
        self._length += 1
        for column in self._columns.values():
            if len(column) < self._length:
                column.append(_NAN)

    def _put(self, name: str, value: float) -> None:
        column = self._columns.get(name)
        if column is None:
            column = self._columns[name] = array("d", [_NAN]) * self._length
        column.append(value)

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


def _numbers(value: list[Any]) -> Any:
    for inner in value:
        if isinstance(inner, list):
            yield from _numbers(inner)
        elif isinstance(inner, (int, float)) and not isinstance(inner, bool):
            yield inner
