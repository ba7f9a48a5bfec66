"""cpprb: `ReplayBuffer` and `PrioritizedReplayBuffer`; pixels compressed, for one env only."""

from __future__ import annotations

from itertools import cycle

import numpy as np
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

from . import workload as work
from .stopwatch import Card, allocated, cpu_us


def fields(obs: int) -> dict[str, dict]:
    """Whole transitions: `next_of` mixes up the rows of several envs."""
    return {
        "obs": {"shape": obs},
        "act": {"shape": work.ACTION},
        "rew": {},
        "next_obs": {"shape": obs},
        "done": {},
    }


def transitions(number: int, obs: int) -> dict[str, np.ndarray]:
    """A block of steps under cpprb's names, with its dtypes."""
    one = work.steps(number, obs)
    done = one.done.astype(np.float32)
    return dict(obs=one.obs, act=one.action, rew=one.reward, next_obs=one.next_obs, done=done)


def flat(card: Card, name: str, capacity: int, envs: int, batch: int) -> None:
    """Whole transitions, added in one call and sampled uniformly."""
    buffer = ReplayBuffer(capacity, fields(work.OBS))
    block = transitions(envs, work.OBS)
    for _ in range(capacity // envs):
        buffer.add(**block)
    card.put(f"{name}_add", cpu_us(lambda: buffer.add(**block)))
    card.put(f"{name}_sample", cpu_us(lambda: buffer.sample(batch)))


def pixels(card: Card) -> None:
    """Frames stored once with `stack_compress` and `next_of`.

    With `Nstep` on top, sampled batches lose next_obs; so this is n-step 1, and one env.
    """
    note = "one env only, n-step 1"
    sliding = np.moveaxis(work.frames(work.EPISODE + work.STACK), 0, -1)
    rng = np.random.default_rng(0)
    with allocated() as held:
        buffer = ReplayBuffer(
            work.PIXEL_CAPACITY,
            {
                "obs": {"shape": (*work.FRAME, work.STACK), "dtype": np.uint8},
                "act": {"dtype": np.int32},
                "rew": {},
                "done": {},
            },
            next_of="obs",
            stack_compress="obs",
        )
        card.put("pixels_bytes.before any episode ended", held() / work.PIXEL_CAPACITY, note)
        for step in range(work.PIXEL_CAPACITY):
            at = step % work.EPISODE
            last = at == work.EPISODE - 1
            buffer.add(
                obs=sliding[..., at : at + work.STACK],
                next_obs=sliding[..., at + 1 : at + 1 + work.STACK],
                act=int(rng.integers(18)),
                rew=1.0,
                done=float(last),
            )
            if last:
                buffer.on_episode_end()
        card.put("pixels_bytes", held() / work.PIXEL_CAPACITY, note)
    card.put("pixels_sample", cpu_us(lambda: buffer.sample(work.PIXEL_BATCH)), note)


def prioritised(card: Card) -> None:
    """One cycle on a full buffer: add, sample, update."""
    buffer = PrioritizedReplayBuffer(work.CYCLE_CAPACITY, fields(work.CYCLE_OBS))
    block = transitions(work.CYCLE_ADD, work.CYCLE_OBS)
    for _ in range(work.CYCLE_CAPACITY // work.CYCLE_ADD):
        buffer.add(**block)
    errors = cycle(work.priorities())

    def once() -> None:
        buffer.add(**block)
        batch = buffer.sample(work.CYCLE_BATCH)
        buffer.update_priorities(batch["indexes"], next(errors))

    card.put("prioritised_host", cpu_us(once))


def main() -> None:
    card = Card("cpprb", "numpy")
    with card.section("vector_add", "vector_sample"):
        flat(card, "vector", work.VECTOR_CAPACITY, work.VECTOR_ENVS, work.VECTOR_BATCH)
    with card.section("single_add", "single_sample"):
        flat(card, "single", work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH)
    with card.section("pixels_sample", "pixels_bytes"):
        pixels(card)
    with card.section("prioritised_host"):
        prioritised(card)
    card.skip_jit()
    card.show()


if __name__ == "__main__":
    main()
