"""`Arm`: a name and settings. Arms are compared by their scores after equal frames.

single    one PQN agent with all frames
mixture   the mixture, whose agents share the frames equally
apart     as many PQN agents, which share frames and envs equally but do not learn from each other
alone     one PQN agent with resets from its own Lake, at the same frames as the mixture's
seed-003  the first design of the mixture: a DQN learns from the whole Lake, epsilon restarts high
dqn, pqn, ... or a value of the setting `mode`: the env's preset with that agent or mode
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, get_args

from ..agents import agent_names
from ..config import from_plain, nearest
from ..engine.settings import Mode
from ..errors import BadConfig
from ..mixture import SEED_003, MixSettings, mix_for, with_frames
from ..train import Settings
from ..train.presets import settings_for
from .grid import Grid

_KINDS = {
    "single": "one PQN agent with all frames",
    "mixture": "the mixture",
    "apart": "PQN agents with equal shares of frames and envs, which learn nothing from each other",
    "alone": "one PQN agent with resets from its own Lake",
    "seed-003": "the first design of the mixture, with a DQN as its BigAgent,",
}
# Fixed in advance, so that arms are not chosen by their scores.
PRESETS = {
    "mixture-vs-single": ("A=single", "B=mixture", "C=apart", "D=alone"),
}


@dataclass(frozen=True)
class Arm:
    """One arm: all its runs have these settings, except for `seed` and `members`.

    `per_seed` policies make up one seed; their mean return is its score.
    `make_arms(["dqn", "pqn"], env, frames, {})[0]`.
    """

    name: str
    about: str
    settings: Settings | MixSettings
    per_seed: int
    values: tuple[tuple[str, Any], ...] = ()  # of a grid's arm: the settings that the grid varies

    def to_json(self) -> dict[str, Any]:
        """The arm as plain values."""
        return {"name": self.name, "about": self.about, "settings": self.settings.to_json()}

    def runs_of(self, seed: int, seeds: int) -> Settings | MixSettings:
        """The settings of one run of `seeds` seeds, from `seed` on."""
        settings = self.settings
        members = seeds
        if isinstance(settings, Settings):
            members = seeds * self.per_seed // settings.world.num_agents
        return dataclasses.replace(settings, seed=seed, members=members)

    @property
    def at_once(self) -> bool:
        """Whether its seeds can run together, as one program."""
        settings = self.settings
        return isinstance(settings, MixSettings) or settings.way == "fused"


def make_arm(
    text: str,
    env: str,
    frames: int,
    common: Mapping[str, str],
    agents: int = 4,
    point: Mapping[str, str] | None = None,
) -> Arm:
    """An arm from `NAME=KIND KEY=VALUE ...` or `KIND`.

    Settings in `common` apply if the arm has them; `point` is its place in a grid, if any.
    """
    words = text.split()
    name, _, kind = words[0].rpartition("=")
    settings, about, per_seed = _settings(kind, env, frames, agents)
    own = dict(pair(word) for word in words[1:]) | dict(point or {})
    known = {key: value for key, value in common.items() if _has(settings, key)}
    settings = changed(settings, known)
    settings = changed(settings, own)
    more = "".join(f", {' '.join(part)}" for part in (words[1:], _shown(point)) if part)
    values = tuple((key, value_of(value)) for key, value in (point or {}).items())
    return Arm(name or kind, about + more, settings, per_seed, values)


def _shown(point: Mapping[str, str] | None) -> list[str]:
    return [f"{key}={value}" for key, value in (point or {}).items()]


def make_arms(
    texts: list[str],
    env: str,
    frames: int,
    common: Mapping[str, str],
    agents: int = 4,
    grid: Grid | None = None,
) -> list[Arm]:
    """All arms. Names must differ, and every common setting must exist in at least one arm.

    With a `grid` there is an arm for each text at each of the grid's points.
    `make_arms(["dqn", "tuned=dqn dqn.tau=0.01"], "staghunt", 500_000, {})`.
    """
    pairs = grid.arms(texts) if grid else [(text, {}) for text in texts]
    arms = [make_arm(text, env, frames, common, agents, point) for text, point in pairs]
    names = [arm.name for arm in arms]
    if len(arms) < 2 or len(set(names)) < len(names):
        raise BadConfig(f"compare: needs at least two arms with different names, got {names}")
    for key in common:
        if not any(_has(arm.settings, key) for arm in arms):
            raise BadConfig(f"compare: no arm has a setting '{key}'")
    return arms


def _settings(
    kind: str, env: str, frames: int, agents: int
) -> tuple[Settings | MixSettings, str, int]:
    """The settings of an arm, a description of it, and its policies per seed."""
    if kind in ("mixture", "alone", "seed-003"):
        number = 1 if kind == "alone" else agents
        mixture = mix_for(env, SEED_003 if kind == "seed-003" else None, agents=number)
        return (
            with_frames(mixture, frames),
            f"{_KINDS[kind]} of {number}" if number > 1 else _KINDS[kind],
            number,
        )
    alike = kind in ("single", "apart")
    named = kind in agent_names() or ":" in kind
    preset = settings_for(env, agent="pqn" if alike else kind if named else None)
    per_step, number = preset.world.frames_per_step, agents if kind == "apart" else 1
    steps = -(-frames // (per_step * number))
    each = preset.world.num_agents
    if alike and each != 1:
        raise BadConfig(f"compare: {kind} needs an env with one agent, {preset.env} has {each}")
    if alike:  # agents apart share the envs of one, as those of a mixture do
        envs = max(1, preset.envs // number)
        return dataclasses.replace(preset, steps=steps, envs=envs), _KINDS[kind], number
    if named:
        return dataclasses.replace(preset, steps=steps), f"agent {kind}", each
    if kind in get_args(Mode):
        return dataclasses.replace(preset, steps=steps, mode=kind), f"mode {kind}", each  # pyright: ignore[reportArgumentType]
    known = [*_KINDS, *agent_names(), *get_args(Mode)]
    raise BadConfig(f"compare: there is no arm '{kind}'; {nearest(kind, known)}")


def changed(settings: Any, changes: Mapping[str, str]) -> Any:
    """The settings with changes such as `{"big.own_fraction": "0.2"}`."""
    plain: dict[str, Any] = {}
    for key, text in changes.items():
        *path, last = key.replace("-", "_").split(".")
        place = plain
        for part in path:
            place = place.setdefault(part, {})
        place[last] = value_of(text)
    fields = {shown: name for name, shown in settings.names.items()}
    plain = {fields.get(name, name): value for name, value in plain.items()}
    try:
        return from_plain(type(settings), plain, settings)
    except BadConfig as error:
        text = str(error)
        for name, shown in settings.names.items():
            text = text.replace(f"'{name}.", f"'{shown}.")
        raise BadConfig(text) from error


def value_of(text: str) -> Any:
    """The text as a TOML value (number, bool, list, ...), or itself if it is none."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def pair(word: str) -> tuple[str, str]:
    """Split `KEY=VALUE`."""
    key, equals, value = word.partition("=")
    if not equals:
        raise BadConfig(f"compare: expected KEY=VALUE, got {word!r}")
    return key, value


def _has(settings: Any, key: str) -> bool:
    for name, shown in settings.names.items():
        if key.partition(".")[0] == shown:
            key = key.replace(shown, name, 1)
    for part in key.replace("-", "_").split("."):
        if not hasattr(settings, part):
            return False
        settings = getattr(settings, part)
    return True
