"""TorchRL: `TensorDictReplayBuffer` on `LazyTensorStorage`, with its own transforms for pixels."""

from __future__ import annotations

import warnings
from itertools import cycle

import torch
from tensordict import TensorDict
from torchrl.data import (
    LazyTensorStorage,
    ReplayBuffer,
    TensorDictPrioritizedReplayBuffer,
    TensorDictReplayBuffer,
)
from torchrl.envs.transforms import CatFrames, Compose, MultiStepTransform

from . import workload as work
from .stopwatch import Card, cpu_us

BLOCK = 100  # steps of every env in one extend


def transitions(number: int, obs: int) -> TensorDict:
    """A block of steps under TorchRL's names."""
    one = work.steps(number, obs)
    following = {
        "observation": torch.from_numpy(one.next_obs),
        "reward": torch.from_numpy(one.reward)[:, None],
        "done": torch.from_numpy(one.done)[:, None],
    }
    return TensorDict(
        {
            "observation": torch.from_numpy(one.obs),
            "action": torch.from_numpy(one.action),
            "next": following,
        },
        batch_size=[number],
    )


def flat(card: Card, name: str, capacity: int, envs: int, batch: int) -> None:
    """Whole transitions: one `extend` per vector step, or `add` for a single env."""
    buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(capacity), batch_size=batch)
    block = transitions(envs, work.OBS)
    big = transitions(2000, work.OBS) if envs == 1 else block
    for _ in range(capacity // len(big)):
        buffer.extend(big)
    single = block[0]
    add = (lambda: buffer.add(single)) if envs == 1 else (lambda: buffer.extend(block))
    card.put(f"{name}_add", cpu_us(add))
    card.put(f"{name}_sample", cpu_us(lambda: buffer.sample()))


def pixel_block(channels: int) -> TensorDict:
    """[env, time] steps with stored stacks (channels 4) or single frames (channels 1)."""
    number = work.PIXEL_ENVS * BLOCK
    noise = torch.from_numpy(work.frames(number + channels))
    shape = (work.PIXEL_ENVS, BLOCK, channels, *work.FRAME)
    stacks = [noise[i : i + number] for i in range(channels + 1)]
    done = torch.rand(work.PIXEL_ENVS, BLOCK, 1) < 1 / work.EPISODE
    return TensorDict(
        {
            "pixels": torch.stack(stacks[:-1], 1).reshape(shape),
            "action": torch.randint(18, (work.PIXEL_ENVS, BLOCK), dtype=torch.int32),
            "next": {
                "pixels": torch.stack(stacks[1:], 1).reshape(shape),
                "reward": torch.randn(work.PIXEL_ENVS, BLOCK, 1),
                "done": done,
                "terminated": done.clone(),
                "truncated": torch.zeros_like(done),
            },
        },
        batch_size=[work.PIXEL_ENVS, BLOCK],
    )


def fill_pixels(buffer: ReplayBuffer, channels: int) -> float:
    """Fill the buffer; bytes per transition that its storage holds."""
    block = pixel_block(channels)
    for _ in range(work.PIXEL_CAPACITY // block.numel() + 1):
        buffer.extend(block.clone())
    held = buffer.storage[:]  # not buffer[:], which would run the transforms over everything
    return held.bytes() / held.numel()


def pixels(card: Card) -> None:
    """Stacks stored, n-step sums at write time."""
    buffer = TensorDictReplayBuffer(
        storage=LazyTensorStorage(work.PIXEL_CAPACITY, ndim=2),
        transform=MultiStepTransform(n_steps=work.N_STEP, gamma=work.GAMMA),
        batch_size=work.PIXEL_BATCH,
    )
    card.put("pixels_bytes", fill_pixels(buffer, work.STACK), "stacks stored")
    card.put("pixels_sample", cpu_us(lambda: buffer.sample()), "stacks stored")


def pixels_catframes(card: Card) -> None:
    """Frames stored twice and stacked when sampled, as CatFrames' own documentation does it.

    Constant padding, the faster of its two kinds; an episode's first starts are never sampled.
    """
    stack = CatFrames(
        N=work.STACK,
        dim=-3,
        in_keys=["pixels"],
        out_keys=["stack"],
        padding="constant",
        reset_key="_reset",
    )
    transform, sampler = stack.make_rb_transform_and_sampler(
        batch_size=work.PIXEL_BATCH, end_key=("next", "done")
    )
    buffer = ReplayBuffer(
        storage=LazyTensorStorage(work.PIXEL_CAPACITY, ndim=2),
        sampler=sampler,
        transform=Compose(MultiStepTransform(n_steps=work.N_STEP, gamma=work.GAMMA), transform),
        batch_size=work.PIXEL_BATCH,
    )
    card.put("pixels_bytes.CatFrames", fill_pixels(buffer, 1))
    card.put("pixels_sample.CatFrames", cpu_us(lambda: buffer.sample(), warm=1, least=3))


def prioritised(card: Card) -> None:
    """One cycle on a full buffer: extend, sample, update."""
    try:
        from torchrl import _torchrl  # noqa: F401
    except ImportError:
        # Its sum tree is C++ and loads only beside the torch that the wheel was built with.
        reason = f"its C++ sum tree does not load with torch {torch.__version__}"
        card.skip(reason, "prioritised_host")
        return
    buffer = TensorDictPrioritizedReplayBuffer(
        alpha=0.6,
        beta=0.4,
        storage=LazyTensorStorage(work.CYCLE_CAPACITY),
        batch_size=work.CYCLE_BATCH,
    )
    block = transitions(work.CYCLE_ADD, work.CYCLE_OBS)
    for _ in range(work.CYCLE_CAPACITY // work.CYCLE_ADD):
        buffer.extend(block)
    errors = cycle([torch.from_numpy(one) for one in work.priorities()])

    def once() -> None:
        buffer.extend(block)
        batch = buffer.sample()
        buffer.update_priority(batch["index"], next(errors))

    card.put("prioritised_host", cpu_us(once))


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    card = Card("torchrl", "tensordict", "torch", "numpy")
    with card.section("vector_add", "vector_sample"):
        flat(card, "vector", work.VECTOR_CAPACITY, work.VECTOR_ENVS, work.VECTOR_BATCH)
    with card.section("single_add", "single_sample"):
        flat(card, "single", work.SINGLE_CAPACITY, 1, work.SINGLE_BATCH)
    with card.section("prioritised_host"):
        prioritised(card)
    with card.section("pixels_sample", "pixels_bytes"):
        pixels(card)
    with card.section("pixels_sample.CatFrames", "pixels_bytes.CatFrames"):
        pixels_catframes(card)
    card.skip_jit()
    card.show()


if __name__ == "__main__":
    main()
