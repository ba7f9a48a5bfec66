"""Settings as frozen dataclasses: to plain JSON values and back, checked name by name."""

from __future__ import annotations

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import BadConfig


def to_plain(settings: Any) -> dict[str, Any]:
    """Nested dicts of what JSON can hold: `json.dumps(to_plain(config))`."""
    plain = dataclasses.asdict(settings)
    return {key: _plain(value) for key, value in plain.items()}


def from_plain(
    kind: type,
    plain: Mapping[str, Any],
    base: Any = None,
    where: str = "",
    parts: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
    """A `kind` from nested dicts; what they leave out stays as in `base`, or as by default.

    Without a `base`, `parts` are the values of fields whose type the dataclass leaves open.
    A name that does not exist and a value of the wrong type raise BadConfig, with the nearest name.
    """
    hints, names = get_type_hints(kind), [f.name for f in dataclasses.fields(kind)]
    values: dict[str, Any] = {}
    for name, value in plain.items():
        path = f"{where}{name}"
        if name not in names:
            remedy = nearest(name, names).replace("mean '", f"mean '{where}")
            raise BadConfig(f"there is no setting '{path}'; {remedy}")
        before = getattr(base, name, parts.get(name))
        values[name] = _typed(hints[name], value, before, path)
    if base is not None:
        return dataclasses.replace(base, **values)
    return kind(**{**parts, **values})


def with_known(settings: Any, **changes: Any) -> Any:
    """The same settings with those changes that they have fields for."""
    names = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{k: v for k, v in changes.items() if k in names})


def nearest(name: str, names: Iterable[str]) -> str:
    """The remedy for a name that is not there: the nearest one, or all."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _typed(hint: Any, value: Any, before: Any, path: str) -> Any:
    """`value` as the type `hint`, or BadConfig. Whole numbers serve where reals are meant."""
    origin, options = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in options:
            raise BadConfig(
                f"setting '{path}': expected one of {', '.join(map(str, options))}, got {value!r}"
            )
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        (hint,) = (option for option in options if option is not type(None))
        return _typed(hint, value, before, path)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise BadConfig(f"setting '{path}': expected a list, got {value!r}")
        return tuple(
            _typed(options[0], inner, None, f"{path}[{i}]") for i, inner in enumerate(value)
        )
    kind: type = type(before) if hint is Any else hint  # a plugged-in part types its own settings
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise BadConfig(f"setting '{path}': expected a table of settings, got {value!r}")
        return from_plain(kind, value, before, f"{path}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise BadConfig(f"setting '{path}': expected {kind.__name__}, got {value!r}")
    return value
