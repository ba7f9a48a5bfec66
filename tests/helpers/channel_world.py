"""Rows that say which push they belong to, and the processes that send them in the tests."""

from __future__ import annotations

import os
import random
import signal
from multiprocessing import get_context
from multiprocessing.connection import Connection

import numpy as np

from millpond import Field, Flag, Rows, Spec
from millpond.spec import walk
from millpond.transport import Channel, Weights, slots
from millpond.transport.memory import PAGE, Memory

SPAWN = get_context("spawn")
PATIENCE = 60.0  # seconds after which a test gives up; a correct one never comes near

PLAIN = Spec(Field("float32", (5,), allow_nan=True), Field("int32", (), 0, 9))
NESTED = Spec(
    {
        "image": Field("uint8", (3, 4)),
        "inner": {"bits": Field("uint8", (2, 7), binary=True), "mask": Field("bool", (3,))},
    },
    Field("float32", (2,), -1, 1),
    {
        "life_lost": Field("bool"),
        "policy_version": Field("int64"),
        "tags": Field("bool", (9,)),
        "epsilon": Field("float32"),
    },
)
TINY = Spec(Field("bool"), Field("bool", (2,)))
SPECS = (PLAIN, NESTED, TINY)

# Rows of 264 B and a flags byte, in which every number follows from the push and the env.
WIDE = Spec(Field("float32", (56,)), Field("float32", (8,)), {"id": Field("int32")})
_PATTERN = np.arange(56, dtype=np.float32)


def random_rows(spec: Spec, lead: tuple[int, ...], rng: np.random.Generator) -> Rows:
    """Any values that fit the spec: infinities, and NaN where it is allowed, included."""

    def value(field: Field) -> np.ndarray:
        shape = (*lead, *field.shape)
        if field.binary or field.dtype.kind == "b":
            return rng.integers(0, 2, shape).astype(field.dtype)
        if field.dtype.kind == "f" and field.low is None:
            nan = np.nan if field.allow_nan else 1.0
            odd = rng.choice([0.0, -0.0, np.inf, -np.inf, nan, 1e-40], shape)
            return np.where(rng.random(shape) < 0.2, odd, rng.standard_normal(shape)).astype("f4")
        if field.dtype.kind == "f":
            return rng.uniform(field.low, field.high, shape).astype(field.dtype)
        low = np.iinfo(field.dtype).min if field.low is None else int(field.low)
        high = np.iinfo(field.dtype).max if field.high is None else int(field.high)
        return rng.integers(low, high, shape, field.dtype, endpoint=True)

    return Rows(
        obs=spec.obs_tree({path: value(f) for path, f in walk(spec.obs, "obs")}),
        action=value(spec.action),
        reward=rng.standard_normal(lead).astype(np.float32),
        terminated=rng.random(lead) < 0.3,
        truncated=rng.random(lead) < 0.3,
        flags=rng.integers(0, 16, lead, np.uint8) & np.uint8(~Flag.BORDER & 15),  # else no reward
        extras={name: value(field) for name, field in spec.extras.items()},
    )


def same(a: Rows, b: Rows) -> bool:
    """Whether shapes, dtypes and every bit agree."""

    def leaves(rows: Rows) -> dict[str, np.ndarray]:
        plain = rows._asdict()
        tree = {**plain, "extras": dict(plain["extras"])}
        return {path: np.ascontiguousarray(leaf) for path, leaf in walk(tree, "rows")}

    left, right = leaves(a), leaves(b)
    return left.keys() == right.keys() and all(
        left[p].shape == right[p].shape
        and left[p].dtype == right[p].dtype
        and left[p].tobytes() == right[p].tobytes()
        for p in left
    )


def push_of(number: int, time: int, envs: int, spec: Spec = NESTED) -> Rows:
    """Push `number` of a writer: its length and content follow from the number."""
    rng = np.random.default_rng(number)
    steps = int(rng.integers(0, time + 1))
    return random_rows(spec, (steps, envs) if steps else (envs,), rng)


def wide_rows(number: int, envs: int) -> Rows:
    """Rows [env] of WIDE for push `number`."""
    ids = (np.arange(envs) + number * envs) % 2**24
    key = ids.astype(np.float32)
    zero = np.zeros(envs, bool)
    obs = (ids[:, None] + _PATTERN).astype(np.float32)
    action = np.broadcast_to(key[:, None], (envs, 8))
    return Rows(obs, action, -key, zero, zero, zero.view(np.uint8), {"id": ids.astype(np.int32)})


def wrong_rows(block: Rows, first: int, envs: int) -> int:
    """How many of rows [time, env] are not those of pushes first, first + 1, ..."""
    time = len(block.reward)
    ids = (np.arange(time * envs).reshape(time, envs) + first * envs) % 2**24
    key = ids.astype(np.float32)
    good = (block.extras["id"] == ids) & (block.reward == -key) & (block.flags == 0)
    good &= (block.action == key[..., None]).all(-1)
    good &= (block.obs == (ids[..., None] + _PATTERN).astype(np.float32)).all(-1)
    return int((~good).sum())


def send_wide(channel: Channel, envs: int, number: int) -> None:
    """Push `number` times."""
    parent = os.getppid()
    writer = channel.writer(WIDE, alive=lambda: os.getppid() == parent)
    for push in range(number):
        writer.push(wide_rows(push, envs), timeout=PATIENCE)
    writer.close()


def burn() -> None:
    """A busy loop for as long as the parent lives."""
    parent = os.getppid()
    while os.getppid() == parent:
        sum(range(100_000))


class ByValue(Memory):
    """The planted bug: memory that arrives as a copy of its bytes."""

    def share(self):
        self.copy = Memory.create(self.size - PAGE)
        self.copy.raw()[:] = self.raw()
        return super().share()[0], self.copy.share()[1]


class Unproven(ByValue):
    """A copy of which the check at attach was taken out; only the other process can tell."""

    def share(self):
        super().share()
        return self.copy.share()


class HalfByValue(Channel):
    """The bug as it was met: the descriptor is right, the array over it is a private copy."""

    @classmethod
    def attach(cls, plain, fds):
        channel = Channel.attach(plain, fds)
        private = memoryview(bytearray(channel._memory.raw()))
        channel._memory.raw = lambda: private
        return channel


def attach_all(pipe: Connection, spec: Spec, channels: list[Channel], weights: Weights) -> None:
    """Attach as a writer to each channel and as a reader of the weights; say how it went."""
    ends = [lambda c=channel: c.writer(spec) for channel in channels]
    ends.append(lambda: weights.reader({"w": np.zeros(4, np.float32)}))
    for attach in ends:
        try:
            end = attach()
            if hasattr(end, "push"):
                end.push(random_rows(spec, (2,), np.random.default_rng(0)))
            pipe.send(("ok", tuple(end.canary)))
        except Exception as error:
            pipe.send((type(error).__name__, str(error)))


def zygote(pipe: Connection, channels: list[Channel], time: int, envs: int) -> None:
    """Forks one writer per channel when told to: imports are paid once. No thread runs here."""
    signal.alarm(int(10 * PATIENCE))
    while (order := pipe.recv()) is not None:
        index, die_at = order
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _life(channels[index], time, envs, write, die_at)
        os.close(write)
        pipe.send(pid)
        os.waitpid(pid, 0)
        acknowledged = 0
        while chunk := os.read(read, 4096):
            acknowledged += len(chunk)
        os.close(read)
        pipe.send(acknowledged)


def _life(channel: Channel, time: int, envs: int, acks: int, die_at: int | None) -> None:
    """Push without end; one byte into `acks` after each. Die inside push `die_at`."""
    writer = channel.writer(NESTED)
    number = 0
    os.set_blocking(acks, True)
    while True:
        if number == die_at:
            point = random.Random(number).randrange(2)
            _die_inside(point)
        writer.push(push_of(number, time, envs), timeout=PATIENCE)
        os.write(acks, b"+")
        number += 1


def _die_inside(point: int) -> None:
    """SIGKILL with the payload half there, or with all of it but the head of the slot."""

    def die(*_):
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(slots, ("_stored", "_digest")[point], die)
