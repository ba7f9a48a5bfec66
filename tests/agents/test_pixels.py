"""Pixels from a host env through stacks, rollouts and the Atari network: is the game learned?"""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import numpy as np
import pytest

from millpond.train import Run, train
from millpond.train.presets import settings_for


class Catch(gymnasium.Env[np.ndarray, int]):
    """A square falls six rows; the paddle below must be where it lands. A catch pays 100."""

    observation_space = gymnasium.spaces.Box(0, 255, (84, 84), np.uint8)
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.column, self.row, self.paddle = int(self.np_random.integers(7)), 0, 3
        return self._frame(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.paddle = min(max(self.paddle + int(action) - 1, 0), 6)
        self.row += 1
        landed = self.row == 6
        caught = landed and self.paddle == self.column
        return self._frame(), 100.0 * caught, landed, False, {}

    def _frame(self) -> np.ndarray:
        frame = np.zeros((7, 7), np.uint8)
        frame[self.row, self.column] = 255
        frame[6, self.paddle] = 160
        return frame.repeat(12, 0).repeat(12, 1)


@pytest.mark.full
def test_pqn_learns_from_pixels_with_the_settings_of_atari(tmp_path):
    if "PixelCatch-v0" not in gymnasium.registry:
        gymnasium.register("PixelCatch-v0", entry_point=Catch)
    atari = settings_for("atari/gravitar")
    settings = dataclasses.replace(
        settings_for("gym:PixelCatch-v0"),
        agent="pqn",
        steps=32_000,
        envs=16,
        stack=atari.stack,
        network=dataclasses.replace(atari.network, width=128),
        learning=dataclasses.replace(atari.learning, rollout=16, minibatches=8),
        eval_every=32_000,
        eval_episodes=64,
        eval_turns=50,
    )
    lines: list[dict[str, Any]] = []
    train(Run.create(tmp_path / "run", settings), lines.append)
    last = [line for line in lines if line["kind"] == "eval"][-1]
    assert last["return"] >= 90, "random play catches one in five"
