"""One step of an optimizer taken apart: the rule's own is quiet, every other is named."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from millpond.agents import AgentState, Optimizer
from millpond.doctor.priority_checks import _alike
from millpond.doctor.step_checks import lowered, slopes_of, unheard_rows, wrong_step

RATE = 1e-3
PARAMS = {"a": jax.random.normal(jax.random.key(0), (40, 3)), "b": jnp.ones(7)}
GRADIENT = jax.tree.map(lambda leaf: jnp.cos(9 * leaf), PARAMS)


def stepped(rule: Optimizer, change):
    """What is said of a step that `change(step, parameter)` made of the rule's own."""
    none = jnp.zeros((), np.uint32)
    before = AgentState(PARAMS, None, rule.init(PARAMS), none, none, jnp.zeros((), bool))
    step, optimizer = rule.change(GRADIENT, before.optimizer, PARAMS, jnp.float32(RATE))
    after = jax.tree.map(lambda p, s: p + change(s, p), PARAMS, step)
    after = before._replace(params=after, optimizer=optimizer)
    found = wrong_step(rule, GRADIENT, before, after, RATE, "update-audit")
    return found.message if found else ""


@pytest.mark.parametrize("kind", ["adam", "radam", "sgd"])
@pytest.mark.parametrize("clip", [0.0, 0.1])
def test_the_rules_own_step_is_quiet(kind, clip):
    assert stepped(Optimizer(kind, clip=clip), lambda step, param: step) == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda step, param: 30 * step, "applied 30 times over"),
        (lambda step, param: -step, "the other way"),
        (lambda step, param: step - 0.02 * param, "weights decay"),
        (lambda step, param: step * (param > 0), "only some layers move"),
    ],
)
def test_another_step_is_named(change, said):
    assert said in stepped(Optimizer(), change)


def test_steps_that_rounding_swallows_are_not_judged():
    rule = Optimizer()
    none = jnp.zeros((), np.uint32)
    state = AgentState(PARAMS, None, rule.init(PARAMS), none, none, jnp.zeros((), bool))
    assert wrong_step(rule, GRADIENT, state, state, 1e-9, "update-audit") is None


class Said:
    def __init__(self, loss: float, gradient: float) -> None:
        self.numbers = {"loss": loss, "gradient": gradient}


@pytest.mark.parametrize(("sign", "rose"), [(-1.0, False), (1.0, True)])
def test_a_step_that_raises_the_loss_is_seen(sign, rose):
    """A parabola: steps along the slope, or against it."""

    def learn(state, share):
        at = state.params
        after = state._replace(params=at + sign * share * 0.01 * 2 * at)
        return after, Said(at**2 + 1.0, 2 * abs(at))

    state = AgentState(0.5, None, None, jnp.uint32(0), jnp.uint32(0), jnp.zeros((), bool))
    assert lowered(learn, state, "loss", 0.01)[2] is rose


def test_what_rounding_does_to_a_loss_is_no_rise():
    losses = iter([0.03429, 0.03429 * (1 + 1.2e-6)] * 3)

    def learn(state, share):
        return state, Said(next(losses), 1e-5)

    state = AgentState(0.5, None, None, jnp.uint32(0), jnp.uint32(0), jnp.zeros((), bool))
    assert not lowered(learn, state, "loss", 0.01)[2]


def test_rank_correlation():
    values = np.array([1.0, 2, 2, 5])
    assert _alike(values, values**3) == pytest.approx(1)
    assert _alike(values, -values) == pytest.approx(-1)
    assert _alike(values, np.ones(4)) == 0


class Few(NamedTuple):
    weight: np.ndarray
    mask: np.ndarray
    value: np.ndarray


@pytest.mark.parametrize("shape", [(32,), (32, 5)], ids=["transitions", "sequences"])
@pytest.mark.parametrize("heard", [32, 2])
def test_samples_that_have_no_say_are_counted(shape, heard):
    """Of transitions and of sequences, some of whose rows are masked."""
    rng = np.random.default_rng(0)
    batch = Few(np.ones(32, np.float32), rng.random(shape) < 0.8, rng.random(shape))

    def loss(state, batch, now):
        each = (batch.value * batch.mask).reshape(32, -1).sum(1) * batch.weight
        return lambda params: (each[:heard].sum() * params, ()), batch.mask

    agent, state = SimpleNamespace(loss=loss), SimpleNamespace(params=jnp.ones(()))
    learned = SimpleNamespace(priority=np.ones(32))
    by_weight = slopes_of(agent, state, batch, {})[1]
    found = unheard_rows(by_weight, batch, learned, "update-audit")
    if heard == 32:
        assert found is None
    else:
        assert found.evidence["silent"] >= 20
