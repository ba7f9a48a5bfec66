"""How much agents act by chance, counted at play, against what epsilon or noise asks for."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..agents.actor_critic import ActorCritic
from .probe import Probe
from .verdict import Verdict, green, red, unknown

_SURE = 6.0


def nongreedy(epsilon: np.ndarray, actions: int) -> np.ndarray:
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
        wanted = nongreedy(epsilon, actions)
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
