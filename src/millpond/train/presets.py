"""Presets: for each environment a readable file with settings that work."""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from ..agents import find_agent
from ..config import nearest
from ..engine.settings import Settings, settings_from, usual_agent
from ..envs import make_env
from ..errors import BadConfig, NotInstalled
from ..samplers import make_sampler

_FOLDER = files("millpond") / "presets"


def preset_names() -> list[str]:
    """The names of all presets that come with millpond."""
    return sorted(f.name.removesuffix(".toml") for f in _FOLDER.iterdir() if f.name[-5:] == ".toml")


def preset_text(name: str) -> str:
    """The text of a preset's file."""
    if name not in preset_names():
        raise BadConfig(f"there is no preset '{name}'; {nearest(name, preset_names())}")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def preset_for(env: str) -> str | None:
    """The preset of an env: its own, or that of its family (`minatar` for `minatar/breakout`)."""
    family = env.replace(":", "/").partition("/")[0]
    return next((name for name in (_own(env), family) if name in preset_names()), None)


def _own(env: str) -> str:
    return env.replace("/", "-").replace(":", "-")


def settings_for(
    env: str,
    file: Path | None = None,
    agent: str | None = None,
    sampler: str | None = None,
    world: Any = None,
) -> Settings:
    """The settings for an env from its preset, from another preset, or from a file like one.

    `settings_for("minatar/breakout", agent="dqn")` takes another agent or sampler than the preset.
    If none is named anywhere, the agent is one that fits `world`, the env with its final options.
    """
    given = {"agent": agent, "sampler": sampler}
    chosen = {name: value for name, value in given.items() if value is not None}
    for check, value in ((find_agent, agent), (make_sampler, sampler)):
        if value is not None:  # an unknown name is not the preset's fault
            check(value)
    name = preset_for(env)
    if file and file.suffix != ".toml" and not file.exists():
        name, file = str(file), None
    where = str(file) if file else f"preset '{name}'"
    if file is None and name is None:
        return settings_from(chosen, env, world)
    try:
        text = file.read_text(encoding="utf-8") if file else preset_text(name or "")
        plain: dict[str, Any] = tomllib.loads(text)
    except OSError as error:
        raise BadConfig(
            f"{where} cannot be read: {error.strerror}; millpond presets lists them"
        ) from error
    except UnicodeDecodeError as error:
        raise BadConfig(f"{where} is not TOML: its bytes are not UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{where} is not TOML: {error}") from error
    if agent is None and file is None and name == preset_for(env) != _own(env):
        # A family's preset names an agent for most of its envs, which may not fit this one.
        usual = usual_agent(world or make_env(env))
        if find_agent(usual).continuous != find_agent(plain.get("agent", usual)).continuous:
            chosen["agent"] = usual
    if (other := plain.pop("env", env)) != env:
        raise BadConfig(f"{where} is for env {other}, not {env}; name that env instead")
    try:
        return settings_from(plain | chosen, env, world)
    except NotInstalled:  # not the preset's fault
        raise
    except BadConfig as error:
        raise BadConfig(f"{where}: {error}") from error
