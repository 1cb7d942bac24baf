"""Each kind of specification that Tensorforce has, its JSON agents and its examples, in its own words.

Everyday, agents are built and their programs traced, which takes no compiler; exhaustive tests run the same.
"""

import json
import logging

import jax
import numpy as np
import pytest

from operant import Agent, Environment, Runner
from operant.agents.base.agent_spec import parse_agent
from operant.agents.base.learner import Learner
from operant.errors import SpecError
from operant.nn.backend import keras
from operant.spec.spaces import Spaces

VECTOR = {"type": "float", "shape": (3,), "min_value": 1.0, "max_value": 2.0}
STATES = {
    "flag": {"type": "bool"},
    "kind": {"type": "int", "shape": (2,), "num_values": 3},
    "vector": VECTOR,
    "image": {"type": "float", "shape": (4, 4, 2), "min_value": -1.0, "max_value": 1.0},
}
CHOICE = {"type": "int", "num_values": 4}
FLOAT = {"type": "float", "shape": (1,), "min_value": -1.0, "max_value": 1.0}
ACTIONS = {
    "flag": {"type": "bool", "shape": (2,)},
    "choice": {"type": "int", "shape": (2,), "num_values": 3},
    "bounded": {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 1.0},
    "free": {"type": "float"},
}
DISCRETE = {name: ACTIONS[name] for name in ("flag", "choice")}
SMALL = {"type": "auto", "size": 4, "depth": 1}
ADAM = {"optimizer": "adam", "learning_rate": 1e-3}
BASE = {
    "agent": "tensorforce",
    "update": 4,
    "policy": {"network": SMALL},
    "optimizer": ADAM,
    "objective": "policy_gradient",
    "reward_estimation": {"horizon": 2},
}
"""What the cases of the modular agent change."""


def model(inputs_size=3, size=4):
    """Return a Keras model, as a function that a specification names, with an argument."""
    layers = keras().layers
    return keras().Sequential([keras().Input((inputs_size,)), layers.Dense(size)])


def modular(states=VECTOR, actions=CHOICE, drop=(), **changes):
    """Return a case: states, actions and the specification."""
    spec = {**BASE, **changes}
    return states, actions, {key: value for key, value in spec.items() if key not in drop}


def network(*layers, states=VECTOR, actions=CHOICE):
    """Return a case with a network of these layers, or with one specification of a network."""
    return modular(states, actions, policy=list(layers) if len(layers) > 1 else layers[0])


def named(agent, states=VECTOR, actions=CHOICE, **arguments):
    """Return a case of a named agent."""
    return states, actions, {"agent": agent, "network": SMALL, **arguments}


def advantage(**changes):
    """Return a case whose baseline estimates advantages."""
    return modular(reward_estimation={"horizon": "episode", "estimate_advantage": True}, **changes)


def schedule(kind, **arguments):
    """Return a case whose exploration follows a schedule over 5 timesteps."""
    common = {"type": kind, "unit": "timesteps", "num_steps": 5, "initial_value": 0.1}
    return modular(exploration={**common, **arguments})


def optimizer(**spec):
    """Return a case of an optimizer."""
    return modular(optimizer=spec)


COMMON = {
    "state_preprocessing": "linear_normalization",
    "exploration": 0.0,
    "variable_noise": 0.0,
    "l2_regularization": 0.0,
    "entropy_regularization": 0.0,
    "parallel_interactions": 1,
    "config": None,
    "saver": None,
    "summarizer": None,
    "tracking": None,
    "recorder": None,
}
"""The arguments that all of its agents have, each with its default."""
NETWORK = {"type": "auto", "size": 8, "depth": 2, "final_size": None, "final_depth": 1, "rnn": False}
VALUE_POLICY = {
    "type": "parametrized_value_policy",
    "network": NETWORK,
    "single_output": True,
    "state_value_mode": "implicit",
}
PPO = {
    **COMMON,
    "agent": "ppo",
    "max_episode_timesteps": 20,
    "network": NETWORK,
    "use_beta_distribution": False,
    "memory": "minimum",
    "batch_size": 2,
    "update_frequency": 1,
    "learning_rate": 1.813e-3,
    "multi_step": 5,
    "subsampling_fraction": 0.913,
    "likelihood_ratio_clipping": 0.0996,
    "discount": 0.99854,
    "reward_processing": None,
    "return_processing": None,
    "advantage_processing": None,
    "predict_terminal_values": False,
    "baseline": NETWORK,
    "baseline_optimizer": {"optimizer": "adam", "learning_rate": 3.67e-3, "multi_step": 10},
    "entropy_regularization": 1.14e-3,
}
PPO_WRITTEN_OUT = {
    **COMMON,
    "agent": "tensorforce",
    "max_episode_timesteps": 20,
    "policy": {
        "type": "parametrized_distributions",
        "network": NETWORK,
        "single_output": True,
        "distributions": {
            "bool": {"type": "bernoulli"},
            "int": {"type": "categorical", "temperature_mode": None, "skip_linear": False},
            "float": {"type": "gaussian", "stddev_mode": "predicted", "bounded_transform": "clipping"},
        },
        "temperature": 1.0,
        "use_beta_distribution": False,
    },
    "memory": {"type": "recent", "capacity": None, "device": "CPU"},
    "update": {"unit": "episodes", "batch_size": 2, "frequency": 1, "start": None},
    "optimizer": {
        "type": "optimizer_wrapper",
        "optimizer": "adam",
        "learning_rate": 1.813e-3,
        "clipping_threshold": None,
        "multi_step": 5,
        "subsampling_fraction": 0.913,
        "linesearch_iterations": 0,
        "doublecheck_update": False,
        "gradient_norm_clipping": None,
    },
    "objective": {
        "type": "policy_gradient",
        "importance_sampling": True,
        "clipping_value": 0.0996,
        "early_reduce": True,
    },
    "reward_estimation": {
        "horizon": "episode",
        "discount": 0.99854,
        "predict_horizon_values": "early",
        "estimate_advantage": "early",
        "predict_action_values": False,
        "predict_terminal_values": False,
        "reward_processing": None,
        "return_processing": None,
        "advantage_processing": None,
        "trace_decay": 1.0,
        "gae_decay": 0.0,
    },
    "baseline": {"type": "parametrized_state_value", "network": NETWORK, "single_output": True},
    "baseline_optimizer": {
        "type": "optimizer_wrapper",
        "optimizer": "adam",
        "learning_rate": 3.67e-3,
        "clipping_threshold": None,
        "multi_step": 10,
        "subsampling_fraction": 1.0,
        "linesearch_iterations": 0,
        "doublecheck_update": False,
    },
    "baseline_objective": {"type": "value", "value": "state", "huber_loss": None, "early_reduce": True},
    "entropy_regularization": 1.14e-3,
    "config": {
        "seed": 0,
        "name": "agent",
        "device": "CPU",
        "buffer_observe": False,
        "create_debug_assertions": False,
        "create_tf_assertions": True,
        "eager_mode": False,
        "enable_int_action_masking": True,
        "tf_log_level": 40,
    },
}
DQN_WRITTEN_OUT = {
    **COMMON,
    "agent": "tensorforce",
    "max_episode_timesteps": None,
    "policy": VALUE_POLICY,
    "memory": {"type": "replay", "capacity": 100, "device": "CPU"},
    "update": {"unit": "timesteps", "batch_size": 4, "frequency": 0.5, "start": 8},
    "optimizer": {"type": "adam", "learning_rate": 1e-3, "gradient_norm_clipping": None},
    "objective": {"type": "value", "value": "action", "huber_loss": None, "early_reduce": True},
    "reward_estimation": {
        "horizon": 1,
        "discount": 0.99,
        "predict_horizon_values": "late",
        "estimate_advantage": False,
        "predict_action_values": False,
        "predict_terminal_values": False,
        "return_processing": None,
    },
    "baseline": VALUE_POLICY,
    "baseline_optimizer": {"type": "synchronization", "update_weight": 1.0, "sync_frequency": 2},
    "baseline_objective": None,
    "exploration": 0.1,
}
JSON = {"ppo.json": PPO, "ppo_tensorforce.json": PPO_WRITTEN_OUT, "dqn_tensorforce.json": DQN_WRITTEN_OUT}

AGENTS = {
    "ppo.json": (VECTOR, CHOICE, PPO),
    "ppo_tensorforce.json": (VECTOR, CHOICE, PPO_WRITTEN_OUT),
    "ppo_tensorforce.json with all types": (STATES, ACTIONS, PPO_WRITTEN_OUT),
    "dqn_tensorforce.json": (VECTOR, CHOICE, DQN_WRITTEN_OUT),
    "dqn_tensorforce.json with several actions": (STATES, DISCRETE, DQN_WRITTEN_OUT),
    "without a type": modular(drop=["agent"]),
    "vpg": named("vpg", batch_size=2, max_episode_timesteps=20, **COMMON),
    "ac": named("ac", batch_size=4, critic=SMALL, critic_optimizer=1.0, horizon=1, **COMMON),
    "a2c": named("a2c", batch_size=4, critic=SMALL, critic_optimizer=ADAM, horizon="episode", **COMMON),
    "trpo": named("trpo", batch_size=2, max_episode_timesteps=20, linesearch_iterations=10, baseline=SMALL),
    "dqn": named("dqn", memory=100, batch_size=4, huber_loss=None, exploration=0.1, start_updating=None),
    "double_dqn": named("double_dqn", memory=100, batch_size=4, target_sync_frequency=2, exploration=0.1),
    "dueling_dqn": named("dueling_dqn", memory=100, batch_size=4, update_frequency=0.25, exploration=0.1),
    "dpg": named("dpg", actions=FLOAT, memory=100, batch_size=4, use_beta_distribution=True, critic=SMALL),
    "dpg written out": modular(
        actions=FLOAT,
        policy={"type": "parametrized_distributions", "network": SMALL, "temperature": 0.0},
        memory={"type": "replay", "capacity": 100},
        objective="deterministic_policy_gradient",
        reward_estimation={
            "horizon": 1,
            "discount": 0.99,
            "predict_horizon_values": "late",
            "estimate_advantage": False,
            "predict_action_values": True,
        },
        baseline={"type": "parametrized_action_value", "network": SMALL},
        baseline_objective={"type": "action_value", "huber_loss": None},
        baseline_optimizer=1.0,
        exploration=0.1,
    ),
}
POLICIES = {
    "of all types of actions": modular(STATES, ACTIONS),
    "a network alone": modular(policy=SMALL),
    "'auto'": modular(policy="auto"),
    "no network": modular(policy={"temperature": 0.9}),
    "a null for a network": modular(policy={"network": None, "temperature": None}),
    "values of actions": modular(STATES, DISCRETE, objective="action_value"),
    "dueling": modular(objective="action_value", policy={**VALUE_POLICY, "state_value_mode": "separate"}),
    "by its type": modular(policy={"type": "parametrized_distributions", "network": SMALL}),
    "noise on variables": modular(variable_noise=0.01),
    "a single distribution": modular(actions=FLOAT, policy={"network": SMALL, "distributions": "beta"}),
    "distributions by type": modular(
        STATES,
        ACTIONS,
        policy={
            "network": SMALL,
            "distributions": {
                "bool": "bernoulli",
                "int": {"type": "categorical", "temperature_mode": None},
                "float": {"type": "gaussian", "stddev_mode": "global", "bounded_transform": "tanh"},
            },
        },
    ),
    "distributions by name": modular(
        STATES,
        ACTIONS,
        policy={
            "network": SMALL,
            "distributions": {
                "flag": "bernoulli",
                "bounded": {"type": "beta"},
                "free": {"type": "gaussian", "stddev_mode": "predicted"},
            },
        },
    ),
    "logits of the network itself": modular(
        policy={
            "network": [{"type": "dense", "size": 4}, {"type": "linear", "size": 4}],
            "distributions": {"int": {"type": "categorical", "skip_linear": True}},
        }
    ),
}
NETWORKS = {
    "auto with a final layer": network({**SMALL, "final_size": 3, "final_depth": 2}, states=STATES),
    "auto with memory": network({**SMALL, "rnn": 2}),
    "custom": network({"type": "custom", "layers": [{"type": "dense", "size": 4}]}),
    "layered, several lists": network(
        [
            {"type": "retrieve", "tensors": "image"},
            {"type": "conv2d", "size": 2},
            "flatten",
            {"type": "register", "tensor": "seen"},
        ],
        [
            {"type": "retrieve", "tensors": ["seen", "vector"], "aggregation": "concat"},
            {"type": "dense", "size": 4},
        ],
        states=STATES,
    ),
    "a Keras model's function and its argument": network({"type": "keras", "model": model, "size": 4}),
    "a Keras layer": network({"type": "keras", "layer": "Dense", "units": 4}, {"type": "dense", "size": 4}),
    "written-out layers": network(
        {
            "type": "dense",
            "size": 4,
            "bias": True,
            "activation": "tanh",
            "dropout": 0.0,
            "initialization_scale": 1.0,
            "vars_trainable": True,
            "l2_regularization": None,
            "name": "first",
        },
        {"type": "linear", "size": 4, "l2_regularization": None},
    ),
    "embedding": network(
        {
            "type": "embedding",
            "size": 4,
            "num_embeddings": None,
            "max_norm": None,
            "bias": True,
            "activation": "tanh",
        },
        {"type": "pooling", "reduction": "max"},
        states=CHOICE,
    ),
    "convolutions": network(
        {"type": "conv2d", "size": 2, "window": (3, 2), "padding": "same", "dilation": 1},
        {"type": "conv2d_transpose", "size": 2, "output_shape": None},
        {"type": "pool2d", "reduction": "max"},
        {"type": "activation", "nonlinearity": "swish"},
        {"type": "dropout", "rate": 0.1},
        "flatten",
        states=STATES["image"],
    ),
    "attention": network(
        {"type": "reshape", "shape": (3, 1)},
        {"type": "self_attention", "size": 4, "attention_size": 2, "bias": False, "activation": None},
        {"type": "pooling", "reduction": "mean"},
    ),
    "memory": network(
        {"type": "rnn", "cell": "gru", "size": 4, "horizon": 2, "bias": True, "l2_regularization": None},
        {"type": "block", "layers": [{"type": "dense", "size": 4}]},
    ),
    "normalisation": network(
        {"type": "linear_normalization", "min_value": 0.0, "max_value": 2.0},
        {"type": "clipping", "lower": None, "upper": 1.0},
        {"type": "batch_normalization", "axes": None, "only_mean": False, "min_variance": 1e-4},
    ),
    "a vector for each place": network(
        {"type": "dense", "size": 6},
        {"type": "reshape", "shape": (2, 3)},
        actions=ACTIONS["choice"],
    ),
}
MEMORIES = {
    "recent": modular(memory="recent"),
    "recent with a capacity": modular(memory={"type": "recent", "capacity": 100, "device": "GPU"}),
    "replay": modular(memory="replay"),
    "a number": modular(memory=100),
    "no type": modular(memory={"capacity": 100}),
    "replay of episodes": modular(
        memory={"type": "replay"},
        update={"unit": "episodes", "batch_size": 1, "frequency": 1},
        reward_estimation={"horizon": "episode"},
        max_episode_timesteps=10,
    ),
}
OBJECTIVES = {
    "importance sampling": modular(objective={"type": "policy_gradient", "importance_sampling": True}),
    "clipping": modular(objective={"type": "policy_gradient", "clipping_value": 0.2, "early_reduce": True}),
    "action_value": modular(objective={"type": "action_value", "huber_loss": 0.1, "early_reduce": True}),
    "value of actions": modular(objective={"type": "value", "value": "action"}),
    "state_value on the policy's network": modular(baseline_objective="state_value"),
    "state_value with an optimizer of its own": modular(
        baseline_objective={"type": "state_value"}, baseline_optimizer={**ADAM, "multi_step": 2}
    ),
    "a baseline alone": advantage(baseline=SMALL, max_episode_timesteps=20),
    "a baseline and a weight": advantage(baseline="auto", baseline_optimizer=0.5, max_episode_timesteps=20),
    "a baseline, objective and optimizer": advantage(
        baseline={"network": SMALL},
        baseline_objective="state_value",
        baseline_optimizer=ADAM,
        max_episode_timesteps=20,
    ),
    "a baseline beside values of actions": modular(objective="action_value", baseline="auto"),
}
OPTIMIZERS = {
    **{kind: optimizer(type=kind, learning_rate=1e-3) for kind in ("adadelta", "adagrad", "adamax", "nadam")},
    **{kind: optimizer(type=kind, learning_rate=1e-3) for kind in ("rmsprop", "sgd")},
    "a name": modular(optimizer="adam"),
    "natural_gradient": optimizer(type="natural_gradient", learning_rate=1e-3, only_positive_updates=False),
    "evolutionary": optimizer(type="evolutionary", learning_rate=1e-3, num_samples=2),
    "wrapped": optimizer(
        **ADAM, clipping_threshold=1.0, multi_step=2, subsampling_fraction=0.5, linesearch_iterations=2
    ),
    "nested": optimizer(
        type="multi_step",
        num_steps=2,
        optimizer={
            "type": "subsampling_step",
            "fraction": 2,
            "optimizer": {
                "type": "clipping_step",
                "threshold": 1.0,
                "mode": "global_norm",
                "optimizer": {"type": "doublecheck_step", "optimizer": {"type": "sgd", "learning_rate": 0.1}},
            },
        },
    ),
    "linesearch_step": optimizer(type="linesearch_step", optimizer="sgd", max_iterations=3),
}
SCHEDULES = {
    "a number": modular(exploration=0.1),
    "constant": modular(exploration={"type": "constant", "value": 0.1}),
    "linear": schedule("linear", final_value=0.0),
    "exponential": schedule("exponential", decay_rate=0.5, staircase=False),
    "exponential in stairs": schedule("exponential", decay_rate=0.5, staircase=True),
    "polynomial": schedule("polynomial", final_value=0.0, power=2.0, cycle=False),
    "inverse_time": schedule("inverse_time", decay_rate=0.5),
    "cosine": schedule("cosine", final_value=0.01),
    "decaying": schedule("decaying", decay="exponential", decay_rate=0.5, increasing=False, scale=1.0),
    "piecewise_constant": modular(
        exploration={
            "type": "piecewise_constant",
            "unit": "updates",
            "boundaries": [1],
            "values": [0.1, 0.0],
        }
    ),
    "random": modular(exploration={"type": "random", "distribution": "uniform"}),
    "random, normal": optimizer(
        optimizer="adam",
        learning_rate={"type": "random", "distribution": "normal", "mean": 1e-3, "stddev": 1e-4},
    ),
    "ornstein_uhlenbeck": modular(exploration={"type": "ornstein_uhlenbeck", "absolute": True}),
    "of the horizon": modular(
        reward_estimation={
            "horizon": {
                "type": "linear",
                "unit": "episodes",
                "num_steps": 4,
                "initial_value": 2,
                "final_value": 4,
            }
        }
    ),
}
PREPROCESSING = {
    "none": modular(state_preprocessing=None),
    "a name": modular(STATES, state_preprocessing="linear_normalization"),
    "layers": modular(state_preprocessing=[{"type": "clipping", "lower": 1.2, "upper": 1.8}]),
    "by state": modular(
        STATES, state_preprocessing={"vector": ["linear_normalization"], "image": None, "kind": None}
    ),
    "of advantages": advantage(
        baseline="auto", advantage_processing="batch_normalization", max_episode_timesteps=20
    ),
}
REWARDS = {
    "an episode": modular(reward_estimation={"horizon": "episode"}, max_episode_timesteps=20),
    "a discount": modular(reward_estimation={"horizon": 3, "discount": 0.9}),
    **{
        f"{key} {value!r}": modular(baseline="auto", reward_estimation={"horizon": 2, key: value})
        for key, value in {
            "predict_horizon_values": "early",
            "estimate_advantage": "late",
            "predict_terminal_values": True,
            "trace_decay": 0.9,
        }.items()
    },
    "gae_decay": modular(
        baseline="auto", reward_estimation={"horizon": 1, "estimate_advantage": True, "gae_decay": 0.9}
    ),
    "predict_action_values": modular(
        objective="action_value", reward_estimation={"horizon": 1, "predict_action_values": True}
    ),
}
UPDATES = {
    "episodes": modular(update={"unit": "episodes", "batch_size": 1}, max_episode_timesteps=20),
    "a part of the batch": modular(update={"unit": "timesteps", "batch_size": 4, "frequency": 0.5}),
    "a start": modular(update={"unit": "timesteps", "batch_size": 4, "start": 6}),
    "never": modular(update={"unit": "timesteps", "batch_size": 4, "frequency": "never"}),
    "regularisation": modular(l2_regularization=0.1, entropy_regularization=0.1),
}
KINDS = {
    "agent": AGENTS,
    "policy": POLICIES,
    "network": NETWORKS,
    "memory": MEMORIES,
    "objective": OBJECTIVES,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "preprocessing": PREPROCESSING,
    "reward": REWARDS,
    "update": UPDATES,
}
CASES = {f"{kind}: {name}": case for kind, cases in KINDS.items() for name, case in cases.items()}
OUTSIDE = {*COMMON, "max_episode_timesteps"} - {
    "state_preprocessing",
    "exploration",
    "variable_noise",
    "l2_regularization",
    "entropy_regularization",
    "tracking",
}
"""Arguments that are not the algorithm's."""


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_specifications_are_built_and_traced(case):
    states, actions, spec = CASES[case]
    definition = parse_agent({key: value for key, value in spec.items() if key not in OUTSIDE})
    definition = definition.limited(spec.get("max_episode_timesteps"))
    learner = Learner(definition.cls.create(definition.config, Spaces.read(states, actions), 1))
    train = jax.eval_shape(learner.init, jax.random.key(0), learner.hyper())
    after, metrics = jax.eval_shape(learner.update, train, learner.block_shape(1), jax.random.key(0))
    assert jax.tree.map(lambda x: x.shape, after) == jax.tree.map(lambda x: x.shape, train) and metrics


def sample(spec, rng):
    """Draw a value of a state."""
    if "type" not in spec:
        return {name: sample(inner, rng) for name, inner in spec.items()}
    shape = spec.get("shape", ())
    if spec["type"] == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if spec["type"] == "int":
        return rng.integers(0, spec["num_values"], shape)
    return rng.uniform(spec["min_value"], spec["max_value"], shape)


@pytest.mark.exhaustive
@pytest.mark.parametrize("case", CASES)
def test_specifications_act_and_learn(case):
    states, actions, spec = CASES[case]
    before = json.dumps(spec, default=str)
    rng = np.random.default_rng(0)
    with Agent.create(states=states, actions=actions, **spec) as agent:
        internals = agent.initial_internals()
        for episode in range(4):
            for step in range(5):
                chosen = agent.act(states=sample(states, rng))
                for leaf, value in zip(
                    *([actions], [chosen]) if "type" in actions else (actions.values(), chosen.values()),
                    strict=True,
                ):
                    kinds = {"bool": bool, "int": np.int64, "float": np.float32}
                    if leaf.get("shape", ()):
                        assert value.dtype == kinds[leaf["type"]] and value.shape == leaf["shape"]
                    else:
                        assert type(value) is {"bool": bool, "int": int, "float": float}[leaf["type"]]
                agent.observe(reward=float(episode), terminal=step == 4)
        assert (agent.updates > 0) == (case != "update: never")
        independent = agent.act(states=sample(states, rng), internals=internals, independent=True)
        assert len(independent) == 2
    assert json.dumps(spec, default=str) == before


def test_what_means_nothing_here_is_noted_in_one_line(caplog):
    states, actions, spec = AGENTS["ppo_tensorforce.json"]
    with caplog.at_level(logging.WARNING, "operant"):
        spec = {**spec, "tracking": "all", "config": {**spec["config"], "eager_mode": True}}
        Agent.create(states=states, actions=actions, **spec).close()
    notes = [line for line in caplog.messages if line.startswith("Of no effect here")]
    assert len(notes) == 1
    noted = notes[0].partition(": ")[2].rstrip(".").split(", ")
    settings = spec["config"].keys() - {"seed", "device"}
    assert sorted(noted) == sorted(
        ["tracking", "device of a module", *(f"{x} of a config" for x in settings)]
    )
    caplog.clear()
    with caplog.at_level(logging.WARNING, "operant"):
        parse_agent("vpg", tracking=None)
    assert not caplog.messages


@pytest.mark.parametrize(
    ("case", "message"),
    [
        (modular(memory={"capacity": 9, "devise": "CPU"}), r"memory takes no argument 'devise'"),
        (modular(policy={"network": {**SMALL, "attention_size": 8}}), "no argument 'attention_size'"),
        (network({"type": "input_lstm", "size": 4}, "flatten"), "no layer 'input_lstm' .*'keras'"),
        (network({"type": "function", "function": "x"}, "flatten"), "no layer 'function' here.*Keras"),
        (network({"type": "reuse", "layer": "x"}, "flatten"), r"no layer 'reuse' here.*baseline_objective"),
        (modular(state_preprocessing={"type": "sequence", "length": 4}), "no layer 'sequence' .*FrameStack"),
        (
            modular(policy={"distributions": {"int": {"type": "categorical", "temperature_mode": "global"}}}),
            r"temperature_mode must be None.*give temperature of the policy",
        ),
        (
            modular(policy={"network": SMALL, "distributions": {"turn": "beta"}}),
            r"distributions must name actions or types of them",
        ),
        (
            modular(actions=ACTIONS, policy={"network": SMALL, "distributions": {"choice": "beta"}}),
            r"distributions\['choice'\] must be a dict of linear, as the actions are of type int",
        ),
        (
            modular(
                actions={"type": "int", "num_values": 5},
                policy={"distributions": {"int": {"type": "categorical", "skip_linear": True}}},
            ),
            r"\(skip_linear\) needs a network that ends in 5 numbers for 'action/logits'. .* shape \(64,\)",
        ),
        (network({"type": "keras", "model": "x.keras", "size": 4}), "Arguments of a Keras model go to the f"),
    ],
)
def test_what_is_not_there_says_what_to_write_instead(case, message):
    states, actions, spec = case
    with pytest.raises(SpecError, match=message):
        Agent.create(states=states, actions=actions, **spec)


class Room(Environment):
    """A heater that should hold a temperature, from Tensorforce's example of a controller."""

    def __init__(self, target=0.5):
        super().__init__()
        self.target = target

    def states(self):
        return {"type": "float", "shape": (1,), "min_value": 0.0, "max_value": 1.0}

    def actions(self):
        return {"type": "float", "shape": (1,), "min_value": 0.0, "max_value": 1.0}

    def reset(self):
        self.temperature = 0.0
        return np.array([self.temperature])

    def execute(self, actions):
        self.temperature += 0.5 * (float(actions[0]) - self.temperature)
        return np.array([self.temperature]), False, -abs(self.temperature - self.target)


class Doors(Environment):
    """States of several kinds, and an action of which a mask allows one value at a time."""

    def states(self):
        return {
            "number": {"type": "int", "num_values": 3},
            "place": {"type": "float", "shape": (2,), "min_value": 0.0, "max_value": 1.0},
            "door_mask": {"type": "bool", "shape": (3,)},
        }

    def actions(self):
        return {"door": {"type": "int", "num_values": 3}}

    def observed(self):
        mask = np.arange(3) == self.step % 3
        return {"number": self.step % 3, "place": np.array([0.0, 1.0]), "door_mask": mask}

    def reset(self):
        self.step = 0
        return self.observed()

    def execute(self, actions):
        assert actions["door"] == self.step % 3
        self.step += 1
        return self.observed(), self.step == 4, 1.0


VPG = {"agent": "vpg", "network": SMALL, "batch_size": 2, "learning_rate": 1e-2, "seed": 1}


@pytest.fixture(scope="module")
def room():
    return Environment.create(environment=Room, max_episode_timesteps=5)


@pytest.mark.slow
def test_act_observe_save_and_load(room, tmp_path):
    agent = Agent.create(
        environment=room,
        summarizer={"directory": str(tmp_path / "summaries"), "summaries": "all", "max_summaries": 3},
        recorder={"directory": str(tmp_path / "traces"), "frequency": 1},
        saver={"directory": str(tmp_path / "saved"), "frequency": 1, "max_hour_frequency": None},
        **VPG,
    )  # fmt: skip
    for _ in range(4):
        states, terminal = room.reset(), False
        while not terminal:
            actions = agent.act(states=states)
            states, terminal, reward = room.execute(actions=actions)
            agent.observe(terminal=terminal, reward=reward)
    assert (agent.episodes, agent.timesteps, agent.updates) == (4, 20, 2)
    state = np.array([0.25])
    wanted = agent.act(states=state, independent=True)
    for format in ("checkpoint", "numpy", "hdf5"):
        agent.save(directory=str(tmp_path / format), format=format, append="episodes")
    agent.close()
    assert len(list((tmp_path / "traces").glob("*.npz"))) == 4
    assert list((tmp_path / "summaries").rglob("*tfevents*"))
    for place, format in [("checkpoint", None), ("numpy", "numpy"), ("hdf5", "hdf5"), ("saved", None)]:
        with Agent.load(directory=str(tmp_path / place), format=format, environment=room) as loaded:
            np.testing.assert_array_equal(loaded.act(states=state, independent=True), wanted)
            assert (loaded.episodes, loaded.updates) == (4, 2)


@pytest.mark.slow
def test_act_experience_update_and_pretrain(room, tmp_path):
    with Agent.create(
        environment=room, recorder={"directory": str(tmp_path), "frequency": 1}, **VPG
    ) as agent:
        for _ in range(2):
            rows = {"states": [], "actions": [], "terminal": [], "reward": []}
            states, terminal, internals = room.reset(), False, agent.initial_internals()
            while not terminal:
                rows["states"].append(states)
                actions, internals = agent.act(
                    states=states, internals=internals, independent=True, deterministic=False
                )
                rows["actions"].append(actions)
                states, terminal, reward = room.execute(actions=actions)
                rows["terminal"].append(terminal)
                rows["reward"].append(reward)
            agent.experience(**rows)
        assert agent.update() is not None and agent.updates == 1
        for name, column in rows.items():
            rows[name] = np.asarray(column)
        np.savez(tmp_path / "trace-000000001.npz", **rows)
        agent.pretrain(directory=str(tmp_path), num_iterations=2, num_traces=1, num_updates=1, imitate=False)
        assert agent.updates > 1


@pytest.mark.slow
def test_runner_parallelisation_masks_and_several_inputs():
    runner = Runner(agent=VPG, environment=Doors, max_episode_timesteps=5, num_parallel=2)
    runner.run(num_episodes=6, batch_agent_calls=True, use_tqdm=False)
    assert runner.episode_returns[:6] == [4.0] * 6 and runner.agent.updates >= 2
    runner.run(num_episodes=2, evaluation=False, use_tqdm=False, sync_episodes=True)
    runner.close()


@pytest.mark.slow
def test_runner_with_json_agents_and_an_environment_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "heating_room.py").write_text(
        "import numpy as np\nfrom operant import Environment\n\nLIMIT = 1.0\n\n\nclass Room(Environment):\n"
        "    def states(self):\n        return dict(type='float', shape=1, min_value=0.0, max_value=LIMIT)"
        "\n\n"
        "    def actions(self):\n        return dict(type='int', num_values=2)\n\n"
        "    def reset(self):\n        self.t = 0.0\n        return np.array([self.t])\n\n"
        "    def execute(self, actions):\n        self.t += 0.5 * (actions - self.t)\n"
        "        return np.array([self.t]), False, -abs(self.t - 0.5)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "room.json").write_text('{"environment": "heating_room", "max_episode_timesteps": 5}')
    for name, spec in JSON.items():
        (tmp_path / name).write_text(json.dumps(spec | {"max_episode_timesteps": 5}))
        runner = Runner(agent=str(tmp_path / name), environment=str(tmp_path / "room.json"))
        runner.run(num_episodes=6, use_tqdm=False)
        assert runner.agent.updates > 0 and len(runner.episode_returns) == 6
        runner.close()


@pytest.mark.slow
def test_a_policy_is_exported(room, tmp_path):
    pytest.importorskip("onnxruntime", reason="needs the extra 'onnx'")
    from operant import load_policy

    with Agent.create(environment=room, **VPG) as agent:
        agent.save(directory=str(tmp_path), filename="room", format="onnx")
        state = np.array([0.25])
        wanted = agent.act(states=state, independent=True)
    found = load_policy(tmp_path / "room.onnx").act(state)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
