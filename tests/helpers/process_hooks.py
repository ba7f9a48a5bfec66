"""Faults that tests plant in a run's processes: each is called with the worker before it runs."""

from __future__ import annotations

import os
import signal
import threading

import numpy as np

from millpond.rows import Rows
from millpond.transport.memory import PAGE


def _at_cycle(worker, number: int, act) -> None:
    """Call `act(rows)` on the rows of the actor's cycle `number` in this incarnation."""
    inner, count = worker.actor.cycle, iter(range(10**9))

    def cycle(*args) -> Rows:
        rows = inner(*args)
        return act(rows) if next(count) == number else rows

    worker.actor.cycle = cycle


def _raise(rows):
    raise ValueError("the env broke its leg")


def _hang(rows):
    """Alive, but it does not get on: what an env that waits for ever looks like."""
    threading.Event().wait(600)


def gauntlet(worker) -> None:
    """Another fault in each of the first incarnations."""
    if worker.incarnation == 0:
        _at_cycle(worker, 3, _raise)
    elif worker.incarnation == 1:
        _at_cycle(worker, 3, _hang)
    elif worker.incarnation == 2:
        _before_push(worker, 1, 2, lambda: os.kill(os.getpid(), signal.SIGKILL))
    elif worker.incarnation == 3:
        _damage_put(worker, 0, 3)


def damage_two(worker) -> None:
    """Damage what goes to two learners in one cycle."""
    if worker.incarnation == 0:
        _damage_put(worker, 0, 3)
        _damage_put(worker, 1, 3)


def _before_push(worker, learner: int, number: int, act) -> None:
    """Call `act()` before push `number` to one learner."""
    writer, count = worker.writers[learner], iter(range(10**9))
    inner = writer.push

    def push(rows, **more):
        if next(count) == number:
            act()
        inner(rows, **more)

    writer.push = push


def _damage_put(worker, learner: int, number: int) -> None:
    """Flip a bit in every slot after push `number` was written, before it is published."""
    slots, channel = worker.writers[learner]._slots, worker.channels[learner]
    inner = slots.put

    def put(at, *args):
        used = inner(at, *args)
        if at == number:
            raw = channel._memory.raw()
            begin = 2 * PAGE
            stride = (len(raw) - begin) // channel.slots
            for slot in range(channel.slots):
                raw[begin + slot * stride + stride // 2] ^= 1
        return used

    slots.put = put


def raise_always(worker) -> None:
    _at_cycle(worker, 0, _raise)


def nan_reward(worker) -> None:
    def spoil(rows: Rows) -> Rows:
        reward = np.array(rows.reward)
        reward[0, 0, 0] = np.nan
        return rows._replace(reward=reward)

    _at_cycle(worker, 0, spoil)


def learner_raises(worker) -> None:
    def cycle(rows):
        raise ValueError("the learner lost its mind")

    worker.learner.cycle = cycle


def slow_actor(worker) -> None:
    _slow(worker.actor)


def slow_learner(worker) -> None:
    _slow(worker.learner)


def _slow(part) -> None:
    """About a hundred times slower than the other side."""
    inner, pause = part.cycle, threading.Event()

    def cycle(*args):
        pause.wait(0.1)
        return inner(*args)

    part.cycle = cycle


def stop_between_pushes(worker) -> None:
    """Actor 0 gives cycle 5 to the first learner alone, actor 1 to none; then they do nothing."""
    if worker.incarnation == 0:
        writer = worker.writers[1 - worker.index]
        inner = writer.push

        def push(rows, **more):
            if worker.cycle == 5:
                threading.Event().wait(600)
            inner(rows, **more)

        writer.push = push
