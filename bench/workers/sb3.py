"""Stable-Baselines3: `ReplayBuffer`, and `NStepReplayBuffer` over stored stacks for pixels."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from stable_baselines3.common.buffers import NStepReplayBuffer, ReplayBuffer

from . import workload as work
from .stopwatch import Card, allocated, cpu_us

BOX = gymnasium.spaces.Box
CANNOT = "SB3 has no prioritised replay"


def flat(card: Card, name: str, capacity: int, envs: int, batch: int = 0) -> None:
    """Whole transitions; the faster way drops timeouts, the default reads one dict per env."""
    one = work.steps(envs)
    infos = [{} for _ in range(envs)]
    ways: dict[str, float] = {}
    for way, timeouts in (("no timeouts", False), ("timeouts", True)):
        buffer = ReplayBuffer(
            capacity,
            BOX(-np.inf, np.inf, (work.OBS,), np.float32),
            BOX(-1, 1, (work.ACTION,), np.float32),
            device="cpu",
            n_envs=envs,
            handle_timeout_termination=timeouts,
        )

        def add(buffer: ReplayBuffer = buffer) -> None:
            buffer.add(one.obs, one.next_obs, one.action, one.reward, one.done, infos)

        for _ in range(capacity // envs):
            add()
        ways[way] = cpu_us(add)
    card.best(f"{name}_add", ways)
    if batch:
        card.put(f"{name}_sample", cpu_us(lambda: buffer.sample(batch)))


def pixels(card: Card) -> None:
    """Stacked observations as VecFrameStack gives them; n-step sums when sampled.

    `optimize_memory_usage` would halve the memory, but NStepReplayBuffer refuses it.
    """
    space = BOX(0, 255, (work.STACK, *work.FRAME), np.uint8)
    with allocated() as held:
        buffer = NStepReplayBuffer(
            work.PIXEL_CAPACITY,
            space,
            gymnasium.spaces.Discrete(18),
            device="cpu",
            n_envs=work.PIXEL_ENVS,
            n_steps=work.N_STEP,
            gamma=work.GAMMA,
        )
        card.put("pixels_bytes", held() / work.PIXEL_CAPACITY, "stacks stored")
    rng = np.random.default_rng(0)
    stacks = work.frames(work.PIXEL_ENVS * (work.STACK + 1))
    stacks = stacks.reshape(work.PIXEL_ENVS, work.STACK + 1, *work.FRAME)
    infos = [{} for _ in range(work.PIXEL_ENVS)]
    for _ in range(work.PIXEL_CAPACITY // work.PIXEL_ENVS):
        buffer.add(
            stacks[:, :-1],
            stacks[:, 1:],
            rng.integers(0, 18, (work.PIXEL_ENVS, 1)),
            rng.standard_normal(work.PIXEL_ENVS, np.float32),
            rng.random(work.PIXEL_ENVS) < 1 / work.EPISODE,
            infos,
        )
    card.put("pixels_sample", cpu_us(lambda: buffer.sample(work.PIXEL_BATCH)), "stacks stored")


def main() -> None:
    torch.set_num_threads(1)
    card = Card("stable-baselines3", "torch", "numpy")
    with card.section("vector_add", "vector_sample"):
        flat(card, "vector", work.VECTOR_CAPACITY, work.VECTOR_ENVS, work.VECTOR_BATCH)
    with card.section("single_add", "single_sample"):
        flat(card, "single", work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH)
    for envs in work.SMALL_ENVS:
        with card.section(f"small_{envs}_add"):
            flat(card, f"small_{envs}", work.SMALL_CAPACITY, envs)
    with card.section("pixels_sample", "pixels_bytes"):
        pixels(card)
    card.skip(CANNOT, "prioritised_host")
    card.skip_jit()
    card.show()


if __name__ == "__main__":
    main()
