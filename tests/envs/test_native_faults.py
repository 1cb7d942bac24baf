"""JAX-native environments of users: what is not finite ends a run, and mistakes are told before anything
is compiled."""

from __future__ import annotations

import dataclasses
import json
import sys
import warnings
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import compile_agent

import operant
from operant import Runner, checkpoint
from operant.cli import main
from operant.envs import Environment, check_env
from operant.envs.env_spec import lacking
from operant.envs.native import native_env
from operant.envs.native.classic import CartPole
from operant.envs.native.native_env import TimeStep
from operant.envs.native.validate import AcceptedEnv, accepted
from operant.envs.vector import create
from operant.errors import EnvError, SpecError
from operant.spec.run import RunConfig
from operant.spec.spaces import Spaces
from operant.tracking import read_history
from operant.training.environments import host_vector

SMALL = {"n_steps": 4, "mini_batches": 1, "ppo_epochs": 1}
WORDS = [word for name, value in SMALL.items() for word in (f"--{name.replace('_', '-')}", str(value))]


@pytest.fixture(scope="module", autouse=True)
def module(tests_folder):
    import native_faults

    yield native_faults
    del sys.modules["native_faults"]


# What is not finite


@pytest.mark.parametrize(
    ("what", "value", "message"),
    [
        (
            "reward",
            "nan",
            r"Environment 0 of 'Breaks' \(step 5 of its episode\): The reward must be finite. Received: "
            r"nan\.",
        ),
        pytest.param(
            "reward",
            "-inf",
            r"\(step 5 of its episode\): The reward must be finite. Received: -inf\.",
            marks=pytest.mark.slow,
        ),
        (
            "state",
            "inf",
            r"\(step 5 of its episode\): The state 'count' must be finite, and not far .*: nan, inf",
        ),
        pytest.param(
            "reset",
            "nan",
            r"Environment 0 of 'Breaks' \(at a reset\): The state 'count' must be finite",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_not_finite_ends_training(module, what, value, message):
    trainer = operant.PPO(module.Breaks(what, float(value)), n_envs=2, quiet=True, seed=1, **SMALL)
    with pytest.raises(EnvError, match=message + r".*Look for a division by zero.*check_env"):
        trainer.fit(max_steps=10**6)
    assert trainer.steps <= 2 * 8192  # at the first look after it happened
    for x in jax.tree.leaves(trainer.session.driver.world.actors.observation):
        assert np.isfinite(x).all()


def test_a_vector_on_the_host_tells_what_is_not_finite(module):
    for what in ("reset", "state", "reward"):
        env = create.create(module.Breaks(what, after=1), 2)
        named = "reward" if what == "reward" else "state 'count'"
        with pytest.raises(EnvError, match=f"Environment 0 of 'Breaks': The {named} must be finite"):
            env.reset(0)
            env.step({"action": np.zeros(2, np.int32)})


def test_what_is_finite_goes_on(module):
    trainer = operant.PPO(module.Breaks(after=10), n_envs=2, quiet=True, **SMALL)
    assert trainer.fit(max_steps=100).mean_reward == 9.0


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_fails_is_saved_and_can_go_on(tmp_path, capsys, seeds):
    """The exit status tells; the history ends before it, and what goes on begins with new episodes."""
    place = tmp_path / "run"
    words = ["--n-envs", "2", "--max-steps", "1000000", "--seed", "3", "--run-dir", str(place), "--quiet"]
    command = ["train", "ppo", "--env", "native_faults:Breaks", "--env-kwargs", "what=reward", "after=6"]
    if seeds > 1:
        words += ["--n-seeds", str(seeds)]
    assert main([*command, *words, *WORDS]) == 2
    told = capsys.readouterr().err
    assert "'native_faults:Breaks' (step 6 of its episode): The reward must be finite" in told
    assert ("Seed 3: " in told) == (seeds > 1)
    for i in range(seeds):
        run = place if seeds == 1 else place / f"seed-{3 + i}"
        newest = checkpoint.latest(run / "checkpoints")
        assert checkpoint.Checkpoint(newest).header["training"]["ended"] == "failed"
        assert all(np.isfinite(reward) for reward in read_history(run / "history.parquet")["episode_reward"])
    resume = ["train", "--resume", str(run), "--env", "native_faults:Breaks", "--quiet"]
    assert main(resume) == 2
    assert "(step 6 of its episode): The reward must be finite" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 2])
def test_what_fails_in_the_first_call_tells_when(tmp_path, module, seeds):
    place = tmp_path / "run"
    words = [
        "--n-envs",
        "4",
        "--max-steps",
        "10000",
        "--seed",
        "3",
        "--run-dir",
        str(place),
        "--n-steps",
        "64",
    ]
    words += ["--n-seeds", str(seeds)] if seeds > 1 else []
    env = ["--env", "native_faults:Rare", "--quiet"]
    assert main(["train", "ppo", *env, *words]) == 2
    run, parts = place if seeds == 1 else place / "seed-3", []
    for part in range(1, 3):
        parts.append(
            checkpoint.Checkpoint(checkpoint.latest(run / "checkpoints")).header["training"]["elapsed"]
        )
        told = [json.loads(line)["time"] for line in (run / "metrics.jsonl").read_text().splitlines()]
        times = read_history(run / "history.parquet")["time"]
        assert told == parts and (np.diff(times) >= 0).all() and 0 < times[0] < times[-1] <= parts[-1]
        if part == 1:
            assert main(["train", "--resume", str(run), *env]) == 2
    assert 0 < parts[0] < parts[1]


REPLAY = ["dqn", "--buffer-max-size", "20000", "--buffer-initial-size", "64", "--train-every", "4"]
STEPS = [*REPLAY, "--n-steps", "3"]
NORMALISED = ["ppo", "--normalize-observations", "--normalize-rewards", *WORDS]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("agent", "what", "seeds"),
    [
        (REPLAY, "reward", 1),
        (STEPS, "state", 1),
        (STEPS, "reset", 1),
        (STEPS, "reward", 2),
        (NORMALISED, "reward", 1),
        (NORMALISED, "state", 2),
    ],
)
def test_what_is_not_finite_is_not_learnt_from(tmp_path, capsys, module, monkeypatch, agent, what, seeds):
    """All that is saved is finite; resumed with the environment repaired, no gradient step is left out."""
    place = tmp_path / "run"
    words = ["--env-kwargs", f"what={what}", "--n-envs", "4", "--max-steps", "10000"]
    words += ["--seed", "3", "--run-dir", str(place), "--quiet"]
    words += ["--n-seeds", str(seeds)] if seeds > 1 else []
    assert main(["train", *agent, "--env", "native_faults:Rare", *words]) == 2
    assert "must be finite" in capsys.readouterr().err
    runs = [place] if seeds == 1 else [place / f"seed-{3 + i}" for i in range(seeds)]
    for run in runs:
        leaves, header = checkpoint.load(checkpoint.latest(run / "checkpoints"))
        floats = {k: x for k, x in leaves.items() if jnp.issubdtype(x.dtype, jnp.floating)}
        assert floats and [k for k, x in floats.items() if not np.isfinite(x).all()] == []
        assert header["training"]["skipped"] == 0
        assert header["training"]["step"] == int(leaves["['train'].counters.timesteps"])
    monkeypatch.setattr(module.Rare, "broken", False)
    for run in runs:
        assert main(["train", "--resume", str(run), "--env", "native_faults:Rare", "--quiet"]) == 0
        header = checkpoint.Checkpoint(checkpoint.latest(run / "checkpoints")).header
        assert header["training"]["skipped"] == 0


@pytest.mark.parametrize("what", ["reward", "state"])
def test_a_row_that_is_not_finite_ends_its_episode(module, what):
    """As the row of a last observation does: no flag and no number of it is left, and a reset follows."""
    made = compile_agent("ppo", module.Breaks(what, after=3), 2, n_steps=8, mini_batches=1)
    train, world = made.begin(0)
    block, world = made.collect(train, world)
    count = [0, 1, 2, 3, 0, 1, 2, 3, 0]
    expected = {
        "valid": [1, 1, 0, 0, 1, 1, 0, 0], "reward": [1, 1, 0, 0, 1, 1, 0, 0],
        "terminated": [0] * 8, "truncated": [0] * 8,
    }  # fmt: skip
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(block, name), np.transpose([values, values]))
    seen = np.stack([np.zeros(9), count], axis=1)
    np.testing.assert_array_equal(block.observation["count"], np.stack([seen, seen], axis=1))
    assert world.first.all() and not world.length.any()


@pytest.mark.parametrize("what", [pytest.param("reward", marks=pytest.mark.slow), "state"])
def test_episodes_that_broke_off_are_not_counted(module, what):
    trainer = operant.PPO(module.Breaks(what, after=3), n_envs=2, quiet=True, **SMALL)
    driver = trainer.session.driver
    with pytest.raises(EnvError, match=r"\(step 3 of its episode\)"):
        driver.advance(2)
    assert driver.step == int(driver.train.counters.timesteps) == 8
    assert not driver.unreported and not driver.train.counters.episodes


def test_a_runner_tells_it_too(module):
    runner = Runner(agent={"agent": "ppo", **SMALL}, environment=module.Breaks, num_parallel=2)
    with pytest.raises(EnvError, match=r"of 'Breaks' \(step 5 of its episode\): The reward must be finite"):
        runner.run(num_timesteps=10**6)
    runner.close()


# Mistakes


@dataclasses.dataclass(frozen=True)
class Line:
    """A good one; others differ from it in one thing."""

    max_episode_timesteps: int | None = 20

    @property
    def spaces(self) -> Any:
        return Spaces.read(states={"type": "float", "shape": (1,)}, actions={"type": "int", "num_values": 2})

    def reset(self, key: Any) -> Any:
        state = {"at": jnp.zeros(1), "age": jnp.int32(0)}
        return state, {"state": state["at"]}

    def step(self, state: Any, action: Any, key: Any) -> Any:
        moved = jnp.where(action["action"] == 1, jnp.float32(1.0), jnp.float32(0.5))
        state = {"at": state["at"] + moved, "age": state["age"] + jnp.int32(1)}
        return state, TimeStep({"state": state["at"]}, state["at"][0], state["age"] > 5)


def begun(change):
    """An environment of which `reset` returns what `change` makes of state and observation."""
    return type("Begun", (Line,), {"reset": lambda self, key: change(*Line.reset(self, key))})()


def stepped(change):
    """An environment of which `step` returns what `change` makes of state, observation, reward and flag."""

    def step(self, state, action, key):
        state, (observation, reward, terminated) = Line.step(self, state, action, key)
        return change(state, observation, reward, terminated)

    return type("Stepped", (Line,), {"step": step})()


def having(**members):
    return type("Having", (Line,), members)()


def branches(self, state, action, key):
    if action["action"] == 1:
        return Line.step(self, state, action, key)
    return Line.step(self, state, action, key)


def test_a_good_one_stays_as_it_is():
    env = Line()
    assert accepted(env, "Line") is env and accepted(CartPole(), "CartPole") == CartPole()
    docs = TimeStep({"state": jnp.zeros(1)}, jnp.where(jnp.bool_(True), 1.0, -0.1), jnp.bool_(False))
    plain = stepped(lambda s, o, r, t: (s, docs))
    assert accepted(plain, "Line") is plain  # a reward may be of a Python number


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (begun(lambda s, o: o), r"reset of 'X' must return \(state, observation\)\. Received: .*dict"),
        (
            begun(lambda s, o: (s, o, {})),
            r"reset of 'X' must return \(state, observation\)\. Received: a tuple of 3",
        ),
        (
            begun(lambda s, o: (s, o["state"])),
            r"reset of 'X' returned an observation that does not fit its spaces: It must be \{'state': "
            r"float32\[1\]\}\. Received: float32\[1\]",
        ),
        (
            begun(lambda s, o: (s, {"obs": o["state"]})),
            r"It must be \{'state': float32\[1\]\}\. Received: \{'obs': float32\[1\]\}\. Correct one or the "
            r"other",
        ),
        (
            begun(lambda s, o: (s, {"state": s["at"][0]})),
            r"reset of 'X' .* The state must be float32\[1\]\. Received: float32\[\]\. Correct",
        ),
        (
            begun(lambda s, o: (s, {"state": [0.0]})),
            r"The state must be float32\[1\]\. Received: a list of 1",
        ),
        (
            begun(lambda s, o: ({**s, "name": "x"}, o)),
            r"reset of 'X' must return a state of arrays\. Received: state\['name'\] of 'x' \(str\)",
        ),
        (
            stepped(lambda s, o, r, t: (s, o, r, t)),
            r"step of 'X' must return \(state, TimeStep\(observation, reward, terminated\)\), with "
            r"TimeStep of operant\.envs\.native\.native_env\. Received: a tuple of 4",
        ),
        (
            stepped(lambda s, o, r, t: (s, (o, r, t))),
            r"step of 'X' must return .* Received: \(state, a tuple of 3\)",
        ),
        (stepped(lambda s, o, r, t: None), r"step of 'X' must return .* Received: None"),
        (
            stepped(lambda s, o, r, t: (s, TimeStep(o, s["at"], t))),
            r"step of 'X': The reward must be a number of shape \(\)\. Received: float32\[1\]",
        ),
        (
            stepped(lambda s, o, r, t: (s, TimeStep(o, "much", t))),
            r"step of 'X': The reward must be a number .* Received: 'much' \(str\)",
        ),
        (
            stepped(lambda s, o, r, t: (s, TimeStep(o, t, r))),
            r"step of 'X': The reward must be a number of shape \(\)\. Received: bool\[\]",
        ),
        (
            stepped(lambda s, o, r, t: (s, TimeStep(o, r, s["age"]))),
            r"The flag terminated must be True or False of shape \(\)\. Received: int32\[\]",
        ),
        (
            stepped(lambda s, o, r, t: (s, TimeStep({"state": jnp.zeros(2)}, r, t))),
            r"step of 'X' returned an observation .* The state must be float32\[1\]\. Received: float32\[2\]",
        ),
        (
            stepped(lambda s, o, r, t: ({"at": s["at"]}, TimeStep(o, r, t))),
            r"step of 'X' must return a state of the same structure as reset and the step before\. "
            r"Received: one without state\['age'\]",
        ),
        (
            stepped(lambda s, o, r, t: ({**s, "new": r}, TimeStep(o, r, t))),
            r"Received: one with state\['new'\]",
        ),
        (
            stepped(lambda s, o, r, t: (s["at"], TimeStep(o, r, t))),
            r"Received: one without state\['age'\], without state\['at'\], with state",
        ),
        (
            stepped(lambda s, o, r, t: ({**s, "age": r}, TimeStep(o, r, t))),
            r"step of 'X' must return a state of the same shapes and dtypes as reset\. Received: "
            r"state\['age'\] of float32\[\], where reset returned int32\[\]",
        ),
        (
            stepped(lambda s, o, r, t: ({**s, "at": r}, TimeStep(o, r, t))),
            r"Received: state\['at'\] of float32\[\], where reset returned float32\[1\]",
        ),
        (
            stepped(lambda s, o, r, t: ({**s, "age": s["age"] * 0.5}, TimeStep(o, r, t))),
            r"Received: state\['age'\] of float32\[\], where reset returned int32",
        ),
        (
            stepped(lambda s, o, r, t: s["speed"]),
            r"step of 'X' raised KeyError: 'speed' \(.*test_native_faults.py, line \d+: .*\)\. It is called "
            r"as step\(state, \{'action': int32\[\]\}, key\)",
        ),
        (
            having(step=branches),
            r"step of 'X' raised TracerBoolConversionError: Attempted boolean conversion of traced array "
            r"with shape bool\[\].*line \d+: if action.*decide by jax.numpy.where",
        ),
        (
            having(reset=lambda self: None),
            r"reset of 'X' raised TypeError: .*takes 1 positional argument but 2 were given.*called as "
            r"reset\(key\)",
        ),
        (
            having(spaces=3),
            r"spaces of 'X' must be a property that returns Spaces\.read\(states=\.\.\., actions=\.\.\.\)\. "
            r"Received: 3 \(int\)",
        ),
        (having(spaces=lambda self: None), r"spaces of 'X' must be a property .* Received: <bound method"),
        (Line(max_episode_timesteps=0.5), r"max_episode_timesteps must be"),
    ],
)
@jax.numpy_dtype_promotion("standard")
def test_mistakes_are_told(env, message):
    """By the name of the method, what it returned and what is expected; the drivers' fronts ask."""
    with pytest.raises((EnvError, SpecError), match=f"(?s){message}"):
        accepted(env, "X")
    named = message.replace("'X'", repr(type(env).__name__))
    with pytest.raises((EnvError, SpecError), match=f"(?s){named}"):
        operant.PPO(env, n_envs=2)
    with pytest.raises((EnvError, SpecError)):
        create.create(env, 2)


@jax.numpy_dtype_promotion("standard")
def test_complex_numbers_do_not_lose_their_imaginary_part():
    seen = stepped(lambda s, o, r, t: (s, TimeStep({"state": o["state"] * (1 + 2j)}, r, t)))
    with pytest.raises(EnvError, match=r"The state must be float32\[1\]\. Received: complex64\[1\]"):
        accepted(seen, "X")

    def step(self, state, action, key):
        reward = action["action"] * jnp.float32(1.0)
        return jnp.float32(1.0), TimeStep({"state": jnp.zeros(1)}, reward, jnp.bool_(False))

    state = having(reset=lambda self, key: (2j, {"state": jnp.zeros(1)}), step=step)
    with pytest.raises(EnvError, match=r"same shapes and dtypes as reset\. Received: state of float32"):
        accepted(state, "X")


def test_a_byte_is_not_made_of_what_may_not_fit():
    image = property(
        lambda self: Spaces.read({"shape": (1,), "dtype": "uint8"}, {"type": "int", "num_values": 2})
    )
    env = type("Grey", (Line,), {"spaces": image})()
    with pytest.raises(
        EnvError,
        match=r"The state must be uint8\[1\]\. Received: float32\[1\]\. Convert it: x\.astype\('uint8'\)",
    ):
        accepted(env, "Grey")


@dataclasses.dataclass(frozen=True)
class Loose:
    """Python numbers where arrays are meant: in the state, the observation, the reward and the flag."""

    max_episode_timesteps: int | None = 6

    @property
    def spaces(self) -> Any:
        states = {"age": {"type": "float"}, "kind": {"type": "int", "num_values": 3}}
        return Spaces.read(states, {"type": "int", "num_values": 2})

    def reset(self, key: Any) -> Any:
        return (0, 0, 1.5), {"age": 0, "kind": 1}

    def step(self, state: Any, action: Any, key: Any) -> Any:
        age, ticks, start = state
        return (age + 0.5, ticks + 1, start), TimeStep({"age": ticks + 1, "kind": 2}, 1.0, False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:step of 'Loose' makes no use of its action")
@jax.numpy_dtype_promotion("standard")
def test_python_numbers_become_arrays():
    env = accepted(Loose(), "Loose")
    assert (
        isinstance(env, AcceptedEnv) and env == accepted(Loose(), "Loose") and accepted(env, "Loose") is env
    )
    assert [str(x) for x in env.dtypes] == ["float32", "int32", "float32"]
    actors = native_env.start(env, jax.random.key(0), 2)
    assert actors.observation["age"].dtype == jnp.float32 and not actors.state[0].weak_type
    actors, row = native_env.step(env, actors, {"action": jnp.zeros(2, jnp.int32)}, jax.random.key(0))
    np.testing.assert_array_equal(actors.state[0], [0.5, 0.5])
    np.testing.assert_array_equal(row.observation["age"], [1.0, 1.0])
    trainer = operant.PPO(Loose(), n_envs=2, quiet=True, **SMALL)
    assert trainer.fit(max_steps=64).mean_reward == 6.0
    envs = create.create(Loose(), 2)
    envs.reset(0)
    np.testing.assert_array_equal(envs.step({"action": np.zeros(2, np.int32)}).reward, [1.0, 1.0])


class Half:
    """Lacks what makes it an environment."""

    def reset(self, key: Any) -> Any:
        return None

    def step(self, state: Any, action: Any, key: Any) -> Any:
        return None


class Raises(Half):
    max_episode_timesteps = None

    @property
    def spaces(self) -> Any:
        return self.declared


def test_what_is_lacking_is_named():
    assert lacking(Line()) == lacking(3) == lacking(Half) == ""
    for given in (Half, Half()):
        with pytest.raises(
            SpecError, match="To be a JAX-native environment it lacks spaces and max_episode_timesteps"
        ):
            operant.PPO(given, n_envs=2)
    with pytest.raises(SpecError, match=r"it lacks spaces \('Raises' object has no attribute 'declared'\)"):
        operant.PPO(Raises(), n_envs=2)
    of_gymnasium = Half()
    of_gymnasium.action_space = gymnasium.spaces.Discrete(2)
    with pytest.raises(
        SpecError, match=r"It has a space of Gymnasium: derive its class from gymnasium\.Env\."
    ):
        operant.PPO(of_gymnasium, n_envs=2)


class Compares(Line):
    """Compares all actions, a dict, with a number."""

    def step(self, state, action, key):
        return Line.step(self, state, {"action": jnp.int32(action == 1)}, key)


def test_an_environment_that_makes_no_use_of_its_action_is_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        accepted(Line(), "line")
    with pytest.warns(
        RuntimeWarning,
        match=r"step of 'line' makes no use of its action, .*Read its components by name: action\['action'\]",
    ):
        accepted(Compares(), "line")


FROM = {
    "states": {"near": {"type": "int", "num_values": 5, "min_value": 3}, "far": {"type": "float"}},
    "actions": {"type": "int", "shape": (2,), "min_value": (-1, 10), "num_values": 3},
}


@dataclasses.dataclass(frozen=True)
class CountsOn:
    """Declares integers that do not begin with 0, and returns as a reward what its action is."""

    max_episode_timesteps: int | None = 6

    @property
    def spaces(self) -> Any:
        return Spaces.read(**FROM)

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), {"near": jnp.int32(3), "far": jnp.float32(0)}

    def step(self, state: Any, action: Any, key: Any) -> Any:
        first, second = action["action"]
        reward = (100 * first + second).astype(jnp.float32)
        return state + 1, TimeStep({"near": 3 + state % 5, "far": jnp.float32(0)}, reward, jnp.bool_(False))


class CountsOnTheHost(Environment):
    def states(self):
        return FROM["states"]

    def actions(self):
        return FROM["actions"]

    def max_episode_timesteps(self):
        return 6

    def reset(self, seed=None):
        self.state = 0
        return {"near": 3, "far": 0.0}

    def execute(self, actions):
        self.state += 1
        return {"near": 3 + (self.state - 1) % 5, "far": 0.0}, False, float(100 * actions[0] + actions[1])


@pytest.mark.slow
def test_integers_count_from_where_they_are_declared():
    """Both kinds of environment see the same actions, and show the same states."""
    seen = []
    for env in (CountsOn(), CountsOnTheHost):
        with create.create(env, 1) as made:
            first = made.reset(0)["near"].tolist()
            answers = [made.step({"action": np.asarray([[i, 2 - i]], np.int32)}) for i in range(3)]
            seen.append((first, [(a.observation["near"].tolist(), a.reward.tolist()) for a in answers]))
    assert seen[0] == seen[1] == ([0], [([0], [-88.0]), ([1], [11.0]), ([2], [110.0])])
    assert not any(
        "must be" in fault for fault in check_env(CountsOn())
    )  # of ranges: it is random in nothing
    run = RunConfig.from_dict({"env": "x", "max_steps": 1, "max_episode_timesteps": 3})
    with host_vector(run, 1, CountsOn()) as made:  # under a time limit of the run's
        assert made.reset(0)["near"].tolist() == [0]
        assert made.step({"action": np.asarray([[0, 2]], np.int32)}).reward.tolist() == [-88.0]
    env = accepted(CountsOn(), "CountsOn")
    assert accepted(env, "CountsOn") is env == accepted(CountsOn(), "CountsOn")
    trainer = operant.PPO(CountsOn(), n_envs=2, quiet=True, **SMALL)
    trainer.fit(max_steps=64)
    # Six rewards 100 a + b with b from 10 to 12, whatever was chosen; counted from 0, b is 2 at most.
    assert trainer.total_rewards and all(60 <= reward % 100 <= 72 for reward in trainer.total_rewards)


@dataclasses.dataclass(frozen=True)
class Maze(Line):
    """Has an array, and so no hash."""

    grid: Any = None


@pytest.mark.slow
def test_an_environment_without_a_hash_trains_and_plays(tmp_path):
    with pytest.raises(TypeError, match="unhashable"):
        hash(Maze(grid=np.eye(3)))
    maze = Maze(grid=np.eye(3))
    assert accepted(maze, "Maze") == accepted(maze, "Maze") != accepted(Maze(grid=np.eye(3)), "Maze")
    trainer = operant.PPO(
        Maze(grid=np.eye(3)), n_envs=2, quiet=True, eval_frequency=32, eval_episodes=2, **SMALL
    )
    trainer.fit(max_steps=64)
    assert trainer.evaluated.step > 32
    assert len(trainer.play(episodes=2).rewards) == 2
    assert all("raised" not in fault for fault in check_env(Maze(grid=np.eye(3))))
