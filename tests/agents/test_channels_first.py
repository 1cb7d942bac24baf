"""Images with their channels first, as Gymnasium's wrappers stack frames: every way to an environment
moves that axis."""

from __future__ import annotations

import sys

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces as gym
from gymnasium.experimental.functional import FuncEnv

import operant
from operant import Agent, Runner
from operant.cli import main
from operant.envs import Environment, check_env
from operant.envs.gymnasium.adapter import stacked_frames
from operant.envs.gymnasium.pettingzoo import PettingZooEnv
from operant.envs.native import native_env
from operant.envs.native.functional import from_functional
from operant.envs.remote import connect
from operant.envs.vector import create
from operant.errors import SpaceError
from operant.nn.build import Head, build
from operant.spec.spaces import Leaf, from_gymnasium

IMAGE = Leaf("float", (20, 18, 3), None, 0, 255, "uint8")


@pytest.fixture(scope="module")
def module(tests_folder):
    import channels_first

    yield channels_first
    del sys.modules["channels_first"]


def moved(module, number):
    return module.picture(number).transpose(1, 2, 0)


def byte(*shape, high=255, dtype=np.uint8):
    return gym.Box(0, high, shape, dtype)


@pytest.mark.parametrize(
    ("box", "shape"),
    [
        (byte(4, 84, 84), (84, 84, 4)),
        (byte(3, 210, 160), (210, 160, 3)),
        (byte(1, 28, 28), (28, 28, 1)),
        (byte(16, 17, 18), (17, 18, 16)),
        (byte(12, 96, 96, dtype=np.int64), (96, 96, 12)),
        (byte(3, 64, 64, high=1, dtype=np.float32), (64, 64, 3)),
        (byte(3, 64, 64, dtype=np.float64), (64, 64, 3)),
        (gym.Box(-np.inf, np.inf, (4, 84, 84)), (84, 84, 4)),
        (gym.Box(-1, 1, (10, 32, 40)), (32, 40, 10)),
        # channels last, or what may be either
        (byte(84, 84, 4), None),
        (byte(4, 84, 3), None),
        (byte(17, 19, 19), None),
        (byte(16, 16, 20), None),
        (byte(10, 10, 10), None),
        # no images
        (byte(4, 84), None),
        (byte(2, 4, 84, 84), None),
        (byte(8, 32, 32, high=1), None),
        (byte(10, 20, 20, high=1, dtype=np.float32), None),
        (gym.Box(0, 200, (4, 84, 84), np.uint8), None),
    ],
    ids=str,
)
def test_which_images_have_their_channels_first(box, shape):
    """Those of which it is clear; and True and False are heeded as they are given."""
    detected, _ = from_gymnasium(gym.Dict(a=box, b=gym.Discrete(2)), gym.Discrete(2))
    assert detected.states.components["a"].shape == (shape or box.shape)
    kept, _ = from_gymnasium(box, gym.Discrete(2), channels_first=False)
    assert kept.states.components["state"].shape == box.shape
    told, _ = from_gymnasium(box, gym.Discrete(2), channels_first=True)
    three = len(box.shape) == 3
    assert told.states.components["state"].shape == ((*box.shape[1:], box.shape[0]) if three else box.shape)


def test_frames_are_found_in_the_axis_that_is_moved():
    spaces, _ = from_gymnasium(byte(4, 84, 84), gym.Discrete(2), frames=4)
    assert spaces.states.components["state"] == Leaf("float", (84, 84, 4), None, 0, 255, "uint8", 4)


def test_what_acts_is_no_image():
    spaces, _ = from_gymnasium(gym.Box(-1, 1, (2,)), byte(3, 20, 18, high=1, dtype=np.float32))
    assert spaces.actions.components["action"].shape == (3, 20, 18)


@pytest.mark.parametrize("form", ["in-process", "processes", "vector"])
def test_vectors_move_it(module, form):
    if form == "vector":
        given = gymnasium.vector.SyncVectorEnv(
            [module.Slides] * 2, autoreset_mode=gymnasium.vector.AutoresetMode.NEXT_STEP
        )
        envs = create.create(given)
    else:
        envs = create.create(module.Slides, 2, mode=form)
    try:
        assert envs.spaces.states.components == {"state": IMAGE}
        first = envs.reset(0)["state"]
        after = envs.step({"action": np.int32([0, 1])}).observation["state"]
        for i in range(2):
            np.testing.assert_array_equal(first[i], moved(module, 0))
            np.testing.assert_array_equal(after[i], moved(module, 1))
    finally:
        envs.close()


@pytest.mark.parametrize("remote", [None, "multiprocessing"])
def test_environments_of_a_program_move_it(module, remote):
    """A `Guide` as `Environment`, here and in a process: a dict with an image of floats in it."""
    (connection,) = connect(module.Guide, remote=remote)
    try:
        assert connection.spaces.states.components["picture"].shape == (20, 18, 3)
        connection.send_reset(0)
        states = connection.receive().states
        np.testing.assert_array_equal(states["picture"], moved(module, 0).astype(np.float32) / 255)
    finally:
        connection.close()


def test_one_environment_moves_it(module):
    env = Environment.create(module.Slides)
    assert env.states()["shape"] == [20, 18, 3]
    np.testing.assert_array_equal(env.reset(), moved(module, 0))
    np.testing.assert_array_equal(env.execute(1)[0], moved(module, 1))
    check_env(module.Slides)


class Pair:
    """PettingZoo's form of two that look at slides."""

    possible_agents = ("a", "b")

    def __init__(self, make):
        self.each = {name: make() for name in self.possible_agents}
        self.agents = []

    def observation_space(self, agent):
        return self.each[agent].observation_space

    def action_space(self, agent):
        return self.each[agent].action_space

    def reset(self, seed=None, options=None):
        self.agents = list(self.possible_agents)
        return {name: env.reset()[0] for name, env in self.each.items()}, {}

    def close(self):
        pass


def test_several_agents_move_it(module):
    env = PettingZooEnv(Pair(module.Slides))
    _, states = env.reset()
    assert env.spaces.states.components == {"state": IMAGE}
    np.testing.assert_array_equal(states[1], moved(module, 0))


class Functional(FuncEnv):
    """The slides as a functional environment of Gymnasium's."""

    observation_space = byte(3, 20, 18)
    action_space = gym.Discrete(2)

    def initial(self, rng, params=None):
        return jnp.int32(0)

    def transition(self, state, action, rng, params=None):
        return state + 1

    def observation(self, state, rng, params=None):
        return (jnp.arange(3 * 20 * 18).reshape(3, 20, 18) + state).astype(jnp.uint8)

    def reward(self, state, action, next_state, rng, params=None):
        return 1.0

    def terminal(self, state, rng, params=None):
        return state >= 3


def test_functional_environments_move_it(module):
    env = from_functional(Functional())
    assert env.spaces.states.components == {"state": IMAGE}
    actors = native_env.start(env, jax.random.key(0), 2)
    np.testing.assert_array_equal(actors.observation["state"][1], moved(module, 0))


def test_gymnasiums_own_stack_of_frames(module):
    class Grey(module.Slides):
        observation_space = byte(20, 18)

        def observe(self):
            return module.picture(self.shown)[0]

    envs = create.create([gymnasium.wrappers.FrameStackObservation(Grey(), 4)])
    leaf = envs.spaces.states.components["state"]
    assert (leaf.shape, leaf.frames) == ((20, 18, 4), 4)
    envs.reset(0)
    stack = envs.step({"action": np.int32([0])}).observation["state"][0]
    np.testing.assert_array_equal(stack[..., -1], module.picture(1)[0])
    np.testing.assert_array_equal(stack[..., -2], module.picture(0)[0])


class Inverted(gymnasium.Wrapper):
    """A wrapper of the user's, of which nothing is known."""


class Halved(gymnasium.RewardWrapper):
    def reward(self, reward):
        return reward / 2


def stack(module, shape=(20, 18), k=4, dtype=np.uint8):
    class Grey(module.Slides):
        observation_space = byte(*shape, dtype=dtype)

    return gymnasium.wrappers.FrameStackObservation(Grey(), k)


@pytest.mark.parametrize(
    ("make", "frames"),
    [
        (stack, 4),
        (lambda m: gymnasium.wrappers.TimeLimit(Halved(stack(m)), 100), 4),
        (lambda m: stack(m, k=1), None),
        (lambda m: stack(m, (20, 18, 3)), None),  # in colour
        (lambda m: stack(m, (3,)), None),
        (lambda m: stack(m, (8, 8)), None),  # rows or frames
        (lambda m: stack(m, dtype=np.float32), None),
        (lambda m: Inverted(stack(m)), None),
        (lambda m: gymnasium.wrappers.DtypeObservation(stack(m), np.uint8), None),
    ],
)
def test_which_stacks_hold_successive_frames(make, frames, module):
    assert stacked_frames(make(module)) == frames
    Inverted.stacked_frames = 4
    try:
        assert stacked_frames(Inverted(stack(module))) == 4  # said by its author
    finally:
        del Inverted.stacked_frames


@pytest.mark.slow
@pytest.mark.parametrize("padding", ["reset", "zero"])
def test_the_same_is_learnt_from_single_frames_and_from_stacks(padding, module):
    """The memory gives back whatever the wrapper shows, also what an episode begins with."""

    class Grey(module.Slides):
        observation_space = byte(20, 18)

        def observe(self):
            return self.np_random.integers(0, 256, (20, 18), np.uint8)

    def trained(*wrappers):
        env = gymnasium.wrappers.FrameStackObservation(Grey(), 4, padding_type=padding)
        for wrapper in wrappers:
            env = wrapper(env)
        sizes = {"buffer_max_size": 600, "buffer_initial_size": 60, "buffer_batch_size": 16}
        agent = operant.DQN(
            [env], model=["flatten", {"type": "dense", "size": 8}], seed=3, quiet=True, lr=0.01, **sizes
        )
        agent.fit(max_steps=200)
        assert agent.session.learner.algorithm.memory.frames == (() if wrappers else (("state", 4),))
        return jax.tree.map(np.asarray, agent.session.driver.train.state.variables)

    np.testing.assert_equal(trained(), trained(Inverted))


@pytest.mark.slow
def test_an_agent_sees_the_same_wherever_it_is_used(module, tmp_path, capsys):
    """Trained from the command line, played, loaded, exported and run: all expect, and are given, channels
    last."""
    run = str(tmp_path / "run")
    words = (
        "--n-envs 2 --n-steps 4 --mini-batches 1 --ppo-epochs 1 --max-steps 16 --eval-frequency 16 "
        "--eval-episodes 1"
    )
    command = ["train", "ppo", "--env", "channels_first:Slides", "--run-dir", run, *words.split()]
    main(command)
    main(["play", run, "--env", "channels_first:Slides", "--episodes", "1"])
    main(["reproduce", run, "--env", "channels_first:Slides"])
    agent = Agent.load(directory=run, environment=Environment.create(module.Slides))
    assert agent.spaces.states.components == {"state": IMAGE}
    agent.save(str(tmp_path / "policy"), format="stablehlo")
    policy = operant.load_policy(tmp_path / "policy")
    states = Environment.create(module.Slides).reset()
    assert policy.act(states) == agent.act(states, independent=True)
    with pytest.raises(SpaceError, match=r"shape \(20, 18, 3\).* \(3, 20, 18\)\. Channels come last here"):
        agent.act(module.picture(0), independent=True)
    agent.close()


@pytest.mark.slow
def test_a_runner_and_a_class_move_it(module):
    options = {"agent": "ppo", "n_steps": 4, "mini_batches": 1, "ppo_epochs": 1, "quiet": True}
    trainer = operant.PPO(
        [module.Slides(), module.Slides()], **{k: v for k, v in options.items() if k != "agent"}
    )
    trainer.fit(max_steps=8)
    assert trainer.session.learner.algorithm.spaces.states.components == {"state": IMAGE}
    del options["quiet"]
    runner = Runner(agent=options, environment=module.Slides, num_parallel=2)
    runner.run(num_timesteps=8)
    assert runner.agent.spaces.states.components == {"state": IMAGE}
    runner.close()


def test_what_is_declared_channels_first_is_warned_of():
    """States of the user's own structure cannot be moved: networks say how they read them."""
    declared = {"state": Leaf("float", (3, 20, 18), None, 0, 255, "uint8")}
    with pytest.warns(RuntimeWarning, match=r"'state' of shape \(3, 20, 18\) is read as 3 x 20 pixels of 18"):
        build("auto", declared, {"value": Head(())})
    build("auto", {"state": IMAGE}, {"value": Head(())})
