"""The independent judge of sequences: rows in plain Python lists, by the definition, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from oracle import Row, decode

FIELDS = ("mask", "first", "terminated", "truncated", "life_lost", "reward", "discount")


@dataclass
class SequenceModel:
    num_envs: int
    ring: int  # rows kept of every env
    window: object  # a Sequence, of which only the settings are read
    aged: bool = False  # a ring with priorities: starts enter and leave by age
    streams: list[list[Row]] = field(default_factory=list)
    gone: list[int] = field(default_factory=list)  # a Lake: rows of each env that were evicted

    def __post_init__(self):
        self.streams = [[] for _ in range(self.num_envs)]
        self.gone = [0] * self.num_envs

    @property
    def length(self) -> int:
        return self.ring

    def add(self, env: int, row: Row) -> None:
        self.streams[env].append(row)

    def cut(self, env: int) -> None:
        if self.streams[env]:
            self.streams[env][-1]["cut"] = True

    def transitions(self) -> dict[tuple[int, int], dict]:
        """Every valid start (env, row id) with the sequence it must give."""
        found, w = {}, self.window
        for env, rows in enumerate(self.streams):
            oldest = max(0, len(rows) - self.ring, self.gone[env])
            full = len(rows) >= self.ring
            for i in range(oldest, len(rows)):
                if i % w.every != 0:
                    continue
                if self.aged and i + w.length > len(rows) - 1:
                    continue
                if self.aged and full and i < oldest + w.stack - 1:
                    continue
                sequence = self._sequence(rows, i, oldest)
                if sequence is not None:
                    found[env, i] = sequence
        return found

    def _sequence(self, rows: list[Row], i: int, oldest: int) -> dict | None:
        w = self.window
        if rows[i]["border"] or rows[i]["context"] or self._stack(rows, i, oldest) is None:
            return None
        taken: list[Row | None] = []  # None: nothing is known of this place
        frames: list[list[int] | None] = []
        j, over = i, False
        for _ in range(w.length):
            if over:
                taken.append(None)
                frames.append(None)
                continue
            row = rows[j]
            if row["cut"] or j + 1 >= len(rows):
                return None
            taken.append(row)
            frames.append(self._stack(rows, j, oldest))
            j += 1
            if w.end == "stop" and (row["terminated"] or row["truncated"]):
                over = True
        final = self._stack(rows, j, oldest)
        # Where the episode is over, its final observation comes at once.
        if over:
            frames.append(None)
            frames[taken.index(None) if None in taken else w.length] = final
        else:
            frames.append(final)
        j, reached = i, True
        for _ in range(w.burn_in):
            reached = reached and not rows[j]["first"] and j - 1 >= oldest
            reached = reached and not rows[j - 1]["cut"]
            reached = reached and self._stack(rows, j - 1, oldest) is not None
            j -= 1
            taken.insert(0, rows[j] if reached else None)
            frames.insert(0, self._stack(rows, j, oldest) if reached else None)
        # Where nothing is known, the nearest row that is there is seen again.
        known = [t for t, frame in enumerate(frames) if frame is not None]
        frames = [frames[min(max(t, known[0]), known[-1])] for t in range(len(frames))]
        steps = [row is not None and not row["border"] for row in taken]
        facts = [self._facts(row) if step else None for row, step in zip(taken, steps, strict=True)]
        return {"frames": frames, "facts": facts}

    def _facts(self, row: Row) -> dict:
        w = self.window
        bound = w.reward_clip or float("inf")
        stops = row["terminated"] or (w.life_loss_ends and row["life_lost"])
        return {
            "mask": True,
            "first": row["first"],
            "terminated": row["terminated"],
            "truncated": row["truncated"],
            "life_lost": row["life_lost"],
            "reward": max(-bound, min(bound, row["reward"])),
            "discount": 0.0 if stops else w.gamma,
            "action": row["action"],
            "tag": row["frame"] % 30011 + 1,
        }

    def _stack(self, rows: list[Row], i: int, oldest: int) -> list[int] | None:
        """Frames oldest first, 0 for a zero frame; None if a needed row is not there."""
        w = self.window
        frames, j = [rows[i]["frame"]], i
        while len(frames) < w.stack:
            if rows[j]["first"]:
                filler = 0 if w.pad == "zeros" else rows[j]["frame"]
                return [filler] * (w.stack - len(frames)) + frames
            j -= 1
            if j < oldest or rows[j]["cut"]:
                return None
            frames.insert(0, rows[j]["frame"])
        return frames


def started(batch, window) -> np.ndarray:
    """bool[batch]: which entries hold a sequence; of the others everything is masked."""
    mask = np.asarray(batch.mask)
    valid = mask[:, window.burn_in]
    assert not mask[~valid].any()
    return valid


def check_sequences(batch, window, expected: dict, every_valid: bool) -> None:
    """Each entry is exactly the sequence its draw names, and only valid ones appear."""
    streams, ids = np.asarray(batch.draw.stream), batch.draw.ids()
    at = {(int(streams[b]), int(ids[b])): b for b in np.flatnonzero(started(batch, window))}
    assert set(at) <= set(expected), f"no valid starts: {sorted(set(at) - set(expected))[:5]}"
    if every_valid:
        missing = sorted(set(expected) - set(at))
        assert not missing, f"valid starts never sampled: {missing[:5]} of {len(missing)}"
    frames = decode(batch.obs)
    rows = window.burn_in + window.length
    assert frames.shape == (len(streams), rows + 1, window.stack)
    got = {name: np.asarray(getattr(batch, name)) for name in FIELDS if name != "life_lost"}
    got |= {"life_lost": np.asarray(batch.extras["life_lost"]), "action": np.asarray(batch.action)}
    got |= {"tag": np.asarray(batch.extras["tag"])}
    got = {name: values.tolist() for name, values in got.items()}
    frames = frames.tolist()
    for start, b in at.items():
        want = expected[start]
        for t, frame in enumerate(want["frames"]):
            assert frames[b][t] == frame, f"obs {t} of {start}"
        for t, facts in enumerate(want["facts"]):
            facts = facts or dict.fromkeys(FIELDS, 0)
            for name, value in facts.items():
                shown = got[name][b][t]
                assert abs(shown - value) < 1e-5, f"{name} {t} of {start}: {shown}"
        # Where the burn-in has no rows, the first that is there is repeated, with its stored state.
        begin = next(t for t, facts in enumerate(want["facts"]) if facts)
        for name in ("action", "tag"):
            assert got[name][b][:begin] == [got[name][b][begin]] * begin, f"{name} of {start}"
    weight = np.asarray(batch.weight)[list(at.values())]
    assert ((weight > 0) & (weight <= 1)).all()
