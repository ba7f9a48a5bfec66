"""Streams of rows with every kind of border, and the rings under test behind one surface."""

from __future__ import annotations

import functools
import random
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from oracle import ListModel, SharedModel, encode, frame_of
from sequence_oracle import SequenceModel

from millpond import Field, HostPond, Pond, Rows, Spec, Window

# Some bounds leave 0 out, so that rows which a store makes up by itself must respect them.
SPEC = Spec(
    obs={
        "image": Field("uint8", (3,)),
        "inner": {"number": Field("float32", (1,), low=1), "bits": Field("bool", (20,))},
    },
    action=Field("int32", (), 0, 6),
    extras={"life_lost": Field("bool"), "tag": Field("int16", low=1)},
)


@dataclass(frozen=True)
class Pattern:
    """How episodes of a stream look: chances per row."""

    end: float = 0.1
    truncate: float = 0.3
    cut: float = 0.0
    life: float = 0.0
    context: float = 0.0


PATTERNS = {
    "long": Pattern(end=0.02),
    "short": Pattern(end=0.4),
    "length-1": Pattern(end=1.0),
    "truncations": Pattern(end=0.25, truncate=1.0),
    "cuts": Pattern(end=0.1, cut=0.15),
    "lives": Pattern(end=0.08, life=0.25),
    "context": Pattern(end=0.1, context=0.3),
    "everything": Pattern(end=0.2, cut=0.1, life=0.2, context=0.15),
}


ENDLESS = Pattern(end=0.0)  # every row is a valid start


class Stream:
    """One env's rows, one by one, following the rules of rows.py."""

    def __init__(self, env: int, pattern: Pattern, chance: random.Random) -> None:
        self.env, self.pattern, self.chance = env, pattern, chance
        self.row_id, self.mode = 0, "first"  # first, inside, border or anything (after a cut)

    def next(self) -> dict:
        p, chance = self.pattern, self.chance
        hit = lambda share: chance.random() < share
        mode = chance.choice(["first", "inside"]) if self.mode == "anything" else self.mode
        border = mode == "border"
        ended = not border and hit(p.end)
        row = {
            "frame": frame_of(self.env, self.row_id),
            "next_frame": frame_of(self.env, self.row_id + 1),
            "action": chance.randrange(7),
            "reward": 0.0 if border else float(chance.randrange(-8, 9)),
            "first": mode == "first",
            "border": border,
            "context": hit(p.context),
            "cut": hit(p.cut),
            "life_lost": not border and hit(p.life),
        }
        row["truncated"] = ended and hit(p.truncate)
        row["terminated"] = ended and not row["truncated"]
        self.mode = "border" if ended else "first" if border else "inside"
        self.row_id += 1
        if row["cut"]:
            self.mode = "anything"
        return row

    def cut(self) -> None:
        if self.row_id:
            self.mode = "anything"


def to_rows(rows: list[list[dict]]) -> Rows:
    """[time][env] dicts → Rows with leading axes [time, env]."""

    def col(name, dtype):
        return np.array([[row[name] for row in step] for step in rows], dtype)

    frame = col("frame", np.int64)
    flags = col("first", np.uint8) + 2 * col("border", np.uint8)
    flags = flags + 4 * col("context", np.uint8) + 8 * col("cut", np.uint8)
    return Rows(
        obs=encode(frame),
        action=col("action", np.int32),
        reward=col("reward", np.float32),
        terminated=col("terminated", bool),
        truncated=col("truncated", bool),
        flags=flags.astype(np.uint8),
        extras={"life_lost": col("life_lost", bool), "tag": (frame % 30011 + 1).astype(np.int16)},
    )


def pick(rows: Rows, index) -> Rows:
    return jax.tree.map(lambda leaf: leaf[index], rows)


def next_obs_of(rows: list[list[dict]]) -> dict:
    """The next observation of every row, for whole transitions."""
    return encode(np.array([[row["next_frame"] for row in step] for step in rows], np.int64))


class HostSubject:
    """HostPond behind the surface the contract drives."""

    placement, layout = "host", "stream"

    def __init__(
        self, window: Window, length: int, num_envs: int, seed: int = 0, sampler=None
    ) -> None:
        self.num_envs = num_envs
        self.build = lambda: HostPond(
            SPEC,
            length if self.layout == "shared" else length * num_envs,
            num_envs,
            window,
            sampler,
            self.layout,
            seed,
        )
        self.pond = self.build()

    def add(self, rows: Rows, next_obs=None, mask=None) -> None:
        self.pond.add(rows, next_obs, mask=mask)

    def add_one(self, rows: Rows, env: int, next_obs=None) -> None:
        self.pond.add(rows, next_obs, env=env)

    def cut(self, env: int) -> None:
        self.pond.cut(env)

    def sample(self, number: int):
        return self.pond.sample(number)

    def update(self, draw, priorities) -> None:
        self.pond.update_priorities(draw, priorities)

    def take(self, stream, row):
        return self.pond.take(stream, row)

    def size(self) -> int:
        self.pond.check()
        return self.pond.size

    def export(self):
        return self.pond.export()

    def restore(self, arrays) -> None:
        self.pond = self.build()
        self.pond.restore(arrays)


@functools.lru_cache(maxsize=64)
def compiled(window: Window, length: int, num_envs: int, sampler, layout: str):
    """One set of compiled functions per shape, shared by every example."""
    capacity = length if layout == "shared" else length * num_envs
    pond = Pond(SPEC, capacity, num_envs, window, sampler, layout)
    return (
        pond,
        jax.jit(pond.add, donate_argnums=0),
        jax.jit(pond.sample, static_argnums=2, donate_argnums=0),
        jax.jit(pond.take),
        jax.jit(pond.cut, donate_argnums=0),
        jax.jit(pond.update_priorities, donate_argnums=0),
    )


class DeviceSubject:
    """Pond behind the same surface."""

    placement, layout = "device", "stream"

    def __init__(
        self, window: Window, length: int, num_envs: int, seed: int = 0, sampler=None
    ) -> None:
        self.pond, self._add, self._sample, self._take, self._cut, self._update = compiled(
            window, length, num_envs, sampler, self.layout
        )
        self.state, self.num_envs, self.key = self.pond.init(), num_envs, jax.random.key(seed)

    def add(self, rows: Rows, next_obs=None, mask=None) -> None:
        self.state = self._add(self.state, rows, next_obs, mask)

    def cut(self, env: int) -> None:
        self.state = self._cut(self.state, jnp.arange(self.num_envs) == env)

    def sample(self, number: int):
        self.key, key = jax.random.split(self.key)
        self.state, batch = self._sample(self.state, key, number)
        return jax.tree.map(np.asarray, batch)

    def update(self, draw, priorities) -> None:
        self.state = self._update(self.state, draw, priorities)

    def take(self, stream, row):
        stream, position = np.int32(stream), (row % self.pond.length).astype(np.int32)
        return jax.tree.map(np.asarray, self._take(self.state, stream, position))

    def size(self) -> int:
        self.pond.check(self.state)
        return int(self.pond.size(self.state))

    def export(self):
        return self.pond.export(self.state)

    def restore(self, arrays) -> None:
        self.state = self.pond.restore(arrays)


def _variant(base, layout: str):
    return type(f"{layout}_{base.__name__}", (base,), {"layout": layout})


LAYOUTS = ("stream", "per_env", "shared")
SUBJECTS = {
    f"{base.placement}-{layout}": _variant(base, layout)
    for base in (DeviceSubject, HostSubject)
    for layout in LAYOUTS
}


def model_of(window: Window, length: int, num_envs: int, layout: str = "stream"):
    if hasattr(window, "burn_in"):  # a Sequence
        return SequenceModel(num_envs, length, window)
    if layout == "shared":
        return SharedModel(length, window.gamma, window.life_loss_ends)
    return ListModel(
        num_envs,
        length,
        window.stack,
        window.n_step,
        window.gamma,
        window.life_loss_ends,
        window.pad,
        window.reward_clip,
    )
