"""Environments whose `info` tells of the end of an episode; worker processes import them."""

import gymnasium
import numpy as np

from operant.envs import Environment


class Goal(gymnasium.Env):
    """Episodes of `length` steps.

    From a seed on, the first, third, ... is a success; `distance` is told at every step.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=4, silent_after=1000, value=None):
        self.length, self.silent_after, self.value = length, silent_after, value
        self.episodes = self.t = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.episodes, self.t = 1 if seed is not None else self.episodes + 1, 0
        return np.zeros(2, np.float32), {"begun": True}

    def step(self, action):
        self.t += 1
        over = self.t == self.length
        info = {"distance": self.length - self.t}
        if over and self.episodes <= self.silent_after:
            info["is_success"] = bool(self.episodes % 2) if self.value is None else self.value
        return np.zeros(2, np.float32), 1.0, over, False, info


class Own(Environment):
    """The same, told by an environment of operant's kind."""

    def states(self):
        return {"type": "float", "shape": (2,)}

    def actions(self):
        return {"type": "int", "num_values": 2}

    def reset(self):
        self.t = 0
        return [0.0, 0.0]

    def execute(self, actions):
        self.t += 1
        return [0.0, 0.0], self.t == 4, 1.0

    def episode_info(self):
        return {"is_success": np.bool_(True)} if self.t == 4 else {}
