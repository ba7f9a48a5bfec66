"""Settings of a mixture made from others: an env's preset, fewer frames, or as small as can be."""

from __future__ import annotations

import dataclasses
from typing import Any

from ..train.settings import Settings
from .settings import MixSettings


def mix_from(settings: Settings) -> MixSettings:
    """A mixture with the env, network and agents of a preset's settings.

    `mix_from(settings_for("minatar/breakout"))` with `settings_for` of `millpond.train.presets`.
    """
    names = ("env", "world", "envs", "seed", "stack", "network", "pqn", "dqn")
    names = (*names, "eval_episodes", "eval_turns", "track")
    same: dict[str, Any] = {name: getattr(settings, name) for name in names}
    batch = settings.envs * settings.pqn.rollout // settings.pqn.minibatches
    same["dqn"] = dataclasses.replace(
        settings.dqn,
        gamma=settings.pqn.gamma,
        reward_scale=settings.pqn.reward_scale,
        reward_clip=settings.pqn.reward_clip,
        batch=max(batch, settings.dqn.batch),
        sampler="uniform",
    )
    return MixSettings(**same)


def with_frames(settings: MixSettings, frames: int) -> MixSettings:
    """The same mixture for so many frames. Where they do not suffice for four cycles, cycles
    become shorter, and what the BigAgent does in them less in the same proportion.

    `with_frames(mix_from(settings), 10_000_000)`.
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

    `tiny_mix(mix_from(settings))`.
    """
    pqn = dataclasses.replace(settings.pqn, rollout=4, minibatches=2, epochs=1)
    dqn = dataclasses.replace(settings.dqn, batch=8)
    big = dataclasses.replace(settings.big, steps=2, capacity=2_560)
    lake = dataclasses.replace(settings.lake, capacity=65_536, envs=0)
    sizes = dict(envs=8, pond=128, updates=4, eval_updates=2, eval_episodes=4, eval_turns=50)
    saves = dict(checkpoint_updates=4, resume_updates=2)
    frames = 8 * settings.agents * 8 * 4 * settings.world.frames_per_step
    parts: dict[str, Any] = dict(pqn=pqn, dqn=dqn, big=big, lake=lake)
    return dataclasses.replace(settings, **sizes, **saves, **parts, frames=frames, debug=True)
