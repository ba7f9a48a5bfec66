"""A foreign parallel env: every sample of its rows against the lists that the env itself kept."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest
import zoo_lives
from zoo_lives import MADE

from millpond import BadConfig, BadState, BrokenEpisode, HostPond, Sequence, SpecMismatch, Window
from millpond.envs import PettingZooEnv, checked_vector, make_env, spec_of
from millpond.rows import BORDER, CUT, breaks, pack_flags

ENVS, GAMMA = 2, 0.9


@pytest.fixture(autouse=True)
def nothing_made():
    MADE.clear()
    yield
    MADE.clear()


def played(options: str, turns: int, seed: int, windows) -> tuple[list[list[HostPond]], list]:
    """Ponds [window][agent] of the rows, and those rows."""
    env = PettingZooEnv("zoo_lives", options)
    spec, rng = spec_of(env), np.random.default_rng(seed)
    vector = checked_vector(env, ENVS, seed)
    ponds = [
        [HostPond(spec, turns * ENVS, ENVS, window, seed=seed) for _ in range(env.num_agents)]
        for window in windows
    ]
    kept = []
    for _ in range(turns):
        rows = vector.step(rng.integers(0, 4, (env.num_agents, ENVS)).astype(np.int32))
        kept.append(rows)
        for some in ponds:
            for agent, pond in enumerate(some):
                pond.add(jax.tree.map(lambda leaf, i=agent: leaf[i], rows))
    vector.close()
    return ponds, kept


def transitions(agent: int, window: Window) -> dict[int, tuple]:
    """Of every step that a transition can begin with, by the number seen: what it must be."""
    found = {}
    for game in MADE[-ENVS:]:
        for life in game.log[game.possible_agents[agent]]:
            for i in range(len(life.did)):
                steps = min(window.n_step, len(life.did) - i)
                if steps < window.n_step and not any(life.end):
                    continue  # it goes on, and what follows is not known
                dead, stopped = life.end if steps == len(life.did) - i else (False, False)
                stack = [0] * window.stack + life.seen
                total = sum(GAMMA**j * life.got[i + j] for j in range(steps))
                found[life.seen[i]] = (
                    stack[i + 1 : i + 1 + window.stack],
                    life.did[i],
                    total,
                    stack[i + steps + 1 : i + steps + 1 + window.stack],
                    0.0 if dead else GAMMA**steps,
                    dead,
                    stopped,
                )
    return found


OPTIONS = [
    "dies=0,stops=0,comes=0,here=1,longest=7",  # all end together, by truncation
    "dies=0.2,stops=0,comes=0,here=1,longest=12",  # they die alone, and come back with the reset
    "dies=0.12,stops=0.08,comes=0.3,here=0.6,first=5",  # they come and go as they like
    "agents=1,dies=0.3,longest=5",
    "agents=4,dies=0.5,stops=0.2,comes=0.5,here=0.3,longest=4",
]


@pytest.mark.parametrize("options", OPTIONS)
def test_every_sample_is_what_happened(options):
    windows = [Window(gamma=GAMMA), Window(stack=3, n_step=3, gamma=GAMMA)]
    ponds, _ = played(options, 60, seed=len(options), windows=windows)
    for window, some in zip(windows, ponds, strict=True):
        for agent, pond in enumerate(some):
            expected = transitions(agent, window)
            batch = pond.sample(1500)
            seen = set()
            for b in range(1500):
                stack, did, total, after, discount, dead, stopped = expected[batch.obs[b, -1, 0]]
                seen.add(int(batch.obs[b, -1, 0]))
                assert batch.obs[b, :, 0].tolist() == stack
                assert batch.next_obs[b, :, 0].tolist() == after
                assert (batch.obs[b, batch.obs[b, :, 0] > 0, 1] == agent).all()
                assert batch.action[b] == did
                assert batch.reward[b] == pytest.approx(total, abs=1e-5)
                assert batch.discount[b] == pytest.approx(discount)
                assert (batch.terminated[b], batch.truncated[b]) == (dead, stopped)
            # The newest rows wait for what follows, and a full ring's oldest for what came before.
            edge = 2 * ENVS * (window.n_step + window.stack)
            assert len(expected) - edge <= len(seen) <= len(expected)


@pytest.mark.parametrize("end", ["stop", "cross"])
def test_sequences_are_what_happened(end):
    window = Sequence(5, gamma=GAMMA, end=end, burn_in=2)
    ponds, _ = played(OPTIONS[2], 120, seed=3, windows=[window])
    for agent, pond in enumerate(ponds[0]):
        expected, batch = transitions(agent, Window(gamma=GAMMA)), pond.sample(1000)
        assert batch.mask.sum() > 1000
        for b, t in zip(*np.nonzero(batch.mask), strict=True):
            _, did, got, after, discount, *_ = expected[batch.obs[b, t, 0, 0]]
            assert (batch.action[b, t], batch.reward[b, t]) == (did, got)
            assert batch.obs[b, t + 1, 0, 0] == after[0]
            assert batch.discount[b, t] == pytest.approx(discount)


@pytest.mark.parametrize("options", OPTIONS)
def test_rows_follow_each_other_and_absence_is_cut_off(options):
    _, kept = played(options, 80, seed=1, windows=[])
    byte = np.stack([pack_flags(r.flags, r.terminated, r.truncated, None) for r in kept])
    assert not breaks(byte[:-1], byte[1:]).any()
    border = (byte & BORDER) != 0
    follows = border[:-1] & border[1:]  # rows of an agent that is away
    assert ((byte[:-1] & CUT) != 0)[follows].all()
    assert not ((byte & CUT) != 0)[~border].any()
    for turn, agent, env in np.argwhere(border):
        rows = kept[turn]
        assert rows.reward[agent, env] == 0
        assert rows.action[agent, env] == 0
    assert follows.any() == (options not in (OPTIONS[0], OPTIONS[3]))


def test_the_same_seed_gives_the_same_play():
    def taken(seed):
        zoo_lives._TAKEN = iter(range(1, 1 << 60))
        return played(OPTIONS[2], 40, seed, windows=[])[1]

    one, same, other = taken(5), taken(5), taken(6)
    assert all(
        jax.tree.all(jax.tree.map(np.array_equal, a, b)) for a, b in zip(one, same, strict=True)
    )
    assert not all(np.array_equal(a.flags, b.flags) for a, b in zip(one, other, strict=True))


def test_facts_and_names():
    env = make_env("pettingzoo:zoo_lives")
    assert (env.name, env.num_agents, env.num_actions) == ("pettingzoo:zoo_lives", 3, 4)
    assert env.observation.dtype == np.int32
    assert make_env("pettingzoo:zoo_lives:Lives").num_agents == 3
    many = PettingZooEnv("zoo_lives", "agents=7, dies=0.5,longest=3")
    assert many.num_agents == 7
    assert [made.closed for made in MADE] == [True] * len(MADE)
    vector = many.vector(2, 0)
    assert MADE[-1].chances[0] == 0.5
    vector.close()
    vector.close()
    assert [made.closed for made in MADE] == [True] * len(MADE)
    assert vector.export() is None
    with pytest.raises(BadState, match="cannot save or restore"):
        vector.restore({})
    with pytest.raises(BadConfig, match="not built for rendering"):
        many.vector(1, 0).render()
    assert PettingZooEnv("zoo_lives", film=True).vector(1, 0).render().shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: make_env("pettingzoo:no_such_zoo").num_agents, "no_such_zoo cannot be imported"),
        (lambda: make_env("pettingzoo:zoo_lives:Nobody").num_agents, "has no Nobody"),
        (lambda: make_env("pettingzoo:zoo lives").num_agents, "there is no env"),
        (lambda: PettingZooEnv("zoo_lives", "agents"), "key=value"),
        (lambda: PettingZooEnv("zoo_lives", "a=1,a=2"), "each key once"),
        (lambda: PettingZooEnv("zoo_lives", "legs=4").num_agents, r"built with \{'legs': 4\}"),
        (lambda: make_env("pettingzoo:zoo_lives:Unequal").num_agents, "agent_0 has .*agent_1"),
        (lambda: make_env("pettingzoo:zoo_lives:Steered").num_agents, "must be Discrete"),
        (lambda: make_env("pettingzoo:zoo_lives:Nameless").num_agents, "possible_agents"),
        (
            lambda: make_env("pettingzoo:builtins:dict").num_agents,
            "expected a ParallelEnv, got dict",
        ),
        (
            lambda: make_env("pettingzoo:zoo_lives:Turns").num_agents,
            "aec_to_parallel",
        ),
    ],
)
def test_what_cannot_be_played_is_refused(make, words):
    with pytest.raises(BadConfig, match=words):
        make()


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ("nobody", BrokenEpisode, "env.agents is empty after reset"),
        ("vanishes", BrokenEpisode, "agent_1 left env.agents"),
        ("stays", BrokenEpisode, "agent_1 ended but is still"),
        ("blind", BrokenEpisode, "agent_1 acted, but step returned no observation"),
        ("comes blind", BrokenEpisode, "agent_1 is in env.agents but got no"),
        ("stray", BrokenEpisode, "agent_1 a reward of 1.0, but it did not act"),
        ("shape", SpecMismatch, r"agent_1 observes int32 \(2,\), got int64 \(1,\)"),
        ("float", SpecMismatch, r"agent_1 observes int32 \(2,\), got float64 \(2,\)"),
        (
            "below",
            SpecMismatch,
            "pettingzoo:zoo_lives:Broken contradicts .*'obs': expected",
        ),
        ("reward", SpecMismatch, "'reward': expected finite numbers, got nan"),
    ],
)
def test_an_env_that_breaks_its_word_is_named(how, error, words):
    env = PettingZooEnv("zoo_lives:Broken", f"how={how}")

    def play():
        vector = checked_vector(env, 1, 0)
        for _ in range(8):
            vector.step(np.zeros((2, 1), np.int32))

    with pytest.raises(error, match=words):
        play()
    assert MADE[-1].turns in (0, 3, 4)


def test_without_pettingzoo_the_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(BadConfig, match="butterfly"):
        make_env("pettingzoo:butterfly.pistonball_v6").num_agents


def test_a_run_learns_from_agents_that_come_and_go(tmp_path):
    """The doctor's own oracle finds every row, border and return as it should be."""
    from tiny_runs import settings

    from millpond.doctor import examine
    from millpond.doctor.evidence import Evidence
    from millpond.train import Run, train

    env = PettingZooEnv("zoo_lives", OPTIONS[2])
    of = settings(env.name, env, stack=2, replay="host", eval_turns=20)
    run = Run.create(tmp_path / "run", of)
    lines = []

    def told(line):
        lines.append(line)
        if len(lines) == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(run, told)
    assert run.status()["state"] in ("killed", "stopped")
    train(run)  # new episodes, behind a cut
    assert run.status()["state"] == "finished"
    found = {v.name: v.state for v in examine(Evidence.of(run))}
    sound = ("episode-borders", "stack-parity", "nstep-oracle")
    assert {name: found[name] for name in sound} == dict.fromkeys(sound, "green")


def test_film_ends_with_the_last_agent():
    from test_referee import always
    from tiny_runs import settings

    from millpond.train.film import play

    env = PettingZooEnv("zoo_lives", "agents=2,dies=0.4,stops=0,comes=0,here=1")
    of = settings(env.name, env, stack=1)
    pictures = play(of, always(of, (1, 0)), turns=30)
    lives = [len(life[0].did) for life in MADE[-1].log.values()]
    assert len(set(lives)) == 2
    assert len(pictures) == 1 + max(lives)
