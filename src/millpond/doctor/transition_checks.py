"""Transitions drawn from a replay, made again from the rows that lie in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from ..rows import BORDER, CONTEXT, FIRST, Batch, Rows
from ..window import Window
from .verdict import Verdict, green, red, unknown

Read = Callable[[np.ndarray, np.ndarray], Rows]
_CHECKED = 128  # transitions that are rebuilt


def rebuilt(window: Window, batch: Batch, read: Read, name: str) -> Verdict:
    """Every part of a transition, made again from the rows as `Window` defines it.

    `read(streams, ids)` gives rows of any shape as they were added.
    """
    keep = np.nonzero(batch.mask)[0][:_CHECKED]
    if not len(keep):
        return unknown(name, "no draw found a valid start")
    stream, ids = batch.draw.stream[keep], batch.draw.ids()[keep]
    before = max(1, window.stack - 1)
    reach = np.arange(-before, window.n_step + 1)
    # What lies before the first row or behind the last belongs to no transition that was drawn.
    wide = np.broadcast_to(stream[:, None], (len(ids), len(reach)))
    steps = np.asarray(batch.steps)[keep]
    rows = read(
        wide, ids[:, None] + np.clip(reach, -np.minimum(ids, before)[:, None], steps[:, None])
    )
    here = before
    wrong: dict[str, int] = {}
    instead = Counter[tuple[str, str]]()  # what a wrong part is instead, by transitions
    for i, at in enumerate(keep):
        steps, over = 0, False
        total, discount = 0.0, 1.0
        for ahead in range(window.n_step):
            reward = float(rows.reward[i, here + ahead])
            if window.reward_clip:
                reward = float(np.clip(reward, -window.reward_clip, window.reward_clip))
            total, discount, steps = total + discount * reward, discount * window.gamma, steps + 1
            over = bool(rows.terminated[i, here + ahead])
            if over or rows.truncated[i, here + ahead]:
                break
        if window.life_loss_ends:
            return unknown(name, "lives that end returns are not rebuilt here")
        good = {
            "obs": _same_stack(window, rows, i, here, batch.obs, at),
            "next_obs": _same_stack(window, rows, i, here + steps, batch.next_obs, at),
            "action": bool(np.array_equal(rows.action[i, here], batch.action[at])),
            "reward": bool(np.isclose(total, batch.reward[at], rtol=1e-4, atol=1e-5)),
            "discount": bool(
                np.isclose(0.0 if over else discount, batch.discount[at], rtol=1e-4, atol=1e-6)
            ),
            "start": not rows.flags[i, here] & (BORDER | CONTEXT),
        }
        for what, fine in good.items():
            wrong[what] = wrong.get(what, 0) + (not fine)
        instead.update(_instead(window, rows, i, here, batch, at, good))
    bad = {what: number for what, number in wrong.items() if number}
    if bad:
        told = ", ".join(f"{what} in {n / len(keep):.0%}" for what, n in bad.items())
        known = {part: what for (part, what), n in instead.most_common() if n >= 0.9 * bad[part]}
        cause = "".join(f"; {what}" for what in known.values())
        return red(
            name,
            f"of {len(keep)} drawn transitions these parts are not those of the "
            f"stored rows: {told}{cause}",
            "let Window and the sampler make transitions; see docs/concepts.md",
            checked=len(keep), **bad,
        )  # fmt: skip
    return green(
        name, f"{len(keep)} drawn transitions rebuilt from their rows, all equal", checked=len(keep)
    )


def _instead(
    window: Window, rows: Rows, i: int, here: int, batch: Batch, at: int, good: dict[str, bool]
) -> list[tuple[str, str]]:
    """What the wrong parts of a transition are instead, as far as known mistakes say."""
    found: list[tuple[str, str]] = []
    raw = np.asarray(rows.reward[i], np.float64)
    if window.reward_clip:
        raw = np.clip(raw, -window.reward_clip, window.reward_clip)
    powers = window.gamma ** np.arange(window.n_step)
    ahead = raw[here : here + window.n_step]
    steps = int(batch.steps[at])

    def paid(total: float) -> bool:
        return not good["reward"] and bool(np.isclose(total, batch.reward[at], 1e-4, 1e-5))

    if paid(float((powers[: len(ahead)] * ahead).sum())):
        found.append(("reward", "rewards are summed on across the end of the episode"))
    if paid(float((powers[:steps] * raw[here - 1 : here - 1 + steps]).sum())):
        found.append(("reward", "rewards are those of the row before: late by one"))
    if here + 1 + steps <= len(raw) and paid(
        float((powers[:steps] * raw[here + 1 : here + 1 + steps]).sum())
    ):
        found.append(("reward", "rewards are those of the next row: early by one"))
    if paid(float(ahead[0])) and window.n_step > 1:
        found.append(("reward", "only the first of the rewards is there"))
    if paid(float(ahead[:steps].sum())) and window.n_step > 1:
        found.append(("reward", "rewards are added up without a discount"))
    if not good["next_obs"]:
        if _same_stack(window, rows, i, here, batch.next_obs, at):
            found.append(("next_obs", "next_obs is the observation of the same row"))
        elif steps > 1 and _same_stack(window, rows, i, here + 1, batch.next_obs, at):
            found.append(("next_obs", "next_obs is that of the next row, whatever n_step is"))
    if not good["action"]:
        for shift, what in ((-1, "the row before"), (1, "the next row")):
            if np.array_equal(rows.action[i, here + shift], batch.action[at]):
                found.append(("action", f"actions are those of {what}"))
    if not good["discount"]:
        over = bool(rows.terminated[i, here + steps - 1])
        wrong = float(batch.discount[at])
        if over and wrong > 0:
            found.append(("discount", "terminations do not set the discount to 0"))
        elif wrong == 0:
            found.append(("discount", "the discount is 0 where no episode terminated"))
    return found


def _same_stack(window: Any, rows: Any, i: int, at: int, batch: Any, row: int) -> bool:
    """Whether a stack holds the row's own observations, oldest first, padded at the beginning."""
    wanted = [at]
    for _ in range(window.stack - 1):
        begun = (rows.flags[i, wanted[0]] & FIRST) != 0
        wanted.insert(0, wanted[0] if begun or wanted[0] == 0 else wanted[0] - 1)
        if begun:
            wanted[0] = -1 if window.pad == "zeros" else wanted[1]
        if wanted[0] == -1:
            wanted = [-1] * (window.stack - len(wanted)) + wanted
            break
    for stored, drawn in zip(jax.tree.leaves(rows.obs), jax.tree.leaves(batch), strict=True):
        for place, back in enumerate(wanted):
            frame = np.zeros_like(stored[i, 0]) if back < 0 else stored[i, back]
            if not np.array_equal(frame, drawn[row, place]):
                return False
    return True
