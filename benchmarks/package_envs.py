"""Environments that need a line or two of a program, for `packages.py`: `--env package_envs:minigrid`."""

import gymnasium
import numpy as np

from operant.envs.native.functional import from_brax, from_gymnax


def minigrid(render_mode=None):
    """Its missions are text, which no network reads: the image alone."""
    from minigrid.wrappers import ImgObsWrapper

    return ImgObsWrapper(gymnasium.make("MiniGrid-Empty-5x5-v0", render_mode=render_mode))


def mo_gymnasium(render_mode=None):
    """Its rewards are vectors, of which one number is made."""
    import mo_gymnasium

    env = mo_gymnasium.make("deep-sea-treasure-v0", render_mode=render_mode)
    return mo_gymnasium.wrappers.LinearReward(env, weight=np.array([0.5, 0.5]))


def craftax():
    """Its form is gymnax'."""
    from craftax.craftax_env import make_craftax_env_from_name

    return from_gymnax(make_craftax_env_from_name("Craftax-Classic-Symbolic-v1", auto_reset=False))


def playground():
    """Its form is brax'; the implementation is the default one, MuJoCo Warp."""
    from mujoco_playground import registry

    return from_brax(registry.load("CartpoleBalance"))


class Crafter(gymnasium.Env):
    """Crafter's interface is older than Gymnasium's: `step` returns four values, `reset` one."""

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

    def __init__(self, render_mode=None):
        import crafter

        self.game, self.render_mode = crafter.Env(), render_mode
        self.observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
        self.action_space = gymnasium.spaces.Discrete(self.game.action_space.n)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.game._seed = seed
        return self.game.reset(), {}

    def step(self, action):
        observation, reward, over, info = self.game.step(action)
        return observation, reward, over and info["discount"] == 0, over and info["discount"] > 0, info

    def render(self):
        return self.game.render()
