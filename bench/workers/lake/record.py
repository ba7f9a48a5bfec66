"""Records real Atari play for the disk benchmark: `python -m workers.lake.record GAME FOLDER`.

Random actions, every frame stored once, in the order of time. An env's long play is cut into
several streams: making an env takes longer than playing hundreds of steps.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from ale_py.vector_env import AtariVectorEnv

from . import frames as work


def main() -> None:
    os.sched_setaffinity(0, range(os.cpu_count() or 1))  # nothing is timed here
    game, folder, time = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    envs = AtariVectorEnv(game, work.ENVS, stack_num=1, reward_clipping=False)
    shape = (time, work.STREAMS)
    cuts = work.STREAMS // work.ENVS
    folder.mkdir(parents=True, exist_ok=True)
    frames = np.lib.format.open_memmap(
        folder / "frames.part.npy", "w+", np.uint8, (*shape, *work.FRAME)
    )
    small = np.zeros(shape, work.SMALL)
    rng = np.random.default_rng(0)
    obs, _ = envs.reset(seed=0)
    first, border = np.ones(work.ENVS, bool), np.zeros(work.ENVS, bool)
    for step in range(time * cuts):
        at, which = step % time, slice((step // time) * work.ENVS, (step // time + 1) * work.ENVS)
        action = rng.integers(0, envs.single_action_space.n, work.ENVS)
        frames[at, which] = obs[:, 0]
        obs, reward, terminated, truncated, _ = envs.step(action)
        small["action"][at, which], small["reward"][at, which] = action, reward
        small["terminated"][at, which], small["truncated"][at, which] = terminated, truncated
        small["first"][at, which], small["border"][at, which] = first, border
        # Next-step autoreset: an ended row's border row holds the final observation.
        first, border = border, (terminated | truncated) & ~border
    frames.flush()
    np.save(folder / "small.npy", small)
    (folder / "frames.part.npy").rename(folder / "frames.npy")


if __name__ == "__main__":
    main()
