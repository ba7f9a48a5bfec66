"""Groups of runs that differ only in their seed, and names for them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

_SEEDS = ("seed", "members")
_SEED = re.compile(r"[-_/. ]*(seeds?)?[-_/. ]*$")  # the part of a name before the seed's number


def group_of(settings: dict[str, Any]) -> str:
    """A key that is equal for all runs with these settings, whatever their seeds."""
    plain = {name: value for name, value in settings.items() if name not in _SEEDS}
    text = json.dumps(plain, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def group_names(runs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Names of groups, from what their runs' names share: "a" for ("g", "a-0"), ("g", "a-1")."""
    found: dict[str, list[str]] = defaultdict(list)
    for group, name in runs:
        found[group].append(name)
    return {group: _common(names) for group, names in found.items()}


def _common(names: list[str]) -> str:
    if len(names) == 1:
        return names[0]
    low, high = min(names), max(names)
    same = (i for i, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    end = next(same, len(low))
    while end and any(name[end : end + 1].isdigit() for name in names) and low[end - 1].isdigit():
        end -= 1  # seeds 10 to 19 share their first digit
    return _SEED.sub("", low[:end]) or f"{names[0]} and {len(names) - 1} more"
