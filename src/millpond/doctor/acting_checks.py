"""With which parameters agents act, whether always the same way, and evaluation played again."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from .exploration_checks import nongreedy
from .play import Play
from .probe import Probe
from .verdict import Verdict, green, red, suspicious, unknown, yellow

_SURE = 6.0
_NEWEST = 4_000  # stored rows that are compared with what parameters would do


def collapsed(probe: Probe) -> Verdict:
    """The greedy policy must not do the same whatever it sees."""
    name = "greedy-actions"
    if probe.saved.params is None:
        return unknown(name, probe.saved.why or "no checkpoint yet")
    if not probe.discrete or probe.updates < 500:
        return unknown(
            name,
            f"{probe.updates} updates: too early" if probe.discrete else "no values of actions",
        )
    shares: list[np.ndarray] = []
    game = probe.curious
    for policy in range(probe.settings.policies):
        streams = game.play.of_policy(policy)
        greedy = game.greedy[:, policy].ravel()
        if len(np.unique(game.play.hashes[:, streams])) < 100:
            return unknown(name, "too few different observations to judge")
        shares.append(np.bincount(greedy, minlength=probe.agent.actions) / len(greedy))
    most = [float(share.max()) for share in shares]
    worst = int(np.argmax(most))
    numbers = dict(policy=worst, shares=[round(float(s), 3) for s in shares[worst]])
    if most[worst] == 1:
        return yellow(
            name,
            f"policy {worst} does action {int(shares[worst].argmax())} in every state",
            "see bellman-fit, dormant-units and env-rewards; else explore longer",
            **numbers,
        )
    return green(
        name, f"its commonest action is greedy in {most[worst]:.0%} of the states", **numbers
    )


def acted_with(probe: Probe) -> Verdict:
    """The newest stored actions must be those of the newest parameters, not of older ones."""
    name, play = "acting-weights", probe.saved.play
    if play is None:
        why = probe.saved.why or "no rows are kept: its learner takes them as they come"
        return unknown(name, why)
    if not probe.discrete or probe.agent.memory or "epsilon" not in probe.now:
        return unknown(name, "only memoryless agents with an epsilon can be asked again")
    if probe.updates < 200:
        return unknown(name, f"{probe.updates} updates: old and new parameters act alike")
    candidates = [("the newest parameters", probe.saved.params)]
    older = probe.saved.checkpoints[:-1]
    candidates += [(f"the parameters of {steps:,} steps", params) for steps, params in older]
    candidates += [("the first parameters", probe.saved.initial)]
    for other in range(1, min(probe.settings.policies, 4)):
        turned = jax.tree.map(lambda leaf, o=other: np.roll(leaf, o, 0), probe.saved.params)
        candidates.append((f"the policy {other} places before", turned))
    agreed = np.array(
        [_agreement(probe, play, params) for _, params in candidates]
    )  # [c, policies]
    number = agreed[0, :, 1].min()
    share = agreed[..., 0]
    epsilon = probe.now["epsilon"].astype(float)
    wanted = 1 - nongreedy(epsilon, probe.agent.actions)
    # Parameters move while these rows are played: some of the actions were greedy then.
    gap = share[1:].max(0) - share[0] if len(share) > 1 else np.full(len(wanted), -1.0)
    worst = int(np.argmax(gap))
    other = candidates[1 + int(share[1:, worst].argmax())][0]
    numbers = dict(policy=worst, rows=int(number), agree=round(float(share[0, worst]), 3))
    numbers |= dict(
        other=round(float(share[1:, worst].max()), 3), wanted=round(float(wanted[worst]), 3)
    )
    error = np.sqrt(0.25 / max(number, 1))
    if gap[worst] > _SURE * error and share[0, worst] < wanted[worst] - 0.1:
        return red(
            name,
            f"{share[1:, worst].max():.0%} of the newest {int(number):,} stored actions are what "
            f"{other} would do, {share[0, worst]:.0%} what the newest parameters would",
            "actors play with stale parameters: publish after every cycle, and pull before acting",
            **numbers,
        )
    low = int(np.argmin(share[0] - wanted))
    chance = 1 / probe.agent.actions
    if share[0, low] < chance + 0.3 * (wanted[low] - chance) and wanted[low] > 0.6:
        # Where values are close, every update changes the policy: no fault, if it learns.
        found = green(name, f"{share[0, low]:.0%} of the newest actions are greedy now", **numbers)
        return suspicious(
            found,
            f"{share[0, low]:.0%} of the newest stored actions are greedy by the newest "
            f"parameters; with an epsilon of {epsilon[low]:.2g} it should be {wanted[low]:.0%}",
            "actors use other parameters, explore more than epsilon says, rows hold other "
            "actions, or values are so close that every update changes the policy",
        )
    high = int(np.argmax(share[0] - wanted))
    spread = np.sqrt(max(wanted[high] * (1 - wanted[high]), 1e-3) / max(number, 1))
    if share[0, high] > wanted[high] + _SURE * spread + 0.03:
        return red(
            name,
            f"{share[0, high]:.0%} of the newest stored actions are greedy; with an epsilon of "
            f"{epsilon[high]:.2g} it should be {wanted[high]:.0%}",
            "actors explore less than epsilon says",
            **numbers,
        )
    return green(
        name,
        f"{share[0].mean():.0%} of the newest actions are the newest parameters' own",
        **numbers,
    )


def _agreement(probe: Probe, play: Play, params: Any) -> np.ndarray:
    """Per policy the share of the newest stored actions that are greedy, and of how many."""
    found: list[tuple[float, int]] = []
    for policy in range(probe.settings.policies):
        streams = play.of_policy(policy)
        turns = max(2, min(len(play.byte), _NEWEST // max(1, len(streams)), 8))
        keep = probe.stored_known[-turns:, streams] & play.step[-turns:, streams]
        keep[-1] = keep[-1] & play.step[-1, streams]
        stacks = jax.tree.map(
            lambda leaf, s=streams, k=keep, t=turns: leaf[-t:][:, s][k], probe.stored_stacks
        )
        if not keep.any():
            found.append((np.nan, 0))
            continue
        greedy = probe.values(probe.policy(params, policy), stacks).argmax(-1)
        found.append(
            (float((greedy == play.action[-turns:, streams][keep]).mean()), int(keep.sum()))
        )
    return np.asarray(found)


def evaluation(probe: Probe) -> Verdict:
    """The last greedy evaluation, played again: fixed seeds and one program give the same."""
    name = "evaluation-again"
    if not probe.eval or probe.saved.params is None:
        return unknown(name, "no evaluation yet")
    line = probe.eval[-1]
    steps = [one[0] for one in probe.saved.checkpoints]
    if probe.settings.eval_turns > 500 and line["length"] > 2_000:
        return unknown(
            name, f"episodes of {line['length']:,.0f} steps take too long: millpond eval RUN"
        )
    if line["steps"] not in steps:
        return unknown(name, "its parameters were not kept: no checkpoint of that step")
    params = dict(probe.saved.checkpoints)[line["steps"]]
    scores = probe.scores(params)
    means, errors = scores.mean(), scores.error()
    before = np.asarray(line["returns"], float)
    old = np.asarray([np.inf if e is None else e for e in line["errors"]], float)
    apart = np.abs(means - before) / np.maximum(np.hypot(errors, old), 1e-3 + 0.01 * np.abs(before))
    worst = int(np.argmax(apart))
    numbers = dict(
        policy=worst, then=round(float(before[worst]), 3), now=round(float(means[worst]), 3)
    )
    if apart[worst] > _SURE:
        return red(
            name,
            f"the evaluation at {line['steps']:,} steps said {before[worst]:.4g}, the same "
            f"parameters score {means[worst]:.4g} now",
            "evaluation used other parameters or another env than this one; millpond eval RUN",
            **numbers,
        )
    return green(name, f"said {before.mean():.4g}, played again {means.mean():.4g}", **numbers)
