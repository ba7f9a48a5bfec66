"""Agents with memory: the network by its equations, what is carried, stored and learned from."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import gru_oracle as oracle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from one_program import as_programs
from tiny_runs import crash_at, settings

from millpond import BadConfig, Field, HostPond, Lake, Rows, Spec, Window, lambda_returns
from millpond.agents import (
    DQN,
    PQN,
    DQNSettings,
    Network,
    Optimizer,
    PQNSettings,
    QLambda,
    QLambdaSettings,
    Rollout,
)
from millpond.agents.losses import n_step_returns
from millpond.engine.actor import make_actor
from millpond.engine.keys import Role, key_of
from millpond.engine.make_agent import make_agent
from millpond.engine.player import Player
from millpond.engine.population import Population
from millpond.engine.provenance import stored_spec
from millpond.engine.sequential import LocalCrew
from millpond.engine.settings import CrewSettings
from millpond.envs import TMaze, VectorEnv
from millpond.metrics import read_metrics
from millpond.mixture import MixSettings
from millpond.rows import BORDER, FIRST
from millpond.schedule import constant
from millpond.train import Referee, Run, train
from millpond.train.check_lockstep import compare
from millpond.train.evaluate import EVALUATION_SEED
from millpond.train.loop import open_loop
from millpond.window import Stacker

UNITS = 3
NETWORK = Network(width=5, memory=UNITS)
SPEC = Spec(Field("float32", (4,)), Field("int32", (), 0, 2))
STORED = dataclasses.replace(SPEC, extras={"memory": Field("float32", (UNITS,))})
PLAIN = Optimizer("sgd", constant(0.1), clip=0.0)
STILL = Optimizer("sgd", constant(0.0), clip=0.0)
NOW = {"rate": 0.1, "beta": 1.0, "epsilon": 0.0}
MAZE = TMaze(shortest=1, longest=2, turns=6)
close = dict(rtol=1e-4, atol=1e-5)


def agent_of(kind, network=NETWORK, **changes):
    agent = kind(kind.Settings(optimizer=PLAIN, **changes), network, SPEC, 1)
    return as_programs(agent, "init")


def stream(rng, time: int, envs: int):
    """obs, flags, terminated, truncated [time, env]: episodes with ends of both kinds."""
    obs = rng.normal(size=(time, envs, 4)).astype(np.float32)
    flags, ends = np.zeros((time, envs), np.uint8), np.zeros((2, time, envs), bool)
    now = np.full(envs, FIRST, np.uint8)
    for t in range(time):
        flags[t] = now
        over = (rng.random(envs) < 0.25) & (now != BORDER)
        ends[0, t] = over & (rng.random(envs) < 0.5)
        ends[1, t] = over & ~ends[0, t]
        now = np.where(over, BORDER, np.where(now == BORDER, FIRST, 0)).astype(np.uint8)
    return obs, flags, *ends


# --- the network, and what a player carries -------------------------------------------------------


@pytest.mark.parametrize("dueling", [False, True])
def test_the_network_is_its_equations(dueling):
    agent = agent_of(PQN, dataclasses.replace(NETWORK, dueling=dueling))
    rng, params = np.random.default_rng(0), agent.init(jax.random.key(0)).params
    obs = rng.normal(size=(6, 9, 1, 4)).astype(np.float32)
    memory = rng.normal(size=(6, UNITS)).astype(np.float32)
    first, held = rng.random((2, 6, 9)) < 0.3
    values, after = jax.jit(agent.unroll)(params, obs, memory, first, held)
    wanted, _, last = oracle.unroll(params, obs, memory, first, held)
    np.testing.assert_allclose(values, wanted, **close)
    np.testing.assert_allclose(after, last, **close)


def test_acting_turn_by_turn_is_the_unrolled_network():
    """Two policies, three envs; every turn's memory and values, with episodes that end."""
    agent, envs, time = agent_of(PQN), 3, 20
    params = jax.vmap(agent.init)(jax.random.split(jax.random.key(0), 2)).params
    player = Player(agent, Stacker(SPEC, Window()), Population(2, 1, envs))
    obs, flags, *_ = stream(np.random.default_rng(0), time, 2 * envs)
    obs, flags = obs.reshape(time, 2, envs, 4), flags.reshape(time, 2, envs)
    now = {"epsilon": np.zeros(2, np.float32)}
    move, worth, past, moves = jax.jit(player.move), jax.jit(player.worth), player.init(), []
    best, greedy = jax.jit(lambda *seen: player.best(seen[0], *player.look(*seen[1:]))), past
    for t in range(time):
        told = worth(params, past, obs[t], flags[t])
        moves.append(move(params, past, obs[t], flags[t], player.chance(jax.random.key(t)), now))
        past = moves[-1].history
        greedy, action = best(params, greedy, obs[t], flags[t])
        np.testing.assert_allclose(told, moves[-1].worth, **close)
        np.testing.assert_array_equal(action, moves[-1].action)  # epsilon is 0
    np.testing.assert_array_equal(greedy.memory, past.memory)
    assert ((flags & FIRST) != 0)[1:].sum() > 10
    for policy in range(2):
        of = jax.tree.map(lambda leaf, p=policy: leaf[p], params)
        seen = obs[:, policy].swapaxes(0, 1)[:, :, None]
        begins = ((flags[:, policy] & FIRST) != 0).T
        values, before, _ = oracle.unroll(of, seen, np.zeros((envs, UNITS)), begins)
        got = np.stack([one.memory[policy] for one in moves], 1)
        np.testing.assert_allclose(got, before, **close)
        told = np.stack([one.worth[policy] for one in moves], 1)
        np.testing.assert_allclose(told, values.max(-1), **close)


# --- gradients, by the equations ------------------------------------------------------------------


def sequences(agent, number: int = 64):
    """Sequences whose stored memories are those that the equations give; and the parameters.

    The ring is short, so that many begin with its oldest row, in the middle of an episode.
    """
    params, rng = agent.init(jax.random.key(0)).params, np.random.default_rng(1)
    obs, flags, *ends = stream(rng, 80, 2)
    _, before, _ = oracle.unroll(
        params, obs.swapaxes(0, 1)[:, :, None], np.zeros((2, UNITS)), (flags == FIRST).T
    )
    steps = flags != BORDER
    pond = HostPond(STORED, 24, 2, agent.settings.learns(1, UNITS).window)
    for t in range(80):
        reward = np.where(steps[t], rng.normal(size=2), 0).astype(np.float32)
        action = np.where(steps[t], rng.integers(0, 3, 2), 0).astype(np.int32)
        extras = {"memory": before[:, t].astype(np.float32)}
        pond.add(Rows(obs[t], action, reward, *(end[t] for end in ends), flags[t], extras))
    return params, pond.sample(number)


def by_the_equations(params, batch, burn_in):
    """Values of all observations behind the burn-in, [batch, length + 1, actions]."""
    memory = jnp.asarray(batch.extras["memory"][:, 0])
    first = jnp.pad(batch.first, ((0, 0), (0, 1)))
    held = ~jnp.pad(batch.mask, ((0, 0), (0, 1)))
    start, rest = slice(burn_in), slice(burn_in, None)
    if burn_in:
        parts = batch.obs[:, start], memory, first[:, start], held[:, start]
        memory = jax.lax.stop_gradient(oracle.unroll(params, *parts, jnp)[2])
    return oracle.unroll(params, batch.obs[:, rest], memory, first[:, rest], None, jnp)[0]


def goals_of_dqn(batch, ours, theirs, gamma, n_step, burn_in):
    """n-step returns of double DQN, row by row in plain Python."""
    mask, reward = batch.mask[:, burn_in:], batch.reward[:, burn_in:]
    ended = batch.terminated[:, burn_in:]
    goal, length = np.zeros(mask.shape), mask.shape[1]
    after = np.take_along_axis(theirs, ours.argmax(-1)[..., None], -1)[..., 0]
    for i, t in np.argwhere(mask):
        total, factor, at = 0.0, 1.0, t
        for _ in range(n_step):
            total += factor * reward[i, at]
            factor *= 0 if ended[i, at] else gamma
            at += 1
            if at == length or not mask[i, at]:
                break
        goal[i, t] = total + factor * after[i, at]
    return goal


@pytest.mark.parametrize(
    ("kind", "burn_in"),
    [(QLambda, 3), (DQN, 3), pytest.param(DQN, 0, marks=pytest.mark.full)],
    ids=["qlambda", "dqn", "dqn without burn-in"],
)
def test_an_update_from_sequences_is_that_of_the_equations(kind, burn_in):
    changes = dict(n_step=3, tau=1.0) if kind is DQN else dict(target_every=1)
    agent = agent_of(kind, length=6, burn_in=burn_in, gamma=0.9, loss="squared", **changes)
    params, batch = sequences(agent)
    state = agent.init(jax.random.key(0))._replace(target=agent.init(jax.random.key(1)).params)
    jax.tree.map(np.testing.assert_array_equal, state.params, params)
    mask, action = batch.mask[:, burn_in:], batch.action[:, burn_in:]
    ours, theirs = (
        np.asarray(jax.jit(by_the_equations, static_argnums=2)(of, batch, burn_in))
        for of in (params, state.target)
    )
    if kind is DQN:
        goal = goals_of_dqn(batch, ours, theirs, 0.9, 3, burn_in)
    else:
        rest = (x[:, burn_in:] for x in (batch.action, batch.reward, batch.discount, batch.mask))
        goal = lambda_returns(theirs, *rest, agent.settings.lam)

    def loss_of(params):
        values = by_the_equations(params, batch, burn_in)[:, :-1]
        q = jnp.take_along_axis(values, action[..., None], -1)[..., 0]
        return (0.5 * jnp.where(mask, q - goal, 0) ** 2).sum() / mask.sum()

    gradient = jax.jit(jax.grad(loss_of))(params)
    new, learned = jax.jit(agent.update)(state, batch, NOW)
    for got, was, steep in zip(*map(jax.tree.leaves, (new.params, params, gradient)), strict=True):
        np.testing.assert_allclose(got, was - 0.1 * steep, rtol=1e-3, atol=1e-5)
    assert learned.priority.shape == (64,)
    if burn_in:  # it is cut short, in the middle of an episode
        begins = batch.mask.argmax(1)
        assert ((begins > 0) & ~batch.first[np.arange(64), begins]).any()


def test_n_step_returns_without_ends_are_sums():
    one = np.ones((1, 4), np.float32)
    got = n_step_returns(one, one * 0.5, one > 0, one * 8, 2)
    np.testing.assert_allclose(got, [[1.5 + 2, 1.5 + 2, 1.5 + 2, 1 + 4]])


def test_pqn_learns_whole_envs_by_the_equations():
    agent, minibatches = agent_of(PQN, rollout=12, minibatches=2, epochs=1, gamma=0.9), 2
    rng, state = np.random.default_rng(0), agent.init(jax.random.key(0))
    obs, flags, *ends = stream(rng, 12, 4)
    flags[0] = 0  # the rollout begins in the middle of episodes
    action = rng.integers(0, 3, (12, 4)).astype(np.int32)
    reward, value = (rng.normal(size=(n, 4)).astype(np.float32) for n in (12, 13))
    memory = rng.normal(size=(1, 4, UNITS)).astype(np.float32)
    rollout = Rollout(obs[:, :, None], action, reward, *ends, flags, value, memory)
    key = jax.random.key(5)
    new, _, _ = jax.jit(agent.learn)(state, rollout, NOW, key)
    goal, mask = np.asarray(agent.goals(rollout)).T, (flags != BORDER).T
    order = jax.random.permutation(jax.random.split(key, 1)[0], 4).reshape(minibatches, -1)
    params = state.params
    facts = (obs.swapaxes(0, 1)[:, :, None], memory[0], flags.T == FIRST, action.T, goal, mask)

    def loss_of(params, obs, memory, begins, action, goal, mask):
        values = oracle.unroll(params, obs, memory, begins, None, jnp)[0]
        q = jnp.take_along_axis(values, action[..., None], -1)[..., 0]
        return (0.5 * jnp.where(mask, q - goal, 0) ** 2).sum() / mask.sum()

    steepness = jax.jit(jax.grad(loss_of))
    for part in np.asarray(order):
        gradient = steepness(params, *(fact[part] for fact in facts))
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient)
    for got, wanted in zip(*map(jax.tree.leaves, (new.params, params)), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-3, atol=1e-5)


# --- in runs --------------------------------------------------------------------------------------


def maze(agent: str = "qlambda", **changes):
    learning = {
        "pqn": PQNSettings(rollout=5, minibatches=2, epochs=1, optimizer=PLAIN),
        "qlambda": QLambdaSettings(
            length=4, burn_in=3, batch=4, min_fill=64, capacity=256, optimizer=PLAIN
        ),
        "dqn": DQNSettings(
            length=4, burn_in=3, batch=4, min_fill=64, capacity=256, optimizer=PLAIN, n_step=2
        ),
    }
    every = dict(steps=240, log_every=40, eval_every=240, checkpoint_every=240, resume_every=80)
    base = dict(agent=agent, learning=learning.get(agent), stack=1, network=NETWORK, **every)
    return settings("tmaze", MAZE, **base | changes)


def sampled(where: str, of, tmp_path):
    """Parameters of the run that never learn, and sequences from its replay."""
    rule = dataclasses.replace(of.learning, optimizer=STILL)
    of = dataclasses.replace(of, learning=rule, replay="host" if where == "host" else "pond")
    if where == "fused":
        with open_loop(of, tmp_path) as loop:
            state, _ = loop.round(loop.init(), 40)
            agent = jax.tree.map(lambda leaf: leaf[0], state.agent)
            _, batch = loop.pond.sample(loop.pond.one(state.replay, 0), jax.random.key(0), 64)
            return agent.params, jax.device_get(batch)
    with LocalCrew.opened(dataclasses.replace(of, mode="sequential"), tmp_path) as crew:
        crew.run(40)
        (learner,) = crew.learners
        params = jax.tree.map(lambda leaf: leaf[0], learner.params)
        if where == "host":
            batch = learner.learning.replay.draw(0)
            return params, jax.tree.map(lambda leaf: leaf[0], batch)
        pond = learner.learning._program.pond
        _, batch = pond.sample(learner.learning.of(0), jax.random.key(0), 64)
        return params, jax.device_get(batch)


@pytest.mark.parametrize(
    "where", ["fused", pytest.param("sequential", marks=pytest.mark.full), "host"]
)
def test_what_is_stored_is_what_was_acted_with(where, tmp_path):
    """Parameters stay, so that each row's memory follows from that of the row before; and so do
    the values that are learned from, out of the first one alone."""
    of = maze("dqn" if where == "fused" else "qlambda")
    params, batch = sampled(where, of, tmp_path)
    memory, mask = batch.extras["memory"], batch.mask
    assert (np.abs(memory).max(-1) > 0)[mask].mean() > 0.3
    assert not memory[batch.first].any()
    values, after = oracle.step(params, batch.obs[:, :-1].reshape(-1, 1, 4), memory.reshape(-1, 3))
    after, wanted = after.reshape(memory.shape), values.reshape(*mask.shape, -1)
    steps = mask[:, :-1] & mask[:, 1:] & ~batch.first[:, 1:]
    np.testing.assert_allclose(memory[:, 1:][steps], after[:, :-1][steps], **close)
    learned = mask[:, 3:]
    got = np.asarray(jax.jit(make_agent(of).values_of, static_argnums=2)(params, batch, 3))
    np.testing.assert_allclose(got[:, :-1][learned], wanted[:, 3:][learned], **close)
    begins = ~mask[:, :3]
    assert begins.any() or where == "host"
    assert batch.first[:, 4:].any()


class Probe(PQN):
    """Its loss is how far the values it learns from are from those it acted by."""

    Settings: ClassVar[type] = PQNSettings

    def learn(self, state, rollout, now, key):
        first = ((rollout.flags & FIRST) != 0).T
        obs = rollout.obs.swapaxes(0, 1)
        values, _ = self.unroll(state.params, obs, rollout.memory[0], first)
        apart = jnp.abs(values.max(-1).T - rollout.value[:-1]).max()
        new, learned, wrong = super().learn(state, rollout, now, key)
        return new, learned._replace(numbers=learned.numbers | {"loss": apart}), wrong


@pytest.mark.parametrize("mode", ["fused", pytest.param("sequential", marks=pytest.mark.full)])
def test_rollouts_go_on_with_the_memory_they_were_acted_with(mode, tmp_path):
    learning = maze("pqn").learning
    run = Run.create(tmp_path / "run", maze("test_memory:Probe", learning=learning, mode=mode))
    train(run)
    lines = list(read_metrics(run.metrics, "train"))
    assert len(lines) > 3
    assert max(line["loss"] for line in lines) < 1e-5
    assert min(line["change"] for line in lines) > 1e-6  # it did learn meanwhile


def test_an_actor_goes_on_where_it_was(tmp_path):
    of = maze(mode="sequential", steps=10_000)
    params = (
        jax.jit(jax.vmap(make_agent(of).init))(jax.random.split(jax.random.key(0), 1)).params,
    )
    actor, other = make_actor(of, 0), make_actor(of, 0)
    versions = np.zeros(1, np.uint32)
    for _ in range(5):
        actor.cycle(params, versions)
    saved = actor.export()
    assert other.restore(saved)
    one, two = actor.cycle(params, versions), other.cycle(params, versions)
    jax.tree.map(np.testing.assert_array_equal, one, two)
    went_on = one.flags[0, 0] == 0
    assert went_on.any()
    assert (np.abs(one.extras["memory"][0, 0]).max(-1) > 0)[went_on].all()


def test_every_evaluated_episode_begins_with_an_empty_memory():
    of = maze(eval_turns=6)
    agent = make_agent(of)
    params = jax.jit(agent.init)(jax.random.key(3)).params
    params["values"]["kernel"] = params["values"]["kernel"] * 20  # so that memory decides
    params["gru"]["in"]["kernel"] = params["gru"]["in"]["kernel"] * 5
    referee = Referee(of, 32)
    scores = referee.play(jax.tree.map(lambda leaf: leaf[None], params))
    inner = VectorEnv(MAZE, 32).reset(key_of(EVALUATION_SEED, Role.RESET)).inner
    returns, lengths = np.zeros(32, np.float32), np.zeros(32, np.int32)
    state = jax.vmap(MAZE.observe)(inner)
    step, observe = jax.jit(jax.vmap(MAZE.step)), jax.jit(jax.vmap(MAZE.observe))
    memory, alive, taken = np.zeros((32, UNITS)), np.ones(32, bool), set()
    for _ in range(6):
        values, memory = oracle.step(params, np.asarray(state), memory)
        action = values.argmax(-1).astype(np.int32)
        taken |= set(action[alive].tolist())
        inner, outcome = step(inner, action[:, None], jax.random.split(jax.random.key(0), 32))
        returns += np.where(alive, np.asarray(outcome.reward)[:, 0], 0)
        lengths += alive
        alive &= ~np.asarray(outcome.terminated | outcome.truncated)
        state = observe(inner)
    assert len(taken) > 1
    np.testing.assert_allclose(scores.returns[0], returns, rtol=1e-6)
    np.testing.assert_array_equal(scores.lengths[0], lengths)
    again = referee.play(jax.tree.map(lambda leaf: leaf[None], params))
    np.testing.assert_array_equal(again.returns, scores.returns)


@pytest.mark.full
@pytest.mark.parametrize("of", [maze("dqn"), maze("pqn")], ids=["dqn", "pqn"])
def test_crashed_and_resumed_equals_uninterrupted(of, tmp_path):
    whole, crashed = (Run.create(tmp_path / name, of) for name in ("whole", "crashed"))
    digest = train(whole)
    crash_at(crashed, 160)
    assert train(crashed) == digest


@pytest.mark.full
def test_lockstep_is_the_sequential_run_bit_by_bit(tmp_path):
    crew = CrewSettings(trace=True)
    runs = {
        mode: Run.create(tmp_path / mode, maze(mode=mode, actors=2, steps=160, crew=crew))
        for mode in ("sequential", "lockstep")
    }
    for run in runs.values():
        train(run)
    found = compare(*(run.path / "trace.jsonl" for run in runs.values()))
    assert found.identical, found.differs
    assert found.cycles > 20


def lake_of(path, spec: Spec):
    """Random play, with whatever extras are asked for."""
    rng, lake = np.random.default_rng(0), Lake.create(path, spec, 10_000)
    obs, flags, *ends = stream(rng, 100, 2)
    with lake.writer("play", 2) as writer:
        for t in range(100):
            action = np.zeros(2, np.int32)
            extras = {name: np.zeros((2, *of.shape), of.dtype) for name, of in spec.extras.items()}
            row = Rows(
                obs[t] > 0, action, action * 0.0, *(end[t] for end in ends), flags[t], extras
            )
            writer.append(row)
    return str(path)


def test_a_lake_must_hold_the_memory(tmp_path):
    of = maze()
    spec = stored_spec(of)
    assert spec.extras["memory"].shape == (UNITS,)
    without = lake_of(tmp_path / "without", dataclasses.replace(spec, extras={}))
    other = {"memory": Field("float32", (UNITS + 1,))}
    larger = lake_of(tmp_path / "larger", dataclasses.replace(spec, extras=other))
    for path, got in ((without, "got none"), (larger, r"got float32 \(4,\)")):
        run = Run.create(tmp_path / f"of {len(got)}", maze(from_lake=path))
        with pytest.raises(BadConfig, match=rf"must hold the memory .* float32 \(3,\), {got}"):
            train(run)
    fits = lake_of(tmp_path / "fits", spec)
    train(Run.create(tmp_path / "run", maze(from_lake=fits, steps=12, log_every=4, eval_every=12)))


def test_what_cannot_have_a_memory_is_refused():
    learning = PQNSettings(rollout=4, minibatches=4)
    cases = {
        "depth and memory at least 0": lambda: Network(memory=-1),
        "burn_in must be 0 or more, got -1": lambda: QLambdaSettings(burn_in=-1),
        "DQN: burn_in must be 0 or more": lambda: DQNSettings(burn_in=-2),
        "agent test_memory:Plain learns from single rows": lambda: maze("test_memory:Plain"),
        "6 envs cannot be divided among 4": lambda: maze("pqn", envs=6, learning=learning),
        "mixture: network.memory must be 0, got 3": lambda: MixSettings(
            "tmaze", MAZE, network=NETWORK
        ),
    }
    for said, make in cases.items():
        with pytest.raises(BadConfig, match=said):
            make()
    assert maze("test_memory:Plain", network=Network()).learns.window == Window()
    assert maze(network=Network()).window.burn_in == 0  # there is nothing to warm up


class Plain(DQN):
    """An agent as those that know nothing of memories."""

    remembers: ClassVar[bool] = False

    @dataclasses.dataclass(frozen=True)
    class Settings(DQNSettings):
        def learns(self, stack):  # of the older form
            return super().learns(stack)
