"""Make the settings of a mixture: from an env's preset, for fewer frames, or tiny for tests."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from ..config import with_known
from ..engine.settings import Settings
from ..envs import spec_of
from ..sequence import Sequence
from ..train.presets import settings_for
from .settings import BigSettings, CloneSettings, MixSettings, check_roles

SEED_003 = Path("seed-003")  # name of a preset: the first design of the mixture
RESTART = 0.1  # the agents' epsilon after a reset
BIG_BYTES = 4 << 30  # largest BigPond that a preset makes


def mix_from(
    agents: Settings, big: Settings, number: int = MixSettings.agents, share: bool = True
) -> MixSettings:
    """A mixture of `number` agents, from the settings of one agent and of a BigAgent in one env.

    If they `share`, the agents divide the one agent's envs among them, so that each makes as many
    updates in its part of the frames as that agent would in all of them.

    `mix_from(settings_for(env, agent="pqn"), settings_for(env, agent="dqn"))`, or `mix_for(env)`.
    """
    names = ("env", "world", "seed", "stack", "network", "agent", "learning")
    names = (*names, "eval_episodes", "eval_turns", "track")
    same: dict[str, Any] = {name: getattr(agents, name) for name in names}
    envs = max(1, agents.envs // number) if share else agents.envs
    same |= dict(agents=number, envs=envs)
    check_roles(agents.agent, agents.learning, big.agent, big.learning)
    learns: Any = agents.learns
    own = big.replayed.batch
    rows = envs * learns.turns // learns.parts
    batch = own if isinstance(big.window, Sequence) else max(rows, own)  # a sequence is many rows
    learning = with_known(
        big.learning,
        gamma=learns.window.gamma,
        reward_scale=learns.reward_scale,
        reward_clip=learns.window.reward_clip,
        batch=batch,
    )
    epsilon = agents.learning.schedules.get("epsilon")
    if epsilon and not epsilon.restart:  # clones are good already and need to explore less
        again = dataclasses.replace(epsilon, restart=(max(RESTART, epsilon.last),))
        same["learning"] = with_known(same["learning"], epsilon=again)
    room = BIG_BYTES // spec_of(agents.world).row_bytes // envs * envs
    ring = BigSettings(capacity=min(BigSettings.capacity, room))
    return MixSettings(**same, big_agent=big.agent, big_learning=learning, big=ring)


def mix_for(
    env: str,
    file: Path | None = None,
    agent: str | None = None,
    big_agent: str | None = None,
    agents: int = MixSettings.agents,
) -> MixSettings:
    """The mixture for an env: from its preset, from the preset named `file`, or from a TOML file.

    `mix_for("minatar/breakout")`; with `agents=1` one agent has all envs, and is reset after the
    same frames. `mix_for(env, Path("seed-003"))` is the mixture as first designed: its BigAgent is
    a DQN that learns from the whole Lake, and epsilon restarts at its initial value.
    """
    if file == SEED_003:
        ours = settings_for(env, None, agent or "pqn")
        theirs = settings_for(env, None, big_agent or "dqn")
        return _as_in_seed_003(mix_from(ours, theirs, agents, share=False))
    ours = settings_for(env, file, agent or "pqn")
    return mix_from(ours, settings_for(env, file, big_agent or "qlambda"), agents)


def _as_in_seed_003(settings: MixSettings) -> MixSettings:
    big = BigSettings(0.78125, min(512_000, settings.big.capacity), "uniform", init="previous")
    epsilon = settings.learning.schedules.get("epsilon")
    learning = settings.learning
    if epsilon:
        learning = with_known(learning, epsilon=dataclasses.replace(epsilon, restart=()))
    clone = CloneSettings(gate=0.0)
    names = ("updates", "eval_updates", "checkpoint_updates", "resume_updates")
    often = {name: getattr(settings, name) // settings.agents for name in names}
    more: dict[str, Any] = dict(learning=learning, big=big, clone=clone)
    return dataclasses.replace(settings, cycles=4, **often, **more)


def with_frames(settings: MixSettings, frames: int) -> MixSettings:
    """The same mixture for another number of frames. If they are too few for all cycles, cycles
    become shorter; if too few for cycles of eight updates, there are fewer of them, down to four.

    `with_frames(mix_for("minatar/breakout"), 10_000_000)`.
    """
    settings = dataclasses.replace(settings, frames=frames)
    whole = -(-frames // settings.frames_per_update)
    updates = max(1, min(settings.updates, max(whole // settings.cycles, min(8, whole // 4))))
    if updates == settings.updates:
        return settings
    often = max(1, min(settings.eval_updates, updates // 2))
    return dataclasses.replace(settings, updates=updates, eval_updates=often)


def tiny_mix(settings: MixSettings) -> MixSettings:
    """The same mixture, so small that two cycles take less than a minute; for `--debug`.

    `tiny_mix(mix_for("minatar/breakout"))`.
    """
    learning = settings.learning.tiny()
    big_learning = with_known(settings.big_learning.tiny(), batch=8)
    big = dataclasses.replace(settings.big, capacity=2_560)
    lake = dataclasses.replace(settings.lake, capacity=65_536, envs=0)
    sizes = dict(envs=8, pond=128, updates=4, eval_updates=2, eval_episodes=4, eval_turns=50)
    saves = dict(checkpoint_updates=4, resume_updates=2)
    turns = learning.learns(settings.stack).turns
    frames = 8 * settings.agents * 8 * turns * settings.world.frames_per_step
    parts: dict[str, Any] = dict(learning=learning, big_learning=big_learning, big=big, lake=lake)
    return dataclasses.replace(settings, **sizes, **saves, **parts, frames=frames, debug=True)
