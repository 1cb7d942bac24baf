"""Adapters of other libraries' functional environments: with small fakes always, with the real ones where
installed."""

import dataclasses
import importlib
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.experimental.functional import FuncEnv

from operant.cli import main
from operant.envs.native import native_env
from operant.envs.native.functional import from_brax, from_functional, from_gymnax
from operant.envs.native.native_env import NativeEnv
from operant.envs.native.native_vector import NativeVector
from operant.errors import SpecError

STEP = jax.jit(native_env.step, static_argnums=0)
foreign = pytest.mark.filterwarnings("ignore")  # of the libraries, on import


def importable(package, reason):
    return lambda: pytest.importorskip(package, reason=reason, exc_type=ImportError)


gymnax = importable("gymnax", "gymnax is not installed (pip install 'operant[gymnax]')")
brax = importable("brax.envs", "brax is not installed (pip install 'operant[brax]')")
flax = importable("flax", "flax is not installed; Gymnasium's phys2d environments need it")


class Walk(FuncEnv):
    """A walk by -1, 0 or 1 that terminates at +-2.

    Written carelessly: Python numbers, mixed types, a reused key.
    """

    observation_space = spaces.Dict(
        {"at": spaces.Box(-2, 2, (1,), np.float32), "parity": spaces.Discrete(2, start=5)}
    )
    action_space = spaces.Discrete(3, start=-1)

    def initial(self, rng, params=None):
        jax.random.uniform(rng)
        return {"at": jax.random.randint(rng, (), 0, 2), "age": 0}

    def transition(self, state, action, rng, params=None):
        return {"at": state["at"] + action, "age": state["age"] + 1.0}

    def observation(self, state, rng, params=None):
        return {"at": (state["at"] * 1.0)[None], "parity": 5 + jnp.abs(state["at"]) % 2}

    def reward(self, state, action, next_state, rng, params=None):
        return next_state["at"] - 0.5 * (next_state["age"] > 2)

    def terminal(self, state, rng, params=None):
        return jnp.abs(state["at"]) >= 2


def test_functional_by_hand():
    """Stored actions 0, 1, 2 are the steps -1, 0, 1; the stored parity is 5 less than Gymnasium's."""
    env = from_functional(Walk(), max_episode_timesteps=3)
    assert isinstance(env, NativeEnv)
    assert env.spaces.actions.components["action"].num_values == 3
    actors = native_env.start(env, jax.random.key(0), 8)
    at = np.asarray(actors.observation["at"])[:, 0]
    assert set(at) == {0, 1}
    np.testing.assert_array_equal(actors.observation["parity"], at % 2)
    assert actors.state["age"].dtype == jnp.float32  # as it goes on: a whole number would stay one
    assert not actors.state["age"].weak_type
    key = jax.random.key(0)
    # one step up: 1 or 2, and 2 terminates; rewards 1 and 2
    actors, row = STEP(env, actors, {"action": jnp.full(8, 2)}, key)
    np.testing.assert_array_equal(row.observation["at"][:, 0], at + 1)
    np.testing.assert_array_equal(row.reward, at + 1)
    np.testing.assert_array_equal(row.terminated, at == 1)
    # the others stay for two steps: the third step pays 1 - 0.5 and is cut by the limit
    _, row = STEP(
        env,
        STEP(env, actors, {"action": jnp.ones(8, jnp.int32)}, key)[0],
        {"action": jnp.ones(8, jnp.int32)},
        key,
    )
    np.testing.assert_array_equal(row.reward[at == 0], 0.5)
    np.testing.assert_array_equal(row.truncated, at == 0)
    assert not row.terminated[at == 0].any()


class Rolling(Walk):
    """Begins with whole numbers, as a careless one does, and goes on with fractions."""

    observation_space = spaces.Box(-2, 2, (2,), np.float32)
    action_space = spaces.Discrete(3)

    def initial(self, rng, params=None):
        return {"at": jnp.array([0, 0]), "speed": 0, "turns": 0}

    def transition(self, state, action, rng, params=None):
        speed = state["speed"] + 0.25
        return {"at": state["at"] + 0.5 * state["speed"], "speed": speed, "turns": state["turns"] + 1}

    def observation(self, state, rng, params=None):
        return state["at"] * 1.0

    def reward(self, state, action, next_state, rng, params=None):
        return 0

    def terminal(self, state, rng, params=None):
        return False


def test_fractions_of_a_state_that_begins_with_whole_numbers_stay():
    env = from_functional(Rolling())
    actors = native_env.start(env, jax.random.key(0), 2)
    for _ in range(3):
        actors, row = STEP(env, actors, {"action": jnp.zeros(2, jnp.int32)}, jax.random.key(0))
    np.testing.assert_array_equal(row.observation["state"], np.full((2, 2), 0.5 * (0.25 + 0.5)))
    assert actors.state["turns"].dtype == jnp.int32


class Masked(Walk):
    """Two choices of unequal counts, masked by one vector."""

    observation_space = spaces.Dict(x=spaces.Box(-2, 2, (1,), np.float32), action_mask=spaces.MultiBinary(5))
    action_space = spaces.MultiDiscrete([3, 2])

    def transition(self, state, action, rng, params=None):
        return {"at": state["at"] + action[0] - 1, "age": state["age"] + 1}

    def observation(self, state, rng, params=None):
        return {"x": (state["at"] * 1.0)[None], "action_mask": jnp.array([1, 0, 1, 1, 0], jnp.int8)}


def test_a_mask_of_one_vector_is_that_of_each_choice():
    env = from_functional(Masked())
    observation = native_env.start(env, jax.random.key(0), 2).observation
    np.testing.assert_array_equal(observation["0_mask"], [[True, False, True]] * 2)
    np.testing.assert_array_equal(observation["1_mask"], [[True, False]] * 2)


@pytest.mark.parametrize("make", [jax.random.key, jax.random.PRNGKey, partial(jax.random.key, impl="rbg")])
@jax.debug_key_reuse(False)  # which sees keys of rbg pass into `Walk`
def test_every_kind_of_key(make):
    for env in (from_functional(Walk()), from_gymnax(Counter()), from_brax(Slide())):
        state, observation = jax.jit(env.reset)(make(3))
        (name, leaf), *_ = env.spaces.actions.components.items()
        action = {name: jnp.zeros(leaf.shape, leaf.storage)}
        following, _ = jax.jit(env.step)(state, action, make(4))
        assert jax.eval_shape(lambda s=state: s) == jax.eval_shape(lambda s=following: s)
    assert observation["state"].shape == (2,)


def test_equal_keys_of_both_kinds_give_equal_streams():
    env = from_functional(Walk())
    old, new = (jax.jit(env.reset)(make(5))[1] for make in (jax.random.PRNGKey, jax.random.key))
    np.testing.assert_array_equal(old["at"], new["at"])


@dataclasses.dataclass
class Params:
    max_steps_in_episode: int = 3

    def replace(self, **changes):
        return dataclasses.replace(self, **changes)


class Counter:
    """In the shape of gymnax: counts up by the action, terminates at 4.

    `step` and `reset` must not be called.
    """

    default_params = Params()

    def observation_space(self, params):
        return SimpleNamespace(low=0.0, high=jnp.finfo(jnp.float32).max, shape=(2,), dtype=jnp.float32)

    def action_space(self, params):
        return SimpleNamespace(n=3, shape=(), dtype=jnp.int32)

    def reset_env(self, key, params):
        state = {"count": 0, "time": 0}
        return self.observe(state), state

    def step_env(self, key, state, action, params):
        state = {"count": state["count"] + action, "time": state["time"] + 1}
        return self.observe(state), state, action * 2, self.terminated(state, params), {}

    def observe(self, state):
        return jnp.array([state["count"], state["time"]])

    def terminated(self, state, params):
        return state["count"] >= 4

    def is_truncated(self, state, params):
        return state["time"] >= params.max_steps_in_episode


class OldCounter(Counter):
    """Before gymnax 1.0: the flag of `step_env` is a termination or the time limit."""

    is_truncated = property()  # hasattr is False

    def is_terminal(self, state, params):
        return self.terminated(state, params) | (state["time"] >= params.max_steps_in_episode)

    def step_env(self, key, state, action, params):
        observation, state, reward, _, info = super().step_env(key, state, action, params)
        return observation, state, reward, self.is_terminal(state, params), info


@dataclasses.dataclass(frozen=True)
class CraftParams:
    """Has the limit by another name, and no `replace`."""

    max_timesteps: int = 3


class CraftCounter(OldCounter):
    """In the shape of Craftax."""

    default_params = CraftParams()

    def is_terminal(self, state, params):
        return self.terminated(state, params) | (state["time"] >= params.max_timesteps)


class EndlessCounter(OldCounter):
    default_params = ()

    def is_terminal(self, state, params):
        return self.terminated(state, params)


@pytest.mark.parametrize("counter", [Counter(), OldCounter(), CraftCounter()])
def test_gymnax_shape_keeps_termination_truncation_and_last_observation(counter):
    env = from_gymnax(counter)
    assert env.max_episode_timesteps == 3
    leaf = env.spaces.states.components["state"]
    np.testing.assert_array_equal(leaf.high, np.inf)  # the largest float means none
    host, actions = NativeVector(env, 2), {"action": np.array([1, 2])}
    np.testing.assert_array_equal(host.reset(0)["state"], 0)
    stream = [host.step(actions) for _ in range(5)]
    # actor 0 counts 1 2 3 and is cut, actor 1 counts 2 4 and terminates; then the row of the reset, reward 0
    np.testing.assert_array_equal(
        [row[0]["state"][:, 0] for row in stream], [[1, 2], [2, 4], [3, 0], [0, 2], [1, 4]]
    )
    np.testing.assert_array_equal([row[1] for row in stream], [[2, 4], [2, 4], [2, 0], [0, 4], [2, 4]])
    np.testing.assert_array_equal([row[2] for row in stream], [[0, 0], [0, 1], [0, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal([row[3] for row in stream], [[0, 0], [0, 0], [1, 0], [0, 0], [0, 0]])


class Warped(EndlessCounter):
    """Has a part that `vmap` leaves as it is, shared by all: as the contacts of MuJoCo Warp."""

    def reset_env(self, key, params):
        observation, state = super().reset_env(key, params)
        return observation, {**state, "shared": shared(jnp.zeros(()))}

    def step_env(self, key, state, action, params):
        observation, following, *rest = super().step_env(key, state, action, params)
        return observation, {**following, "shared": shared(state["count"] * 1.0)}, *rest


@jax.custom_batching.custom_vmap
def shared(x):
    return jnp.zeros(5)


@shared.def_vmap
def _(axis_size, in_batched, x):
    return jnp.zeros(5), False


def test_what_all_environments_share_stays_as_it_is():
    host = NativeVector(from_gymnax(Warped()), 2)
    host.reset(0)
    stream = [host.step({"action": np.array([1, 2])}) for _ in range(4)]
    np.testing.assert_array_equal([row[0]["state"][:, 0] for row in stream], [[1, 2], [2, 4], [3, 0], [4, 2]])


def test_gymnax_limit_and_params_can_be_given():
    assert from_gymnax(EndlessCounter()).max_episode_timesteps is None
    assert from_gymnax(Counter(), max_episode_timesteps=7).max_episode_timesteps == 7
    assert from_gymnax(Counter(), params=Params(9)).max_episode_timesteps == 9
    assert from_gymnax(Counter(), params={"max_steps_in_episode": 8}).max_episode_timesteps == 8
    with pytest.raises(SpecError, match=r"has no 'max_step'. Known: max_steps_in_episode"):
        from_gymnax(Counter(), params={"max_step": 8})
    with pytest.raises(SpecError, match="max_steps_in_episode must be a number. Received: .*='x'"):
        from_gymnax(Counter(), params={"max_steps_in_episode": "x"})


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class State:
    obs: Any
    reward: Any
    done: Any
    metrics: dict
    info: dict


class Slide:
    """In the shape of brax: moves by the action, ends beyond 1, and writes into the state that it is
    given."""

    action_size = 1

    @property
    def unwrapped(self):
        return self

    def reset(self, rng):
        rng, draw = jax.random.split(rng)
        obs = jnp.stack([jax.random.uniform(draw, maxval=0.1), 0.0])
        return State(obs, jnp.zeros(()), jnp.zeros(()), {"alive": jnp.zeros(())}, {"rng": rng})

    def step(self, state, action):
        obs = state.obs + jnp.array([action[0], 1])
        state.metrics.update(alive=1.0)
        done = jnp.where(obs[0] > 1, 1.0, 0.0)
        return dataclasses.replace(state, obs=obs, reward=obs[0], done=done)


class Wrapped:
    """What brax's training wrappers do: replace the last observation."""

    action_size = 1

    def __init__(self, env):
        self.unwrapped = env


@pytest.mark.parametrize("make", [Slide, lambda: Wrapped(Slide())])
def test_brax_shape_keeps_termination_truncation_and_last_observation(make):
    env = from_brax(make(), max_episode_timesteps=4)
    (leaf,) = env.spaces.actions.components.values()
    assert (leaf.shape, float(leaf.low[0]), float(leaf.high[0])) == ((1,), -1.0, 1.0)
    host = NativeVector(env, 2)
    first = host.reset(0)["state"][:, 0]
    # actor 0 moves by 0.6 and is beyond 1 after two steps; actor 1 moves back by 5, clipped to 1
    stream = [host.step({"action": np.array([[0.6], [-5.0]])}) for _ in range(5)]
    np.testing.assert_allclose(stream[1][0]["state"][:, 0], first + np.array([1.2, -2.0]), rtol=1e-5)
    np.testing.assert_array_equal([row[2] for row in stream], [[0, 0], [1, 0], [0, 0], [0, 0], [1, 0]])
    np.testing.assert_array_equal([row[3] for row in stream], [[0, 0], [0, 0], [0, 0], [0, 1], [0, 0]])
    assert 0 <= stream[2][0]["state"][0, 0] <= 0.1
    assert stream[2][0]["state"][0, 0] != first[0]


def test_user_mistakes_name_the_remedy(monkeypatch):
    with pytest.raises(SpecError, match=r"env must be a gymnasium.experimental.functional.FuncEnv"):
        from_functional(gymnasium.Env())
    with pytest.raises(SpecError, match="max_episode_timesteps must be a whole number of at least 1"):
        from_functional(Walk(), max_episode_timesteps=0)
    lacking = "of its form. Received: types.SimpleNamespace, without reset_env, step_env, default_params, obs"
    with pytest.raises(SpecError, match=lacking):
        from_gymnax(SimpleNamespace())
    with pytest.raises(SpecError, match="environment of brax.*gymnasium.core.Env, without action_size"):
        from_brax(gymnasium.Env())
    with pytest.raises(SpecError, match="Build the environment with it"):
        from_brax(Slide(), backend="spring")
    monkeypatch.setitem(sys.modules, "gymnax", None)
    monkeypatch.setitem(sys.modules, "brax.envs", None)
    with pytest.raises(SpecError, match=r"The package 'gymnax' is needed.*pip install 'operant\[gymnax\]'"):
        from_gymnax("CartPole-v1")
    with pytest.raises(SpecError, match=r"The package 'brax' is needed.*pip install 'operant\[brax\]'"):
        from_brax("ant")


def play(env, n, rows, value=0):
    """Run rows with one constant action; fields stacked to [rows, n, ...]."""
    (name, leaf), *_ = env.spaces.actions.components.items()
    action = {name: jnp.full((n, *leaf.shape), value, leaf.storage)}
    key = jax.random.key(0)

    def body(actors, _):
        return native_env.step(env, actors, action, key)

    return jax.device_get(
        jax.jit(lambda: jax.lax.scan(body, native_env.start(env, key, n), length=rows)[1])()
    )


@foreign
@pytest.mark.parametrize("name", ["CartPole", "Pendulum"])
def test_real_gymnasium_functional(name):
    """Next states equal those of the library's own functions, outside of any adapter."""
    flax()
    module = importlib.import_module(f"gymnasium.envs.phys2d.{name.lower()}")
    peer = getattr(module, f"{name}Functional")()
    env = from_functional(peer, max_episode_timesteps=20)
    rows = play(env, 4, 50)
    assert rows.truncated.any() == (name == "Pendulum")
    assert rows.terminated.any() == (name == "CartPole")
    state, _ = env.reset(jax.random.key(1))
    action = jnp.int32(1) if name == "CartPole" else jnp.ones(1)
    with jax.numpy_dtype_promotion("standard"):
        expected = peer.transition(state, action, None, peer.default_params)
    following, step = env.step(state, {"action": action}, jax.random.key(2))
    np.testing.assert_allclose(following, expected)
    np.testing.assert_allclose(step.observation["state"], peer.observation(expected, None))


@foreign
@pytest.mark.slow
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Catch-bsuite", "FourRooms-misc"])
def test_real_gymnax(name):
    gymnax()
    env = from_gymnax(name, max_episode_timesteps=12)
    rows = play(env, 4, 40)
    expected = {k: (v.shape, v.storage) for k, v in env.spaces.observation_components.items()}
    assert {k: (v.shape[2:], v.dtype) for k, v in rows.observation.items()} == expected
    assert rows.truncated.any() or rows.terminated.any()
    assert not (rows.truncated & rows.terminated).any()


@foreign
def test_real_gymnax_unknown_name():
    gymnax()
    with pytest.raises(SpecError, match="Did you mean 'CartPole-v1'"):
        from_gymnax("CartPole-v7")


@foreign
@pytest.mark.slow
def test_real_brax():
    brax()
    env = from_brax("inverted_pendulum", backend="spring", max_episode_timesteps=6)
    rows = play(env, 2, 9)
    np.testing.assert_array_equal(rows.truncated[:, 0], [0, 0, 0, 0, 0, 1, 0, 0, 0])
    last, fresh = rows.observation["state"][5, 0], rows.observation["state"][6, 0]
    assert rows.reward[6, 0] == 0
    assert np.abs(fresh).max() <= 0.011  # brax starts it within 0.01 of rest
    assert (last != fresh).all()


@pytest.mark.slow
@foreign
def test_real_brax_unknown_name_and_mutated_state():
    brax()
    with pytest.raises(SpecError, match="Unknown brax environment 'nope'"):
        from_brax("nope")
    env = from_brax("ant", backend="spring")  # its step writes Python numbers into the state's metrics
    state, _ = jax.eval_shape(env.reset, jax.random.key(0))
    following, _ = jax.eval_shape(
        env.step, state, {"action": jax.ShapeDtypeStruct((8,), jnp.float32)}, jax.random.key(0)
    )
    assert following == state


@foreign
@pytest.mark.parametrize("method", ["reset", "step"])
def test_what_an_environment_of_gymnax_raises_is_named_before_anything_is_compiled(
    method, tmp_path, monkeypatch, capsys
):
    gymnax()
    from gymnax.environments.misc.bernoulli_bandit import BernoulliBandit

    def raising(*arguments):
        return jnp.zeros(())[0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(BernoulliBandit, f"{method}_env", raising)
    assert main(["train", "ppo", "--env", "gymnax:BernoulliBandit-misc", "--max-steps", "64"]) == 2
    error = capsys.readouterr().err
    assert f"{method} of 'gymnax:BernoulliBandit-misc' raised IndexError: Too many indices" in error
    assert f"{Path(__file__).name}, line {raising.__code__.co_firstlineno + 1}: return jnp" in error
    assert "Traceback" not in error and not (tmp_path / "runs").exists()
