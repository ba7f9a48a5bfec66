"""`PrioritizedDQN`: Stable-Baselines3's DQN with prioritised replay."""

from __future__ import annotations

from typing import Any

from ..samplers import prioritized
from .need import need
from .sb3 import ReplayBuffer
from .tensors import torch

dqn = need("stable_baselines3", "sb3")


class PrioritizedDQN(dqn.DQN):
    """DQN with a millpond ReplayBuffer that samples by priority.

        PrioritizedDQN("MlpPolicy", env).learn(50_000)

    Other settings are DQN's; use `replay_buffer_kwargs=dict(sampler=prioritized(alpha=0.5))`.
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("replay_buffer_class", ReplayBuffer)
        kwargs = settings.setdefault("replay_buffer_kwargs", None) or {}
        settings["replay_buffer_kwargs"] = {"sampler": prioritized(), **kwargs}
        super().__init__(*args, **settings)

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        """Updates with importance weights; |TD error| becomes the new priority of each sample."""
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        loss: Any = torch.zeros(())
        for _ in range(gradient_steps):
            sample = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
            weight = torch.from_numpy(self.replay_buffer.last.weight).to(self.device)[:, None]
            gamma = self.gamma if sample.discounts is None else sample.discounts
            with torch.no_grad():
                best = self.q_net_target(sample.next_observations).amax(1, keepdim=True)
                goal = sample.rewards + (1 - sample.dones) * gamma * best
            value = self.q_net(sample.observations).gather(1, sample.actions.long())
            each = torch.nn.functional.smooth_l1_loss(value, goal, reduction="none")
            loss = (weight * each).mean()
            self.policy.optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
            self.policy.optimizer.step()
            self.replay_buffer.update_priorities(goal - value)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        self.logger.record("train/loss", loss.item())
