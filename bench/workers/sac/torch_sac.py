"""A single-file SAC in PyTorch, in the manner of CleanRL: a loop over one Gymnasium env."""

from __future__ import annotations

import gymnasium
import numpy as np
import torch
from torch import nn

from .task import BATCH, CAPACITY, FILL, GAMMA, RATE, TAU, WIDTH, serve

torch.set_num_threads(1)


def layers(inputs: int, outputs: int) -> nn.Sequential:
    hidden = [nn.Linear(inputs, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, outputs))


class TorchSAC:
    def __init__(self) -> None:
        self.env = gymnasium.make("Pendulum-v1")
        self.obs, _ = self.env.reset(seed=0)
        self.actor, self.critics = layers(3, 2), [layers(4, 1) for _ in range(2)]
        self.targets = [layers(4, 1) for _ in range(2)]
        for target, critic in zip(self.targets, self.critics, strict=True):
            target.load_state_dict(critic.state_dict())
        self.log_alpha = torch.zeros(1, requires_grad=True)
        self.of_actor = torch.optim.Adam(self.actor.parameters(), RATE)
        both = [p for critic in self.critics for p in critic.parameters()]
        self.of_critics = torch.optim.Adam(both, RATE)
        self.of_alpha = torch.optim.Adam([self.log_alpha], RATE)
        self.ring = {
            "obs": np.zeros((CAPACITY, 3), np.float32),
            "next_obs": np.zeros((CAPACITY, 3), np.float32),
            "action": np.zeros((CAPACITY, 1), np.float32),
            "reward": np.zeros((CAPACITY, 1), np.float32),
            "going": np.zeros((CAPACITY, 1), np.float32),
        }
        self.count, self.rng = 0, np.random.default_rng(0)

    def draw(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, log_std = self.actor(obs).chunk(2, -1)
        normal = torch.distributions.Normal(mean, log_std.clamp(-10, 2).exp())
        before = normal.rsample()
        action = torch.tanh(before)
        log_prob = normal.log_prob(before) - torch.log(1 - action**2 + 1e-6)
        return action, log_prob.sum(-1, keepdim=True)

    def play(self, steps: int) -> None:
        for _ in range(steps):
            if self.count < FILL:
                action = self.rng.uniform(-1, 1, 1).astype(np.float32)
            else:
                with torch.no_grad():
                    action = self.draw(torch.from_numpy(self.obs[None]))[0][0].numpy()
            after, reward, terminated, truncated, _ = self.env.step(2 * action)
            at = self.count % CAPACITY
            row = (self.obs, after, action, reward, not terminated)
            for column, value in zip(self.ring.values(), row, strict=True):
                column[at] = value
            self.obs, self.count = after, self.count + 1
            if terminated or truncated:
                self.obs, _ = self.env.reset()
            if self.count >= FILL:
                self.learn()

    def learn(self) -> None:
        rows = self.rng.integers(0, min(self.count, CAPACITY), BATCH)
        obs, after, action, reward, going = (torch.from_numpy(c[rows]) for c in self.ring.values())
        alpha = self.log_alpha.exp().detach()
        with torch.no_grad():
            next_action, log_prob = self.draw(after)
            both = torch.cat([after, next_action], -1)
            value = torch.min(*(target(both) for target in self.targets)) - alpha * log_prob
            goal = reward + GAMMA * going * value
        seen = torch.cat([obs, action], -1)
        loss = sum(nn.functional.mse_loss(critic(seen), goal) for critic in self.critics)
        self.of_critics.zero_grad()
        loss.backward()
        self.of_critics.step()
        mine, log_prob = self.draw(obs)
        value = torch.min(*(critic(torch.cat([obs, mine], -1)) for critic in self.critics))
        loss = (alpha * log_prob - value).mean()
        self.of_actor.zero_grad()
        loss.backward()
        self.of_actor.step()
        loss = -(self.log_alpha.exp() * (log_prob.detach() - 1)).mean()
        self.of_alpha.zero_grad()
        loss.backward()
        self.of_alpha.step()
        with torch.no_grad():
            for target, critic in zip(self.targets, self.critics, strict=True):
                for old, new in zip(target.parameters(), critic.parameters(), strict=True):
                    old.lerp_(new, TAU)


if __name__ == "__main__":
    serve(TorchSAC().play)
