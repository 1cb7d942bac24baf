"""Environments whose images have their channels in the first axis, for processes to import."""

import gymnasium
import numpy as np
from gymnasium import spaces


class Slides(gymnasium.Env):
    """Pictures `[3, 20, 18]`, none of which equals another; three to an episode."""

    observation_space = spaces.Box(0, 255, (3, 20, 18), np.uint8)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.shown = 0
        return self.observe(), {}

    def step(self, action):
        self.shown += 1
        return self.observe(), float(action), self.shown == 3, False, {}

    def observe(self):
        return picture(self.shown)


class Guide(Slides):
    """The same beside a number, as floats."""

    observation_space = spaces.Dict(
        {"picture": spaces.Box(0, 1, (3, 20, 18), np.float32), "number": spaces.Box(0, 3, (1,), np.float32)}
    )

    def observe(self):
        return {
            "picture": picture(self.shown).astype(np.float32) / 255,
            "number": np.float32([self.shown]),
        }


def picture(number):
    """Return a picture `[3, 20, 18]`."""
    return (np.arange(3 * 20 * 18).reshape(3, 20, 18) + number).astype(np.uint8)
