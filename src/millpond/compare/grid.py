"""`Grid`: settings to vary and their values; every combination is an arm."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import BadConfig

MOST = 500  # arms of one grid
# Settings that are the same for all arms, and the options that set them.
_COMMON = {
    "seed": "--seed and --seeds",
    "members": "--seeds and --together",
    "steps": "--frames",
    "frames": "--frames",
    "env": "--env",
}
_LONGEST = 100  # characters in an arm's name, which also names a folder


@dataclass(frozen=True)
class Grid:
    """`Grid.of(["dqn.batch=32,64", "dqn.gamma=0.9,0.99"]).points()`: four points."""

    values: tuple[tuple[str, tuple[str, ...]], ...]

    @staticmethod
    def of(texts: Sequence[str]) -> Grid:
        """Parse texts `KEY=VALUE,VALUE`; commas inside brackets or quotes do not separate."""
        found: dict[str, tuple[str, ...]] = {}
        for text in texts:
            key, equals, rest = text.partition("=")
            key, values = key.strip().replace("-", "_"), _split_values(rest)
            if not equals or not key or not all(values):
                raise BadConfig(
                    f"compare: --grid expects KEY=VALUE,VALUE such as dqn.batch=32,64, got {text!r}"
                )
            if key in _COMMON:
                raise BadConfig(
                    f"compare: --grid cannot vary '{key}', which is the same for all arms; "
                    f"use {_COMMON[key]}"
                )
            if key in found:
                raise BadConfig(f"compare: --grid names '{key}' twice; give all its values at once")
            if len(set(values)) < len(values):
                raise BadConfig(f"compare: --grid {key} has a value twice: {rest}; give each once")
            if strange := [value for value in values if re.search(r"\s", value)]:
                raise BadConfig(f"compare: --grid {key}: a value contains a space: {strange[0]!r}")
            found[key] = tuple(values)
        number = math.prod(len(values) for values in found.values())
        if number > MOST:
            raise BadConfig(f"compare: this grid has {number:,} points, more than {MOST}")
        return Grid(tuple(found.items()))

    def points(self) -> list[dict[str, str]]:
        """Every combination of one value per setting."""
        keys = [key for key, _ in self.values]
        each = itertools.product(*(values for _, values in self.values))
        return [dict(zip(keys, values, strict=True)) for values in each]

    def arms(self, texts: Sequence[str]) -> list[tuple[str, dict[str, str]]]:
        """Pairs of an arm's text, named after its point, and the point; one per text and point."""
        found: list[tuple[str, dict[str, str]]] = []
        for text in texts:
            first, _, rest = text.partition(" ")
            base, _, kind = first.rpartition("=")
            base = base or (kind if len(texts) > 1 else "")
            for number, point in enumerate(self.points(), 1):
                name = ",".join([*([base] if base else []), *self._shown(point)])
                if len(name) > _LONGEST:
                    name = f"{base or kind}-{number}"
                found.append((f"{name}={kind} {rest}".strip(), point))
        return found

    def _shown(self, point: dict[str, str]) -> list[str]:
        """`batch=32`, or `dqn.batch=32` if another key ends in `batch`; safe as a folder's name."""
        ends = [key.rpartition(".")[2] for key, _ in self.values]
        return [
            re.sub(r"[^\w.=+-]+", "_", f"{key if ends.count(end) > 1 else end}={value.strip('[]')}")
            for (key, value), end in zip(point.items(), ends, strict=True)
        ]


def _split_values(text: str) -> list[str]:
    """Split at the commas outside brackets and quotes."""
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "[{(") - (letter in "]})")
        if letter == "," and not depth and not quote:
            parts.append("")
        elif depth == 0 or letter != " ":
            parts[-1] += letter
    return [part.strip() for part in parts]
