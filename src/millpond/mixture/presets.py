"""Settings of a mixture made from others: an env's preset, fewer frames, or as small as can be."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..agents import Rollouts
from ..config import with_known
from ..engine.settings import Settings
from ..sequence import Sequence
from ..train.presets import settings_for
from .settings import MixSettings


def mix_from(agents: Settings, big: Settings) -> MixSettings:
    """A mixture from the settings of its agents and of its BigAgent in one env.

    `mix_from(settings_for(env, agent="pqn"), settings_for(env, agent="dqn"))`, or `mix_for(env)`.
    """
    names = ("env", "world", "envs", "seed", "stack", "network", "agent", "learning")
    names = (*names, "eval_episodes", "eval_turns", "track")
    same: dict[str, Any] = {name: getattr(agents, name) for name in names}
    learns = agents.learns
    assert isinstance(learns, Rollouts)
    own = big.replayed.batch
    rows = agents.envs * learns.turns // learns.parts
    batch = own if isinstance(big.window, Sequence) else max(rows, own)  # sequences are many rows
    learning = with_known(
        big.learning,
        gamma=learns.window.gamma,
        reward_scale=learns.reward_scale,
        reward_clip=learns.window.reward_clip,
        batch=batch,
    )
    return MixSettings(**same, big_agent=big.agent, big_learning=learning)


def mix_for(
    env: str, file: Path | None = None, agent: str | None = None, big_agent: str | None = None
) -> MixSettings:
    """The mixture of an env by its preset, by another one's name, or by a file of that form.

    `mix_for("minatar/breakout")`.
    """
    agents = settings_for(env, file, agent or "pqn")
    return mix_from(agents, settings_for(env, file, big_agent or "dqn"))


def with_frames(settings: MixSettings, frames: int) -> MixSettings:
    """The same mixture for so many frames. Where they do not suffice for four cycles, cycles
    become shorter, and what the BigAgent does in them less in the same proportion.

    `with_frames(mix_for("minatar/breakout"), 10_000_000)`.
    """
    settings = dataclasses.replace(settings, frames=frames)
    whole = -(-frames // settings.frames_per_update)
    updates = max(1, min(settings.updates, whole // 4))
    if updates == settings.updates:
        return settings
    big = dataclasses.replace(
        settings.big, steps=max(1, settings.big.steps * updates // settings.updates)
    )
    often = max(1, min(settings.eval_updates, updates // 2))
    return dataclasses.replace(settings, updates=updates, big=big, eval_updates=often)


def tiny_mix(settings: MixSettings) -> MixSettings:
    """The same mixture so small that two cycles end within a minute: for `--debug`.

    `tiny_mix(mix_for("minatar/breakout"))`.
    """
    learning = settings.learning.tiny()
    big_learning = with_known(settings.big_learning, batch=8)
    big = dataclasses.replace(settings.big, steps=2, capacity=2_560)
    lake = dataclasses.replace(settings.lake, capacity=65_536, envs=0)
    sizes = dict(envs=8, pond=128, updates=4, eval_updates=2, eval_episodes=4, eval_turns=50)
    saves = dict(checkpoint_updates=4, resume_updates=2)
    turns = learning.learns(settings.stack).turns
    frames = 8 * settings.agents * 8 * turns * settings.world.frames_per_step
    parts: dict[str, Any] = dict(learning=learning, big_learning=big_learning, big=big, lake=lake)
    return dataclasses.replace(settings, **sizes, **saves, **parts, frames=frames, debug=True)
