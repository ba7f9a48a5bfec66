"""What parameters say by themselves: which of them moved, whether the target follows, what is dead.

Everything is compared with the parameters that the run began with, made again from its seed.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from ..agents.actor_critic import Params
from ..agents.optimizer import Optimizer
from ..engine.checkpoint import named_leaves
from .probe import Probe
from .verdict import Verdict, green, red, unknown, yellow

_FEW = 100  # updates before it may be asked how far they came
_EARLY = 20  # updates before a layer may be called still
_JUDGED = 500  # updates before little movement is a fault
_DORMANT = 0.025  # of its layer's mean activity, below which a unit counts for nothing


def _distance(a: Any, b: Any) -> float:
    pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return float(np.sqrt(sum(((np.asarray(x, np.float64) - y) ** 2).sum() for x, y in pairs)))


def _size(a: Any) -> float:
    return float(np.sqrt(sum((np.asarray(x, np.float64) ** 2).sum() for x in jax.tree.leaves(a))))


def moved(probe: Probe) -> Verdict:
    """Every layer's parameters must have moved since the run began."""
    name, saved = "layers-move", probe.saved
    if saved.params is None:
        return unknown(name, saved.why or "no checkpoint yet")
    if probe.updates < _EARLY:
        return unknown(name, f"{probe.updates} updates: too early")
    still, learning = list[str](), probe.settings.learning
    shares: dict[str, float] = {}
    for (layer, now), (_, then) in zip(
        named_leaves(saved.params), named_leaves(saved.initial), strict=True
    ):
        change = np.abs(np.asarray(now, np.float64) - then).reshape(len(now), -1).sum(1)
        size = np.abs(np.asarray(then, np.float64)).reshape(len(now), -1).sum(1)
        shares[layer] = (
            round(float((change / np.maximum(size, 1e-9)).min()), 6) if size.all() else 1.0
        )
        held = "log_temperature" in layer and not getattr(learning, "learn_temperature", True)
        if (change == 0).any() and not held:
            still.append(layer)
    policies = range(probe.settings.policies)
    whole = min(
        _distance(probe.policy(saved.params, p), probe.policy(saved.initial, p))
        / max(_size(probe.policy(saved.initial, p)), 1e-12)
        for p in policies
    )
    numbers = dict(updates=probe.updates, moved=round(whole, 6), still=still)
    if still and len(still) == len(shares):
        message = f"no parameter moved in {probe.updates:,} updates"
        return red(name, message, "updates are thrown away, or the learning rate is 0", **numbers)
    if still and whole > 1e-4:
        message = f"{_parts(still, shares)} did not move in {probe.updates:,} updates; the rest did"
        remedy = "a layer is frozen, cut off from the loss, or its inputs are all dead"
        return red(name, message, remedy, **numbers)
    if (found := _alike(probe, name)) is not None:
        return found
    if (share := _of_asked(probe)) is not None and share < 0.02:
        message = (
            f"{probe.updates:,} updates moved the parameters by {share:.2%} of what steps of the "
            "learning rate in any directions would have"
        )
        remedy = "gradients or steps are cut to next to nothing: look at clip and the optimizer"
        return red(name, message, remedy, **numbers, of_asked=round(share, 5))
    if (whole < 0.002 and probe.updates >= _FEW) or (whole < 0.01 and probe.updates >= _JUDGED):
        cause, remedy = _held_back(probe)
        return yellow(
            name,
            f"{probe.updates:,} updates moved the parameters by {whole:.2%} of their size in all"
            f"{cause}",
            remedy,
            **numbers,
        )
    return green(name, f"all {len(shares)} moved, by {whole:.0%} of their size in all", **numbers)


def _held_back(probe: Probe) -> tuple[str, str]:
    """Why parameters hardly moved, as far as the log tells, and what to do."""
    section, rule = probe.settings.section, getattr(probe.settings.learning, "optimizer", None)
    norms = [line["gradient"] for line in probe.train if line.get("gradient") is not None]
    gradient = float(np.median(np.concatenate([np.ravel(one) for one in norms]))) if norms else 0.0
    clip = getattr(rule, "clip", 0.0)
    if clip and gradient > 10 * clip:
        return (
            f": gradients of about {gradient:.2g} are cut to {clip:g}, to {clip / gradient:.2%} of "
            f"themselves, before {getattr(rule, 'kind', 'the optimizer')} steps along them",
            f"raise --{section}.optimizer.clip above the usual gradient; 10 is usual",
        )
    at = np.linspace(0, probe.steps, 33).astype(np.uint32)
    rate = max(float(probe.settings.now(step).get("rate", np.nan)) for step in at)
    return (
        f": the learning rate is {rate:.2g} at most, gradients are about {gradient:.2g}",
        f"raise the learning rate (--{section}.optimizer.rate.start) tenfold and compare",
    )


def _parts(still: list[str], layers: Any) -> str:
    """Layers by name; where all of a part, as of an actor, stand still, the part."""
    part = {layer: layer.partition("[")[0] for layer in layers}
    whole = {p for p in part.values() if p and all(x in still for x in layers if part[x] == p)}
    alone = [layer for layer in still if part[layer] not in whole]
    return ", ".join([*(f"the whole {p}" for p in sorted(whole)), *alone])


def _alike(probe: Probe, name: str) -> Verdict | None:
    """Policies begin apart and stay apart."""
    number = min(probe.settings.policies, 8)
    for tree, what, remedy in (
        (probe.saved.params, "are exactly the same", "give every policy its own update"),
        (probe.saved.initial, "begin as the same", "split the key: one for every policy"),
    ):
        each = [probe.policy(tree, policy) for policy in range(number)]
        same = [(i, j) for i in range(number) for j in range(i) if not _distance(each[i], each[j])]
        if same:
            message = f"the parameters of policies {same[0][1]} and {same[0][0]} {what}"
            return red(name, message, remedy, pairs=len(same))
    return None


def _of_asked(probe: Probe) -> float | None:
    """How far parameters came, as a share of a random walk by Adam's steps of the learning rate."""
    settings, rule = probe.settings, getattr(probe.settings.learning, "optimizer", None)
    if not isinstance(rule, Optimizer) or rule.kind == "sgd" or probe.updates < _FEW:
        return None
    at = np.linspace(0, probe.steps, 33).astype(np.uint32)
    rates = [float(settings.now(step)["rate"]) for step in at]
    steps = probe.updates / rule.accumulate
    asked = np.sqrt(np.mean(np.square(rates)) * steps)
    gone = _distance(probe.saved.params, probe.saved.initial)
    number = sum(np.asarray(leaf).size for leaf in jax.tree.leaves(probe.saved.params))
    return gone / max(np.sqrt(number) * float(asked), 1e-30)


def followed(params: Any, target: Any) -> Any:
    """Those of an agent's parameters that its target follows."""
    if not isinstance(target, Params):
        return params
    parts = {name: None for name in Params._fields if getattr(target, name) is None}
    return params._replace(**parts)


def target_follows(probe: Probe) -> Verdict:
    """The target network must have moved, and stand between the beginning and the online one."""
    name, state = "target-network", probe.saved.state
    syncs = getattr(probe.settings.learning, "syncs", None)
    if state is None:
        return unknown(name, probe.saved.why or "no state was saved yet")
    if state.target is None or syncs is None:
        return unknown(name, f"{probe.settings.section} has no target network")
    params, start_params = (
        followed(of, state.target) for of in (state.params, probe.saved.initial)
    )
    if jax.tree.structure(state.target) != jax.tree.structure(params):
        return unknown(name, f"{probe.settings.section} keeps its targets in a form of its own")
    updates = probe.updates
    if updates < _EARLY or not syncs(updates):
        return unknown(name, f"too early: it changed {syncs(updates)} times")
    learning: Any = probe.settings.learning
    every, tau = getattr(learning, "target_every", 0), getattr(learning, "tau", 1.0)
    updates //= getattr(learning, "delay", 1)
    section = probe.settings.section
    way = f"--{section}.target-every" if every else f"--{section}.tau"
    told = ""
    numbers: dict[str, Any] = {}
    for policy in range(probe.settings.policies):
        target = probe.policy(state.target, policy)
        online, start = probe.policy(params, policy), probe.policy(start_params, policy)
        apart, far = _distance(target, online), _distance(online, start)
        gone = _distance(target, start)
        numbers = dict(policy=policy, updates=updates, from_start=round(gone, 5))
        numbers |= dict(to_online=round(apart, 5), online_from_start=round(far, 5))
        told = (
            f"it came {gone / max(far, 1e-12):.0%} of the online network's way, {apart:.3g} apart"
        )
        if far == 0:
            return unknown(name, "the parameters did not move: see layers-move", **numbers)
        if gone == 0:
            message = f"the target network is that of the beginning, after {updates:,} updates"
            return red(name, message, "follow the online network in update (_follow)", **numbers)
        if apart == 0 and (updates % every if every else tau < 1):
            message = "the target network equals the online one: nothing holds the goals still"
            return red(name, message, "copy it only when due, or follow by tau", **numbers)
        if not every:
            # Parameters that moved evenly would leave it here; most move faster at the beginning.
            behind = (1 - (1 - tau) ** updates) / (updates * tau)
            done = 1 - apart / far
            numbers |= dict(done=round(done, 3), if_even=round(1 - behind, 3))
            if tau * updates > 1 and gone / far < 0.35 * (1 - behind):
                message = (
                    f"the target network came {gone / far:.0%} of the online one's way; a tau of "
                    f"{tau:g} over {updates:,} updates would bring it {1 - behind:.0%} or more"
                )
                return red(name, message, f"it follows more slowly than {way} says", **numbers)
            if tau * updates < 1 and updates >= _JUDGED:
                message = f"tau {tau:g} is slow for {updates:,} updates: values barely propagate"
                return yellow(name, message, f"raise {way}", **numbers)
    return green(name, told, **numbers)


def _reach(agent: Any) -> Any:
    """Of every layer but the last, whether a unit's bias changes any value: gradients [units]."""

    def total(params: Any, seen: Any) -> Any:
        values = agent.values(params, seen)
        return (values * jax.random.normal(jax.random.key(0), values.shape)).sum()

    def reach(params: Any, seen: Any) -> list[Any]:
        found = jax.grad(total)(params, seen)
        named = [(str(name), leaf) for name, leaf in named_leaves(found)]
        return [leaf for name, leaf in named if "bias" in name and leaf.size > agent.actions]

    return reach


def stops_at(values: np.ndarray) -> float | None:
    """The value that many states and actions share as their highest, if there is one.

    Of values [states, actions]: `stops_at(np.tanh(values))`.
    """
    wide = float(np.ptp(values))
    if len(np.unique(values.round(6), axis=0)) < 100 or wide <= 0:
        return None
    top = float(values.max())
    return top if (values > top - 1e-3 * wide).mean() > 0.1 else None


def dormant(probe: Probe) -> Verdict:
    """Units that never fire on what is seen, and values that do not depend on it."""
    name, saved = "dormant-units", probe.saved
    if saved.params is None:
        return unknown(name, saved.why or "no checkpoint yet")
    if not probe.discrete or probe.agent.memory or not hasattr(probe.agent, "activity"):
        return unknown(
            name, "only networks without memory and with values of actions are looked into"
        )
    if len(np.unique(probe.curious.play.hashes)) == 1:
        return unknown(name, "the agents always see the same: see env-observations")
    stacks = jax.tree.map(lambda leaf: leaf[::3], probe.curious.stacks)
    activity, reach = jax.jit(probe.agent.activity), jax.jit(_reach(probe.agent))
    worst, flat, top = 0.0, False, None
    layers: list[float] = []
    for policy in range(probe.settings.policies):
        params = probe.policy(saved.params, policy)
        seen = jax.tree.map(
            lambda leaf, p=policy: leaf[:, p].reshape(-1, *leaf.shape[3:])[:512], stacks
        )
        dead = [
            float((np.asarray(a) <= _DORMANT * max(float(np.mean(a)), 1e-12)).mean())
            for a in activity(params, seen)
        ]
        dead += [float((np.asarray(g) == 0).mean()) for g in reach(params, seen)]
        values = probe.values(params, seen)
        top = top or stops_at(values)
        flat |= float(values.std(0).max()) <= 1e-6 * max(1.0, float(np.abs(values).max()))
        worst, layers = max((worst, layers), (max(dead, default=0.0), dead))
    shares = [round(share, 3) for share in layers]
    section = probe.settings.section
    remedy = f"lower --{section}.optimizer.rate.start; leave --network.norm on"
    if flat:
        message = "the values are the same whatever is seen: nothing reaches the last layer"
        return red(name, message, remedy, share_by_layer=shares)
    if top is not None:
        message = f"values stop at {top:.3g}, in many states and actions: something bounds them"
        remedy = "let the last layer be linear; scale rewards so that returns are of its size"
        return red(name, message, remedy, share_by_layer=shares)
    if worst > 0.7:  # of healthy short runs, up to 0.66 was seen
        message = f"{worst:.0%} of a layer's units hardly ever fire"
        return yellow(name, message, remedy, share_by_layer=shares)
    return green(
        name, f"at most {worst:.0%} of a layer's units hardly ever fire", share_by_layer=shares
    )
