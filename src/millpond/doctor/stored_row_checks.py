"""A run's stored rows beside rows that its agents play now: one env, one code, two times."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..rows import FIRST, TERMINATED, TRUNCATED
from .exploration_checks import unlike_best
from .play import Play
from .probe import Probe
from .row_models import Pairs, model_errors, pairs
from .verdict import Verdict, green, red, unknown

_SURE = 7.0


def same_world(probe: Probe) -> Verdict:
    """Rewards and ends of the stored rows must be those that the env gives now."""
    name, stored = "stored-rows", probe.saved.play
    if stored is None:
        why = probe.saved.why or "no rows are kept: its learner takes them as they come"
        return unknown(name, why)
    played = probe.curious.play
    if (found := _ends_lost(stored, probe.game.play, name)) is not None:
        return found
    for check in (_rates, _ends, _lengths, _seen, _rewards):
        if (found := check(stored, played, name)) is not None:
            return found
    return green(name, "rewards, ends and what is seen are those that the env gives now")


def _rates(stored: Play, played: Play, name: str) -> Verdict | None:
    """How often and how much the env rewards: not something altogether different."""
    then, now = stored.reward[stored.step], played.reward[played.step]
    if not np.isfinite(then).all() or not np.isfinite(now).all():
        return None
    remedy = "look at what stands between env and replay; if the env was changed, begin a new run"
    some, others = float((then != 0).mean()), float((now != 0).mean())
    if (some == 0 and others * len(now) > 50) or (others == 0 and some * len(then) > 50):
        message = (
            f"{some:.1%} of the stored rewards are not 0, of those the env gives now {others:.1%}"
        )
        return red(name, message, remedy, stored=some, now=others)
    if some and others:
        size, other = np.abs(then[then != 0]).max(), np.abs(now[now != 0]).max()
        paid, pays = np.round(then[then != 0], 5), np.round(now[now != 0], 5)
        known = len(np.unique(pays)) <= 32  # rewards of a few kinds: they must be the same kinds
        if known and len(pays) >= 32 and len(paid) >= 8 and not np.isin(paid, pays).any():
            message = (
                f"no stored reward is one that the env gives now, 0 apart: then {_some(paid)}, "
                f"now {_some(pays)}"
            )
            return red(name, message, remedy, stored=float(size), now=float(other))
    return None


def _seen(stored: Play, played: Play, name: str) -> Verdict | None:
    """Numbers of an observation that vary now must have varied then."""
    if stored.seen.shape[-1] != played.seen.shape[-1] or min(stored.steps, played.steps) < 1_000:
        return None
    varies = (played.seen != np.median(played.seen, (0, 1))).mean((0, 1)) > 0.05
    lost = varies & (stored.seen.max((0, 1)) == stored.seen.min((0, 1)))
    if lost.sum() < max(1, 0.05 * varies.sum()):
        return None
    worst = int(np.argmax(lost))
    return red(
        name,
        f"{lost.sum()} of the {varies.sum()} numbers of an observation that vary now never change "
        f"in the stored rows (number {worst} is always {stored.seen[0, 0, worst]:g})",
        "look at what stands between env and replay: something of what is seen is lost there",
        lost=int(lost.sum()), varying=int(varies.sum()),
    )  # fmt: skip


def _some(rewards: np.ndarray) -> str:
    """The commonest few."""
    kinds, counts = np.unique(rewards, return_counts=True)
    return ", ".join(f"{kind:g}" for kind in kinds[np.argsort(-counts)][:3])


def _ends(stored: Play, played: Play, name: str) -> Verdict | None:
    """Whether episodes terminate or are truncated is the env's own nature."""
    (lengths, how), (other, now) = stored.ends, played.ends
    if len(how) < 16 or len(now) < 16:
        return None
    kinds = [(how & bit != 0).mean() for bit in (TERMINATED, TRUNCATED)]
    today = [(now & bit != 0).mean() for bit in (TERMINATED, TRUNCATED)]
    numbers = dict(stored_lengths=float(lengths.mean()), lengths_now=float(other.mean()))
    remedy = "keep terminated and truncated apart from env.step to the row"
    if (kinds[0] > 0.9 and today[0] < 0.1) or (kinds[1] > 0.9 and today[1] < 0.1):
        message = (
            f"stored episodes were terminated in {kinds[0]:.0%} and truncated in {kinds[1]:.0%}, "
            f"played now in {today[0]:.0%} and {today[1]:.0%}: the two are swapped"
        )
        return red(name, message, remedy, **numbers)
    if (lengths == 1).mean() > 0.9 and np.median(other) >= 5:
        message = (
            f"{(lengths == 1).mean():.0%} of the stored episodes last one step, now "
            f"{np.median(other):.0f}"
        )
        return red(name, message, "look at reset: the world went on ended", **numbers)
    return None


def _lengths(stored: Play, played: Play, name: str) -> Verdict | None:
    """Where a clock ends episodes after the same number of steps, it always did."""
    found: list[int] = []
    for play in (stored, played):
        lengths, how = play.ends
        kinds, counts = np.unique(lengths[(how & TRUNCATED) != 0], return_counts=True)
        if counts.sum() < 8 or counts.max() < 0.9 * counts.sum():
            return None
        found.append(int(kinds[counts.argmax()]))
    then, now = found
    if then == now:
        return None
    cause = "rows are lost on the way" if then < now else "rows are stored more than once"
    return red(
        name,
        f"stored episodes are truncated after {then} steps, those played now after {now}",
        f"{cause}, or the env's clock was changed: then begin a new run",
        stored_lengths=then, lengths_now=now,
    )  # fmt: skip


def _ends_lost(stored: Play, played: Play, name: str) -> Verdict | None:
    """Where episodes end under the policy of now, those of the newest stored rows ended too."""
    lengths = played.ends[0]
    if len(lengths) < 16 or len(stored.ends[0]) or stored.first[1:].any():
        return None
    each = float(lengths.mean())
    if stored.steps < 30 * each or len(stored.byte) < 3 * lengths.max():
        return None
    return red(
        name,
        f"no episode ends or begins in {stored.steps:,} stored rows; now they last {each:.0f}",
        "look at what stands between env and replay: flags, terminated and truncated are lost",
        lengths_now=each,
    )


def _rewards(stored: Play, played: Play, name: str) -> Verdict | None:
    """A model of rewards by what was seen and done must hold then and now, if it holds at all."""
    old, new = pairs(stored), pairs(played, like=stored)
    if old is None or new is None or old.here.shape != (len(old.here), new.here.shape[1]):
        return None

    def share(model: Pairs, test: Pairs) -> float:
        """Of the variance of rewards, explained on rows that the model has not seen."""
        wrong, total = model_errors(model, test)
        return 1 - wrong / total if total > 1e-9 else np.nan

    own, cross = (share(old, old), share(new, new)), (share(old, new), share(new, old))
    numbers = dict(own=[round(s, 3) for s in own], across=[round(s, 3) for s in cross])
    if min(own) > 0.5 and max(cross) < 0.2:
        message = (
            f"what explains {own[0]:.0%} of the stored rewards explains "
            f"{max(cross[0], 0):.0%} of those "
            "the env gives now for the same observations and actions"
        )
        remedy = (
            "rewards or actions are changed between env and replay (late, other sign, mixed up)"
        )
        return red(name, message, remedy, **numbers)
    return None


def stacks_as_acted(probe: Probe) -> Verdict:
    """The stack that is acted on must hold the newest observations of this episode, "
    "oldest first."""
    name = "stacks-acted-on"
    if probe.saved.params is None:
        return unknown(name, probe.saved.why or "no checkpoint yet")
    game, depth = probe.game, probe.settings.stack
    pad = probe.settings.sight.pad
    flags = np.asarray(game.rows.flags)
    began = np.zeros(flags.shape[1:], int)
    wrong = checked = 0
    leaves = list(zip(jax.tree.leaves(game.rows.obs), jax.tree.leaves(game.stacks), strict=True))
    policy, env = np.indices(flags.shape[1:])
    for time in range(len(flags)):
        began = np.where((flags[time] & FIRST) != 0, time, began)
        bad = np.zeros(flags.shape[1:], bool)
        for back in range(depth):
            at = time - back
            inside = at >= began
            for obs, stacks in leaves:
                seen = stacks[time][:, :, depth - 1 - back]
                wanted = obs[np.maximum(at, began), policy, env]
                fill = wanted if pad == "first" else np.zeros_like(wanted)
                wanted = np.where(
                    inside.reshape(*inside.shape, *(1,) * (wanted.ndim - 2)), wanted, fill
                )
                bad |= (seen != wanted).reshape(*bad.shape, -1).any(-1)
        wrong, checked = wrong + int(bad.sum()), checked + bad.size
    if wrong:
        message = (
            f"{wrong / checked:.1%} of the stacks acted on are not the episode's newest "
            "observations"
        )
        return red(
            name, message, "build stacks by Stacker; clear them at FIRST rows only", stacks=checked
        )
    return green(
        name, f"{checked:,} stacks acted on rebuilt from their rows, all equal", stacks=checked
    )


def _whole_episodes(play: Play) -> tuple[np.ndarray, np.ndarray]:
    """Returns of every stream's first episode and of all that had time to end, and their streams.

    Those that began too late are left out, also where they ended: short ones would count for more.
    """
    ended, late = (play.byte & (TERMINATED | TRUNCATED)) != 0, len(play.byte) - play.ends[0].max()
    total, begun = np.zeros(play.byte.shape[1]), np.zeros(play.byte.shape[1], int)
    returns: list[float] = []
    stream: list[int] = []
    for time, first in enumerate(play.first):
        total, begun = np.where(first, 0.0, total), np.where(first, time, begun)
        total = total + play.reward[time] * play.step[time]
        over = np.nonzero(ended[time] & ((begun <= late) | (begun == 0)))[0]
        returns += total[over].tolist()
        stream += over.tolist()
    return np.array(returns), np.array(stream, int)


def training_and_evaluation(probe: Probe) -> Verdict:
    """Greedy play by the code that acts in training scores as evaluation does."""
    name = "train-and-eval"
    if probe.saved.params is None:
        return unknown(name, probe.saved.why or "no checkpoint yet")
    if "epsilon" not in probe.now:
        return unknown(name, f"{probe.settings.section} explores without an epsilon")
    play, unlike = probe.greedy.play, unlike_best(probe) if probe.discrete else None
    if unlike is not None and unlike[1].startswith("evaluation"):
        return red(
            name,
            f"with an epsilon of 0 acting and evaluation take different actions in {unlike[0]:.0%} "
            "of the same observations, and those of evaluation (best) are not the ones of the "
            "highest value",
            "look at best: it must prepare observations as act does, and take the argmax",
            differ=round(unlike[0], 4),
        )
    ended = (play.byte & (TERMINATED | TRUNCATED)) != 0
    some = ended.any(0)
    if some.mean() < 0.98:
        return unknown(
            name, f"{1 - some.mean():.0%} of the first episodes last longer than was played"
        )
    returns, stream = _whole_episodes(play)
    each = [returns[play.policy[stream] == p] for p in range(probe.settings.policies)]
    theirs = probe.scores(probe.saved.params).returns.astype(np.float64)
    mean, spread = (np.array([f(one) for one in each]) for f in (np.mean, np.var))
    number = np.array([len(one) for one in each])
    error = np.sqrt(spread / np.maximum(number - 1, 1) + theirs.var(1, ddof=1) / theirs.shape[1])
    gap = np.abs(mean - theirs.mean(1))
    scale = np.maximum(np.abs(theirs.mean(1)), 1e-3)
    sure = gap / np.maximum(error, 1e-3 * scale)
    worst = int(np.argmax(sure))
    numbers: dict[str, Any] = dict(policy=worst, training=round(float(mean[worst]), 3))
    numbers |= dict(
        evaluation=round(float(theirs[worst].mean()), 3), error=round(float(error[worst]), 3)
    )
    if sure[worst] > _SURE and gap[worst] > 0.2 * scale[worst]:
        return red(
            name,
            f"greedy play scores {mean[worst]:.4g} in training's envs and "
            f"{theirs[worst].mean():.4g} in evaluation's",
            "the two must be the same env: look at what wraps one and not the other",
            **numbers,
        )
    return green(
        name,
        f"greedy: {mean.mean():.4g} as in training, {theirs.mean():.4g} as evaluated",
        **numbers,
    )
