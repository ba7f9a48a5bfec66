"""What a user's loop gives, as plain values: numbers of any library, settings of any kind."""

from __future__ import annotations

import argparse
import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadConfig

# What others call the return of an episode; our files have one name for it.
_RETURNS = ("episode_return", "episodic_return")
_OURS = ("kind", "steps", "frames")
_MOST = 1000  # numbers of one metric: more belong into a file of their own


def plain_metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics by name, as numbers and lists of numbers; BadConfig names one that is neither."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name or name in _OURS:
            raise BadConfig(
                f"log: a metric cannot be called {name!r}: names are text, not empty, and none of "
                "those that every line has; rename it"
            )
        ours = "return" if name in _RETURNS else name
        if ours in found:
            raise BadConfig(f"log: '{name}' and 'return' are the same metric; give one of them")
        found[ours] = plain_number(name, value)
    return found


def plain_number(name: str, value: Any) -> Any:
    """A number, or a list of them, from whatever library; an array of one number is that number."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "detach"):  # a tensor of torch may lie on a GPU and know of gradients
        value = value.detach().cpu()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise _no_number(name, value) from error
    if array.dtype.kind == "V" and hasattr(value, "astype"):  # bfloat16, which NumPy does not know
        array = np.asarray(value.astype("float32"))
    if array.dtype.kind not in "biuf":
        raise _no_number(name, value)
    if array.size > _MOST:
        raise BadConfig(
            f"log: '{name}' has {array.size:,} numbers, at most {_MOST:,} are logged; give their "
            "mean, or some quantiles"
        )
    return array.item() if array.size == 1 else array.tolist()


def _no_number(name: str, value: Any) -> BadConfig:
    return BadConfig(
        f"log: '{name}' must be a number or some numbers, got {type(value).__name__}; text belongs "
        "in config="
    )


def plain_config(config: Any) -> dict[str, Any]:
    """Settings of a loop, from a dict, a dataclass or argparse's namespace, as JSON has them."""
    if config is None:
        return {}
    if isinstance(config, argparse.Namespace):
        config = vars(config)
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        config = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}
    if not isinstance(config, Mapping):
        raise BadConfig(
            f"run: config must be a dict, a dataclass or argparse's options, got "
            f"{type(config).__name__}; give vars(it), or omit it"
        )
    return {str(name): _plain(value) for name, value in config.items()}


def _plain(value: Any) -> Any:
    """As JSON has it; what it has no word for, in words."""
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) and np.isfinite(float(value)):
        return float(value)
    return str(value)
