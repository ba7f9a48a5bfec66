"""Settings as command-line options: every field of nested dataclasses, by its dotted name."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import functools
import inspect
import math
import re
import textwrap
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from ..config import from_plain
from ..envs import make_env
from ..errors import BadConfig
from ._options import in_digits, width

S = TypeVar("S")

_SCREEN = 56  # --help should fit into 60 lines, of which four surround the settings
_NEGATIVE = re.compile(r"-\.?\d.*")


@dataclass(frozen=True)
class Option:
    """One setting: its path, type, value, and the comment after it in the source."""

    path: tuple[str, ...]  # in the dataclasses: ("learning", "gamma")
    shown: tuple[str, ...]  # as users write it: ("dqn", "gamma")
    kind: Any
    value: Any
    about: str

    @property
    def name(self) -> str:
        """`--dqn.n-step`"""
        return "--" + ".".join(self.shown).replace("_", "-")

    @property
    def off(self) -> str:
        """`--network.no-norm`, for a setting that is true or false."""
        *where, last = self.shown
        return "--" + ".".join([*where, f"no-{last}"]).replace("_", "-")

    @property
    def takes(self) -> str:
        """The placeholder of its value in help."""
        return "" if self.kind is bool else _words(self.kind)

    @property
    def default(self) -> str:
        """Its default, as text."""
        return _plain(self.value)

    def read(self, texts: Sequence[str]) -> Any:
        """Parse the words after the option; BadConfig if they do not fit."""
        if _is_list(self.kind):
            kinds = [kind for kind in get_args(self.kind) if kind is not Ellipsis] or [str]
            parts = [part for text in texts for part in text.split(",") if part]
            found = zip_longest(kinds[: len(parts)], parts, fillvalue=kinds[-1])
            return tuple(_value(kind, part, self.name) for kind, part in found)
        if not texts:
            raise BadConfig(f"{self.name}: expected {_words(self.kind)}, got nothing")
        return _value(self.kind, texts[0], self.name)


def parse_settings(base: S, args: Sequence[str], prog: str, hidden: Sequence[str] = ()) -> S:
    """The settings `base` with the options in `args`; wrong ones raise BadConfig.

    Which options exist depends on env, agent and sampler: only grid worlds have --world.size.
    `--help` and `--help-all` print the settings and raise SystemExit.
    """
    names: dict[str, str] = getattr(base, "names")  # noqa: B009  Settings and MixSettings have it
    options = list(_options(base, names, ("env", *hidden)))
    if "--help-all" in args:
        print(help_text(base, options, prog, everything=True))
        raise SystemExit(0)
    if {"-h", "--help"} & set(args):
        print(help_text(base, options, prog, everything=False))
        raise SystemExit(0)
    plain: dict[str, Any] = {}
    for path, value in _read(options, args, prog, getattr(base, "world", None)):
        inner = plain
        for part in path[:-1]:
            inner = inner.setdefault(part, {})
        inner[path[-1]] = value
    try:
        return from_plain(type(base), plain, base)
    except BadConfig as error:
        shown = str(error)
        for field, name in names.items():
            shown = shown.replace(f"'{field}.", f"'{name}.")
        raise BadConfig(shown) from error


@dataclass(frozen=True)
class _OnlyWorld:
    """Settings of an env only."""

    world: Any
    names: ClassVar[dict[str, str]] = {}


def parse_world(env: str, args: Sequence[str]) -> Any:
    """The env with its own options applied, before the agent that suits it is known.

    `parse_world("gym:FrozenLake-v1", ["--env.map_name", "8x8", "--seed", "3"])`.
    """
    own: list[str] = []
    ours = False
    for word in args:
        ours = word.startswith(("--env.", "--world.")) if _is_option(word) else ours
        own += [word] * ours
    prog = f"millpond train {env}"
    return parse_settings(_OnlyWorld(make_env(env)), own, prog).world


def _read(
    options: Sequence[Option], args: Sequence[str], prog: str, world: Any
) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path and new value of every option given."""
    known = {option.name: option for option in options}
    known |= {option.off: option for option in options if option.kind is bool}
    others: list[str] = []  # for the env's own constructor
    rest = list(args)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise BadConfig(f"expected an option, got '{word}'; see {prog} --help")
        name = "--" + name[2:].replace("_", "-")
        texts = [value] if equals else []
        while not equals and rest and not _is_option(rest[0]):
            texts.append(rest.pop(0))
        if name not in known and name.startswith("--env."):
            name = "--world." + name[6:]
            if name not in known and hasattr(world, "options"):
                key = word.partition("=")[0].removeprefix("--").removeprefix("env.")
                others.append(f"{key}={_only(texts, word)}")
                continue
        if name not in known:
            raise BadConfig(_unknown(word.partition("=")[0], known, prog))
        option = known[name]
        if option.kind is bool:
            yield option.path, _flag(option, name, texts)
        elif _is_list(option.kind):
            yield option.path, option.read(texts)
        elif texts or get_origin(option.kind) is not Literal:
            yield option.path, option.read([_only(texts, name)])
        else:
            choices = ", ".join(choice or "''" for choice in get_args(option.kind))
            raise BadConfig(f"{name}: expected one of {choices}, got nothing")
    if others:
        yield ("world", "options"), (*world.options, *others)


def _is_option(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.fullmatch(word)


def _only(texts: Sequence[str], name: str) -> str:
    if len(texts) != 1:
        got = f"got {', '.join(texts)}" if texts else "got nothing"
        raise BadConfig(f"{name}: expected one value, {got}")
    return texts[0]


def _flag(option: Option, name: str, texts: Sequence[str]) -> bool:
    words = {"true": True, "false": False}
    text = _only(texts, name) if texts else "true"
    if text.lower() not in words:
        raise BadConfig(f"{name}: expected true, false or nothing, got {text}")
    return words[text.lower()] == (name == option.name)


# Names in Stable-Baselines3 and CleanRL, and how our option ends.
_ELSEWHERE = {
    "--total-timesteps": "--steps",
    "--num-envs": "--envs",
    "--n-envs": "--envs",
    "--eval-freq": "--eval-every",
    "--lr": ".optimizer.rate.start",
    "--learning-rate": ".optimizer.rate.start",
    "--batch-size": ".batch",
    "--buffer-size": ".capacity",
    "--learning-starts": ".min-fill",
    "--train-freq": ".update-every",
    "--train-frequency": ".update-every",
    "--gradient-steps": ".updates",
    "--target-network-frequency": ".target-every",
    "--target-update-interval": ".target-every",
    "--num-steps": ".rollout",
    "--num-minibatches": ".minibatches",
    "--update-epochs": ".epochs",
    "--n-steps": ".rollout",
    "--n-epochs": ".epochs",
    "--algo": "--agent",
    "--start-e": ".epsilon.start",
    "--end-e": ".epsilon.end",
    "--exploration-initial-eps": ".epsilon.start",
    "--exploration-final-eps": ".epsilon.end",
    "--exploration-fraction": ".epsilon.over",
}
_GPU = "JAX uses a GPU if there is one; set JAX_PLATFORMS=cpu in the environment to use the CPU"
_INSTEAD = {
    "--exp-name": "--run names the folder",
    "--save-path": "--run names the folder",
    "--capture-video": "millpond eval RUN --video film.gif films an episode",
    "--wandb-project-name": "--track wandb sends metrics; WANDB_PROJECT names the project",
    "--cuda": _GPU,
    "--no-cuda": _GPU,
    "--gpu": _GPU,
    "--device": _GPU,
    "--env-id": "the env comes first: millpond train ENV",
    "--save-model": "checkpoints are always kept, in RUN/checkpoints",
    "--wandb": "use --track wandb",
    "--tensorboard-log": "use --track tensorboard",
    "--policy": "--network.* are the settings of the network",
    "--verbose": "progress is always shown",
}


def _unknown(name: str, known: dict[str, Option], prog: str) -> str:
    plain = name.replace("_", "-")
    if plain in _INSTEAD:
        return f"there is no option {name}; {_INSTEAD[plain]}"
    ours = [one for one in known if one.endswith(_ELSEWHERE.get(plain, "no such ending"))]
    if ours:  # the agent's own option is shorter than those of its parts
        return f"there is no option {name}; use {min(ours, key=len)}"
    near = difflib.get_close_matches(name, known, n=1)
    if not near:  # the right name without its section: --gamma for --dqn.gamma
        last = name.lstrip("-")
        near = [one for one in known if one.rpartition(".")[2].lstrip("-") == last]
    remedy = f"did you mean {' or '.join(near[:2])}? " if near else ""
    return f"there is no option {name}; {remedy}{prog} --help-all lists every option"


def _options(
    settings: Any,
    names: dict[str, str],
    hidden: Sequence[str] = (),
    path: tuple[str, ...] = (),
    shown: tuple[str, ...] = (),
) -> Iterator[Option]:
    """Every setting of a dataclass, then those of the dataclasses in it."""
    kind = type(settings)
    hints, comments = get_type_hints(kind), _comments(kind)
    inner: list[tuple[str, Any]] = []
    for one in dataclasses.fields(kind):
        value = getattr(settings, one.name)
        if one.name in hidden or not one.init:
            continue
        if dataclasses.is_dataclass(value):
            inner.append((one.name, value))
            continue
        hint = type(value) if hints[one.name] is Any else hints[one.name]
        here, there = (*path, one.name), (*shown, one.name)
        yield Option(here, there, hint, value, comments.get(one.name, ""))
    for name, value in inner:
        there = (*shown, names.get(name, name) if not path else name)
        yield from _options(value, {}, (), (*path, name), there)


@functools.cache
def _comments(kind: type) -> dict[str, str]:
    """The comment after each field in the source, inherited fields included."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        with contextlib.suppress(OSError, TypeError):  # a class without source
            source = inspect.getsource(one)
            found |= re.findall(r"^    (\w+): [^#\n]*#\s*(.+)$", source, re.M)
    return found


def _value(kind: Any, text: str, name: str) -> Any:
    """Parse one word as a value of type `kind`."""
    choices = get_args(kind)
    if get_origin(kind) is Literal:
        if text not in map(str, choices):
            near = difflib.get_close_matches(text, [str(one) for one in choices if one], n=1)
            remedy = f"; did you mean {near[0]}?" if near else ""
            known = ", ".join(str(one) or "''" for one in choices)
            raise BadConfig(f"{name}: expected one of {known}, got {text}{remedy}")
        return next(choice for choice in choices if str(choice) == text)
    if get_origin(kind) in (Union, types.UnionType):
        if text in ("None", "none"):
            return None
        *others, last = (choice for choice in choices if choice is not type(None))
        for other in others:
            with contextlib.suppress(BadConfig):
                return _value(other, text, name)
        return _value(last, text, name)
    if kind is int:
        digits = in_digits(text)
        if not re.fullmatch(r"-?\d+(_\d+)*", digits):
            raise BadConfig(f"{name}: expected a whole number, got {text}")
        return int(digits)
    if kind is float:
        try:
            number = float(in_digits(text))
        except ValueError as error:
            raise BadConfig(f"{name}: expected a number, got {text}") from error
        if not math.isfinite(number):
            raise BadConfig(f"{name}: expected a finite number, got {text}")
        return number
    if kind is bool:
        return _value(Literal["true", "false"], text.lower(), name) == "true"
    return text


def _is_list(kind: Any) -> bool:
    """Whether an option of this type takes several words, as `tuple` or `list[int]` do."""
    return (get_origin(kind) or kind) in (tuple, list)


def _words(kind: Any) -> str:
    """The name of a type in help and errors."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Literal:
        return "{" + ",".join(map(str, inside)) + "}"
    if origin in (Union, types.UnionType):
        return "|".join(_words(one) if one is not type(None) else "none" for one in inside)
    if _is_list(kind):
        return f"{_words(inside[0] if inside else str)} ..."
    return {int: "N", float: "X", str: "TEXT"}.get(kind, getattr(kind, "__name__", "VALUE").upper())


def _plain(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return " ".join(map(_plain, value)) or "none"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return str(value) if value != "" else "''"


def help_text(base: Any, options: Sequence[Option], prog: str, everything: bool) -> str:
    """The help text: all settings on one screen or, with `everything`, each explained."""
    lines = [f"usage: {prog} [--SETTING VALUE ...] [--help-all]", ""]
    groups: dict[tuple[str, ...], list[Option]] = {}
    for option in options:
        groups.setdefault(option.shown[:-1], []).append(option)
    if hasattr(base.world, "options"):
        lines += ["--env.KEY VALUE is passed to the env's constructor.", ""]
    lines += ["settings and their defaults:", *_rows(groups.pop((), []), everything)]
    if everything:
        for where, some in groups.items():
            lines += ["", f"{'.'.join(where)}:", *_contract(base, some[0].path[:-1])]
            lines += _rows(some, everything)
        return "\n".join(lines)
    shown = {where: _brief(where, some) for where, some in groups.items()}
    # If they do not fit, abbreviate the deepest groups first, and later ones before earlier ones.
    order = list(enumerate(shown))
    for _, where in sorted(order, key=lambda one: (len(one[1]), one[0]), reverse=True):
        if len(lines) + sum(map(len, shown.values())) > _SCREEN:
            shown[where] = [_named(where, groups[where])]
    lines += [line for some in shown.values() for line in some]
    return "\n".join([*lines, "", f"{prog} --help-all explains every setting."])


def _rows(options: Sequence[Option], everything: bool) -> list[str]:
    """Lines of help for options: name, placeholder, comment, default."""
    rows: list[str] = []
    for option in options:
        head = option.name if option.kind is not bool else f"{option.name}, {option.off}"
        head = f"  {head} {option.takes}".rstrip()
        if everything:
            rows += _filled(head, f"{option.about} (default {option.default})".strip())
            continue
        end = f"({option.default})"
        room = width() - 27 - len(end)
        choices = option.takes if get_origin(option.kind) is Literal else ""
        abouts = [option.about, *(option.about.partition(mark)[0] for mark in ";:,")]
        abouts = [one for one in abouts if " " in one]  # a single word explains too little
        about = next((one for one in (choices, *abouts) if 0 < len(one) <= room), "")
        about = about or textwrap.shorten(option.about, room, placeholder=" ...")
        head = f"  {option.name}" if len(head) > 24 else head
        rows.append(f"{head:<25} {about} {end}".replace("  (", " ("))
    return rows


def _filled(head: str, about: str) -> list[str]:
    lines = textwrap.wrap(about, width() - 30) or [""]
    if len(head) > 28:
        return [head, *(f"{'':30}{line}" for line in lines)]
    return [f"{head:<30}{lines[0]}", *(f"{'':30}{line}" for line in lines[1:])]


def _brief(where: tuple[str, ...], options: Sequence[Option]) -> list[str]:
    """A group in few lines, with names and defaults only."""
    texts = [f"{option.name} {option.default}".replace(" ", "\u00a0") for option in options]
    filled = textwrap.wrap("  ".join(texts), width() - 2, break_on_hyphens=False)
    return [f"{'.'.join(where)}:", *(f"  {line}".replace("\u00a0", " ") for line in filled)]


def _named(where: tuple[str, ...], options: Sequence[Option]) -> str:
    title = ".".join(where)
    return f"{title}: --{title}.* ({len(options)} settings)"


def _contract(base: Any, path: Sequence[str]) -> list[str]:
    """The first paragraph of the docstring of a group of settings."""
    for part in path:
        base = getattr(base, part)
    text = inspect.cleandoc(type(base).__doc__ or "").partition("\n\n")[0]
    return [f"  {line}" for line in textwrap.wrap(" ".join(text.split()), width() - 2)]
