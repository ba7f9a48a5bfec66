"""`lambda_returns` against sums over n-step returns and corrections, in plain float64 loops."""

from __future__ import annotations

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scenarios import PATTERNS, SPEC, Stream, to_rows

from millpond import BadConfig, HostPond, Sequence, SpecMismatch, lambda_returns

ACTIONS = 7
TRACES = ["peng", "watkins", "retrace", "tree"]


def q_of(frame: int) -> list[float]:
    """Some values of an observation, by its number."""
    return [((frame * 37 + a * 101) % 23 - 11) / 4 for a in range(ACTIONS)]


def policy_of(frame: int) -> list[float]:
    weights = [1 + (frame * 13 + a * 7) % 5 for a in range(ACTIONS)]
    return [weight / sum(weights) for weight in weights]


def behaviour_of(frame: int) -> float:
    return 0.05 + (frame % 9) / 10


def oracle(rows: list[dict], start: int, last: int, how: dict) -> float:
    """The return of row `start` of one stream, of whose rows `last` is the last that is learned.

    Peng: the average of n-step returns. The others: the value of the action, and the sum of all
    later TD errors, each as far as the traces let it through.
    """
    gamma, lam, trace, soft = how["gamma"], how["lam"], how["trace"], how["soft"]

    def value(row: dict) -> float:
        q = q_of(row["frame"])
        if not soft:
            return max(q)
        return sum(p * one for p, one in zip(policy_of(row["frame"]), q, strict=True))

    def coefficient(row: dict) -> float:
        q, a = q_of(row["frame"]), row["action"]
        chance = (
            policy_of(row["frame"]) if soft else [float(q.index(max(q)) == b) for b in range(7)]
        )
        if trace == "watkins":
            return lam * (chance[a] == max(chance) if soft else q[a] == max(q))
        if trace == "tree":
            return lam * chance[a]
        return lam * min(1.0, chance[a] / behaviour_of(row["frame"]))

    episode = []  # the rows of the episode from the start on that are learned
    for t in range(start, last + 1):
        episode.append(t)
        if rows[t]["terminated"] or rows[t]["truncated"]:
            break
    if trace == "peng":
        returns, total = [], 0.0
        for n, t in enumerate(episode):
            total += gamma**n * rows[t]["reward"]
            dead = rows[t]["terminated"]
            returns.append(total + (0.0 if dead else gamma ** (n + 1) * value(rows[t + 1])))
        mixed = sum((1 - lam) * lam**n * one for n, one in enumerate(returns[:-1]))
        return mixed + lam ** (len(returns) - 1) * returns[-1]
    total, reach = q_of(rows[start]["frame"])[rows[start]["action"]], 1.0
    for n, t in enumerate(episode):
        row = rows[t]
        if n:
            reach *= gamma * coefficient(row)
        ahead = 0.0 if row["terminated"] else gamma * value(rows[t + 1])
        total += reach * (row["reward"] + ahead - q_of(row["frame"])[row["action"]])
    return total


def replayed(window: Sequence, pattern: str, seed: int = 3):
    """A batch of every valid start of one env, and the env's rows."""
    stream = Stream(0, PATTERNS[pattern], random.Random(seed))
    rows = [stream.next() for _ in range(120)]
    pond = HostPond(SPEC, 120, window=window)
    pond.add(to_rows([[row] for row in rows]))
    batch = pond.take(np.zeros(120, np.int64), np.arange(120))
    return batch, rows


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize(
    ("window", "pattern"),
    [
        (Sequence(12), "everything"),
        (Sequence(9, end="stop"), "short"),
        (Sequence(7, burn_in=3, end="stop"), "truncations"),
        (Sequence(1), "length-1"),
    ],
    ids=["cross", "stop", "truncated", "one"],
)
def test_returns_equal_the_float64_oracle(window, pattern, trace, soft):
    batch, rows = replayed(window, pattern)
    how = {"gamma": 0.9, "lam": 0.7, "trace": trace, "soft": soft}
    learned = slice(window.burn_in, None)
    frames = np.asarray(batch.obs["inner"]["number"])[:, learned, 0, 0].astype(int)
    q = np.array([[q_of(f) for f in line] for line in frames.tolist()], np.float32)
    policy = [[policy_of(f) for f in line] for line in frames.tolist()]
    behaviour = [[behaviour_of(f) for f in line[:-1]] for line in frames.tolist()]
    facts = [np.asarray(x)[:, learned] for x in (batch.action, batch.reward)]
    facts += [np.asarray(x)[:, learned] for x in (batch.discount, batch.mask)]
    options = {
        "lam": how["lam"],
        "gamma": how["gamma"],
        "trace": trace,
        "policy": np.array(policy, np.float32) if soft else None,
        "behaviour": np.array(behaviour, np.float32),
    }
    ours = lambda_returns(q, *facts, **options)
    inside = jax.jit(lambda_returns, static_argnames=("trace", "gamma"))
    theirs = inside(*(jnp.asarray(x) for x in (q, *facts)), **options)
    mask, checked = facts[-1], 0
    for b, t in np.argwhere(mask):
        until = b + window.length - 1  # the start's id is b
        want = oracle(rows, int(b + t), int(until), how)
        assert abs(ours[b, t] - want) < 2e-5, (b, t)
        assert abs(float(theirs[b, t]) - want) < 2e-5, (b, t)
        checked += 1
    assert checked > 20
    assert not np.asarray(ours)[~mask].any()
    assert not np.asarray(theirs)[~mask].any()


def test_golden_values_of_three_steps_and_a_truncation():
    # Rows 0, 1 and 2, the last truncated, its final observation worth 8, then another episode.
    q = np.array([[1, 2], [3, 1], [0, 4], [8, 5], [9, 9], [7, 7]], np.float32)
    action = np.array([1, 0, 0, 0, 1])
    reward = np.array([1, 2, 3, 0, 5], np.float32)
    mask = np.array([True, True, True, False, True])
    discount = np.array([0.5, 0.5, 0.5, 0, 0], np.float32)
    peng = lambda_returns(q, action, reward, discount, mask, lam=0.5)
    np.testing.assert_allclose(peng, [1 + 0.25 * (3 + 4.75), 4.75, 7, 0, 5], 1e-6)
    # Row 2 took an action that is not greedy, so the return of row 1 ends there.
    watkins = lambda_returns(q, action, reward, discount, mask, lam=1.0, trace="watkins")
    np.testing.assert_allclose(watkins, [1 + 0.5 * 4, 2 + 0.5 * 4, 7, 0, 5], 1e-6)


@pytest.mark.parametrize("trace", TRACES)
def test_what_is_masked_may_be_no_number(trace):
    q = np.ones((1, 5, 2), np.float32)
    q[0, 3:] = np.nan  # after the final observation nothing counts
    mask = np.array([[True, True, False, False]])
    reward = np.array([[1, 1, np.nan, np.nan]], np.float32)
    zero = np.zeros((1, 4), np.float32)
    discount = np.array([[0.5, 0.5, 0, 0]], np.float32)
    behaviour = np.array([[0.5, 0.5, 0, 0]], np.float32)  # extras of a border row are 0
    for xp in (np, jnp):
        got = lambda_returns(
            *(xp.asarray(x) for x in (q, zero.astype(np.int32), reward, discount, mask)),
            lam=0.5,
            trace=trace,
            behaviour=xp.asarray(behaviour),
        )
        np.testing.assert_allclose(np.asarray(got), [[1.625, 1.5, 0, 0]], 1e-6)


def test_bad_input_is_refused():
    q, zero = np.zeros((2, 4, 3), np.float32), np.zeros((2, 3), np.float32)
    action, mask = zero.astype(np.int32), zero == 0
    with pytest.raises(SpecMismatch, match=r"'q'.*\(2, 4, 3\).*\(2, 3, 3\)"):
        lambda_returns(q[:, 1:], action, zero, zero, mask)
    with pytest.raises(SpecMismatch, match="'mask'"):
        lambda_returns(q, action, zero, zero, mask[:, :1])
    with pytest.raises(BadConfig, match="behaviour"):
        lambda_returns(q, action, zero, zero, mask, trace="retrace")
    with pytest.raises(BadConfig, match="trace must be"):
        lambda_returns(q, action, zero, zero, mask, trace="sarsa")
    for name, wrong in (("lam", 1.5), ("lam", float("nan")), ("gamma", -0.1)):
        with pytest.raises(BadConfig, match=f"{name} must lie in"):
            lambda_returns(q, action, zero, zero, mask, **{name: wrong})
