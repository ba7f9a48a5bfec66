"""Convert a user's metrics and settings to plain values."""

from __future__ import annotations

import argparse
import dataclasses
import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import BadConfig

# Other names for an episode's return, which is `return` in our files.
_RETURNS = ("episode_return", "episodic_return")
_OURS = ("kind", "steps", "frames")
_MOST = 1000  # most numbers in one metric


def plain_metrics(values: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics as numbers and lists of numbers; BadConfig for anything else."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if not isinstance(name, str) or not name or name in _OURS:
            raise BadConfig(
                f"log: a metric cannot be named {name!r}; use non-empty text other than "
                f"{', '.join(_OURS)}"
            )
        ours = "return" if name in _RETURNS else name
        if ours in found:
            raise BadConfig(f"log: '{name}' and 'return' are the same metric; give one of them")
        found[ours] = plain_number(name, value)
    return found


def plain_number(name: str, value: Any) -> Any:
    """A number or list of numbers from any library's value; an array of size 1 is a number."""
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if hasattr(value, "detach"):  # a PyTorch tensor, perhaps on a GPU and with gradients
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
            f"log: '{name}' has {array.size:,} numbers, more than {_MOST:,}; log their mean or "
            "some quantiles"
        )
    return array.item() if array.size == 1 else array.tolist()


def _no_number(name: str, value: Any) -> BadConfig:
    return BadConfig(
        f"log: '{name}' must be a number or a list of numbers, got {type(value).__name__}; text "
        "belongs in config="
    )


def plain_config(config: Any) -> dict[str, Any]:
    """Settings from a dict, a dataclass or an argparse namespace, as JSON values."""
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
    """A value as JSON; anything that JSON cannot express becomes text."""
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
