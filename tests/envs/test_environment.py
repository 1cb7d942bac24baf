"""`Environment.create` and what it returns: every form of specification, order of calls, limits, checks,
messages."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import gymnasium
import numpy as np
import pytest

from operant.envs import Environment, catalog, check_env
from operant.envs.native import ids
from operant.errors import EnvError, SpecError, UsageError


class Corridor(Environment):
    """Walk from 0 to `length`; reward -1 a step."""

    def __init__(self, length=3, limit=None):
        self.length, self.limit = length, limit
        self.closed = 0

    def states(self):
        return dict(type="float", shape=(1,), min_value=0.0, max_value=float(self.length))

    def actions(self):
        return dict(type="int", num_values=2)

    def max_episode_timesteps(self):
        return self.limit

    def reset(self, seed=None):
        self.place, self.seed = 0.0, seed
        return np.array([self.place], np.float32)

    def execute(self, actions):
        self.place = max(0.0, self.place + 2 * actions - 1)
        return np.array([self.place], np.float32), self.place == self.length, -1.0

    def close(self):
        self.closed += 1

    def episode_return(self, parallel=None):
        return 7.0


class Masked(Environment):
    """The allowed action moves on by one each step; the mask is not declared."""

    resets = 0

    def states(self):
        return dict(type="float", shape=(2,))

    def actions(self):
        return dict(type="int", num_values=3)

    def _answer(self):
        return dict(state=np.zeros(2, np.float32), action_mask=np.arange(3) == self.turn % 3)

    def reset(self):
        Masked.resets += 1
        self.turn = 0
        return self._answer()

    def execute(self, actions):
        assert actions == self.turn % 3, "a masked action was taken"
        self.turn += 1
        return self._answer(), self.turn == 5, 1.0


class Side(Corridor):
    """Runs several corridors side by side: slot `i` ends after `i + 1` steps."""

    def is_vectorizable(self):
        return True

    def reset(self, num_parallel=None):
        self.active, self.time = np.arange(num_parallel), 0
        return self.active, np.zeros((num_parallel, 1), np.float32)

    def execute(self, actions):
        self.time += 1
        terminal, reward = self.active < self.time, np.ones(len(self.active))
        self.active = self.active[~terminal]
        return self.active, np.zeros((len(self.active), 1), np.float32), terminal, reward


def answer(text, **answers):
    """A corridor whose reset or execute answers otherwise."""
    methods = {name: (lambda self, *args, value=value: value) for name, value in answers.items()}
    return type(text, (Corridor,), methods)()


# Forms of specification


@pytest.mark.parametrize(
    "environment",
    [
        Corridor(),
        Corridor,
        lambda: Corridor(),
        dict(environment=Corridor),
        dict(type=Corridor, length=3),
        dict(environment=dict(type=Corridor, length=3)),
    ],
)
def test_create_takes_objects_classes_functions_and_dicts(environment):
    env = Environment.create(environment)
    assert env.states() == dict(type="float", shape=[1], min_value=0.0, max_value=3.0)
    assert env.actions() == dict(type="int", num_values=2)
    assert env.max_episode_timesteps() is None
    np.testing.assert_array_equal(env.reset(), [0.0])
    states, terminal, reward = env.execute(1)
    assert (states.tolist(), terminal, reward) == ([1.0], 0, -1.0)


@pytest.mark.parametrize(
    ("environment", "kwargs"),
    [
        ("CartPole-v1", {}),
        ("CartPole", {}),
        ("gym", dict(level="CartPole-v1")),
        ("gymnasium", dict(level="CartPole-v1")),
        ("gymnasium.envs.classic_control.cartpole.CartPoleEnv", {}),
        ("gymnasium.envs.classic_control.cartpole:CartPoleEnv", {}),
        ("gymnasium.envs.classic_control:CartPole-v1", {}),
        (gymnasium.make("CartPole-v1"), {}),
        (gymnasium.envs.classic_control.CartPoleEnv, {}),
        ("jax:CartPole-v1", {}),
    ],
)
def test_create_takes_every_form_of_cartpole(environment, kwargs):
    env = Environment.create(environment, **kwargs)
    assert env.states()["shape"] == [4]
    assert env.actions() == dict(type="int", num_values=2)
    states = env.reset(seed=0)
    assert states.shape == (4,) and states.dtype == np.float32
    terminal = 0
    for _ in range(100):  # pushing one way falls within about ten steps
        if terminal:
            break
        states, terminal, reward = env.execute(0)
    assert (terminal, reward) == (1, 1.0)
    assert env.reset().shape == (4,)
    env.close()


def test_create_reads_json_files_and_follows_them(tmp_path):
    inner, outer = tmp_path / "inner.json", tmp_path / "outer.json"
    inner.write_text(json.dumps(dict(environment="CartPole-v1", max_episode_timesteps=7)))
    outer.write_text(json.dumps(dict(type=str(inner), sutton_barto_reward=True)))
    env = Environment.create(str(outer))
    assert env.max_episode_timesteps() == 7
    env.reset()
    assert env.execute(0)[2] == 0.0  # the other reward is 0 before the fall
    with pytest.raises(SpecError, match=r"'max_episode_timesteps' is given twice, as 7 and 9"):
        Environment.create(str(outer), max_episode_timesteps=9)


def test_create_leaves_the_dict_as_it_is():
    spec = dict(environment=Corridor, length=2, max_episode_timesteps=5)
    before = dict(spec)
    assert Environment.create(spec).max_episode_timesteps() == 5
    assert spec == before


def test_created_environments_pass_through_unchanged():
    env = Environment.create(Corridor(limit=9))
    assert Environment.create(env) is env
    assert Environment.create(env, max_episode_timesteps=9) is env
    with pytest.raises(
        UsageError, match=r"was created with max_episode_timesteps=9. Received: max_episode_timesteps=5"
    ):
        Environment.create(env, max_episode_timesteps=5)
    with pytest.raises(UsageError, match=r"Give reward_shaping when it is created"):
        Environment.create(env, reward_shaping=lambda *args: 0.0)
    with pytest.raises(UsageError, match=r"exists already and takes no argument 'length'"):
        Environment.create(env, length=5)


def test_attributes_are_those_within():
    env = Environment.create(Corridor)
    assert env.length == 3
    env.length = 5
    assert env.environment.length == 5
    assert env.episode_return() == 7.0
    with pytest.raises(AttributeError, match=r"no_such"):
        _ = env.no_such
    pole = Environment.create("CartPole-v1")
    pole.reset()
    assert pole.unwrapped.gravity == pole.gravity == 9.8
    pole.force_mag = 0.0  # within Gymnasium's wrappers
    assert pole.unwrapped.force_mag == 0.0


def test_what_is_set_holds_from_the_first_reset_on():
    env = Environment.create(Starting())
    assert env.spaces.masks == ()  # for which an episode began
    env.start = 2.0
    assert env.reset() == 2.0


class Starting(Corridor):
    """Has a place to start, and an attribute of a name that operant uses."""

    start, spaces = 0.0, 12

    def reset(self, seed=None):
        super().reset(seed)
        self.place = self.start
        return np.array([self.place], np.float32)


def test_attributes_of_an_environment_elsewhere_are_not_lost_in_silence():
    with Environment.create("CartPole-v1", remote="multiprocessing") as env:
        with pytest.raises(UsageError, match="'length' cannot be set on an environment elsewhere"):
            env.length = 5
        assert env.reset().shape == (4,)


# Errors in specifications


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ("CartPol-v1", r"Unknown environment 'CartPol-v1'\. Did you mean 'CartPole-v1'\?"),
        ("cartpole-v1", r"Did you mean 'CartPole-v1'\?"),
        ("jax:CartPol-v1", r"Unknown environment 'jax:CartPol-v1'\. Did you mean 'jax:CartPole-v1'\?"),
        ("cartpol-V0", r"Did you mean 'CartPole-v0'\?"),
        (
            "zzzzzz",
            "`operant list envs` shows what there is; for an id of another package, --env package:Id-v0",
        ),
        ("FlappyBird-v0", "`operant list envs` shows what there is"),  # and no guess
        ("Hopper-v2", "Environment 'Hopper-v2' misses a package: .*gymnasium-robotics"),
        ("no_such_module.Env", "The environment 'no_such_module.Env' cannot be imported"),
        ("no_such_module:Env-v0", "The module of environment 'no_such_module:Env-v0' cannot be imported"),
        (
            "tests.channels_first",
            r"must define one class .* It defines: Slides, Guide\. .* tests.channels_first:Name",
        ),
        ("tests.asking", "must define one class of an environment. It defines: none"),
        ("gym", "'gymnasium' needs the argument 'level'"),
        ("missing.json", "The environment file 'missing.json' does not exist"),
        ({}, "needs the key 'environment'. Received the keys: nothing"),
        (dict(level="CartPole-v1"), "needs the key 'environment'. Received the keys: level"),
        (None, "environment must be an id.*Received: environment=None"),
        (42, "Received: environment=42"),
        (dict, "Received: environment=<class 'dict'>"),
        (lambda: 3, "must make an Environment or a gymnasium.Env. Received: int"),
    ],
)
def test_what_is_not_understood(environment, message):
    with pytest.raises(SpecError, match=message):
        Environment.create(environment)


def test_a_module_stands_for_the_one_environment_that_it_defines(tmp_path, monkeypatch):
    (tmp_path / "walks").mkdir()
    (tmp_path / "walks" / "__init__.py").write_text("")
    (tmp_path / "walks" / "corridor.py").write_text(
        "import gymnasium\n\n\nclass Helper:\n    pass\n\n\nclass Corridor(gymnasium.Env):\n"
        "    observation_space = action_space = gymnasium.spaces.Discrete(2)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path / "walks")
    for name in ("walks.corridor", "walks.corridor.Corridor", "walks.corridor:Corridor"):
        assert Environment.create(name).name.startswith("walks.corridor"), name
    monkeypatch.syspath_prepend(str(tmp_path / "walks"))
    assert Environment.create({"environment": "corridor"}).name == "corridor:Corridor"


def test_the_installed_package_that_registers_an_id_is_named(monkeypatch, tmp_path):
    class Package:
        requires = ("numpy", "gymnasium>=0.29")

        def __init__(self, **texts):
            self.files = [tmp_path / "none.py"]
            for path, text in texts.items():
                (tmp_path / path).mkdir(parents=True)
                (tmp_path / path / "__init__.py").write_text(text)
                self.files.append(File(f"{path}/__init__.py"))

    class File(pathlib.PurePosixPath):
        def read_text(self):
            return (tmp_path / self).read_text()

    class Other(Package):
        requires = ()

    packages = [
        Package(birds='register(id="Bird-v0")\nregister(id=f"BirdOf{kind}-v0")'),
        Other(none='register(id="Fish-v0")'),
    ]
    monkeypatch.setattr(importlib.metadata, "distributions", lambda: packages)
    for id, told in (
        ("Bird-v0", "An installed package registers it: --env birds:Bird-v0$"),
        ("BirdOfPrey-v0", "registers it: --env birds:BirdOfPrey-v0$"),
        ("Birds-v0", "`operant list envs` shows"),
        ("Fish-v0", "`operant list envs` shows"),
    ):
        with pytest.raises(SpecError, match=told):
            Environment.create(id)


def test_a_module_that_raises_as_it_is_imported_is_told(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "dark_window.py").write_text("raise OSError('No display.')\n")
    for name, about in (
        ("dark_window:A-v0", "The module of environment"),
        ("dark_window:Env", "The environment"),
    ):
        with pytest.raises(
            SpecError,
            match=rf"^{about} .*cannot be imported: .*raised OSError: No display \(.*"
            r"dark_window.py, line 1: raise OSError",
        ):
            Environment.create(name)


class Old:
    """Of no interface that is known."""

    observation_space = action_space = None
    reset = step = lambda self: None


def test_another_interface_is_told_with_its_module():
    with pytest.raises(
        SpecError, match=rf"Received: {__name__}.Old. It is not of Gymnasium but of another, per"
    ):
        Environment.create(Old)


def test_unknown_arguments_are_named():
    with pytest.raises(SpecError, match=r"'Corridor' takes no argument 'lenght'\. Did you mean 'length'\?"):
        Environment.create(Corridor, lenght=3)
    with pytest.raises(
        SpecError, match=r"'CartPole-v1' takes no argument 'render_mod'\. Did you mean 'render_mode'\?"
    ):
        Environment.create("CartPole-v1", render_mod="human")
    with pytest.raises(SpecError, match=r"The time limit is given as max_episode_timesteps"):
        Environment.create("CartPole-v1", max_episode_steps=3)


def test_remote_in_a_specification_is_for_environment_create():
    with pytest.raises(
        SpecError, match=r"remote is no part of one environment's specification here.*'socket-client'"
    ):
        check_env(dict(environment="CartPole-v1", remote="socket-client", blocking=False))


# Order of calls, limits, shaping


def test_order_of_calls():
    env = Environment.create(Corridor(length=1))
    with pytest.raises(UsageError, match=r"execute was called on 'Corridor' before an episode was begun"):
        env.execute(0)
    env.reset()
    assert env.execute(1)[1] == 1
    with pytest.raises(UsageError, match=r"Call reset first, and after every terminal"):
        env.execute(1)
    env.reset()
    env.close()
    env.close()
    assert env.environment.closed == 1
    with pytest.raises(UsageError, match=r"'Corridor' is closed"):
        env.reset()


def test_the_limit_cuts_with_terminal_2():
    env = Environment.create(Corridor(limit=9), max_episode_timesteps=4)
    assert env.max_episode_timesteps() == 4
    env.reset()
    assert [env.execute(0)[1] for _ in range(4)] == [0, 0, 0, 2]
    env.reset()  # a true end at the limit stays one: 3 steps to the right after one to the left
    assert [env.execute(a)[1] for a in (0, 1, 1, 1)] == [0, 0, 0, 1]


def test_a_limit_above_the_environments_own_is_refused():
    with pytest.raises(
        SpecError,
        match=r"at most 500, the limit of 'CartPole-v1' itself. Received: max_episode_timesteps=1000",
    ):
        Environment.create("CartPole-v1", max_episode_timesteps=1000)
    with pytest.raises(SpecError, match=r"whole number of at least 1"):
        Environment.create(Corridor, max_episode_timesteps=0)
    assert Environment.create("CartPole-v1", max_episode_timesteps=500).max_episode_timesteps() == 500


def test_shaping_sees_the_step_and_may_end_the_episode():
    seen = []

    def shape(states, actions, terminal, reward, next_states):
        seen.append((states.tolist(), actions, terminal, reward, next_states.tolist()))
        return (reward * 10, 1) if next_states[0] == 2 else reward - 1

    env = Environment.create(Corridor(), reward_shaping=shape, max_episode_timesteps=2)
    env.reset()
    assert env.execute(1)[1:] == (0, -2.0)
    assert env.execute(1)[1:] == (1, -10.0)  # instead of the limit's 2, which it sees
    assert seen == [([0.0], 1, 0, -1.0, [1.0]), ([1.0], 1, 2, -1.0, [2.0])]


def test_shaping_cannot_go_beyond_the_limit():
    env = Environment.create(Corridor(), reward_shaping=lambda *step: (0.0, 0), max_episode_timesteps=2)
    env.reset()
    assert [env.execute(0)[1] for _ in range(2)] == [0, 2]


def test_shaping_strings_are_not_evaluated():
    with pytest.raises(
        SpecError, match=r"Received: reward_shaping='reward / 2'. Strings are not evaluated: pass a function"
    ):
        Environment.create(Corridor, reward_shaping="reward / 2")


# Checks of answers


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (
            dict(reset=np.zeros(2, np.float32)),
            r"reset of 'Bad' returned states that do not fit.*shape \(1,\).*shape \(2,\)",
        ),
        (dict(reset=np.array([9.0])), r"must be between 0\. and 3\.\. Received: 9.0"),
        (dict(reset=np.array([np.nan])), "must be finite. Received: nan"),
        (dict(reset=np.array(["a"])), "must be a number"),
        (dict(reset=dict(position=np.zeros(1))), "no state 'position'"),
        (
            dict(execute=(np.zeros(1), False)),
            "must return .states, terminal, reward.. Received: a tuple of 2",
        ),
        (
            dict(execute=(np.zeros(1), -1.5, False)),
            "terminal.*must be False or 0.*Received: -1.5 .float.*in this order",
        ),
        (dict(execute=(np.zeros(1), 3, 0.0)), "terminal.*or 2 for a cut episode. Received: 3"),
        (dict(execute=(np.zeros(1), 0, True)), "reward of 'Bad' must be a number. Received: True"),
        (dict(execute=(np.zeros(1), 0, None)), "reward of 'Bad' must be a number. Received: None"),
        (
            dict(execute=(np.zeros(1), 0, float("nan"))),
            "reward of 'Bad' must be finite. Received: nan at step 1",
        ),
        (
            dict(execute=(np.zeros(1), 0, -1e39)),
            "must be at most 3.4e.38 in size. Received: -1e.39 at step 1",
        ),
        (
            dict(execute=(np.full(1, np.inf), 0, 0.0)),
            r"execute of 'Bad' \(step 1 of its episode\) returned states.*must be finite",
        ),
    ],
)
def test_answers_that_break_the_contract(answers, message):
    env = Environment.create(answer("Bad", **answers))
    with pytest.raises(EnvError, match=message):
        env.reset()
        env.execute(0)


def test_an_attribute_that_misses_within_is_not_taken_for_one_of_the_wrapper():
    env = Environment.create(type("Broken", (Corridor,), dict(reset=lambda self: self.no_such)))
    with pytest.raises(EnvError, match=r"'Broken' raised AttributeError: .*no_such"):
        env.states()


def test_undeclared_masks_are_found_with_one_reset():
    Masked.resets = 0
    env = Environment.create(Masked)
    assert env.states() == {
        "state": dict(type="float", shape=[2]),
        "action_mask": dict(type="bool", shape=[3]),
    }
    assert env.spaces.masks == ("action",)
    first = env.reset()
    assert Masked.resets == 1
    assert first["action_mask"].tolist() == [True, False, False]
    states, terminal, _ = env.execute(0)
    assert states["action_mask"].tolist() == [False, True, False] and terminal == 0


def test_vectorizable_environments():
    env = Environment.create(Side, max_episode_timesteps=3)
    parallel, states = env.reset(num_parallel=5)
    assert parallel.tolist() == [0, 1, 2, 3, 4] and states.shape == (5, 1)
    parallel, _, terminal, reward = env.execute(np.zeros(5, int))
    assert (parallel.tolist(), terminal.tolist(), reward.tolist()) == (
        [1, 2, 3, 4],
        [1, 0, 0, 0, 0],
        [1.0] * 5,
    )
    env.execute(np.zeros(4, int))
    parallel, states, terminal, _ = env.execute(
        np.zeros(3, int)
    )  # slot 2 ends itself, the limit cuts 3 and 4
    assert (parallel.tolist(), states, terminal.tolist()) == ([], None, [1, 2, 2])
    with pytest.raises(UsageError, match=r"before an episode was begun"):
        env.execute([])
    with pytest.raises(UsageError, match=r"num_parallel is for vectorizable environments"):
        Environment.create(Corridor).reset(num_parallel=2)


# Ids, and what importing loads


def test_known_ids():
    rows = {row.id: row for row in catalog.known()}
    assert rows["CartPole-v1"] == ("CartPole-v1", "gymnasium", None)
    assert rows["LunarLander-v3"].extra == "box2d"
    assert rows["Ant-v5"].extra == "mujoco"
    assert rows["jax:CartPole-v1"].kind == "jax"
    assert "Hopper-v2" not in rows
    assert [row.id for row in rows.values() if row.kind == "adapter"] == ["gymnax:*", "brax:*"]


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("jax:Pendulum-v1", {"gravity": 1}, r"'jax:Pendulum-v1' takes no argument 'gravity'\. Known: g\."),
        (
            "jax:Pendulum-v1",
            {"g": "strong"},
            r"g must be a number\. Received: g='strong'\. The default is 10\.0",
        ),
        ("jax:Pendulum-v1", {"g": True}, r"g must be a number\. Received: g=True"),
        ("jax:Acrobot-v1", {"name": 1}, r"takes no argument 'name'\. It takes none\."),
        ("jax:CartPole-v1", {"sutton_barto_reward": 1}, "sutton_barto_reward must be True or False"),
    ],
)
def test_arguments_that_a_native_environment_does_not_take(name, arguments, message):
    with pytest.raises(SpecError, match=message):
        ids.make(name, **arguments)
    assert ids.make("jax:Pendulum-v1", g=3).g == 3


def test_native_ids():
    assert ids.is_native("jax:CartPole-v1") and ids.is_native("gymnax:x") and ids.is_native("brax:ant")
    assert not ids.is_native("CartPole-v1") and not ids.is_native(Corridor)
    assert ids.make("jax:CartPole-v1", max_episode_timesteps=3).max_episode_timesteps == 3
    with pytest.raises(SpecError, match=r"takes no argument 'gravity'"):
        ids.make("jax:CartPole-v1", gravity=1.0)


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        (
            "import operant.envs.workers.worker, operant.envs.vector.async_vector, "
            "operant.envs.vector.create, operant.envs.check",
            False,
        ),
        ("from operant.envs import Environment; Environment.create('CartPole-v1').reset()", False),
        ("from operant.envs import Environment; Environment.create('jax:CartPole-v1')", True),  # the control
    ],
)
def test_environments_load_neither_jax_nor_keras(statement, heavy):
    code = f"import sys; {statement}; print({{'jax', 'keras'}} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert (found.strip() != "set()") == heavy
