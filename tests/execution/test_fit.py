"""The algorithm classes: `PPO(envs, model).fit(...)`."""

from __future__ import annotations

import contextlib
import inspect
import json
import signal
import sys
import threading
import types

import gymnasium
import jax
import numpy as np
import optax
import pytest
from tests.training.small_runs import opened

import operant
from operant import ModelReader, checkpoint
from operant.agents.table import AGENTS, config_class
from operant.envs.native.classic import CartPole
from operant.envs.vector import create
from operant.errors import CheckpointError, EnvError, MismatchError, SpecError, UsageError
from operant.execution.trainers.arguments import ReplayBuffer1, ReplayBuffer2, refuse_shared_weights
from operant.execution.trainers.inputs import create_envs
from operant.execution.trainers.trainer import CLASSES, trainer
from operant.memory import Replay
from operant.spec import options
from operant.tracking import read_history
from operant.training.environments import host_vector
from operant.training.reproduce import ReproduceConfig, reproduce

CFG = operant.agents["a2c"]["model"]["ann"][0]
NET = [{"type": "dense", "size": 16}]
SMALL = {"n_steps": 16, "mini_batches": 2, "ppo_epochs": 1, "quiet": True, "seed": 1}


def keras_model():
    from operant.nn.backend import keras

    k = keras()
    entry = k.Input((4,))
    x = k.layers.Dense(16, activation="tanh")(entry)
    return k.Model(entry, [k.layers.Dense(2)(x), k.layers.Dense(1)(x)])


def test_keras_models_that_share_weights_are_refused():
    """Each network is trained by itself; the last one written back would overwrite the other's."""
    from operant.nn.backend import keras

    k = keras()
    state, action, encoder = k.Input((3,)), k.Input((1,)), k.layers.Dense(4, name="encoder")
    actor = k.Model(state, k.layers.Dense(1, activation="tanh")(encoder(state)))
    critic = k.Model([state, action], k.layers.Dense(1)(k.layers.Concatenate()([encoder(state), action])))
    with pytest.raises(SpecError, match="actor_model and critic_model share the weights 'encoder/kernel'"):
        operant.DDPG("Pendulum-v1", actor, critic, quiet=True)
    encoder.trainable = False  # so that nothing overwrites them
    refuse_shared_weights({"actor_model": actor, "critic_model": critic})
    refuse_shared_weights({"actor_model": k.Model, "critic_model": keras_model})  # what makes models


@pytest.fixture(scope="module")
def trained():
    """A class that has trained a Keras model in two calls."""
    model = keras_model()
    before = [np.array(w) for w in model.get_weights()]
    agent = operant.PPO(create_envs("CartPole-v1", 2, preprocess=False), model, lr=0.01, **SMALL)
    first = agent.fit(max_steps=300)
    second = agent.fit(max_steps=600)
    yield agent, model, before, first, second
    agent.close()


def test_every_algorithm_has_a_class():
    for name, agent in CLASSES.items():
        made = getattr(operant, name)
        assert made is trainer(name) and made.__name__ == name and made.agent == agent
        assert all(f"{option}: " in made.__doc__ for option in options(config_class(agent)))
        assert name in dir(operant)
    assert {entry.cls for entry in AGENTS.values()} == set(CLASSES)
    everything = {}
    exec("from operant import *", everything)
    assert (
        everything.keys() >= {*CLASSES, "Agent", "agents", "create_envs"} and everything["PPO"] is operant.PPO
    )
    with pytest.raises(AttributeError, match="has no attribute 'PPOO'"):
        _ = operant.PPOO
    with pytest.raises(SpecError, match=r"no algorithm class 'PPOO'.*PPO"):
        trainer("PPOO")


def test_a_class_closes_its_environments_behind_a_with_block():
    env = gymnasium.make("CartPole-v1")
    closed = []
    env.close = lambda: closed.append(True)
    with operant.PPO([env], quiet=True) as agent:
        assert agent.act(np.zeros(4)) in (0, 1) and not closed
    assert closed == [True]


def test_fit_goes_on_where_it_stopped(trained):
    agent, _, _, first, second = trained
    assert (first.reason, second.reason) == ("max_steps", "max_steps")
    assert 280 <= first.step < 340 and 560 <= second.step < 640
    assert agent.steps == second.step and agent.games == second.episodes > first.episodes
    assert second.seconds > first.seconds and agent.elapsed == second.seconds
    assert agent.total_rewards and agent.mean_reward == pytest.approx(np.mean(agent.total_rewards))
    assert agent.best_reward >= agent.mean_reward


def test_the_given_keras_model_holds_the_trained_weights(trained):
    agent, model, before, _, _ = trained
    after = model.get_weights()
    assert all((a != b).any() for a, b in zip(after, before, strict=True))
    variables = agent.session.driver.train.state.variables["params"]
    kernels = [np.asarray(x) for name, x in variables.items() if x.shape == (4, 16)]
    np.testing.assert_array_equal(kernels[0], after[0])


def test_the_target_ends_it_at_once(trained):
    agent = trained[0]
    steps = agent.steps
    assert agent.fit(target_reward=-1000.0, max_steps=steps + 10_000).reason in ("target", "max_steps")
    assert agent.fit(max_steps=agent.steps).step == agent.steps


def test_fit_needs_a_reason_to_stop(trained):
    with pytest.raises(UsageError, match="`target_reward` or `max_steps` should be specified"):
        trained[0].fit()


def test_save_with_a_format_says_who_writes_it(trained):
    with pytest.raises(UsageError, match=r"Received: format='onnx'.*Agent.load\(directory=...\).save\("):
        trained[0].save("policy", format="onnx")
    with pytest.raises(UsageError, match="save needs the argument 'directory'"):
        trained[0].save()


def test_a_number_alone_and_words_of_other_libraries_are_told_what_to_use(trained):
    agent = trained[0] if isinstance(trained, tuple) else trained
    with pytest.raises(
        UsageError, match=r"by name: fit\(max_steps=500\) for steps, fit\(target_reward=500\)"
    ):
        agent.fit(500)
    for wrong in (lambda record: None, lambda: None):
        with pytest.raises(SpecError, match="callback must be a function of this object and a record"):
            agent.fit(max_steps=10, callback=wrong)
    with pytest.raises(AttributeError, match=r"has no attribute 'predict'\. Use act\(observation\)\."):
        _ = agent.predict
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'\.$"):
        _ = agent.nothing
    assert not hasattr(agent, "config")


def test_what_a_class_was_made_with_are_attributes(trained):
    agent, model = trained[:2]
    assert agent.model is model and len(agent.envs) == agent.n_envs == 2 and agent.n_actions == 2
    assert agent.gamma == 0.99 and agent.lr == 0.01 and isinstance(agent.seed, int)
    assert agent.buffers is None and agent.n_steps == SMALL.get("n_steps", 128)


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)])
def test_a_request_to_terminate_ends_the_program_when_all_is_saved(number, tmp_path):
    agent = operant.A2C("jax:CartPole-v1", NET, n_envs=2, run_dir=str(tmp_path / "run"), quiet=True)
    asked = []

    def ask(*_):
        if not asked:
            asked.append(number)
            signal.raise_signal(number)

    if number == signal.SIGINT:
        assert agent.fit(max_steps=10**9, callback=ask).reason == "interrupted"
    else:
        with pytest.raises(SystemExit) as ended:
            agent.fit(max_steps=10**9, callback=ask)
        assert ended.value.code == 143
    assert checkpoint.latest(tmp_path / "run" / "checkpoints") is not None
    assert agent.fit(max_steps=agent.steps + 10).reason == "max_steps"
    agent.close()


@pytest.mark.parametrize("widths", [np.array([24, 16]), np.array([24.0, 16.0]), [24.0, 16.0]])
def test_widths_are_whole_numbers_however_they_are_written(widths):
    with contextlib.closing(operant.PPO("CartPole-v1", widths, **SMALL)) as agent:
        kernels = [
            x.shape for x in jax.tree.leaves(agent.session.driver.train.state.variables) if x.ndim == 2
        ]
        assert (4, 24) in kernels and (24, 16) in kernels


@pytest.mark.slow
def test_widths_go_with_what_the_algorithm_uses_else(tmp_path):
    """As 'auto' does: relu in SAC, layer normalisation in PQN; a checkpoint holds them as they were given."""
    agent = operant.PPO("CartPole-v1", [24, 16], **SMALL)
    agent.save(tmp_path)
    loaded = operant.Agent.load(tmp_path)
    assert loaded.get_specification()["agent"]["model"] == [24, 16]
    assert "(None, 24)" in loaded.get_architecture() and "(None, 16)" in loaded.get_architecture()
    agent.close()
    agent = operant.SAC("Pendulum-v1", [24, 16], [32], quiet=True)
    actor, critic = (agent.session.learner.algorithm.models[name].spec for name in ("actor", "critic1"))
    assert actor == {"type": "auto", "size": (24, 16), "activation": "relu"}
    assert critic == {"type": "auto", "size": (32,), "activation": "relu"}
    agent.close()
    agent = operant.PQN("CartPole-v1", [24], quiet=True)
    (model,) = agent.session.learner.algorithm.models.values()
    assert model.spec == {"type": "auto", "size": (24,), "norm": "layer"}
    agent.close()


@pytest.mark.slow
def test_buffers_are_summed_up():
    shares = [ReplayBuffer1(500, initial_size=20, batch_size=4), ReplayBuffer2(300, 5, initial_size=30)]
    envs = create_envs("CartPole-v1", 2, preprocess=False)
    agent = operant.DQN(envs, NET, shares, double=True, quiet=True, seed=1)
    config = agent.session.definition.config
    sizes = (config.buffer_max_size, config.buffer_initial_size, config.buffer_batch_size)
    assert sizes == (800, 50, 36) and config.double
    assert agent.fit(max_steps=80).step == 80
    agent.close()


def test_batches_that_are_counted_per_environment_anyway_are_not_summed_up():
    shares = [ReplayBuffer1(64, initial_size=20, batch_size=16) for _ in range(4)]
    envs = create_envs("CartPole-v1", 4, preprocess=False)
    agent = operant.ACER(envs, NET, shares, quiet=True, seed=1)
    config = agent.session.definition.config
    assert (config.buffer_max_size, config.buffer_batch_size) == (256, 16)
    agent.close()


@pytest.mark.slow
def test_a_jax_native_environment_trains_compiled_and_keeps_the_time_limit():
    agent = operant.PPO(CartPole(), NET, n_envs=2, max_episode_timesteps=7, **SMALL)
    assert agent.session.environments.native is not None
    agent.fit(max_steps=200)
    assert agent.games > 20 and max(agent.total_rewards) <= 7
    agent.close()


@pytest.mark.slow
def test_a_vector_of_operants_own_is_trained_in_as_it_is():
    given = create.create("CartPole-v1", 2, max_episode_timesteps=30)
    with pytest.raises(SpecError, match="eval_envs must be other objects than those that train"):
        operant.PPO(given, NET, eval_frequency=10, eval_envs=given)
    agent = operant.PPO(given, NET, **SMALL)  # which the refusal has left open
    outcome = agent.fit(max_steps=200)
    assert agent.session.environments.vector is given and agent.run_config.n_envs == 2
    assert 200 <= outcome.step < 250 and outcome.episodes
    agent.close()
    with pytest.raises(UsageError, match="is closed"):
        given.reset()


@pytest.mark.slow
def test_an_id_of_a_game_is_preprocessed():
    pytest.importorskip("ale_py", reason="ale-py is not installed")
    agent = operant.PPO("PongNoFrameskip-v4", "auto", n_envs=1, preprocess=True, **SMALL)
    shapes = {leaf.shape for leaf in agent.session.learner.algorithm.spaces.states.components.values()}
    assert shapes == {(84, 84, 4)}
    agent.close()
    with pytest.raises(SpecError, match=r"^Cannot use --preprocess for non-atari.*give preprocess=False\.$"):
        create_envs("CartPole-v1", 2)
    with pytest.raises(SpecError, match=r"preprocess is for an id.*create_envs"):
        operant.PPO(create_envs("CartPole-v1", preprocess=False), NET, preprocess=True, **SMALL)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 0}, "size must be a whole number of at least 1. Received: size=0"),
        ({"size": 10, "initial_size": 11}, r"initial_size must be at most size \(10\)"),
        ({"size": 10, "batch_size": 32}, r"batch_size must be at most size \(10\)"),
    ],
)
def test_buffers_check_their_sizes(arguments, message):
    with pytest.raises(SpecError, match=message):
        ReplayBuffer1(**{"batch_size": 1, **arguments})


def test_an_agent_of_the_table_brings_its_fixed_options():
    assert operant.agents["dqn"]["agent"] is operant.DQN
    assert {name: operant.agents[name]["agent"].agent for name in AGENTS} == {name: name for name in AGENTS}
    cls = operant.agents["double_dqn"]["agent"]
    assert issubclass(cls, operant.DQN)
    agent = cls("CartPole-v1", NET, ReplayBuffer1(64, batch_size=4), quiet=True, seed=1)
    assert agent.session.definition.config.double
    agent.close()


def test_none_is_a_value_of_what_may_be_none_and_else_the_default():
    agent = operant.PPO(
        "CartPole-v1", None, grad_norm=None, history_checkpoint=None, weights=None, quiet=True, seed=None
    )
    config = agent.session.definition.config
    assert (config.grad_norm, config.model, agent.run_config.history_checkpoint) == (None, "auto", None)
    assert config_class("ppo")().grad_norm is not None
    agent.close()
    for name in ("lr", "learning_rate"):
        with pytest.raises(SpecError, match="lr must be"):
            operant.PPO("CartPole-v1", NET, **{name: None})
    with pytest.raises(UsageError, match="PPO got 'lr' twice, once as 'learning_rate'"):
        operant.PPO("CartPole-v1", NET, lr=1e-3, learning_rate=1e-3)
    buffered = operant.DQN("CartPole-v1", NET, ReplayBuffer1(64), buffer_initial_size=None, quiet=True)
    assert buffered.session.definition.config.buffer_initial_size == 64
    buffered.close()


def test_an_optimizer_of_ones_own_has_no_learning_rate_to_lower():
    agent = operant.PPO("CartPole-v1", NET, optimizer="sgd", divergence_monitoring_steps=0, quiet=True)
    agent.close()
    with pytest.raises(
        SpecError, match=r"which an optax transformation keeps to itself.*by name or as a dict"
    ):
        operant.PPO("CartPole-v1", NET, optimizer=optax.sgd(0.1), divergence_monitoring_steps=0)


def same(one, other):
    """Whether two trees hold the same arrays."""
    return all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


@pytest.mark.slow
def test_weights_are_written_also_where_no_episode_ended(tmp_path, capsys):
    """There is no mean reward that could choose them.

    But who asked for files has some, and never loses better ones.
    """
    path = tmp_path / "net.tf"
    agent = operant.A2C("Pendulum-v1", NET, checkpoints=[str(path)], seed=1)
    saved = []
    for steps in (10, 20):
        agent.fit(max_steps=steps)
        assert agent.games == 0
        saved.append(checkpoint.load(path)[0])
        assert f"the last weights were written to {path}" in capsys.readouterr().out
    now = agent.session.learner.algorithm.weights(agent.session.driver.train.state)["model"]
    agent.close()
    assert not same(saved[0], saved[1])
    assert same(checkpoint.load(path, now)[0], now)
    other = operant.A2C("Pendulum-v1", NET, checkpoints=[str(path)], seed=2)
    other.fit(max_steps=10)
    assert not same(checkpoint.load(path)[0], saved[1])  # of which nobody knew whether they are better
    other.session.weights.save(other.session.driver.train)
    judged = checkpoint.load(path)[0]
    capsys.readouterr()
    other.fit(max_steps=20)
    other.close()
    assert f"a mean return to judge by: {path} left as before" in capsys.readouterr().out
    assert same(checkpoint.load(path)[0], judged)


@pytest.mark.slow
def test_weights_go_to_an_empty_folder(tmp_path):
    agent = operant.A2C("Pendulum-v1", NET, checkpoints=[str(tmp_path)], n_envs=1, quiet=True)
    agent.fit(max_steps=10)
    agent.close()
    assert checkpoint.is_checkpoint(tmp_path)


@pytest.mark.slow
def test_weights_that_no_evaluation_judged_are_told_so(tmp_path, capsys):
    """In a run with evaluations these choose the weights, whatever training's episodes came to."""
    path = tmp_path / "net.tf"
    agent = operant.A2C("CartPole-v1", NET, checkpoints=[str(path)], eval_frequency=10**6, seed=1)
    agent.fit(max_steps=200)
    agent.close()
    assert agent.games > 0
    assert "ended before there was an evaluation to judge by: the last weights" in capsys.readouterr().out
    assert checkpoint.is_checkpoint(path)


def test_weights_are_told_of_once_where_a_trial_is_reported_to(tmp_path, capsys):
    class Trial:
        def report(self, value, step):
            pass

        def should_prune(self):
            return False

    path = tmp_path / "net.tf"
    agent = operant.A2C("Pendulum-v1", NET, checkpoints=[str(path)], trial=Trial(), seed=1)
    agent.fit(max_steps=60)
    agent.close()
    assert capsys.readouterr().out.count("to judge by") == 1


@pytest.mark.slow
def test_weights_of_a_policy_of_floats_load_into_a_reader_model(tmp_path):
    """Its learned deviation stands beside the network, which has no place for it."""
    path, file = str(tmp_path / "net.tf"), "ann-actor-critic.cfg"
    model = ModelReader(file, [1, 1], (3,), "adam").build_model()
    agent = operant.A2C("Pendulum-v1", model, checkpoints=[path], quiet=True, seed=1)
    agent.fit(max_steps=1000)
    saved, _ = checkpoint.load(path)
    assert any("log_std/constant" in name for name in saved)
    fresh = ModelReader(file, [1, 1], (3,)).build_model()
    fresh.load_weights(path)
    kernel = next(x for name, x in saved.items() if "kernel" in name)
    assert any(np.array_equal(kernel, w) for w in fresh.get_weights())
    agent.close()


@pytest.mark.slow
def test_weights_with_means_of_observations_say_where_they_belong(tmp_path):
    path, model = str(tmp_path / "net.tf"), ModelReader(CFG, [2, 1], (4,), "adam").build_model()
    agent = operant.A2C("CartPole-v1", model, normalize_observations=True, checkpoints=[path], quiet=True)
    agent.fit(max_steps=600)
    agent.close()
    with pytest.raises(
        MismatchError,
        match=r"missing: (?s:.*)another network: give .* --model.*normalize_observations and preprocess",
    ):
        operant.A2C("CartPole-v1", NET, weights=[path], quiet=True).fit(max_steps=5)
    with pytest.raises(CheckpointError, match=r"normalize_observations=True, weights=\['.*net.tf'\]"):
        model.load_weights(path)


def compiled_models(*optimizers):
    """Return an actor and a critic for Pendulum."""
    from operant.nn.backend import keras

    k, made = keras(), []
    for size, optimizer in zip((3, 4), optimizers, strict=True):
        entry = k.Input((size,))
        made.append(k.Model(entry, k.layers.Dense(1)(entry)))
        made[-1].compile(optimizer=optimizer)
    return made


def test_actor_and_critic_may_be_compiled_with_learning_rates_of_their_own():
    from operant.nn.backend import keras

    adam = keras().optimizers.Adam
    models = compiled_models(adam(1e-4), adam(1e-3))
    agent = operant.DDPG("Pendulum-v1", *models, ReplayBuffer1(64, batch_size=4), quiet=True, seed=1)
    config = agent.session.definition.config
    assert (config.lr, config.critic_lr) == pytest.approx((1e-4, 1e-3))
    agent.close()
    agent = operant.DDPG("Pendulum-v1", *models, learning_rate=0.5, quiet=True, seed=1)
    assert agent.session.definition.config.lr == 0.5
    agent.close()
    with pytest.raises(
        SpecError, match=r"different optimizers.*learning rates of actor and critic may differ"
    ):
        operant.DDPG("Pendulum-v1", *compiled_models(adam(1e-4), adam(1e-3, beta_1=0.5)), quiet=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            lambda: operant.DQN("CartPole-v1", NET, ReplayBuffer1(64), batch_size=8),
            "buffer_batch_size is given twice, by itself and by buffers. Give one of them.",
        ),
        (
            lambda: operant.DQN("CartPole-v1", NET, [ReplayBuffer1(64)], n_envs=4),
            "one for each environment. Received: 1 for 4 environments",
        ),
        (
            lambda: operant.PPO([gymnasium.make("CartPole-v1")] * 4),
            "environments 0 and 1 are the same 'CartPole-v1'",
        ),
        (lambda: operant.PPO([]), "envs must be at least one environment"),
        *(
            (
                lambda envs=envs: operant.PPO(envs),
                f"envs must be an id, an environment, its class or .*Received: envs={envs!r}",
            )
            for envs in (None, 5)
        ),
        (
            lambda: operant.PPO("MlpPolicy", "CartPole-v1"),
            "Received: envs='MlpPolicy'. Leave it out: networks follow from the obs",
        ),
        (
            lambda: operant.PPO("CartPole-v1", NET, [], quiet=True),
            "PPO takes envs, model. Received: 3 positional",
        ),
        (lambda: operant.PPO("CartPole-v1", NET, model=NET), "got 'model' twice"),
        (lambda: operant.PPO("CartPole-v1", max_steps=10), "max_steps is no argument of the class"),
        (lambda: operant.PPO("CartPole-v1", n_stepps=10), "n_stepps.*n_steps"),
        (lambda: operant.DQN("CartPole-v1", NET, [7]), "buffers must be a list of ReplayBuffer1"),
        (lambda: operant.PPO("CartPole-v1", NET, checkpoints=["a", "b"]), r"checkpoints must be 1 path\(s\)"),
        (
            lambda: operant.PPO("CartPole-v1", NET, weights="ppo.tf"),
            "weights must be a list. Received: weights='ppo.tf'",
        ),
        (
            lambda: operant.PPO([gymnasium.make("CartPole-v1")], env_kwargs={"a": 1}),
            r"env_kwargs is for an id or a class.*Give it where they are made: gymnasium.make",
        ),
        (lambda: operant.PPO("CartPole-v1", env_kwargs={"a": object()}), "env_kwargs must be plain data"),
        (
            lambda: operant.PPO("CartPole-v1", env_kwargs=[1]),
            r"env_kwargs must be a dict. Received: env_kwargs=\(1,\)",
        ),
        (
            lambda: operant.PPO(create.create("CartPole-v1", 2), n_envs=3),
            r"^n_envs must be 2, as many as the vector has. Received: n_envs=3",
        ),
        (
            lambda: operant.PPO(gymnasium.make("CartPole-v1"), n_envs=2),
            r"^n_envs must be 1, as many as the object has. Received: n_envs=2. Leave it out, or",
        ),
        (
            lambda: operant.PPO([gymnasium.make("CartPole-v1")], n_envs=2),
            r"^n_envs must be 1, as many as the list has. Received: n_envs=2",
        ),
        *(
            (lambda envs=envs: operant.PPO(envs, n_envs=0), "^n_envs must be at least 1. Received: n_envs=0")
            for envs in ("CartPole-v1", "jax:CartPole-v1", CartPole)
        ),
        (
            lambda: operant.PPO(create.create("CartPole-v1", 2), max_episode_timesteps=9),
            "'CartPole-v1' is a vector already. Received: max_episode_timesteps=9",
        ),
        (lambda: create_envs("CartPole-v1", 0, preprocess=False), "n must be a whole number of at least 1"),
        (lambda: create_envs("CartPole-v1", preprocess=False, max_frame=True), "max_frame must be False"),
        (
            lambda: create_envs("CartPole-v1", 1, True, 4),
            "max_frame must be True or False. Received: max_frame=4",
        ),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises((SpecError, UsageError), match=message):
        arguments()


@pytest.mark.parametrize("load", [operant.PPO.load, operant.TD3.load])
@pytest.mark.parametrize("arguments", [{}, {"env": "CartPole-v1"}])
def test_load_of_a_class_says_what_to_do_instead(load, arguments, tmp_path):
    with pytest.raises(
        UsageError,
        match=r"load is called on an object.*Class\(envs, \.\.\.\).*agent\.load.*Agent\.load\(directory=",
    ):
        load(str(tmp_path), **arguments)
    assert list(inspect.signature(load).parameters) == ["self", "directory"] and "checkpoint" in load.__doc__


@pytest.mark.slow
def test_arguments_of_the_environment(tmp_path):
    """They hold wherever the run's environment is made again."""
    given = {"is_slippery": False, "desc": ["SF", "FG"]}
    agent = operant.PPO(
        "FrozenLake-v1",
        NET,
        env_kwargs=given,
        run_dir=str(tmp_path / "run"),
        quiet=True,
        n_steps=8,
        vector="in-process",  # a busy machine may choose worker processes
    )
    agent.fit(max_steps=8)
    assert agent.session.environments.vector.spaces.states.components["state"].num_values == 4
    assert agent.play(max_steps=5).rewards in ([], [0.0], [1.0])
    agent.close()
    session, run = opened(tmp_path / "run")
    session.environments.close()
    for vector in (session.environments.vector, host_vector(run, 2)):
        made = vector.envs[0].env.unwrapped
        assert made.desc.tolist() == [[b"S", b"F"], [b"F", b"G"]] and len(made.P[0][0]) == 1
        vector.close()


@pytest.mark.slow
def test_files_of_a_run_and_weights_to_start_from(tmp_path):
    history, weights = tmp_path / "h.parquet", tmp_path / "ppo.tf"
    agent = operant.PPO(
        "CartPole-v1", NET, n_envs=2, checkpoints=[str(weights)], history_checkpoint=str(history), **SMALL
    )
    agent.fit(max_steps=400)
    agent.fit(max_steps=800)
    assert len(read_history(history)["step"]) == agent.games
    again = operant.PPO("CartPole-v1", NET, n_envs=2, weights=[str(weights)], **SMALL)
    saved = checkpoint.load(weights, again.session.driver.train.state.variables)[0]["params"]
    for name, value in again.session.driver.train.state.variables["params"].items():
        np.testing.assert_array_equal(value, saved[name])
    agent.close()
    again.close()


class Trial:
    def __init__(self, limit):
        self.limit, self.reports = limit, []

    def report(self, value, step):
        self.reports.append((value, step))

    def should_prune(self):
        return len(self.reports) >= self.limit


@pytest.mark.slow
def test_a_trial_is_told_and_may_end_it(monkeypatch):
    class TrialPruned(Exception):  # noqa: N818 - the name that Optuna gives it
        pass

    monkeypatch.setitem(sys.modules, "optuna", types.SimpleNamespace(TrialPruned=TrialPruned))
    trial = Trial(2)
    agent = operant.PPO("CartPole-v1", NET, n_envs=2, trial=trial, **SMALL)
    with pytest.raises(UsageError, match="An Optuna trial needs max_steps"):
        agent.fit(target_reward=400)
    with pytest.raises(TrialPruned):
        agent.fit(max_steps=20_000)
    assert [step for _, step in trial.reports] == [1_000, 2_000]  # whatever the clock says
    assert agent.steps < 2_100
    trial.limit = 100
    agent.fit(max_steps=2_400)
    steps = [step for _, step in trial.reports]
    assert steps[2] > 1_900 and steps[-1] == 2_400 and len(set(steps)) == len(steps) <= 22
    agent.close()


@pytest.mark.slow
def test_a_block_longer_than_the_way_between_reports_is_told_once():
    """Under each report stands what a policy is worth there: others that go by smaller steps are compared
    with it."""
    told, trial = [], Trial(100)
    trial.report = lambda value, step: told.append((step, agent.session.driver.step))
    with operant.PPO(
        "CartPole-v1", NET, n_envs=2, trial=trial, **{**SMALL, "n_steps": 512, "mini_batches": 1}
    ) as agent:
        agent.fit(max_steps=5_000)
    assert all(step - 100 < reached < step + 250 for step, reached in told[:-1]), told
    assert told[-1][0] == 5_000 and len(told) == 6


class Breaks(gymnasium.Wrapper):
    """An environment that fails for good after some steps."""

    left = 700

    def step(self, action):
        self.left -= 1
        if self.left < 0:
            raise RuntimeError("out of order")
        return self.env.step(action)


@pytest.mark.slow
def test_a_checkpoint_without_memory_empties_that_of_the_object(tmp_path):
    """Like one that has learnt nothing: rows of what was learnt after the checkpoint are none of its
    experience."""
    small = {"n_envs": 2, "buffer_max_size": 500, "buffer_initial_size": 50, "save_memory": False, "seed": 3}
    used, fresh = (operant.DQN("jax:CartPole-v1", NET, quiet=True, **small) for _ in range(2))
    used.fit(max_steps=100)
    used.save(str(tmp_path))
    used.fit(max_steps=300)
    for agent in (used, fresh):
        agent.load(str(tmp_path))
        agent.fit(max_steps=220)
    states = [agent.session.driver.train for agent in (used, fresh)]
    assert Replay.rows(states[0].memory) == Replay.rows(states[1].memory) > 50
    jax.tree.map(np.testing.assert_array_equal, *[train.state for train in states])


@pytest.mark.slow
def test_what_was_learnt_before_an_error_is_saved(tmp_path):
    env = Breaks(gymnasium.make("CartPole-v1"))
    agent = operant.PPO([env], NET, run_dir=str(tmp_path), **SMALL)
    with pytest.raises(EnvError, match="out of order"):
        agent.fit(max_steps=5000)
    header = checkpoint.Checkpoint(checkpoint.latest(tmp_path / "checkpoints")).header
    assert 500 < header["training"]["step"] <= 700


@pytest.mark.slow
def test_two_objects_do_not_train_in_one_folder(tmp_path):
    one, other = (
        operant.A2C("jax:CartPole-v1", NET, run_dir=str(tmp_path / "run"), quiet=True, seed=seed)
        for seed in (1, 2)
    )
    one.fit(max_steps=64)
    with pytest.raises(UsageError, match="run_dir must be a new or empty folder"):
        other.fit(max_steps=64)
    assert one.fit(max_steps=128).step > 64
    assert json.loads((tmp_path / "run" / "run.json").read_text(encoding="utf-8"))["run"]["seed"] == 1


@pytest.mark.slow
def test_a_run_directory_is_that_of_a_run(tmp_path):
    folder = tmp_path / "run"
    agent = operant.PPO("jax:CartPole-v1", NET, run_dir=str(folder), **SMALL)
    agent.fit(max_steps=200)
    agent.fit(max_steps=400)
    assert {path.name.partition(".tfevents.")[0] for path in folder.iterdir()} == {
        "run.json",
        "checkpoints",
        "history.parquet",
        "metrics.jsonl",
        "events.out",
    }
    history = read_history(folder / "history.parquet")
    assert len(history["step"]) == agent.games and history["step"][-1] <= agent.steps
    result = reproduce(folder, ReproduceConfig.from_dict({"quiet": True}))
    assert result.identical, str(result)
    with pytest.raises(UsageError, match="run_dir must be a new or empty folder"):
        operant.PPO("jax:CartPole-v1", NET, run_dir=str(folder), **SMALL)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("quite", r" Did you mean 'quiet'\?"),
        ("run_dirr", r" Did you mean 'run_dir'\?"),
        ("exploration_fraction", r" help\(operant.PPO\) lists them\."),
        ("eval_freq", r" Did you mean 'eval_frequency'\?"),
        ("device", r" JAX chooses the device: set JAX_PLATFORMS=.*"),
        ("zzz", r" help\(operant.PPO\) lists them\."),
    ],
)
def test_mistyped_options_are_looked_for_everywhere(name, remedy):
    with pytest.raises(SpecError, match=f"^ppo takes no argument '{name}'\\.{remedy}$"):
        operant.PPO("CartPole-v1", **{name: 1})


@pytest.mark.slow
def test_none_keeps_all_checkpoints(tmp_path):
    settings = {"n_steps": 8, "quiet": True, "seed": 1, "save_frequency": 8, "run_dir": tmp_path / "run"}
    operant.A2C("jax:CartPole-v1", NET, **settings, keep_checkpoints=None).fit(max_steps=40)
    assert len(checkpoint.list_checkpoints(tmp_path / "run" / "checkpoints")) > 3


def test_other_threads_have_their_turn_between_blocks(tmp_path):
    """Updates consume the arrays that acting would read. What acts in a callback is in the right thread."""
    agent = operant.PPO("CartPole-v1", n_envs=2, model=NET, **SMALL)
    trains, enough, ended = threading.Event(), threading.Event(), []

    def callback(agent, record):
        agent.act(np.zeros(4, np.float32))
        trains.set()
        return not enough.is_set()

    def fit():
        ended.append(agent.fit(max_steps=10**7, callback=callback))

    thread = threading.Thread(target=fit)
    thread.start()
    try:
        assert trains.wait(120)
        before = agent.steps
        for _ in range(10):
            assert agent.act(np.zeros(4, np.float32)) in (0, 1)
        assert len(agent.evaluate(episodes=1).rewards) == 1
        place = agent.save(tmp_path)
        for name, call in {
            "fit": lambda: agent.fit(max_steps=10),
            "load": lambda: agent.load(tmp_path),
        }.items():
            with pytest.raises(UsageError, match=f"{name} was called while fit trains in another thread"):
                call()
        assert agent.steps > before and thread.is_alive()
    finally:
        enough.set()
        thread.join(60)
    assert ended[0].reason == "callback"
    other = operant.PPO("CartPole-v1", n_envs=2, model=NET, **SMALL)
    other.load(place)
    assert before <= other.steps <= agent.steps
    other.close()
    agent.close()
