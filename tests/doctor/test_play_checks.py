"""What rows say: a small world of NumPy, healthy over many seeds, then with one fault at a time."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from millpond import Field, Flag, HostPond, Lake, Pond, Rows, Spec, Window, next_flags
from millpond.doctor import examine_replay
from millpond.doctor.action_label_checks import mislabelled
from millpond.doctor.multi_agent_checks import others
from millpond.doctor.play import Play
from millpond.doctor.play_checks import examined
from millpond.doctor.stored_row_checks import same_world
from millpond.doctor.timing_checks import timing
from millpond.doctor.verdict import Verdict
from millpond.errors import BadConfig

WIDTH, ENVS, TURNS = 8, 12, 300
SPEC = Spec(obs=Field("float32", (WIDTH,), -1, 1), action=Field("int32", (), 0, 2))


def walk(seed: int = 0, clock: int = 20, ends: float = 0.5) -> Rows:
    """A ring of cells with a noisy walker: -1, 0 or +1; the first cell may end it, to stay in the
    sixth is worth 1.

    [time, envs] under next-step autoreset; an episode is truncated after `clock` steps.
    """
    rng = np.random.default_rng(seed)
    place, age = rng.integers(1, WIDTH, ENVS), np.zeros(ENVS, int)
    flags = np.full(ENVS, Flag.FIRST, np.uint8)
    taken = []
    for _ in range(TURNS):
        obs = np.eye(WIDTH, dtype=np.float32)[place]
        action = rng.integers(0, 3, ENVS).astype(np.int32)
        border = (flags & Flag.BORDER) != 0
        action[border] = 0
        slip = rng.random(ENVS) < 0.05
        new = np.where(slip, place, place + action - 1) % WIDTH
        stays = (place == 5) & (action == 1)
        reward = np.where(border, 0, stays - 0.1 * ((place == 3) & (action == 0)))
        reward = reward.astype(np.float32)
        age = np.where(border, 0, age + 1)
        over = (new == 0) & (rng.random(ENVS) < ends) & ~border
        cut = (age >= clock) & ~over & ~border
        taken.append(Rows(obs, action, reward, over, cut, flags))
        place = np.where(border, rng.integers(1, WIDTH, ENVS), new)
        flags = next_flags(flags, over, cut)
    return Rows(*(np.stack(column) for column in list(zip(*taken, strict=True))[:6]))


def play(rows: Rows) -> Play:
    return Play.of(SPEC, rows, "a walker")


def fired(rows: Rows) -> set[str]:
    found = play(rows)
    return {one.name for one in (*examined(found), *timing(found)) if one.fired}


@pytest.mark.parametrize("seed", range(12))
def test_a_healthy_world_is_quiet(seed):
    assert fired(walk(seed)) == set()


def late(leaf: np.ndarray) -> np.ndarray:
    return np.concatenate([leaf[:1], leaf[:-1]])


def carried_on(rows: Rows) -> Rows:
    """Every new episode begins with what the last one ended with."""
    obs = rows.obs.copy()
    again = (rows.flags[:-1] & Flag.BORDER) != 0
    obs[1:][again] = obs[:-1][again]
    return rows._replace(obs=obs)


def summed(rows: Rows) -> Rows:
    """Every reward is the return so far."""
    reward, total = rows.reward.copy(), np.zeros(ENVS, np.float32)
    for time, paid in enumerate(rows.reward):
        border = (rows.flags[time] & Flag.BORDER) != 0
        total = np.where(border, 0, total + paid)
        reward[time] = total
    return rows._replace(reward=reward)


FAULTS = {
    "constant rewards": ("env-rewards", lambda r: r._replace(
        reward=np.ones_like(r.reward), truncated=r.terminated | r.truncated,
        terminated=r.terminated & False)),
    "no rewards": ("env-rewards", lambda r: r._replace(reward=r.reward * 0)),
    "rewards without end": ("env-rewards", lambda r: r._replace(reward=r.reward / 0)),
    "huge rewards": ("env-rewards", lambda r: r._replace(reward=r.reward * 1e8)),
    "sums so far": ("env-rewards", summed),
    "late rewards": ("reward-timing", lambda r: r._replace(reward=late(r.reward))),
    "late observations": ("action-effect", lambda r: r._replace(obs=late(r.obs))),
    "actions stored late": ("action-effect", lambda r: r._replace(action=late(r.action))),
    "nothing seen": ("env-observations", lambda r: r._replace(obs=r.obs * 0)),
    "out of bounds": ("env-observations", lambda r: r._replace(obs=r.obs * 3)),
    "no number seen": ("env-observations", lambda r: r._replace(obs=r.obs / 0)),
    "no reset": ("env-resets", carried_on),
    "an end is lost": ("row-order", lambda r: r._replace(terminated=r.terminated & False)),
    "copies": ("env-copies", lambda r: Rows(
        *(np.repeat(leaf[:, :3], 4, 1) for leaf in r[:6]))),
    "ends swapped": ("env-ends", lambda r: r._replace(
        terminated=r.truncated, truncated=r.terminated)),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", FAULTS)
def test_one_fault_is_named(name):
    check, damage = FAULTS[name]
    assert check in fired(damage(walk(3)))


def test_copies_that_act_apart_share_their_beginnings():
    apart = play(walk(1, clock=10, ends=0))
    assert not [v for v in examined(apart) if v.fired]
    first = apart.first
    hashes = np.where(first, np.arange(TURNS)[:, None] * 1.0, apart.hashes)
    same = dataclasses.replace(apart)
    same.__dict__["hashes"] = hashes  # alike at one time, another each time
    assert {v.name for v in examined(same) if v.fired} == {"env-copies"}


def test_labels_are_compared_with_rows_of_today():
    now = play(walk(5))
    assert mislabelled(play(walk(6)), now).state == "green"
    other = walk(6)
    swapped = other._replace(action=(2 - other.action).astype(np.int32))
    verdict = mislabelled(play(swapped), now)
    assert verdict.state == "red"
    assert "0 does what 2 does" in verdict.message


def compared(stored: Rows) -> Verdict:
    """What stored rows look like next to rows that are played now."""
    saved, game = (SimpleNamespace(play=play(rows), why="") for rows in (stored, walk(5)))
    probe: Any = SimpleNamespace(saved=saved, game=game, curious=game)
    return same_world(probe)


def test_stored_episodes_of_another_length_are_named():
    assert compared(walk(6)).state == "green"
    shorter = compared(walk(6, clock=10))
    assert "truncated after 10 steps, those played now after 20" in shorter.message
    assert "lost on the way" in shorter.remedy


def stands_still(rows: Rows, after: int = 5) -> Rows:
    """What is seen does not change any more after that many steps of an episode."""
    obs, age = rows.obs.copy(), np.zeros(ENVS, int)
    for time in range(1, TURNS):
        first = (rows.flags[time] & Flag.FIRST) != 0
        age = np.where(first, 0, age + 1)
        obs[time] = np.where((age > after)[:, None], obs[time - 1], obs[time])
    return rows._replace(obs=obs)


def test_a_world_that_stands_still_is_named():
    verdicts = {one.name: one for one in examined(play(stands_still(walk(3))))}
    assert verdicts["env-observations"].state == "red"
    assert "after step 4 of an episode" in verdicts["env-observations"].message


def test_rows_of_other_envs_are_named():
    now, stored = play(walk(5)), walk(6)
    verdict = mislabelled(play(stored._replace(obs=np.roll(stored.obs, 1, 1))), now)
    assert verdict.state == "red"
    assert "do not belong together" in verdict.remedy


def of_two(**changes) -> dict[str, Verdict]:
    """Two agents of one env, with columns [time, agents, envs] changed."""
    one, other = walk(7), walk(8)
    both = Rows(*(np.stack(pair, 1) for pair in zip(one[:6], other[:6], strict=True)))
    both = both._replace(**{name: change(getattr(both, name)) for name, change in changes.items()})
    found = [one for one in others(play(both), 2) if one.fired]
    return {one.name: one for one in found}


def turned(leaf: np.ndarray) -> np.ndarray:
    return leaf[:, ::-1]


def test_agents_that_get_each_others_rewards_actions_or_views_are_named():
    assert of_two() == {}
    assert of_two(reward=lambda reward: reward + turned(reward)) == {}  # they share
    assert "each other's" in of_two(reward=turned)["env-rewards"].message
    assert "move each other" in of_two(action=turned)["action-effect"].message
    same = of_two(obs=lambda obs: np.broadcast_to(obs[:, :1], obs.shape))
    assert same["env-observations"].state == "yellow"


def test_too_few_rows_are_unknown_and_say_so():
    short = Rows(*(leaf[:5] for leaf in walk()[:6]))
    assert {v.state for v in timing(play(short))} == {"unknown"}
    states = {v.name: v.state for v in examined(play(short))}
    assert states["env-rewards"] == states["env-observations"] == states["env-ends"] == "unknown"


def test_a_replay_of_ones_own_is_examined(tmp_path):
    rows = walk(2)
    host = HostPond(SPEC, ENVS * 200, ENVS, Window(stack=2, n_step=3, gamma=0.9))
    pond = Pond(SPEC, ENVS * 200, ENVS, Window(stack=2, n_step=3, gamma=0.9))
    host.add(rows)
    state = pond.add(pond.init(), rows)
    lake = Lake.create(tmp_path / "lake", SPEC, 100_000)
    writer = lake.writer("mine", ENVS)
    writer.append(rows)
    writer.commit()
    lake.refresh()
    for given in ((host,), (pond, state), (lake,)):
        found = {one.name: one for one in examine_replay(*given)}
        assert not [one for one in found.values() if one.fired], given
        assert found["replay-transitions"].state == "green"
    writer.close()
    with pytest.raises(BadConfig, match="with its state"):
        examine_replay(pond)


def test_transitions_that_are_not_their_rows_are_seen(monkeypatch):
    rows = walk(2)
    host = HostPond(SPEC, ENVS * 200, ENVS, Window(stack=2, n_step=3, gamma=0.9))
    host.add(rows)
    sample = HostPond.sample
    damages = {
        "next_obs": lambda b: b._replace(next_obs=b.obs),
        "reward": lambda b: b._replace(reward=np.roll(b.reward, 1)),
        "discount": lambda b: b._replace(discount=b.discount * 0),
        "action": lambda b: b._replace(action=2 - b.action),
        "obs": lambda b: b._replace(obs=b.obs[:, ::-1]),
    }
    for part, damage in damages.items():
        monkeypatch.setattr(HostPond, "sample", lambda p, n, d=damage: d(sample(p, n)))
        (found,) = (v for v in examine_replay(host) if v.name == "replay-transitions")
        assert found.state == "red"
        assert f"{part} in" in found.message
