"""How agents act: with which parameters, how much by chance, and whether always the same way."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..agents.actor_critic import ActorCritic
from .play import Play
from .probe import Probe
from .verdict import Verdict, green, red, unknown, yellow

_SURE = 6.0
_NEWEST = 4_000  # stored rows that are compared with what parameters would do


def _nongreedy(epsilon: np.ndarray, actions: int) -> np.ndarray:
    """How often an epsilon-greedy action is not the greedy one."""
    return epsilon * (actions - 1) / actions


def explored(probe: Probe) -> Verdict:
    """The share of actions that are not greedy must be what epsilon asks for, counted at play."""
    name = "exploration"
    if probe.saved.params is None:
        return unknown(name, probe.saved.why or "no checkpoint yet")
    if isinstance(probe.agent, ActorCritic):
        return _reaches(probe, name)
    if not probe.discrete or "epsilon" not in probe.now:
        return unknown(name, f"{probe.settings.section} explores without an epsilon")
    actions = probe.agent.actions
    if (found := _unlike_best(probe, name)) is not None:
        return found
    told: list[str] = []
    for game, epsilon in (
        (probe.curious, np.full(probe.settings.policies, 0.5)),
        (probe.game, probe.now["epsilon"].astype(float)),
    ):
        step = game.play.step.reshape(game.greedy.shape)
        off = (game.chosen != game.greedy) & step
        number = step.sum((0, 2))
        share = off.sum((0, 2)) / np.maximum(number, 1)
        wanted = _nongreedy(epsilon, actions)
        error = np.sqrt(np.maximum(wanted * (1 - wanted), 1e-4) / np.maximum(number, 1))
        worst = int(np.argmax(np.abs(share - wanted) / error))
        numbers = dict(policy=worst, epsilon=round(float(epsilon[worst]), 4))
        numbers |= dict(
            not_greedy=round(float(share[worst]), 4), wanted=round(float(wanted[worst]), 4)
        )
        if abs(share[worst] - wanted[worst]) > _SURE * error[worst] + 0.01:
            cause = _whose(probe, game, off[:, worst], step[:, worst], worst, wanted[worst])
            return red(
                name,
                f"{share[worst]:.1%} of the actions are not the greedy ones; an epsilon of "
                f"{epsilon[worst]:.3g} makes {wanted[worst]:.1%}{cause}",
                "look at act: the coin against epsilon, argmax, the action that is returned",
                **numbers,
            )
        found = _together(off, step, wanted, name) or _untried(probe, game, off, epsilon, name)
        if found is not None:
            return found
        stored = game.play.action.reshape(game.chosen.shape) != game.chosen
        if (stored & step).any():
            others = (stored & step).sum()
            greedy = (game.play.action.reshape(game.chosen.shape) == game.greedy)[stored & step]
            which = ": the greedy one, where another was tried" if greedy.mean() > 0.95 else ""
            return red(
                name,
                f"{others / step.sum():.1%} of the rows hold another action than was chosen{which}",
                "store what was given to env.step",
                **numbers,
            )
        told.append(f"{share.mean():.1%} of {wanted.mean():.1%}")
    return green(name, f"not greedy: {' and '.join(told)} that epsilon asks for")


def unlike_best(probe: Probe) -> tuple[float, str] | None:
    """How often acting without epsilon differs from evaluating (`best`), and which one is wrong.

    The wrong one does not take the action of the highest value.
    """
    game = probe.greedy
    step = game.play.step.reshape(game.greedy.shape)
    share = float(((game.chosen != game.greedy) & step).sum() / max(1, step.sum()))
    if share < 0.01:
        return None
    if probe.agent.memory:
        return share, "one of them"
    agreed = [0.0, 0.0]
    for policy in range(probe.settings.policies):
        stacks = jax.tree.map(lambda leaf, p=policy: leaf[:, p][step[:, p]], game.stacks)
        highest = probe.values(probe.policy(probe.saved.params, policy), stacks).argmax(-1)
        for number, taken in enumerate((game.chosen, game.greedy)):
            agreed[number] += float((taken[:, policy][step[:, policy]] == highest).mean())
    return share, "acting (act)" if agreed[0] < agreed[1] else "evaluation (best)"


def _unlike_best(probe: Probe, name: str) -> Verdict | None:
    """A verdict where evaluation is the one that is wrong; else the checks of acting go on."""
    found = unlike_best(probe)
    if found is None or not found[1].startswith("evaluation"):
        return None
    return unknown(name, "what evaluation takes for the greedy action is not: see train-and-eval")


def _untried(
    probe: Probe, game: Any, off: np.ndarray, epsilon: np.ndarray, name: str
) -> Verdict | None:
    """Each action must be tried by chance as often as any other."""
    actions = probe.agent.actions
    for policy in range(off.shape[1]):
        step = game.play.step.reshape(off.shape)[:, policy]
        tried = np.bincount(game.chosen[:, policy][off[:, policy]], minlength=actions)
        greedy = np.bincount(game.greedy[:, policy][step], minlength=actions)
        wanted = float(epsilon[policy]) / actions * (step.sum() - greedy)
        short = (tried < 0.5 * wanted) & (wanted - tried > _SURE * np.sqrt(np.maximum(wanted, 1)))
        if short.any():
            worst = int(np.argmax(np.where(short, wanted - tried, 0)))
            return red(
                name,
                f"action {worst} is tried by chance {tried[worst]} times where {wanted[worst]:.0f} "
                f"were to be expected; the others {_counts(tried, worst)} times",
                "draw the random action from all of them: randint's upper bound is not included",
                action=worst, tried=int(tried[worst]), expected=round(float(wanted[worst])),
            )  # fmt: skip
    return None


def _counts(tried: np.ndarray, without: int) -> str:
    others = np.delete(tried, without)
    return f"{others.min()} to {others.max()}" if len(others) > 1 else f"{others[0]}"


def _whose(
    probe: Probe, game: Any, off: np.ndarray, step: np.ndarray, policy: int, wanted: float
) -> str:
    """Why actions [time, envs] may not be a policy's own: another one's, or some envs explore."""
    each = (off & step).sum(0) / np.maximum(step.sum(0), 1)
    idle = each < 0.1 * wanted
    if idle.any() and not idle.all() and each[~idle].mean() > 0.5 * wanted:
        return f": {idle.sum()} of {len(each)} envs never explore, the others do"
    if probe.agent.memory:
        return ""
    stacks = jax.tree.map(lambda leaf: leaf[:, policy][step], game.stacks)
    for other in range(min(probe.settings.policies, 8)):
        if other != policy:
            theirs = probe.values(probe.policy(probe.saved.params, other), stacks).argmax(-1)
            share = float((theirs == game.chosen[:, policy][step]).mean())
            if share > 1 - wanted - 0.05:
                return f": {share:.0%} of them are those of policy {other}, whose parameters act"
    return ""


def _reaches(probe: Probe, name: str) -> Verdict:
    """Before anything is learned, real actions are uniform: they must reach both bounds."""
    agent, box = probe.agent, probe.agent.box
    game = probe.game
    other = np.asarray(game.play.action, np.float64).reshape(game.chosen.shape) != game.chosen
    wrong = other.any(-1) & game.play.step.reshape(game.greedy.shape[:3])
    if wrong.any():
        return red(
            name,
            f"{wrong.mean():.1%} of the rows hold another action than was chosen",
            "store what was given to env.step",
        )
    params = probe.policy(probe.saved.params, 0)._replace(begun=np.zeros((), bool))
    obs = jax.tree.map(lambda leaf: leaf[:, 0].reshape(-1, *leaf.shape[3:])[:512], game.stacks)
    chance = agent.chance(jax.random.key(12), len(jax.tree.leaves(obs)[0]))
    now = {key: value[0] for key, value in probe.now.items()}
    noise = (chance * 0,) if agent.memory else ()
    act = agent.act(params, obs, chance, now, *noise)
    action = np.asarray((act[0] if noise else act).action, np.float64)
    share = (action.max(0) - action.min(0)) / np.maximum(2 * box.half, 1e-12)
    share = np.where(box.half > 0, share, 1.0)
    least = int(np.argmin(share))
    numbers = dict(number=least, share=round(float(share[least]), 3), actions=len(action))
    if share[least] < 0.8 and len(action) >= 64:
        return red(
            name,
            f"{len(action)} actions drawn uniformly reach {share[least]:.0%} of what number "
            f"{least} may be ({box.low[least]:g} to {box.high[least]:g})",
            "look at what scales actions between the agent and the env (ActionBox.outward)",
            **numbers,
        )
    return green(name, f"uniform actions reach {share[least]:.0%} of the bounds", **numbers)


def _together(off: np.ndarray, step: np.ndarray, wanted: np.ndarray, name: str) -> Verdict | None:
    """Coins must fall apart: over turns of one env, and over envs in one turn."""
    for axis, what, remedy in (
        (0, "some envs always explore and others never", "draw a new key in every turn"),
        (2, "all envs explore at the same time", "draw a coin and an action for every env"),
    ):
        each = step.sum(axis)
        share = np.where(step, off - wanted[:, None], 0).sum(axis) / np.maximum(each, 1)
        usual = np.expand_dims(wanted * (1 - wanted), 1 - axis // 2) / np.maximum(each, 1)
        known = (each >= 8) & (usual > 0)
        number = int(known.sum())
        if number < 16:
            continue
        spread = float((share[known] ** 2 / usual[known]).mean())
        if spread > 2 + _SURE * np.sqrt(2 / number):
            message = f"{what}: its share is {np.sqrt(spread):.1f} times as uneven as by chance"
            return red(name, message, f"{remedy} (chance)", spread=round(spread, 2))
    return None


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
    wanted = 1 - _nongreedy(epsilon, probe.agent.actions)
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
        return yellow(
            name,
            f"{share[0, low]:.0%} of the newest stored actions are greedy by the newest "
            f"parameters; with an epsilon of {epsilon[low]:.2g} it should be {wanted[low]:.0%}",
            "actors use other parameters, explore more than epsilon says, rows hold other "
            "actions, or values are so close that every update changes the policy",
            **numbers,
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
