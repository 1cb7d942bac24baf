"""What counts as a step and as an update: the same in every driver, however short episodes are."""

import dataclasses
import functools

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from operant import DDPG, DQN, PPO, Agent, Runner
from operant.envs.native.native_env import TimeStep
from operant.spec.spaces import Spaces
from operant.tracking import read_history

STEPS, EVERY, INITIAL = 400, 8, 60
UPDATES = STEPS // EVERY - -(-INITIAL // EVERY) + 1
"""At 64, 72 ... 400 steps: 43."""
NET = [{"type": "dense", "size": 4}]
REPLAY = {
    "buffer_max_size": 500,
    "buffer_initial_size": INITIAL,
    "buffer_batch_size": 4,
    "train_every": EVERY,
}
LENGTHS = [1, 2, 5, 1000]
CHOICE = {
    "int": {"type": "int", "num_values": 2},
    "float": {"type": "float", "min_value": -1, "max_value": 1},
}


class Episodes(gymnasium.Env):
    """Episodes of one length, each step a reward of 1."""

    def __init__(self, length, action="int"):
        self.length, self.steps = length, 0
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = (
            gymnasium.spaces.Discrete(2) if action == "int" else gymnasium.spaces.Box(-1, 1, (), np.float32)
        )

    def reset(self, *, seed=None, options=None):
        self.left = self.length
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.steps, self.left = self.steps + 1, self.left - 1
        return np.zeros(3, np.float32), 1.0, self.left == 0, False, {}


@dataclasses.dataclass(frozen=True)
class NativeEpisodes:
    """The same, JAX-native."""

    length: int
    action: str = "int"
    max_episode_timesteps: int | None = None

    @functools.cached_property
    def spaces(self):
        return Spaces.read({"type": "float", "shape": (3,)}, CHOICE[self.action])

    def reset(self, key):
        return jnp.int32(self.length), {"state": jnp.zeros(3)}

    def step(self, state, action, key):
        reward = jnp.float32(1) + 0.0 * action["action"].astype(jnp.float32)
        return state - jnp.int32(1), TimeStep({"state": jnp.zeros(3)}, reward, state == 1)


def options(name):
    models = {"ddpg": {"actor_model": NET, "critic_model": NET}}
    return {**REPLAY, **models.get(name, {"model": NET})}


def by_hand(name, length):
    state, action = {"type": "float", "shape": (3,)}, CHOICE["float" if name == "ddpg" else "int"]
    agent = Agent.create(
        agent=name, states=state, actions=action, max_episode_timesteps=1000, seed=1, **options(name)
    )
    for step in range(1, STEPS + 1):
        agent.act(np.zeros(3, np.float32))
        agent.observe(reward=1.0, terminal=step % length == 0)
    return agent.timesteps, agent.updates, STEPS


def by_runner(name, length):
    env = Episodes(length, "float" if name == "ddpg" else "int")
    runner = Runner(
        agent={"agent": name, "seed": 1, **options(name)}, environment=env, max_episode_timesteps=1000
    )
    runner.run(num_timesteps=STEPS)
    agent = runner.agent
    result = agent.timesteps, agent.updates, env.steps
    runner.close()
    return result


def trained(env, name):
    agent = {"dqn": DQN, "ddpg": DDPG}[name](
        env if isinstance(env, NativeEpisodes) else [env], n_envs=1, quiet=True, seed=1, **options(name)
    )
    agent.fit(max_steps=STEPS)
    train = agent.session.driver.train
    counters = train.counters
    agent.close()
    return int(counters.timesteps), int(counters.updates), getattr(env, "steps", int(counters.timesteps))


def by_host_driver(name, length):
    return trained(Episodes(length, "float" if name == "ddpg" else "int"), name)


def by_device_driver(name, length):
    return trained(NativeEpisodes(length, "float" if name == "ddpg" else "int"), name)


WAYS = [by_hand, by_runner, by_host_driver, by_device_driver]
SELDOM = (1, 5)
"""Lengths with which only the exhaustive tests try every way, beside those that are tried often."""
OFTEN = {("dqn", by_hand, 1), ("dqn", by_host_driver, 1), ("ddpg", by_device_driver, 2)}


@pytest.mark.parametrize(
    ("name", "way", "length"),
    [
        pytest.param(
            *case,
            marks=[] if case in OFTEN else pytest.mark.exhaustive if case[2] in SELDOM else pytest.mark.slow,
        )
        for case in [(name, way, length) for name in ("dqn", "ddpg") for way in WAYS for length in LENGTHS]
    ],
)
def test_an_update_follows_every_so_many_environment_steps(name, way, length):
    """Neither the warm-up nor rows that only hold last observations count."""
    timesteps, updates, taken = way(name, length)
    # A block of rows ends up to 7 rows after the step that made an update due.
    assert STEPS - 1 <= timesteps <= STEPS + EVERY and taken - 1 <= timesteps <= taken
    assert UPDATES - 1 <= updates <= UPDATES + 1


@pytest.mark.parametrize("length", [1, pytest.param(2, marks=pytest.mark.slow), 5])
def test_a_unit_of_timesteps_is_one_of_environment_steps(length):
    """Rows of a modular agent's batch are those of its newest steps, each in one update."""
    agent = Agent.create(
        agent="tensorforce", update=EVERY, optimizer={"optimizer": "adam", "learning_rate": 1e-3},
        objective="policy_gradient", reward_estimation={"horizon": 1}, network=NET, seed=1,
        states={"type": "float", "shape": (3,)}, actions=CHOICE["int"], max_episode_timesteps=1000,
    )  # fmt: skip
    for step in range(1, STEPS + 1):
        agent.act(np.zeros(3, np.float32))
        agent.observe(reward=1.0, terminal=step % length == 0)
    assert STEPS // EVERY - 1 <= agent.updates <= STEPS // EVERY


@pytest.mark.parametrize(
    "make",
    [lambda: [Episodes(3), Episodes(3)], pytest.param(lambda: NativeEpisodes(3), marks=pytest.mark.slow)],
)
def test_as_many_whole_rollouts_are_run_as_the_limit_has_room_for(make):
    agent = PPO(make(), n_envs=2, n_steps=16, mini_batches=2, model=NET, quiet=True, seed=1)
    agent.fit(max_steps=64)
    counters = agent.session.driver.train.counters
    assert (int(counters.rows), int(counters.updates)) == (32, 2)
    assert int(counters.timesteps) == 48  # of each four rows one holds a last observation
    agent.fit(max_steps=96)
    assert int(agent.session.driver.train.counters.rows) == 48
    agent.fit(max_steps=100)  # no whole number of rollouts: it is reached
    counters = agent.session.driver.train.counters
    assert (int(counters.rows), int(counters.timesteps)) == (80, 120)
    agent.close()


def test_random_episodes_of_the_warm_up_enter_no_mean(tmp_path):
    agent = DQN(
        [Episodes(5)], quiet=True, seed=1, history_checkpoint=str(tmp_path / "h.parquet"), **options("dqn")
    )
    agent.fit(max_steps=100)
    agent.close()
    history = read_history(tmp_path / "h.parquet")
    filling = history["step"] <= INITIAL
    assert filling.sum() == 12 and len(filling) == 20
    assert np.isnan(history["mean_reward"][filling]).all() and np.isnan(history["best_reward"][filling]).all()
    assert (history["mean_reward"][~filling] == 5.0).all()


def test_a_run_that_ends_in_the_warm_up_has_no_mean(capsys):
    agent = DQN([Episodes(5)], seed=1, **options("dqn"))
    agent.fit(max_steps=40)
    agent.close()
    assert np.isnan(agent.mean_reward) and "nan" not in capsys.readouterr().out
