"""Environments that misbehave when they are told to, for processes and servers to import."""

import contextlib
import os
import signal
import subprocess
import sys
import time

import gymnasium
import numpy as np

from operant.envs import Environment


class Count(Environment):
    """Observes its step and its process; does what the action says."""

    def __init__(self, length=100, fail_reset=0, hang=60.0):
        self.length, self.fail_reset, self.hang = length, fail_reset, hang
        self.resets = 0

    def states(self):
        return dict(count=dict(type="float", shape=(2,)), pid=dict(type="int"), seed=dict(type="int"))

    def actions(self):
        return dict(type="int", num_values=10)

    def observe(self):
        return dict(count=[self.t, -self.t], pid=os.getpid(), seed=self.seed)

    def reset(self, seed=None):
        self.resets += 1
        if self.fail_reset and self.resets >= self.fail_reset:
            raise RuntimeError("nothing to begin with")
        self.t, self.seed = 0, -1 if seed is None else seed
        return self.observe()

    def execute(self, actions):
        self.t += 1
        if actions == 1:
            raise RuntimeError("the motor is stuck")
        if actions == 2:
            time.sleep(self.hang)
        if actions == 3:
            os._exit(5)
        if actions == 4:
            os.kill(os.getpid(), signal.SIGKILL)
        if actions == 5:
            return dict(count=[np.nan, 0.0], pid=0, seed=0), False, 0.0
        if actions == 6:
            return dict(count=[0.0], pid=0, seed=0), False, 0.0
        if actions == 7:  # scribbles over what it must not touch
            for descriptor in range(3, 20):
                with contextlib.suppress(OSError):
                    os.write(descriptor, b"\xff" * 64)
            time.sleep(60)
        if actions == 8:
            return self.observe(), False, "much"
        if actions == 9:
            raise SystemExit(6)
        return self.observe(), self.t == self.length, 0.1 * self.t


class Family(Count):
    """Starts a program and forks; observes its process and those."""

    def __init__(self):
        super().__init__()
        self.pids = os.getpid(), subprocess.Popen(["sleep", "60"]).pid, os.fork()
        if not self.pids[-1]:
            time.sleep(60)
            os._exit(0)

    def states(self):
        return dict(type="int", shape=(3,))

    def observe(self):
        return self.pids


class Interrupting(Count):
    """Once, in the midst of a step or of a reset, it presses Ctrl-C where its answer is awaited."""

    def __init__(self, when="step"):
        super().__init__(length=4)
        self.when = when

    def press(self):
        self.when = ""
        time.sleep(0.2)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(0.2)

    def reset(self, seed=None):
        if self.when == "reset" and self.resets == 1:
            self.press()
        return super().reset(seed)

    def execute(self, actions):
        if self.when == "step" and self.t == 2:
            self.press()
        return super().execute(0)


class Masked(Environment):
    """Ends where nothing is allowed any more."""

    def states(self):
        return dict(state=dict(type="float", shape=(3,)), action_mask=dict(type="bool", shape=(4,)))

    def actions(self):
        return dict(type="int", num_values=4)

    def reset(self):
        self.t = 0
        return dict(state=[0.0, 0.0, 0.0], action_mask=[True, False, True, False])

    def execute(self, actions):
        self.t += 1
        over = self.t == 8
        return dict(state=[actions, 1.0, 2.0], action_mask=[False, not over, False, not over]), over, 1.0

    def episode_return(self, parallel=None):
        return 42.0


class Team(Environment):
    """Three actors, of which the one with the highest number leaves at every step."""

    def states(self):
        return dict(type="float", shape=(2,))

    def actions(self):
        return dict(type="float", shape=(1,), min_value=-1.0, max_value=1.0)

    def num_actors(self):
        return 3

    def reset(self):
        self.left = 3
        return np.arange(3), np.zeros((3, 2))

    def execute(self, actions):
        if self.left == 2 and actions[0, 0] == 1.0:
            os._exit(3)
        acted, self.left = self.left, self.left - 1
        terminal = np.zeros(acted, int)
        terminal[-1] = 1
        return np.arange(self.left), np.tile(actions[: self.left], (1, 2)), terminal, actions[:, 0]


class Told(Team):
    """Tells what the one that leaves saw last, too."""

    def execute(self, actions):
        parallel, states, terminal, reward = super().execute(actions)
        return parallel, np.concatenate([states, np.full((1, 2), 7.0)]), terminal, reward


class Loaded(Environment):
    """Observes what its process has loaded, and whether it knows the secret."""

    def states(self):
        return dict(type="int", num_values=2)

    def actions(self):
        return dict(type="bool")

    def reset(self):
        secret = "OPERANT_TOKEN" in os.environ
        return int(secret or any(name in sys.modules for name in ("jax", "keras", "pytest")))

    def execute(self, actions):
        return self.reset(), True, 0.0


class Pixels(Environment):
    """A state of as many bytes as asked for."""

    def __init__(self, size=1):
        self.size = size

    def states(self):
        return dict(type="float", shape=(self.size,), dtype="uint8")

    def actions(self):
        return dict(type="int", num_values=2)

    def reset(self):
        return np.resize(np.arange(251, dtype=np.uint8), self.size)

    def execute(self, actions):
        return self.reset()[::-1], False, 1.0


class Started(gymnasium.Env):
    """Observes numbers that begin at 1, stored without that."""

    observation_space = gymnasium.spaces.Dict(
        {
            "one": gymnasium.spaces.Discrete(5, start=1),
            "many": gymnasium.spaces.MultiDiscrete([3, 4], start=[2, 7]),
        }
    )
    action_space = gymnasium.spaces.Discrete(2)

    def observe(self):
        return {"one": np.int64(1 + self.t % 5), "many": np.array([2 + self.t % 3, 7 + self.t % 4])}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), float(action), False, False, {}
