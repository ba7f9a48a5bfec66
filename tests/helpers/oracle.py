"""The independent judge: rows in plain Python lists, transitions by the definition, no arrays.

Nothing here is shared with millpond's own arithmetic. A row is a dict; a stream is a list that
never forgets, and the ring is `the last length rows of it`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

Row = dict  # env, id, frame, action, reward, terminated, truncated, life_lost + the four flags


@dataclass
class ListModel:
    num_envs: int
    length: int
    stack: int
    n_step: int
    gamma: float
    life_loss_ends: bool
    pad: str
    reward_clip: float = 0.0
    exact: bool = False  # a Lake: rows at either end are judged by what they need, not by age
    streams: list[list[Row]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # a Lake: rows of each env that were evicted

    def __post_init__(self):
        self.streams = [[] for _ in range(self.num_envs)]
        self.gone = [0] * self.num_envs

    def add(self, env: int, row: Row) -> None:
        self.streams[env].append(row)

    def cut(self, env: int) -> None:
        if self.streams[env]:
            self.streams[env][-1]["cut"] = True

    def transitions(self) -> dict[tuple[int, int], dict]:
        """Every valid start (env, row id) with the transition it must give."""
        found = {}
        for env, rows in enumerate(self.streams):
            newest = len(rows) - 1
            oldest = max(0, len(rows) - self.length, self.gone[env])
            full = len(rows) >= self.length
            for i in range(oldest, len(rows)):
                if not self.exact and i > newest - self.n_step:
                    continue  # judged by age: what follows is not here yet
                if not self.exact and full and i < oldest + self.stack - 1:
                    continue  # judged by age: what came before may be overwritten
                if (transition := self._transition(rows, i, self.gone[env])) is not None:
                    found[env, i] = transition
        return found

    def _clipped(self, reward: float) -> float:
        bound = self.reward_clip or float("inf")
        return max(-bound, min(bound, reward))

    def _transition(self, rows: list[Row], i: int, gone: int) -> dict | None:
        if rows[i]["border"] or rows[i]["context"]:
            return None
        total, j = 0.0, i
        while True:
            if j + 1 >= len(rows):
                return None  # what follows is not here
            row = rows[j]
            if row["cut"]:
                return None
            total += self.gamma ** (j - i) * self._clipped(row["reward"])
            ended = row["terminated"] or row["truncated"]
            if self.life_loss_ends and row["life_lost"]:
                ended = True
            j += 1
            if ended or j - i == self.n_step:
                break
        k, final = j - i, rows[j - 1]
        here, there = self._stack(rows, i, gone), self._stack(rows, j, gone)
        if here is None or there is None:
            return None
        stops = final["terminated"] or (self.life_loss_ends and final["life_lost"])
        return {
            "obs": here,
            "next_obs": there,
            "action": rows[i]["action"],
            "reward": total,
            "discount": 0.0 if stops else self.gamma**k,
            "terminated": final["terminated"],
            "truncated": final["truncated"],
            "steps": k,
            "life_lost": rows[i]["life_lost"],
            "tag": rows[i]["frame"] % 30011 + 1,
        }

    def _stack(self, rows: list[Row], i: int, gone: int) -> list[int] | None:
        """Frames oldest first, 0 for a zero frame; None if a needed row is beyond a cut."""
        frames = [rows[i]["frame"]]
        j = i
        while len(frames) < self.stack:
            if rows[j]["first"]:
                filler = 0 if self.pad == "zeros" else rows[j]["frame"]
                return [filler] * (self.stack - len(frames)) + frames
            j -= 1
            if j < gone or rows[j]["cut"]:
                return None
            frames.insert(0, rows[j]["frame"])
        return frames


@dataclass
class SharedModel:
    """Layout shared: whole transitions in one list, of which the last `length` are kept."""

    length: int
    gamma: float
    life_loss_ends: bool
    rows: list[Row] = field(default_factory=list)

    @property
    def streams(self) -> list[list[Row]]:
        return [self.rows]

    def add(self, env: int, row: Row) -> None:
        self.rows.append({**row, "env": env})

    def cut(self, env: int) -> None:
        pass  # nothing is continuous here

    def transitions(self) -> dict[tuple[int, int], dict]:
        found = {}
        for i in range(max(0, len(self.rows) - self.length), len(self.rows)):
            row = self.rows[i]
            if row["border"] or row["context"] or row["cut"]:
                continue
            stops = row["terminated"] or (self.life_loss_ends and row["life_lost"])
            found[0, i] = {
                "obs": [row["frame"]],
                "next_obs": [row["next_frame"]],
                "action": row["action"],
                "reward": row["reward"],
                "discount": 0.0 if stops else self.gamma,
                "terminated": row["terminated"],
                "truncated": row["truncated"],
                "steps": 1,
                "life_lost": row["life_lost"],
                "tag": row["frame"] % 30011 + 1,
            }
        return found


def frame_of(env: int, row_id: int) -> int:
    """A number that names one row of one env; never 0, which names padding."""
    return 1 + row_id * 7 + env


def check_batch(batch, expected: dict[tuple[int, int], dict], every_valid: bool) -> None:
    """Each unmasked entry is exactly the transition its draw names, and only valid ones appear."""
    streams, ids = np.asarray(batch.draw.stream), batch.draw.ids()
    seen = set()
    for b in np.flatnonzero(np.asarray(batch.mask)):
        start = (int(streams[b]), int(ids[b]))
        assert start in expected, f"sampled {start}, which is no valid start"
        seen.add(start)
    if every_valid:
        missing = sorted(set(expected) - seen)
        assert not missing, f"valid starts never sampled: {missing[:5]} of {len(missing)}"
    order = sorted(seen)
    if not order:
        return
    at = {(int(streams[b]), int(ids[b])): b for b in np.flatnonzero(np.asarray(batch.mask))}
    rows = [at[start] for start in order]
    want = {key: [expected[start][key] for start in order] for key in expected[order[0]]}
    for name in ("obs", "next_obs"):
        got = decode(getattr(batch, name))[rows]
        np.testing.assert_array_equal(got, np.array(want[name]), err_msg=f"{name} of {order}")
    for name in ("action", "terminated", "truncated", "steps"):
        got = np.asarray(getattr(batch, name))[rows]
        np.testing.assert_array_equal(got, np.array(want[name]), err_msg=f"{name} of {order}")
    for name in ("reward", "discount"):
        got = np.asarray(getattr(batch, name))[rows]
        np.testing.assert_allclose(got, np.array(want[name]), rtol=2e-6, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(np.asarray(batch.extras["life_lost"])[rows], want["life_lost"])
    np.testing.assert_array_equal(np.asarray(batch.extras["tag"])[rows], want["tag"])
    weight = np.asarray(batch.weight)[rows]
    assert ((weight > 0) & (weight <= 1)).all()


def encode(frame: np.ndarray) -> dict:
    """A nested observation whose every part names its row: bytes, a float and bits."""
    frame = np.asarray(frame, np.int64)
    digits = [(frame >> (8 * k)) & 255 for k in range(3)]
    image = np.stack(digits, -1).astype(np.uint8)
    bits = ((frame[..., None] >> np.arange(20)) & 1).astype(bool)
    return {"image": image, "inner": {"number": frame[..., None].astype(np.float32), "bits": bits}}


def decode(obs) -> np.ndarray:
    """Frame numbers [batch, stack]; all parts of the observation must agree.

    Of a blank row too, where the number is 1, the lowest there is.
    """
    image = np.asarray(obs["image"]).astype(np.int64)
    frame = (image << (8 * np.arange(3))).sum(-1)
    number = np.asarray(obs["inner"]["number"])[..., 0].astype(np.int64)
    bits = (np.asarray(obs["inner"]["bits"]).astype(np.int64) << np.arange(20)).sum(-1)
    np.testing.assert_array_equal(frame, number - ((frame == 0) & (number == 1)))
    np.testing.assert_array_equal(frame, bits)
    return frame
