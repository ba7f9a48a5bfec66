"""Bugs to plant in the parts of a run: each function here breaks one thing on purpose.

Functions of a `Part` are called in its process, before it runs; functions of a `LocalCrew` break a
sequential run; context managers break this process for as long as they last.
"""

# To break a part from inside is the purpose of this file.
# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import threading
from collections.abc import Callable, Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import DQN, AgentState, Learned, Now
from ..engine.acting import Acting, Params
from ..engine.limiter import Limiter
from ..engine.sequential import LocalCrew
from ..process.actor_worker import ActorWorker
from ..process.learner_worker import LearnerWorker
from ..process.member import ProcessMember
from ..rows import Array, Batch, Rows
from ..transport.channel import Channel
from ..transport.memory import PAGE, Memory
from ..transport.slots import SlotMemory
from ..window import Judgement, Window

_WHEN = 20  # the cycle, push or publication at which it happens


@contextlib.contextmanager
def patched(owner: Any, name: str, value: Any) -> Generator[None]:
    """`owner.name` is another one, for as long as this lasts."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


# --- in a sequential run -------------------------------------------------------------------------


def change_rows(crew: LocalCrew, change: Callable[[Rows], Rows]) -> None:
    """Let the first actor's rows go through `change`."""
    actor: Any = crew.actors[0]
    act = actor.cycle
    actor.cycle = lambda params, versions: change(act(params, versions))


def forget(crew: LocalCrew) -> None:
    """Clear the actor's history now and then, in the middle of episodes."""
    actor: Any = crew.actors[0]
    act, cycles = actor.cycle, iter(range(1 << 30))

    def cycle(params: Params, versions: np.ndarray) -> Rows:
        if next(cycles) % _WHEN == _WHEN - 1:
            blank = jax.tree.map(jnp.zeros_like, actor.state.history)
            blank = blank._replace(depth=blank.depth - 1)
            actor.state = actor.state._replace(history=blank)
        return act(params, versions)

    actor.cycle = cycle


def lose_an_end(crew: LocalCrew) -> None:
    """Do not say that the first env's episodes end."""

    def change(rows: Rows) -> Rows:
        terminated, truncated = rows.terminated.copy(), rows.truncated.copy()
        terminated[..., 0] = truncated[..., 0] = False
        return rows._replace(terminated=terminated, truncated=truncated)

    change_rows(crew, change)


def keep_old_parameters(crew: LocalCrew) -> None:
    """Act with the very first parameters for ever."""
    actor: Any = crew.actors[0]
    act = actor.cycle
    first: list[Any] = []

    def cycle(params: Params, versions: np.ndarray) -> Rows:
        if not first:
            first.extend((jax.tree.map(jnp.array, params), versions.copy()))
        return act(*first)

    actor.cycle = cycle


class _Lazy(Limiter):
    """Half of the updates that are due."""

    def due(self, cycle: int) -> int:
        return super().due(cycle) if cycle % 2 else 0


def learn_too_little(crew: LocalCrew) -> None:
    """Skip the updates of every other cycle."""
    for learner in crew.learners:
        learner.limiter = _Lazy(**dataclasses.asdict(learner.limiter))


# --- in the code of this process -----------------------------------------------------------------


def second_target_update() -> Any:
    """Let somebody else follow the target too."""
    update = DQN.update

    def twice(agent: DQN, state: AgentState, batch: Batch, now: Now) -> tuple[AgentState, Learned]:
        new, learned = update(agent, state, batch, now)
        tau = agent.settings.tau
        target = jax.tree.map(lambda p, t: t + tau * (p - t), new.params, new.target)
        return new._replace(target=target, synced=new.synced + 1), learned

    return patched(DQN, "update", twice)


def one_step_sum() -> Any:
    """Discount by gamma^n a sum of one reward."""
    returns = Window.returns

    def short(window: Window, rewards: Array, verdict: Judgement, xp: Any) -> tuple[Array, Array]:
        _, discount = returns(window, rewards, verdict, xp)
        return rewards[0], discount

    return patched(Window, "returns", short)


def late_epsilon() -> Any:
    """Give actors a new epsilon every 256 steps only."""
    now = Acting.now

    def late(acting: Acting, steps: Array, xp: Any = np) -> dict[str, Array]:
        return now(acting, steps // 256 * 256, xp)

    return patched(Acting, "now", late)


def by_value() -> Any:
    """Give processes a copy of every channel's memory instead of the memory."""
    share = Channel.share
    copies: list[Memory] = []

    def copied(channel: Channel) -> tuple[dict[str, Any], list[int]]:
        plain, (fd, *bells) = share(channel)
        original = Memory.attach(plain["memory"], [os.dup(fd)])
        copies.append(Memory.create(original.size - PAGE))
        copies[-1].raw()[:] = original.raw()
        original.close()
        memory, fds = copies[-1].share()
        return {**plain, "memory": memory}, [*fds, *bells]

    return patched(Channel, "share", copied)


# --- in a process --------------------------------------------------------------------------------


def at_cycle(part: ProcessMember, act: Callable[[], object]) -> None:
    """Do something in the middle of a process's first life."""
    if part.cycle:
        return
    whole: Any = part
    advance = part.advance

    def planted() -> None:
        if part.cycle == _WHEN:
            act()
        advance()

    whole.advance = planted


def die(part: ProcessMember) -> None:
    """SIGKILL."""
    at_cycle(part, lambda: os.kill(os.getpid(), signal.SIGKILL))


def fail(part: ProcessMember) -> None:
    """An exception."""

    def planted() -> None:
        raise RuntimeError("planted")

    at_cycle(part, planted)


def hang(part: ProcessMember) -> None:
    """Never come back."""
    at_cycle(part, lambda: threading.Event().wait())


def flip_a_bit(part: ActorWorker) -> None:
    """Change one bit of a push before it is announced."""

    def damage(slots: SlotMemory, slot: slice, _: bytes) -> None:
        slots._raw[slot.start + slots.layout.sections["record"].offset] ^= 1

    _damage_push(part, damage)


def write_half(part: ActorWorker) -> None:
    """Announce a push of which only the head has arrived."""

    def damage(slots: SlotMemory, slot: slice, before: bytes) -> None:
        head = slots.layout.sections["record"].offset
        slots._raw[slot.start + head : slot.stop] = before[head:]

    _damage_push(part, damage)


def _damage_push(part: ActorWorker, damage: Callable[[SlotMemory, slice, bytes], None]) -> None:
    if part.cycle:
        return
    slots: Any = part.writers[0]._slots
    put, layout = slots.put, slots.layout

    def planted(number: int, *values: Any) -> int:
        begin = slots._base + number % layout.count * layout.stride
        slot = slice(begin, begin + layout.stride)
        before = bytes(slots._raw[slot])
        used = put(number, *values)
        if number == _WHEN:
            damage(slots, slot, before)
        return used

    slots.put = planted


def damage_parameters(part: LearnerWorker) -> None:
    """Change one bit of every tree that is published, after its hash was taken."""
    slots: Any = part.writer._slots
    put_head = slots.put_head

    def planted(number: int, head: bytes) -> None:
        if number >= _WHEN and any(head):
            slots.payload(number)[0] ^= 1
        put_head(number, head)

    slots.put_head = planted
