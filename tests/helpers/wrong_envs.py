"""Gymnasium envs that break their own contract in one way each: `how`."""

import os

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, Tuple


class Wrong(gym.Env):
    observation_space = Box(-1, 1, (3,), np.float32)
    action_space = Discrete(2)

    def __init__(self, how):
        self.how, self.turn = how, 0
        if how == "constructor":
            raise OSError("there is no display")
        if how == "tuple":
            self.observation_space = Tuple((Discrete(3), Discrete(3)))
        if how == "empty":
            self.observation_space = Box(-1, 1, (0,), np.float32)

    def obs(self):
        obs = np.zeros(3, np.float32)
        if self.turn == 2:
            wrong = dict(shape=np.zeros(4, np.float32), dtype=obs * 1j, none=None, list=[0.5] * 2)
            return wrong.get(self.how, obs)
        return obs

    def reset(self, seed=None, options=None):
        self.turn = 0
        return self.obs() if self.how == "old reset" else (self.obs(), {})

    def step(self, action):
        self.turn += 1
        if self.how == "raises":
            raise ValueError("the robot fell over")
        if self.how == "dies":
            os._exit(3)  # as a crash in C would
        reward = dict(reward=None, rewards=np.ones(2)).get(self.how, 1.0)
        flag = None if self.how == "flag" else self.turn == 5
        given = self.obs(), reward, flag, False, {}
        return given[:2] + given[3:] if self.how == "old step" else given


class NoSpaces(gym.Env):
    def __init__(self, how): ...


gym.register("Wrong-v0", Wrong, disable_env_checker=True)
gym.register("Checked-v0", Wrong)
gym.register("NoSpaces-v0", NoSpaces, disable_env_checker=True)
gym.register("Raises-v0", Wrong, kwargs={"how": "raises"})
