"""Settings: every preset, JSON there and back, and a refusal with a remedy for what cannot work."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import WORLD, settings

from millpond.agents import DQNSettings, PQNSettings
from millpond.config import check_saved, from_plain, nearest, to_plain
from millpond.engine.settings import CrewSettings, tiny
from millpond.envs import make_env
from millpond.envs.gym import GymEnv
from millpond.errors import BadConfig
from millpond.samplers import prioritized, recent, stratified, uniform
from millpond.train import Run, Settings
from millpond.train.presets import preset_for, preset_names, preset_text, settings_for

ENVS = {
    "minatar/breakout": "minatar",
    "minatar/space_invaders": "minatar",
    "atari/gravitar": "atari",
    "gym:CartPole-v1": "gym-CartPole-v1",
    "gym:MountainCarContinuous-v0": "gym-MountainCarContinuous-v0",
    "gym:Pendulum-v1": "gym-Pendulum-v1",
    "gym:Acrobot-v1": "gym",
    "pendulum": "pendulum",
    "pettingzoo:zoo_lives:Lives": "pettingzoo",
    "sorrel:treasurehunt": "sorrel",
    "staghunt": "staghunt",
    "tmaze": "tmaze",
    "treasurehunt": "treasurehunt",
    "treasurehunt-small": "treasurehunt-small",
}
PRESETS = ["atari", "brax", "gym", "gym-CartPole-v1", "gym-MountainCarContinuous-v0"]
PRESETS += ["gym-Pendulum-v1", "gymnax", "gymnax-CartPole-v1", "minatar", "pendulum"]
PRESETS += ["pettingzoo", "playground", "sorrel", "staghunt", "tmaze", "treasurehunt"]
PRESETS += ["treasurehunt-small"]


# --- presets -----------------------------------------------------------------------------------


def test_presets_are_listed_and_each_has_an_env_here():
    assert preset_names() == PRESETS
    with_packages = {
        "brax",
        "gymnax",
        "gymnax-CartPole-v1",
        "playground",
    }  # their presets load in tests_compat
    assert {*ENVS.values()} | with_packages == set(PRESETS)


@pytest.mark.parametrize("env", ENVS)
def test_a_preset_loads_for_its_env_and_survives_json(env):
    assert preset_for(env) == ENVS[env]
    of = settings_for(env)
    assert of != Settings(env, make_env(env)), "the preset changes nothing"
    assert of.env == env
    text = json.dumps(of.to_json(), allow_nan=False)
    assert Settings.from_json(json.loads(text)) == of
    small = tiny(of)
    assert small.steps <= 48
    assert Settings.from_json(json.loads(json.dumps(small.to_json()))) == small


def test_presets_begin_with_a_line_that_says_what_they_are():
    for name in preset_names():
        assert preset_text(name).startswith("# "), name
    with pytest.raises(BadConfig, match=r"no preset 'minatr'; did you mean 'minatar'\?"):
        preset_text("minatr")


def test_a_file_serves_as_preset(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'steps = 77\nsampler = "recent"\n[world]\nsize = 6\n[sampling]\nhalf_life = 9.0\n'
    )
    of = settings_for("treasurehunt-small", file)
    assert (of.steps, of.world.size, of.sampling) == (77, 6, recent(9.0))
    assert of.world.agents == 5, "what the file leaves out stays as the env has it"
    assert of.envs == Settings("staghunt", WORLD).envs, "the env's own preset is not used"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("steps = ", r"mine.toml is not TOML: Invalid value \(at "),
        ("\udcff", r"mine.toml is not TOML: its bytes are not UTF-8"),
        ("stepz = 3", r"mine.toml: there is no setting 'stepz'; did you mean 'steps'\?"),
        ('env = "staghunt"', r"mine.toml is for env staghunt, not treasurehunt"),
        ("[dqn]\nbatch = 0", r"mine.toml: DQN: batch must be at least 1, got 0"),
    ],
)
def test_a_wrong_file_is_refused(text, said, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(BadConfig, match=said):
        settings_for("treasurehunt", file)


def test_a_file_that_is_gone_is_refused(tmp_path):
    with pytest.raises(BadConfig, match=r"gone.toml cannot be read: No such file or directory"):
        settings_for("treasurehunt", tmp_path / "gone.toml")


# --- names and types ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plain", "said"),
    [
        ({"env": "staghunt", "stpes": 3}, r"no setting 'stpes'; did you mean 'steps'\?"),
        (
            {"env": "staghunt", "qqq": 3},
            r"no setting 'qqq'; known are actors, address, agent, checkpoint_every, crew, d",
        ),
        ({"env": "staghunt", "dqn": {"gama": 1}}, r"'dqn.gama'; did you mean 'dqn.gamma'\?"),
        (
            {"env": "staghunt", "world": {"haers": 1}},
            r"'world.haers'; did you mean 'world.hares'\?",
        ),
        ({"env": "staghunt", "steps": 3.5}, r"setting 'steps': expected int, got 3.5"),
        ({"env": "staghunt", "steps": True}, r"setting 'steps': expected int, got True"),
        ({"env": "staghunt", "steps": "3"}, r"setting 'steps': expected int, got '3'"),
        ({"env": "staghunt", "debug": 1}, r"setting 'debug': expected bool, got 1"),
        (
            {"env": "staghunt", "agent": "ppo"},
            r"no agent 'ppo'; known are dqn, iqn, pqn",
        ),
        ({"env": "staghunt", "agent": ["dqn"]}, r"agent and sampler are names, got \['dqn"),
        ({"env": "staghunt", "dqn": 3}, r"setting 'dqn': expected a table of settings, got 3"),
        ({"env": "staghunt", "world": []}, r"'world': expected a table of settings, got \[\]"),
        ({"env": "staghunt", "network": {"norm": None}}, r"'network.norm': expected bool, got No"),
        ({"env": "treasurehunt", "world": {"items": "gem"}}, r"'world.items': expected a list"),
        ({"env": "treasurehunt", "world": {"items": ["gen"]}}, r"'world.items\[0\]': expected one"),
        ({"env": "treasurhunt"}, r"there is no env 'treasurhunt'; did you mean 'treasurehunt'\?"),
        ({"env": None}, r"setting 'env': expected a name, got None"),
        ({}, r"setting 'env': expected a name, got None"),
        ([], r"settings: expected a table of settings, got \[\]"),
    ],
)
def test_wrong_names_and_types_are_refused(plain, said):
    with pytest.raises(BadConfig, match=said):
        Settings.from_json(plain)


def test_the_nearest_name_or_all():
    assert nearest("steps", ["stack", "steps"]) == "did you mean 'steps'?"
    assert nearest("zzz", ["b", "a"]) == "known are a, b"


# --- what cannot work together -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"steps": 0}, r"steps must be at least 1, got 0"),
        ({"envs": -1}, r"envs must be at least 1, got -1"),
        ({"eval_turns": 0}, r"eval_turns must be at least 1, got 0"),
        ({"steps": 2**32}, r"steps must be below 2\^32"),
        ({"seed": -1}, r"seed must lie in \[0, 2\^31\), got -1"),
        ({"seed": 2**31}, r"seed must lie in"),
        ({"envs": 5}, r"dqn: capacity 32 is not a multiple of 5 envs; use 30"),
        ({"envs": 33}, r"dqn: capacity 32 is not a multiple of 33 envs; use 33"),
        (
            {"agent": "pqn", "envs": 5, "learning": PQNSettings(rollout=3, minibatches=4)},
            r"3 turns x 5 envs = 15 rows cannot be cut into 4 equal minibatches; change envs, pq",
        ),
        ({"agent": "pqn", "from_lake": "x"}, r"pqn learns from its own play only; use --agent dqn"),
        ({"from_lake": "x"}, r"a Lake feeds one policy, this run has 2; use an env with one agent"),
        (
            {"replay": "lake", "sampler": "prioritized"},
            r"sampler: a Lake keeps no priorities; use uniform, stratified or recent, or --rep",
        ),
    ],
)
def test_impossible_combinations_are_refused(changes, said):
    with pytest.raises(BadConfig, match=said):
        settings(**changes)


def test_env_and_world_must_agree():
    with pytest.raises(BadConfig, match=r"env is gym:CartPole-v1 but world describes gym:Acrobot"):
        settings("gym:CartPole-v1", GymEnv("Acrobot-v1"))
    plain = settings_for("minatar/breakout").to_json()
    plain["world"]["game"] = "freeway"
    with pytest.raises(BadConfig, match=r"env is minatar/breakout but world describes minatar/fr"):
        Settings.from_json(plain)


def test_settings_of_one_agent_do_not_bind_the_other():
    learning = PQNSettings(rollout=2, minibatches=4)
    assert settings(agent="pqn", envs=6, learning=learning).policies == 2
    assert settings(agent="pqn", replay="lake", sampler="prioritized").way == "fused"
    with pytest.raises(BadConfig, match="agent dqn takes DQNSettings, got PQNSettings"):
        settings(learning=learning)
    with pytest.raises(BadConfig, match="sampler uniform is a Uniform, got Recent"):
        settings(sampling=recent(9.0))


def test_what_the_settings_mean():
    of = settings(members=3, learning=DQNSettings(n_step=3, gamma=0.5, reward_clip=1.0))
    assert of.policies == 6
    assert (of.window.n_step, of.window.gamma, of.window.reward_clip) == (3, 0.5, 1.0)
    assert dataclasses.replace(of, agent="pqn", learning=None).window.n_step == 1
    assert of.way == "fused"
    assert dataclasses.replace(of, replay="host").way == "sequential"
    assert settings("gym:CartPole-v1", GymEnv("CartPole-v1")).way == "sequential"
    samplers = {"uniform": uniform(), "stratified": stratified()}
    samplers |= {"recent": recent(20_000.0), "prioritized": prioritized(0.6, beta=1.0)}
    for name, sampler in samplers.items():
        assert dataclasses.replace(of, sampler=name, sampling=None).sampling == sampler


# --- any dataclass -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Inner:
    ratio: float = 0.5
    names: tuple[str, ...] = ()
    top: float | None = None
    many: tuple = ()
    pair: tuple[int, float] = (1, 0.5)
    some: int | str = 0
    derived: Any = field(init=False, default=len)  # no file of plain values can keep it


@dataclass(frozen=True)
class Outer:
    number: int = 1
    on: bool = False
    mode: Literal["a", "b"] = "a"
    text: str = ""
    inner: Inner = field(default_factory=Inner)
    free: Any = field(default_factory=Inner)


INNERS = st.builds(
    Inner,
    ratio=st.floats(allow_nan=False),
    names=st.lists(st.text()).map(tuple),
    top=st.none() | st.floats(allow_nan=False),
    many=st.lists(st.text() | st.integers()).map(tuple),
    pair=st.tuples(st.integers(), st.floats(allow_nan=False)),
    some=st.integers() | st.text(),
)
OUTERS = st.builds(
    Outer, st.integers(), st.booleans(), st.sampled_from("ab"), st.text(), INNERS, INNERS
)


@given(OUTERS, OUTERS)
def test_plain_values_give_the_same_settings_back(one, other):
    plain = json.loads(json.dumps(to_plain(one)))
    assert from_plain(Outer, plain, Outer()) == one
    assert from_plain(Outer, plain, other) == one, "something of the base was left"
    assert from_plain(Outer, {}, other) == other
    assert from_plain(Outer, {"inner": plain["inner"]}, other) == dataclasses.replace(
        other, inner=one.inner
    )


@dataclass(frozen=True)
class Strange:
    """Fields that a file of plain values cannot keep."""

    table: Any = None
    numbers: set = frozenset()


@pytest.mark.parametrize("wrong", [dict(table=np.zeros(2)), dict(numbers={1})])
def test_what_could_not_be_read_back_is_refused_before_a_run_begins(wrong, tmp_path):
    settings = SimpleNamespace(world=Strange(**wrong), learning=Inner(), sampling=Inner())
    settings.env, settings.agent, settings.sampler = "my:Strange", "dqn", "uniform"
    settings.check_saved = lambda: Settings.check_saved(settings)
    with pytest.raises(BadConfig, match=r"env my:Strange: the fields of Strange .* read back"):
        Run.create(tmp_path / "run", settings)
    assert not (tmp_path / "run").exists()
    check_saved(Inner(many=("a", 1), pair=(2, 0.25), some="x"), "env my:Inner")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from([*Outer.__annotations__, "x"]), JSON))
def test_any_json_is_taken_or_refused_by_name(plain):
    """What is taken has the types that were declared; nothing but BadConfig comes out."""
    try:
        taken = from_plain(Outer, plain, Outer())
    except BadConfig as error:
        said = str(error)
        taken = None
    if taken is None:
        assert any(name in said for name in plain)
        return
    assert type(taken.number) is int
    assert type(taken.on) is bool
    assert taken.mode in ("a", "b")
    assert type(taken.text) is str
    for inner in (taken.inner, taken.free):
        assert type(inner) is Inner
        assert type(inner.ratio) is float


@pytest.mark.parametrize(
    ("learners", "groups"),
    [
        (1, [range(5)]),
        (2, [range(2), range(2, 5)]),
        (0, [range(i, i + 1) for i in range(5)]),
        (9, [range(i, i + 1) for i in range(5)]),
    ],
)
def test_policies_are_shared_out_among_learners(learners, groups):
    crew = CrewSettings(learners=learners)
    assert settings(world=dataclasses.replace(WORLD, agents=5), crew=crew).groups == groups


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (dict(actors=2), "one program acts in mode fused"),
        (dict(mode="processes", agent="pqn"), "pqn acts and learns in turn"),
        (dict(mode="lockstep", members=2), "members=1"),
        (dict(mode="sequential", actors=3), "4 envs cannot be shared equally among 3"),
    ],
)
def test_what_actors_and_learners_cannot_do_is_refused(changes, words):
    with pytest.raises(BadConfig, match=words):
        settings(**changes)
