"""Settings are frozen dataclasses: converted to plain JSON values and back, and type-checked."""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import BadConfig


def to_plain(settings: Any) -> dict[str, Any]:
    """Nested dicts of JSON values: `json.dumps(to_plain(config))`.

    Derived fields (`init=False`) are omitted.
    """
    return {
        f.name: _plain(getattr(settings, f.name)) for f in dataclasses.fields(settings) if f.init
    }


def from_plain(
    kind: type,
    plain: Mapping[str, Any],
    base: Any = None,
    where: str = "",
    parts: Mapping[str, Any] = types.MappingProxyType({}),
) -> Any:
    """A `kind` from nested dicts; omitted fields keep the value of `base`, or their default.

    Without a `base`, `parts` gives the values of fields annotated `Any`. Unknown names (the error
    suggests the nearest one) and values of the wrong type raise BadConfig.
    """
    hints, fields = get_type_hints(kind), dataclasses.fields(kind)
    names, derived = [f.name for f in fields if f.init], {f.name for f in fields if not f.init}
    values: dict[str, Any] = {}
    for name, value in plain.items():
        path = f"{where}{name}"
        if name in derived:  # saved by older versions
            continue
        if name not in names:
            remedy = nearest(name, names).replace("mean '", f"mean '{where}")
            raise BadConfig(f"there is no setting '{path}'; {remedy}")
        before = getattr(base, name, parts.get(name))
        values[name] = _typed(hints[name], value, before, path)
    if base is not None:
        return dataclasses.replace(base, **values)
    return kind(**{**parts, **values})


def with_known(settings: Any, **changes: Any) -> Any:
    """The settings with `changes` applied; changes to fields they do not have are ignored."""
    names = {field.name for field in dataclasses.fields(settings)}
    return dataclasses.replace(settings, **{k: v for k, v in changes.items() if k in names})


def nearest(name: str, names: Iterable[str]) -> str:
    """A remedy for an unknown name: the nearest known one, or the list of all."""
    known = sorted(names)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"did you mean '{near[0]}'?" if near else f"known are {', '.join(known)}"


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return to_plain(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _typed(hint: Any, value: Any, before: Any, path: str) -> Any:
    """`value` as the type `hint`, or BadConfig. An int is accepted as a float."""
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
        return _one_of([o for o in options if o is not type(None)], value, before, path)
    if (origin or hint) in (tuple, list):
        if not isinstance(value, (list, tuple)):
            raise BadConfig(f"setting '{path}': expected a list, got {value!r}")
        kinds = _kinds_of(hint, len(value), path)
        return (origin or hint)(
            _typed(kind, inner, None, f"{path}[{i}]")
            for i, (kind, inner) in enumerate(zip(kinds, value, strict=True))
        )
    if hint is Any and before is None:
        return value
    kind: Any = type(before) if hint is Any else hint  # `Any`: the settings of a plugged-in part
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping):
            raise BadConfig(f"setting '{path}': expected a table of settings, got {value!r}")
        return from_plain(kind, value, before, f"{path}.")
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise BadConfig(f"setting '{path}': expected {kind.__name__}, got {value!r}")
    return value


def _kinds_of(hint: Any, number: int, path: str) -> list[Any]:
    """The type of every entry: for `tuple[int, ...]`, `tuple[int, float]` or `list[int]`."""
    options = get_args(hint)
    if not options:
        return [Any] * number
    if get_origin(hint) is list or options[-1] is Ellipsis:
        return [options[0]] * number
    if len(options) != number:
        raise BadConfig(f"setting '{path}': expected {len(options)} values, got {number}")
    return list(options)


def _one_of(hints: list[Any], value: Any, before: Any, path: str) -> Any:
    """`value` as the first of these types that accepts it; if none does, the last one's error."""
    for hint in hints[:-1]:
        try:
            return _typed(hint, value, before, path)
        except BadConfig:
            continue
    return _typed(hints[-1], value, before, path)


def check_saved(part: Any, what: str) -> None:
    """Raise BadConfig if a part's settings would not survive being saved to `config.json`.

    `check_saved(env, "env my_package:Corridor")`.
    """
    try:
        again = from_plain(type(part), json.loads(json.dumps(to_plain(part))), part)
        same = to_plain(again) == to_plain(part)
    except (BadConfig, TypeError, ValueError, NameError) as error:
        raise BadConfig(_unsaved(part, what, str(error))) from error
    if not same:
        raise BadConfig(_unsaved(part, what, "its values change when they are saved and loaded"))


def _unsaved(part: Any, what: str, why: str) -> str:
    kind = type(part).__name__
    return (
        f"{what}: the fields of {kind} are saved in the run's config.json and cannot be read back "
        f"from it: {why}; a field may be a bool, int, float, str, a Literal, one of these or None, "
        "a tuple[X, ...] of these, or a dataclass"
    )
