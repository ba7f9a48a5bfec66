"""One update of an actor-critic asked from outside: what its goals are made of, where it climbs.

The batch's rewards and discounts are set so that errors give the goals away: with a large reward
every goal lies above every value, and its error is the goal less the value.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..agents import AgentState
from ..agents.optimizer import Optimizer
from ..engine.make_agent import make_agent
from .policy_checks import entropy_dwarfs, policy_randomness
from .probe import Probe
from .step_checks import lowered
from .verdict import Verdict, green, red

_TRIES = 8  # actions of the policy, in each state
_SURE = 6.0
_DOWN = 3.5  # standard errors by which a step of the actor must have lowered values


def critics(probe: Probe, state: AgentState, batch: Any, now: Any, name: str) -> Verdict:
    """Reward, future and bonus in the goals; then critics and actor, each after a small step."""
    agent, settings = probe.agent, probe.settings.learning
    update = probe.update
    mask = np.asarray(batch.mask)
    q = np.asarray(
        agent.values(state.params.critics, batch.obs, agent.box.inward(batch.action))
    ).mean(0)
    scale = float(settings.reward_scale)
    large = 1e3 * (1.0 + float(np.abs(q).max())) / max(abs(scale), 1e-9)

    def errors(discount: float) -> Any:
        given = batch._replace(
            reward=jnp.full_like(batch.reward, large),
            discount=jnp.full_like(batch.discount, discount),
        )
        return update(state, given, now)[1]

    learned = errors(0.0)
    paid = np.asarray(learned.priority, np.float64)
    kinds = {
        "": scale * large - q,
        "rewards have the wrong sign": scale * large + q,
        "rewards are left out": np.abs(q),
        "rewards are not scaled": large - q,
    }
    off = {what: float(np.abs(paid - one)[mask].max()) for what, one in kinds.items()}
    if off[""] > 1e-3 * abs(scale * large):
        best = min(off, key=lambda what: off[what])
        cause = best or "they enter otherwise"
        return red(name, f"a reward of {large:.3g} does not make a goal of {scale * large:.3g}: "
                   f"{cause}", "look at the critics' goal in update")  # fmt: skip
    if (found := _valued(probe, state, batch, (scale * large - paid, q), name)) is not None:
        return found
    future = np.asarray(errors(1.0).priority, np.float64) - paid
    said = learned.numbers
    # Without a right entropy the goals are wrong, too; and rewards that are drowned look right.
    found = policy_randomness(probe, state, batch, said, name)
    found = found or _future(probe, state, batch, said, future[mask], name)
    climbs = found or _climbs(probe, state, batch, now, name)
    return climbs if climbs.fired else entropy_dwarfs(probe, batch, said, name) or climbs


def _valued(
    probe: Probe, state: AgentState, batch: Any, values: tuple[np.ndarray, np.ndarray], name: str
) -> Verdict | None:
    """The values that errors were taken from must be those of the stored actions, in [-1, 1]."""
    agent, mask = probe.agent, np.asarray(batch.mask)
    trained, right = (value[mask] for value in values)
    wide = 0.02 * float(right.std()) + 1e-3 * float(np.abs(right).max()) + 1e-4
    if float(np.abs(trained - right).mean()) < wide:
        return None
    raw = np.asarray(agent.values(state.params.critics, batch.obs, batch.action)).mean(0)[mask]
    low, high = float(agent.box.low.min()), float(agent.box.high.max())
    cause = "neither the stored actions nor their scaled form explain it"
    if float(np.abs(trained - raw).mean()) < wide:
        cause = (
            f"critics are trained on actions as the env takes them, {low:g} to {high:g}, while the "
            "actor asks them about actions from -1 to 1"
        )
    return red(
        name,
        "the values that are trained are not those of the stored actions (off by "
        f"{float(np.abs(trained - right).mean()):.3g}, values vary by {right.std():.3g}): {cause}",
        "give the critics box.inward(action), wherever they are asked",
    )


def _future(
    probe: Probe, state: AgentState, batch: Any, numbers: Any, future: np.ndarray, name: str
) -> Verdict | None:
    """The value of what comes next, as goals hold it, against what the critics' targets say."""
    agent, mask = probe.agent, np.asarray(batch.mask)
    begun = state.params._replace(begun=jnp.ones((), bool))
    now = {key: value[0] for key, value in probe.now.items()}

    def tried(key: Any) -> Any:
        chance = agent.chance(key, len(mask))
        noise = (jnp.zeros_like(chance),) if agent.memory else ()
        act = agent.act(begun, batch.next_obs, chance, now, *noise)
        action = (act[0] if noise else act).action
        return agent.values(state.target.critics, batch.next_obs, agent.box.inward(action))

    keys = jax.random.split(jax.random.key(6), _TRIES)
    values = np.asarray(jax.jit(jax.vmap(tried))(keys), np.float64)[..., mask]
    lower, higher = values.min(1), values.max(1)  # [tries, batch]
    heat = float(numbers.get("temperature", 0.0)) * float(numbers.get("entropy", 0.0))
    spread = float(np.abs(lower).mean()) + abs(heat)
    if np.abs(future).mean() < 1e-3 * spread:
        message = "the goals do not hold what comes next: nothing is bootstrapped"
        return red(name, message, "look at discount and the targets in the critics' goal")
    bonus = future.mean() - lower.mean()
    error = float((future - lower[0]).std()) / np.sqrt(len(future)) + 0.02 * float(lower.std())
    facts = dict(future=round(float(future.mean()), 4), lower=round(float(lower.mean()), 4))
    facts |= dict(higher=round(float(higher.mean()), 4), entropy_is_worth=round(heat, 4))
    if abs(bonus - heat) < _SURE * error + 0.2 * abs(heat):
        return None
    gap, times = higher.mean() - lower.mean(), bonus / heat if heat else 0.0
    if abs(bonus - heat - gap) < 0.5 * gap:
        cause = "the higher of the two critics is taken, not the lower"
    elif abs(heat) > error:
        cause = f"entropy enters {times:.2g} times instead of once"
        cause += ", with the wrong sign" if times < -0.1 else ""
    else:
        cause = "neither critic explains it"
    return red(
        name,
        f"what comes next is worth {future.mean():.4g} in the goals, {lower.mean():.4g} by the "
        f"lower target critic, and entropy {heat:.3g}: {cause}",
        "look at the critics' goal: reward + discount * (lower value + bonus)",
        **facts,
    )


def _climbs(probe: Probe, state: AgentState, batch: Any, now: Any, name: str) -> Verdict:
    """A small plain step of critics or actor must lower its own loss, on the very same rows."""
    size = float(np.sqrt(sum(float((np.asarray(p) ** 2).sum())
                 for p in jax.tree.leaves(state.params[:2]))))  # fmt: skip
    plain = Optimizer("sgd", clip=1e-3 * size)
    rules: dict[str, Any] = dict(optimizer=plain, actor_optimizer=plain)
    if hasattr(probe.settings.learning, "temperature_optimizer"):
        rules |= dict(temperature_optimizer=plain)
    learning = dataclasses.replace(probe.settings.learning, **rules)
    agent = make_agent(dataclasses.replace(probe.settings, learning=learning))
    begin = agent.adopt(state, state.params, True)._replace(target=state.target)
    due = np.uint32(getattr(learning, "delay", 1) - 1)
    begin = begin._replace(updates=jnp.asarray(due))
    update = jax.jit(agent.update)
    told: list[str] = []
    for who, rates, number in (
        ("critics", dict(rate=1.0, actor_rate=0.0), "loss"),
        ("actor", dict(rate=0.0, actor_rate=1.0), "actor_loss"),
    ):

        def learn(at: AgentState, share: float, rates: dict[str, float] = rates) -> Any:
            given = {name: jnp.float32(share * rate) for name, rate in rates.items()}
            return update(at, batch, {**now, **given})

        before, after, rose = lowered(learn, begin, number, plain.clip)
        if rose:
            return red(
                name,
                f"a small step of the {who} raises their own loss on the same rows: "
                f"{before:.4g} to {after:.4g}",
                f"the gradient of the {who} has the wrong sign, or belongs to another loss",
                loss=before, after_a_small_step=after,
            )  # fmt: skip
        told.append(f"{who} {before:.4g} to {after:.4g}")
    if (found := _warms(probe, begin, batch, now, update, name)) is not None:
        return found
    if (found := _downhill(probe, begin, batch, now, update, name)) is not None:
        return found
    return green(name, f"goals as recomputed; small steps lower losses: {', '.join(told)}")


def _warms(
    probe: Probe, begin: AgentState, batch: Any, now: Any, update: Any, name: str
) -> Verdict | None:
    """A learned temperature must rise where entropy is below its target, and fall above it."""
    settings = probe.settings.learning
    if not getattr(settings, "learn_temperature", False):
        return None
    rates = {"rate": jnp.float32(0), "actor_rate": jnp.float32(0)}
    after, learned = update(begin, batch, {**now, **rates, "temperature_rate": jnp.float32(1)})
    wanted = settings.entropy * probe.agent.box.size
    entropy = float(learned.numbers["entropy"])
    moved = float(after.params.log_temperature - begin.params.log_temperature)
    if abs(wanted - entropy) < 0.1 or moved * (wanted - entropy) > 0:
        return None
    way = "does not change" if moved == 0 else "rises" if moved > 0 else "falls"
    return red(
        name,
        f"entropy is {entropy:.3g}, its target {wanted:.3g}, and a step of the temperature {way}: "
        f"it should {'rise' if wanted > entropy else 'fall'}",
        "its loss is -log_temperature * (log_prob + target): look at the sign",
        entropy=round(entropy, 3), target=wanted, log_temperature_moved=moved,
    )  # fmt: skip


def _downhill(
    probe: Probe, begin: AgentState, batch: Any, now: Any, update: Any, name: str
) -> Verdict | None:
    """Where entropy is worth nothing, a small step of the actor must raise its actions' value."""
    agent, mask = probe.agent, np.asarray(batch.mask)
    if begin.params.log_temperature is not None:
        cold = jnp.full_like(begin.params.log_temperature, -20.0)
        begin = begin._replace(params=begin.params._replace(log_temperature=cold))
    given = {**now, **{key: value[0] for key, value in probe.now.items()}}

    def worth(actor: Any, key: Any) -> Any:
        params = begin.params._replace(actor=actor, begun=jnp.ones((), bool))
        chance = agent.chance(key, len(mask))
        noise = (jnp.zeros_like(chance),) if agent.memory else ()
        act = agent.act(params, batch.obs, chance, given, *noise)
        action = agent.box.inward((act[0] if noise else act).action)
        return agent.values(params.critics, batch.obs, action).min(0)

    keys = jax.random.split(jax.random.key(8), _TRIES)
    of_all = jax.jit(jax.vmap(worth, (None, 0)))
    before = np.asarray(of_all(begin.params.actor, keys), np.float64)[:, mask]
    rates = {"rate": jnp.float32(0), "temperature_rate": jnp.float32(0)}
    moved = update(begin, batch, {**now, **rates, "actor_rate": jnp.float32(1)})[0]
    gained = np.asarray(of_all(moved.params.actor, keys), np.float64)[:, mask] - before
    each = gained.mean(0)
    sure = each.mean() / max(float(each.std()) / np.sqrt(len(each)), 1e-12)
    # To first order a right step cannot lower their mean: only its own noise can, by a little.
    if sure > -_DOWN or (each < 0).mean() < 0.6:
        return None
    return red(
        name,
        "a small step of the actor lowers what the critics think of its own actions, in "
        f"{(each < 0).mean():.0%} of the states ({before.mean():.4g} to "
        f"{before.mean() + each.mean():.4g}): it goes downhill",
        "the actor's loss is temperature * log_prob - value: look at the sign of the value",
        before=float(before.mean()), change=float(each.mean()),
    )  # fmt: skip
