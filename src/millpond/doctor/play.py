"""`Play`: rows as they came, whoever played them: what the checks of an environment measure."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from ..rows import BORDER, CUT, ENDED, FIRST, Rows, pack_flags
from ..spec import Field, Spec

_FEATURES = 4096  # of an observation, at most: of larger ones some are looked at


@dataclass(frozen=True)
class Play:
    """Rows of one kind of player, [time, streams]; `policy` says whose each stream is.

    `Play.of(spec, rows, source)`, rows [time, policies, envs] or [time, envs].
    """

    source: str  # who played: it stands in messages
    seen: np.ndarray  # float32[time, streams, features]
    action: np.ndarray  # [time, streams, ...]
    reward: np.ndarray  # float64[time, streams]
    byte: np.ndarray  # uint8[time, streams]: flags, terminated, truncated
    policy: np.ndarray  # int[streams]
    obs: Any = None  # as they were, [time, streams, ...]
    extras: dict[str, np.ndarray] = field(default_factory=dict)
    low: float = -np.inf  # what the spec allows
    high: float = np.inf
    real: bool = False  # whether a vector of real numbers is observed

    @staticmethod
    def of(spec: Spec, rows: Rows, source: str) -> Play:
        """Of rows [time, policies, envs] or [time, envs]."""
        reward = np.asarray(rows.reward)
        lead = reward.shape
        policies = lead[1] if len(lead) == 3 else 1
        streams = int(np.prod(lead[1:]))

        def flat(leaf: Any) -> np.ndarray:
            leaf = np.asarray(leaf)
            return leaf.reshape(lead[0], streams, *leaf.shape[len(lead) :])

        obs = jax.tree.map(flat, rows.obs)
        byte = pack_flags(
            np.asarray(rows.flags).astype(np.uint8),
            np.asarray(rows.terminated),
            np.asarray(rows.truncated),
            None,
        )
        one = spec.obs if isinstance(spec.obs, Field) else None  # of several, each has its own
        low = -np.inf if one is None or one.low is None else np.min(one.low)
        high = np.inf if one is None or one.high is None else np.max(one.high)
        return Play(
            source,
            _features(obs, lead[0], streams),
            flat(rows.action),
            flat(reward).astype(np.float64),
            flat(byte),
            np.repeat(np.arange(policies), streams // policies),
            obs,
            {name: flat(leaf) for name, leaf in rows.extras.items()},
            float(low),
            float(high),
            one is not None and one.dtype.kind == "f" and len(one.shape) == 1,
        )

    @cached_property
    def step(self) -> np.ndarray:
        """Which rows are steps of an env: bool[time, streams]."""
        return (self.byte & BORDER) == 0

    @cached_property
    def first(self) -> np.ndarray:
        return (self.byte & FIRST) != 0

    @cached_property
    def follows(self) -> np.ndarray:
        """Whether the next row follows a step in the same stream: bool[time - 1, streams]."""
        return self.step[:-1] & ((self.byte[:-1] & CUT) == 0) & ~self.first[1:]

    @property
    def steps(self) -> int:
        return int(self.step.sum())

    @cached_property
    def ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Of whole episodes their lengths and how they ended (bits of a row's byte)."""
        lengths: list[int] = []
        how: list[int] = []
        begun = np.full(self.byte.shape[1], -1)
        for time, byte in enumerate(self.byte):
            begun = np.where((byte & FIRST) != 0, time, begun)
            over = ((byte & ENDED) != 0) & (begun >= 0)
            lengths += (time - begun[over] + 1).tolist()
            how += (byte[over] & ENDED).tolist()
            begun = np.where(((byte & ENDED) != 0) | ((byte & CUT) != 0), -1, begun)
        return np.asarray(lengths, int), np.asarray(how, int)

    @cached_property
    def hashes(self) -> np.ndarray:
        """One number for every observation: float64[time, streams]; equal for equal ones."""
        weights = np.random.default_rng(0).normal(size=self.seen.shape[-1])
        return np.nan_to_num(self.seen.astype(np.float64)) @ weights

    def of_policy(self, policy: int) -> np.ndarray:
        """Which streams are one policy's: indices."""
        return np.nonzero(self.policy == policy)[0]


def _features(obs: Any, time: int, streams: int) -> np.ndarray:
    """All that is observed as float32[time, streams, features]; of too much, every n-th number."""
    leaves = [np.asarray(leaf).reshape(time, streams, -1) for leaf in jax.tree.leaves(obs)]
    whole = np.concatenate([leaf.astype(np.float32) for leaf in leaves], -1)
    every = -(-whole.shape[-1] // _FEATURES)
    return whole[..., ::every]
