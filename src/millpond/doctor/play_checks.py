"""What rows say by themselves, whoever played them, and whether envs are copies of each other.

Pure functions of a `Play`. They serve a run's stored rows, rows that were played for the doctor,
an environment before any training, and the replay of your own loop.
"""

from __future__ import annotations

import numpy as np

from .episode_checks import borders, ends, resets
from .observation_checks import final_observations, observations
from .play import Play
from .reward_checks import rewards
from .verdict import Verdict, green, red, unknown


def copies(play: Play) -> Verdict:
    """Envs beside each other must not be the same env."""
    name = "env-copies"
    worst: Verdict | None = None
    for policy in range(int(play.policy.max()) + 1):
        found = _copies(play, play.of_policy(policy), name)
        if found.fired:
            return found
        worst = found if worst is None or found.state == "green" else worst
    assert worst
    return worst


def _copies(play: Play, streams: np.ndarray, name: str) -> Verdict:
    number = len(streams)
    if number < 2:
        return unknown(name, f"there is one env in the rows of {play.source}")
    seen, action = (
        play.hashes[:, streams],
        play.action[:, streams].reshape(len(play.byte), number, -1),
    )
    varied = len(np.unique(seen))
    remedy = "give every env a seed of its own (jax.random.split; seed + i)"
    if varied > 5 and len(play.byte) >= 20:
        keys = [row.tobytes() for row in np.moveaxis(seen, 1, 0)]
        acted = [row.tobytes() for row in np.moveaxis(action, 1, 0)]
        alone = len(set(zip(keys, acted, strict=True)))
        if alone <= 0.75 * number:
            message = f"{number} envs of {play.source} are {alone}: the others are exact copies"
            return red(name, message, remedy, envs=number, different=alone, rows=len(play.byte))
    # The same chance in every env shows where all begin: alike at one time, different each time.
    first = play.first[:, streams]
    begun = [
        np.unique(row[which]) for row, which in zip(seen, first, strict=True) if which.sum() > 1
    ]
    counts = [int(which.sum()) for which in first if which.sum() > 1]
    if len(begun) >= 3 and sum(counts) >= 24:
        distinct = len(np.unique(np.concatenate(begun)))
        alike = sum(len(values) == 1 for values in begun)
        numbers = dict(envs=number, beginnings=len(begun), distinct=distinct, alike=alike)
        # By chance: every one of them would have to meet the others' beginning.
        if alike == len(begun) and distinct >= max(3, 0.75 * len(begun)):
            message = f"{number} envs always begin alike, {distinct} times differently"
            return red(name, f"{message}: they share their chance", remedy, **numbers)
    return green(name, f"{number} envs play {number} different games", envs=number)


def examined(play: Play, lasts: bool = False) -> list[Verdict]:
    """All that rows say by themselves: `examined(Play.of(spec, rows, "the replay"))`."""
    checks = (observations, borders, ends, resets, final_observations, copies)
    return [rewards(play, lasts), *(check(play) for check in checks)]
