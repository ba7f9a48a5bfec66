"""`Atari`: games of the Arcade Learning Environment, many at once on the host's CPU cores."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NoReturn

import numpy as np
from gymnasium.vector import AutoresetMode

from ..errors import BadConfig, BadState
from ..extras import import_extra
from ..rows import BORDER, FIRST, Rows, Tree, next_flags
from ..spec import Field
from .env import HostVector, PlainFacts

_ZOOM = 4


def atari_name(gym_id: str) -> str:
    """`atari/ms_pacman` for `ALE/MsPacman-v5` or `MsPacmanNoFrameskip-v4`; "" for other ids."""
    found = re.fullmatch(r"ALE/(\w+)-v\d+|(\w+?)(?:NoFrameskip|Deterministic)-v\d+", gym_id)
    game = found and (found[1] or found[2])
    return f"atari/{snake(game)}" if game else ""


def snake(game: str) -> str:
    """`MsPacman-v5` -> `ms_pacman`"""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", re.sub(r"-v\d+$", "", game)).lower()


@dataclass(frozen=True)
class Atari(PlainFacts):
    """An Atari game: single frames uint8[84, 84], raw rewards; only game over terminates.

    A step is `frame_skip` frames, with a maximum over the last two. With probability `sticky` a
    frame repeats the previous action. After `max_frames` frames the episode is truncated. A reset
    waits up to `noops` frames and, with `fire_reset`, presses FIRE if the game has it.
    `Atari("ms_pacman")`.
    """

    game: str  # the game's name
    sticky: float = 0.25  # probability that a frame repeats the last action
    frame_skip: int = 4  # frames per step
    max_frames: int = 108_000  # frames until an episode is truncated
    noops: int = 30  # most frames that a reset waits; the number is random
    fire_reset: bool = True  # press FIRE after a reset if the game has it
    full_actions: bool = False  # all 18 actions instead of only the game's own
    threads: int = 0  # threads of the emulators; 0: one per core

    def __post_init__(self) -> None:
        game, known = self.game.lower().replace("-", "_"), _games()
        if game not in known:
            near = difflib.get_close_matches(game, known, 1, 0.0)[0]
            raise BadConfig(
                f"atari: there is no game {self.game!r} among the {len(known)} of ale-py; "
                f"did you mean {near!r}?"
            )
        if not 0 <= self.sticky <= 1:
            raise BadConfig(f"atari: sticky is a probability from 0 to 1, got {self.sticky}")
        for name, least in (("frame_skip", 1), ("max_frames", 1), ("noops", 0), ("threads", 0)):
            if getattr(self, name) < least:
                raise BadConfig(f"atari: {name} must be {least} or more, got {getattr(self, name)}")
        object.__setattr__(self, "game", game)

    @property
    def name(self) -> str:
        """`atari/gravitar`"""
        return f"atari/{self.game}"

    @property
    def num_agents(self) -> int:
        """1"""
        return 1

    @property
    def num_actions(self) -> int:
        """All 18, or only those that have an effect in this game."""
        return _num_actions(self)

    @property
    def observation(self) -> Field:
        """uint8[84, 84]: one grey frame; a `Window` or `Stacker` stacks frames."""
        return Field("uint8", (84, 84))

    @property
    def extras(self) -> Mapping[str, Field]:
        """`life_lost`: this step lost a life. The game continues unless it was the last one."""
        return {"life_lost": Field("bool")}

    @property
    def frames_per_step(self) -> int:
        """`frame_skip`"""
        return self.frame_skip

    def vector(self, num_envs: int, seed: int) -> HostVector:
        """`num_envs` freshly reset games."""
        return _AtariVector(self, num_envs, seed)


class _AtariVector:
    """A `HostVector` over ale-py's own vector env; its state cannot be saved."""

    num_envs: int
    obs: Tree
    flags: np.ndarray

    def __init__(self, env: Atari, num_envs: int, seed: int) -> None:
        self.num_envs, self._name = num_envs, env.name
        self._vector: Any = _make(env, num_envs)
        # ale-py would seed env i with seed + i, so env 1 of seed 0 would equal env 0 of seed 1.
        seeds = np.random.SeedSequence(seed).generate_state(num_envs) >> 1
        frames, info = self._vector.reset(seed=seeds.astype(np.int64))
        self.obs, self._lives = _first_frames(frames), np.array(info["lives"])
        self.flags = np.full(num_envs, FIRST, np.uint8)

    def step(self, action: np.ndarray) -> Rows:
        """Take actions int32[1, env]; returns the rows [1, env]."""
        obs, flags, lives = self.obs, self.flags, self._lives
        step = (flags & BORDER) == 0  # at a border ale-py ignores the action and resets
        action = np.where(step, action, 0).astype(np.int32)
        frames, reward, terminated, truncated, info = self._vector.step(action[0])
        terminated, truncated = terminated & step, truncated & step
        self.obs, self._lives = _first_frames(frames), np.array(info["lives"])
        self.flags = next_flags(flags, terminated, truncated)
        return Rows(
            obs=obs,
            action=action,
            # A border row is not a step, so what ale-py reports there is not a reward.
            reward=np.where(step, reward, 0).astype(np.float32)[None],
            terminated=terminated[None],
            truncated=truncated[None],
            flags=flags[None],
            extras={"life_lost": ((self._lives < lives) & step)[None]},
        )

    def render(self) -> np.ndarray:
        """The first env's frame as the agent sees it, enlarged: uint8[336, 336, 3], grey."""
        large = self.obs[0, 0].repeat(_ZOOM, 0).repeat(_ZOOM, 1)
        return np.repeat(large[:, :, None], 3, 2)

    def export(self) -> None:
        """None, because ale-py's vector env cannot save the emulators' state."""
        return

    def restore(self, arrays: Mapping[str, np.ndarray]) -> NoReturn:
        """Raises BadState, because there is nothing to restore from."""
        raise BadState(
            f"{self._name}: ale-py's vector env cannot save or restore a state; start new episodes "
            "and cut the stream there"
        )

    def close(self) -> None:
        """Stop the threads and free the emulators."""
        self._vector = None


def _make(env: Atari, num_envs: int) -> Any:
    """ale-py's vector env with next-step autoreset; losing a life does not end an episode."""
    from ale_py.vector_env import AtariVectorEnv

    return AtariVectorEnv(
        env.game,
        num_envs,
        num_threads=env.threads,
        max_num_frames_per_episode=env.max_frames,
        repeat_action_probability=env.sticky,
        full_action_space=env.full_actions,
        autoreset_mode=AutoresetMode.NEXT_STEP,
        stack_num=1,
        frameskip=env.frame_skip,
        maxpool=True,
        noop_max=env.noops,
        use_fire_reset=env.fire_reset,
        reward_clipping=False,
        episodic_life=False,
        # True would set `terminated` at every lost life, which could not be distinguished from
        # game over. Lives are reported either way.
        life_loss_info=False,
    )


def _first_frames(frames: np.ndarray) -> np.ndarray:
    """[env, 1, 84, 84] -> [1, env, 84, 84]; a copy, because ale-py may reuse the array."""
    return frames[:, 0].copy()[None]


def _games() -> list[str]:
    """All games in ale-py."""
    import_extra("atari", "atari", "ale_py")
    return import_extra("atari", "atari", "ale_py.roms").get_all_rom_ids()


@lru_cache(maxsize=64)
def _num_actions(env: Atari) -> int:
    return int(_make(env, 1).single_action_space.n)
