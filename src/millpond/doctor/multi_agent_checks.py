"""Whether each agent of an env sees, does and is paid its own, not another agent's."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from .play import Play
from .row_models import Pairs, by_action, errors, gain_of, pairs, telling, varied
from .verdict import Verdict, green, red, unknown, yellow

_SURE = 6.0


def others(play: Play, agents: int) -> list[Verdict]:
    """Of the rows of several agents of each env."""
    found = pairs(play) if 2 <= agents <= 8 else None
    if found is None or len(np.unique(found.block)) < 8:
        why = "one agent, or too few rows"
        return [unknown("env-rewards", why), unknown("action-effect", why)]
    each = [_Turned(play, agents, other) for other in range(1, agents)]
    return [_same_view(play, agents), _rewards(found, each), _actions(found, each)]


class _Turned:
    """The same rows with another agent's reward and action beside what an agent saw."""

    def __init__(self, play: Play, agents: int, other: int) -> None:
        def turned(leaf: np.ndarray) -> np.ndarray:
            # Streams are [members, agents, envs]: the agents of one env are one axis.
            apart = leaf.reshape(len(leaf), -1, agents, len(play.of_policy(0)), *leaf.shape[2:])
            return np.roll(apart, other, 2).reshape(leaf.shape)

        changed = dataclasses.replace(play, reward=turned(play.reward), action=turned(play.action))
        found = pairs(changed)
        assert found
        self.other, self.rows = other, found


def _same_view(play: Play, agents: int) -> Verdict:
    """Agents that always see the same cannot know which of them they are."""
    name = "env-observations"
    shape = (len(play.byte), -1, agents, len(play.of_policy(0)))
    seen, paid = play.hashes.reshape(shape), play.reward.reshape(shape)
    if (seen == seen[:, :, :1]).all() and (paid != paid[:, :, :1]).any():
        return yellow(
            name,
            f"all {agents} agents of an env always see the same, and are paid differently",
            "look at observe: it should give each agent its own view, unless all see everything",
            agents=agents,
        )
    return green(name, f"{agents} agents see different things")


def _rewards(found: Pairs, each: list[_Turned]) -> Verdict:
    """What an agent is paid must go with what itself saw and did."""
    name, goal, test = "env-rewards", found.reward, ~found.fit
    total = float(((goal[test] - goal[found.fit].mean()) ** 2).sum())
    if total < 1e-9 or (goal != np.median(goal)).sum() < 50:
        return unknown(name, "rewards hardly vary: nothing can be seen")

    def explained(goal: np.ndarray) -> np.ndarray:
        some = telling(found, found.here, found.acted, goal)
        return errors(by_action(found.here[:, some], found.acted), goal, found.fit)

    own = explained(goal)
    for turned in each:
        wrong = explained(turned.rows.reward)
        gain, sure = gain_of(wrong, own, found.block[test], total)
        shares = 1 - own.sum() / total, 1 - wrong.sum() / total
        if gain > 0.15 and sure > _SURE and shares[0] < 0.5 * shares[1]:
            return red(
                name,
                f"what an agent sees and does explains {shares[1]:.0%} of another agent's rewards "
                f"and {max(shares[0], 0):.0%} of its own: agents get each other's",
                "give reward[i] to the agent that took action[i]",
                own=round(shares[0], 3), other=round(shares[1], 3), agents_on=turned.other,
            )  # fmt: skip
    return green(name, f"{len(each) + 1} agents are paid for what they do themselves")


def _actions(found: Pairs, each: list[_Turned]) -> Verdict:
    """What an agent sees next must follow its own action."""
    name, test = "action-effect", ~found.fit
    some = varied(found)
    here = found.here[:, some]
    goal = found.after[:, some[:-1]]
    total = float(((goal[test] - goal[found.fit].mean(0)) ** 2).sum())
    own: Any = errors(by_action(here, found.acted), goal, found.fit)
    for turned in each:
        theirs = errors(by_action(here, turned.rows.acted), goal, found.fit)
        gain, sure = gain_of(theirs, own, found.block[test], total)
        if gain > 0.02 and sure > _SURE:
            return red(
                name,
                f"what an agent sees next follows the action of another agent ({gain:.1%} more "
                "of it than its own explains): agents move each other",
                "let step use action[i] for agent i, in the order of observe and reward",
                gain=round(gain, 4), agents_on=turned.other,
            )  # fmt: skip
    return green(name, f"{len(each) + 1} agents act for themselves")
