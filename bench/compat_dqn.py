"""A DQN in one file, in CleanRL's manner, over a HostPond or Stable-Baselines3's buffer."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.buffers import ReplayBuffer
from torch import nn

from millpond import Flag, HostPond, Rows, Spec, Window, next_flags
from millpond.compat.torch import as_torch

GAMMA, BATCH, EVERY, COPY, BEGIN = 0.99, 128, 10, 500, 1_000


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(4, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 2)
    )


class Ours:
    """A HostPond."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        spec = Spec.from_env(envs)
        self._pond = HostPond(spec, 50_000, envs.num_envs, Window(gamma=GAMMA), seed=1)
        self._flags = np.full(envs.num_envs, Flag.FIRST, np.uint8)
        self._batch: Any = None  # one batch, and tensors in the same memory, used again and again

    def add(self, obs: Any, action: Any, reward: Any, over: Any, late: Any, final: Any) -> None:
        rows = Rows(obs, action, reward, over, late, self._flags)
        self._pond.add(rows, final_obs=final)
        self._flags = next_flags(self._flags, over, late, same_step=True)

    def sample(self) -> tuple[Any, ...]:
        if self._batch is None:
            self._batch = self._pond.sample(BATCH)
            same = as_torch(self._batch)
            obs, after, action = same.obs[:, 0], same.next_obs[:, 0], same.action[:, None]
            self._tensors = obs, action, after, same.reward, same.discount
        else:
            self._pond.sample(BATCH, out=self._batch)
        return self._tensors


class Theirs:
    """Stable-Baselines3's buffer, which CleanRL uses."""

    def __init__(self, envs: SyncVectorEnv) -> None:
        one = envs.single_observation_space, envs.single_action_space
        self._buffer = ReplayBuffer(50_000, *one, "cpu", handle_timeout_termination=False)

    def add(self, obs: Any, action: Any, reward: Any, over: Any, late: Any, final: Any) -> None:
        after = self._next if final is None else final
        self._buffer.add(obs, after, action, reward, over, [{}])

    def sample(self) -> tuple[Any, ...]:
        batch = self._buffer.sample(BATCH)
        discount = GAMMA * (1 - batch.dones.flatten())
        rewards = batch.rewards.flatten()
        return batch.observations, batch.actions, batch.next_observations, rewards, discount

    _next: Any = None


def cpu_s(steps: int, ours: bool, seed: int = 0) -> float:
    """CPU seconds of `steps` steps, after those that only fill the buffer."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    make = [lambda: gymnasium.make("CartPole-v1")]
    envs = SyncVectorEnv(make, autoreset_mode=AutoresetMode.SAME_STEP)
    assert isinstance(envs.single_action_space, spaces.Discrete)
    replay, net, target = (Ours if ours else Theirs)(envs), network(), network()
    target.load_state_dict(net.state_dict())
    optimizer = torch.optim.Adam(net.parameters(), lr=2.5e-4)
    obs, start = envs.reset(seed=seed)[0], 0.0
    for step in range(BEGIN + steps):
        if step == BEGIN:
            start = time.process_time()
        if rng.random() < max(0.05, 1 - step / (BEGIN + steps)):
            action = rng.integers(0, 2, 1)
        else:
            with torch.no_grad():
                action = net(torch.from_numpy(obs)).argmax(1).numpy()
        after, reward, over, late, info = envs.step(action)
        final = np.stack(info["final_obs"]) if (over | late).any() else None
        if isinstance(replay, Theirs):
            replay._next = after
        replay.add(obs, action, reward, over, late, final)
        obs = after
        if step >= BEGIN and step % EVERY == 0:
            seen, did, then, gain, discount = replay.sample()
            with torch.no_grad():
                goal = gain + discount * target(then).amax(1)
            loss = nn.functional.mse_loss(net(seen).gather(1, did).squeeze(1), goal)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % COPY == 0:
            target.load_state_dict(net.state_dict())
    return time.process_time() - start
