"""Bugs to plant in replay: what is stored, which rows are drawn, and what is made of them.

In a Pond and, as shards keep their rows there, in a HostPond.
"""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..host_random import HostRandom
from ..replay import HostPond, Pond
from ..replay.device_batches import DeviceBatches
from ..rows import TRUNCATED, Array, Batch, Rows
from ..samplers import Candidates, Eligible, Prioritized, Uniform
from ..window import Judgement, Window
from .sabotage import patched


@contextlib.contextmanager
def _both(owner: Any, name: str, value: Any, host: Any) -> Generator[None]:
    """A method of a Pond's part and the HostPond's method of the same effect are other ones."""
    method = "sample" if name == "fill" else name
    with patched(owner, name, value), patched(HostPond, method, host):
        yield


def _changed_batch(**change: Any) -> Any:
    fill, sample = DeviceBatches.fill, HostPond.sample

    def other(batches: DeviceBatches, *given: Any) -> tuple[Batch, Array]:
        batch, zero = fill(batches, *given)
        return batch._replace(**{name: make(batch) for name, make in change.items()}), zero

    def host(pond: HostPond, *given: Any) -> Any:
        batch: Any = sample(pond, *given)
        return batch._replace(**{name: np.array(make(batch)) for name, make in change.items()})

    return _both(DeviceBatches, "fill", other, host)


def same_next_obs() -> Any:
    """What comes next is what was there."""
    return _changed_batch(next_obs=lambda batch: batch.obs)


def mixed_next_obs() -> Any:
    """What comes next belongs to another transition."""
    return _changed_batch(next_obs=lambda batch: jnp.roll(batch.next_obs, 1, 0))


def reversed_stacks() -> Any:
    """Stacks are newest first."""
    return _changed_batch(
        obs=lambda batch: batch.obs[:, ::-1], next_obs=lambda batch: batch.next_obs[:, ::-1]
    )


def mixed_actions() -> Any:
    """A batch holds the actions of other transitions."""
    return _changed_batch(action=lambda batch: jnp.roll(batch.action, 1, 0))


def mixed_rewards() -> Any:
    """A batch holds the returns of other transitions."""
    return _changed_batch(reward=lambda batch: jnp.roll(batch.reward, 1, 0))


def no_discount() -> Any:
    """Every transition ends there: nothing is bootstrapped."""
    return _changed_batch(discount=lambda batch: batch.discount * 0)


def truncations_stop() -> Any:
    """A truncated episode is worth nothing more."""
    returns = Window.returns

    def other(window: Window, rewards: Array, verdict: Judgement, xp: Any) -> tuple[Array, Array]:
        total, discount = returns(window, rewards, verdict, xp)
        return total, xp.where((verdict.last & TRUNCATED) != 0, np.float32(0), discount)

    return patched(Window, "returns", other)


def same_draw() -> Any:
    """Every draw is the same."""
    sample, draw = Pond.sample, HostPond.sample

    def other(pond: Pond, state: Any, key: Array, batch_size: int) -> Any:
        return sample(pond, state, jax.random.key(0), batch_size)

    def host(pond: HostPond, *given: Any) -> Any:
        pond._random = HostRandom(0)
        return draw(pond, *given)

    return _both(Pond, "sample", other, host)


def _drawn(change: Any) -> Any:
    propose = Uniform.propose

    def other(sampler: Any, random: Any, tries: int, batch: int, eligible: Eligible) -> Candidates:
        return change(propose(sampler, random, tries, batch, eligible))

    return patched(Uniform, "propose", other)


def old_rows_only() -> Any:
    """Only the older half is drawn."""
    return _drawn(lambda drawn: drawn._replace(age=drawn.age // 2))


def one_env_only() -> Any:
    """Only the first envs' rows are drawn."""
    return _drawn(lambda drawn: drawn._replace(stream=drawn.stream // 4))


def _stored(change: Any) -> Any:
    add, append = Pond.add, HostPond.add

    def other(pond: Pond, state: Any, rows: Rows, *given: Any) -> Any:
        return add(pond, state, change(rows), *given)

    def host(pond: HostPond, rows: Rows, *given: Any) -> None:
        # One turn after the other, as in a Pond: a change may mix envs.
        for time in range(len(rows.reward)):
            turn = change(jax.tree.map(lambda leaf, t=time: leaf[t], rows))
            append(pond, jax.tree.map(np.array, turn), *given)

    return _both(Pond, "add", other, host)


def negated_when_stored() -> Any:
    """Rewards lose their sign on the way into the replay."""
    return _stored(lambda rows: rows._replace(reward=-rows.reward))


def shifted_when_stored() -> Any:
    """Actions are stored under the next one's number."""
    return _stored(lambda rows: rows._replace(action=(rows.action + 1) % 4))


def copied_when_stored() -> Any:
    """All envs' rows are those of the first."""

    def first(leaf: Array) -> Array:
        return jnp.broadcast_to(leaf[:1], leaf.shape)

    return _stored(lambda rows: jax.tree.map(first, rows))


def not_rewarded_when_stored() -> Any:
    """Rewards are lost on the way into the replay."""
    return _stored(lambda rows: rows._replace(reward=rows.reward * 0))


def part_of_what_is_seen_lost() -> Any:
    """What is worth most is not stored with what was seen."""
    return _stored(lambda rows: rows._replace(obs=rows.obs & (jnp.arange(rows.obs.shape[-1]) != 3)))


def seen_by_another_env() -> Any:
    """Rows hold what another env showed."""
    return _stored(lambda rows: rows._replace(obs=jnp.roll(rows.obs, 1, 0)))


def ends_lost_when_stored() -> Any:
    """Neither ends nor beginnings of episodes are stored."""
    return _stored(
        lambda rows: rows._replace(
            flags=rows.flags * 0,
            terminated=rows.terminated & False,
            truncated=rows.truncated & False,
        )
    )


def rewards_rounded_when_stored() -> Any:
    """Rewards are rounded to multiples of 4."""
    return _stored(lambda rows: rows._replace(reward=jnp.round(rows.reward / 4) * 4))


def priorities_lost() -> Any:
    """What is given back as priorities goes nowhere."""
    return _both(
        Pond,
        "update_priorities",
        lambda pond, state, draw, priorities: state,
        lambda pond, draw, priorities: None,
    )


def priorities_inverted() -> Any:
    """The larger the error, the lower the priority."""
    right, host = Pond.update_priorities, HostPond.update_priorities
    return _both(
        Pond,
        "update_priorities",
        lambda pond, state, draw, priority: right(pond, state, draw, 1 / (priority + 1e-3)),
        lambda pond, draw, priority: host(pond, draw, 1 / (priority + 1e-3)),
    )


def weights_inverted() -> Any:
    """Rows that are drawn often have the larger weights."""
    right = Prioritized.weights

    def other(sampler: Prioritized, *given: Any) -> Array:
        weight = right(sampler, *given)
        return jnp.where(weight > 0, weight.min(where=weight > 0, initial=1) / weight, 0)

    return patched(Prioritized, "weights", other)


def sums_across_ends() -> Any:
    """n-step sums go on into the next episode."""

    def other(window: Window, rewards: Array, verdict: Judgement, xp: Any) -> Any:
        total, discount = right(window, rewards, verdict, xp)
        powers = [np.float32(window.gamma**k) for k in range(window.n_step)]
        whole = sum(power * reward for power, reward in zip(powers, rewards, strict=True))
        return whole + 0 * total, discount

    right = Window.returns
    return patched(Window, "returns", other)


@dataclass(frozen=True)
class OldestTwentieth:
    """Your own sampler that draws the oldest twentieth of the rows alone."""

    tries: int = 4

    def propose(self, random: Any, tries: int, batch: int, eligible: Eligible) -> Candidates:
        drawn = Uniform().propose(random, tries, batch, eligible)
        return drawn._replace(age=drawn.age // 20)


@dataclass(frozen=True)
class FirstEnvOnly:
    """Your own sampler that draws the rows of one env alone."""

    tries: int = 4

    def propose(self, random: Any, tries: int, batch: int, eligible: Eligible) -> Candidates:
        drawn = Uniform().propose(random, tries, batch, eligible)
        return drawn._replace(stream=drawn.stream * 0)


@dataclass(frozen=True)
class OneRowPerBatch:
    """Your own sampler that uses one random number for a whole batch."""

    tries: int = 4

    def propose(self, random: Any, tries: int, batch: int, eligible: Eligible) -> Candidates:
        drawn = Uniform().propose(random, tries, 1, eligible)
        return jax.tree.map(lambda leaf: random.xp.broadcast_to(leaf, (tries, batch)), drawn)
