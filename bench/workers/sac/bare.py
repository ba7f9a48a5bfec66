"""A bare single-file SAC in JAX: the env, a hand-written ring and the updates in one jitted loop.

No rows, no borders, no counting, no guard. It does the same work per turn as ours: all envs step,
then one update, or several. The env is Pendulum, below, or any other object with its methods.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from .task import FILL, GAMMA, RATE, TAU

TURNS = 200


class Net(nn.Module):
    outputs: int
    width: int

    @nn.compact
    def __call__(self, x):
        for _ in range(2):
            x = nn.relu(nn.Dense(self.width, kernel_init=nn.initializers.he_normal())(x))
        return nn.Dense(self.outputs)(x)


class Ring(NamedTuple):
    columns: Any  # obs, obs after, action, reward and, if episodes terminate, whether this did not
    count: Any


class Carry(NamedTuple):
    world: Any
    ring: Ring
    params: Any  # actor, critics, log_alpha
    target: Any
    opt: Any
    key: Any


class Pendulum:
    """Envs that never terminate: angle, speed and turn of each are their state."""

    obs, actions, most, terminates = 3, 1, 2.0, False

    def __init__(self, envs: int) -> None:
        self.envs = envs

    def begin(self, key):
        return *self._fresh(key), jnp.zeros(self.envs, np.int32)

    def see(self, state):
        return see(*state[:2])

    def step(self, state, action, key):
        """The state after it, the observation before any reset, and the reward."""
        angle, speed, turn = state
        angle, speed, reward = swing(angle, speed, action[:, 0])
        over = turn + 1 >= TURNS
        fresh = self._fresh(key)
        after = jnp.where(over, fresh[0], angle), jnp.where(over, fresh[1], speed)
        return (*after, jnp.where(over, 0, turn + 1)), (see(angle, speed), reward)

    def _fresh(self, key):
        most = np.array([[np.pi], [1]], np.float32)
        return jax.random.uniform(key, (2, self.envs), np.float32, -most, most)


class Bare:
    """`Bare(envs=1, batch=256, capacity=50_000, width=256).go(turns)`

    With `fill` = 0 it learns from the first turn on and never asks whether it should.
    """

    def __init__(
        self,
        envs: int,
        batch: int,
        capacity: int,
        width: int,
        world=None,
        updates: int = 1,
        fill: int = FILL,
    ) -> None:
        self.envs, self.batch, self.capacity = envs, batch, capacity
        self.updates, self.fill = updates, fill
        self.world = world or Pendulum(envs)
        self.actor, self.critic = Net(2 * self.world.actions, width), Net(1, width)
        self.rule = optax.adam(RATE)
        self.carry = jax.jit(self._init)(jax.random.key(0))
        self.run = jax.jit(self._turns, donate_argnums=0)

    def go(self, turns: int) -> None:
        self.carry = jax.block_until_ready(self.run(self.carry, turns))

    def _init(self, key):
        obs, actions = self.world.obs, self.world.actions
        actor = self.actor.init(key, jnp.zeros((1, obs)))
        keys = jax.random.split(key, 2)
        blank = jnp.zeros((1, obs + actions))
        critics = jax.vmap(lambda key: self.critic.init(key, blank))(keys)
        params = {"actor": actor, "critics": critics, "log_alpha": jnp.zeros(())}
        widths = (obs, obs, actions, 1, *(1,) * self.world.terminates)
        ring = Ring(tuple(jnp.zeros((self.capacity, n)) for n in widths), jnp.int32(0))
        opt = {name: self.rule.init(params[name]) for name in params}
        return Carry(self.world.begin(key), ring, params, critics, opt, key)

    def _turns(self, carry, number):
        return jax.lax.fori_loop(0, number, lambda _, c: self._turn(c), carry)

    def _turn(self, carry):
        key, acting, resetting, drawing = jax.random.split(carry.key, 4)
        obs, ring = self.world.see(carry.world), carry.ring
        action = self._draw(carry.params["actor"], obs, acting)[0]
        anything = jax.random.uniform(acting, action.shape, np.float32, -1, 1)
        action = jnp.where(ring.count < self.fill, anything, action)
        world, found = self.world.step(carry.world, self.world.most * action, resetting)
        after, *rest = found
        row = (obs, after, action, *(one[:, None] for one in rest))
        at = ring.count % self.capacity
        columns = tuple(
            jax.lax.dynamic_update_slice(column, value, (at, 0))
            for column, value in zip(ring.columns, row, strict=True)
        )
        ring = Ring(columns, ring.count + self.envs)
        carry = carry._replace(world=world, ring=ring, key=key)

        def learn(carry, key):
            key, *noise = jax.random.split(key, 3)
            most = jnp.minimum(ring.count, self.capacity)
            rows = jax.random.randint(key, (self.batch,), 0, most)
            return self._update(carry, [column[rows] for column in ring.columns], *noise), None

        def learns(carry):
            if self.updates == 1:
                return learn(carry, drawing)[0]
            return jax.lax.scan(learn, carry, jax.random.split(drawing, self.updates))[0]

        if not self.fill:
            return learns(carry)
        return jax.lax.cond(ring.count >= self.fill, learns, lambda carry: carry, carry)

    def _draw(self, actor, obs, key):
        mean, log_std = jnp.split(self.actor.apply(actor, obs), 2, -1)
        log_std = jnp.clip(log_std, -10, 2)
        normal = jax.random.normal(key, mean.shape)
        before = mean + jnp.exp(log_std) * normal
        density = -0.5 * normal**2 - log_std - 0.5 * np.log(2 * np.pi)
        slope = 2 * (np.log(2) - before - jax.nn.softplus(-2 * before))
        return jnp.tanh(before), (density - slope).sum(-1)

    def _values(self, critics, obs, action):
        both = jnp.concatenate([obs, action], -1)
        return jax.vmap(lambda one: self.critic.apply(one, both)[:, 0])(critics)

    def _update(self, carry, rows, one, two):
        obs, after, action, reward, *going = rows
        params, opt = carry.params, dict(carry.opt)
        alpha = jnp.exp(params["log_alpha"])
        next_action, log_prob = self._draw(params["actor"], after, one)
        value = self._values(carry.target, after, next_action).min(0) - alpha * log_prob
        goal = reward[:, 0] + GAMMA * (value * going[0][:, 0] if going else value)

        def critic_loss(critics):
            return (0.5 * (self._values(critics, obs, action) - goal) ** 2).mean(1).sum()

        def stepped(name, gradient):
            change, opt[name] = self.rule.update(gradient, opt[name])
            return optax.apply_updates(params[name], change)

        critics = stepped("critics", jax.grad(critic_loss)(params["critics"]))

        def actor_loss(actor):
            action, log_prob = self._draw(actor, obs, two)
            return (alpha * log_prob - self._values(critics, obs, action).min(0)).mean(), log_prob

        slope, log_prob = jax.grad(actor_loss, has_aux=True)(params["actor"])
        actor = stepped("actor", slope)
        heat = stepped("log_alpha", -(log_prob - self.world.actions).mean())
        target = jax.tree.map(lambda t, p: t + TAU * (p - t), carry.target, critics)
        params = {"actor": actor, "critics": critics, "log_alpha": heat}
        return carry._replace(params=params, target=target, opt=opt)


def see(angle, speed):
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), speed], -1)


def swing(angle, speed, torque):
    off = (angle + np.pi) % (2 * np.pi) - np.pi
    cost = off**2 + 0.1 * speed**2 + 0.001 * torque**2
    speed = jnp.clip(speed + (15 * jnp.sin(angle) + 3 * torque) * 0.05, -8, 8)
    return angle + 0.05 * speed, speed, -cost
