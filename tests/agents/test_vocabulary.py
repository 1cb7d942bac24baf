"""Nested specifications of an agent's modules: each is read into options, or refused with what to use."""

from __future__ import annotations

import json

import numpy as np
import pytest

from operant.agents.base.agent_spec import parse_agent
from operant.agents.options import tensorforce_spec
from operant.errors import SpecError, UsageError
from operant.execution.trainers.arguments import named
from operant.spec import Schedule


def read(**given):
    return tensorforce_spec.options(given)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"update": 32}, {"unit": "timesteps", "batch_size": 32}),
        (
            {"update": {"unit": "episodes", "batch_size": 10, "frequency": "never", "start": 3}},
            {"unit": "episodes", "batch_size": 10, "frequency": 0, "start": 3},
        ),
        # The float 1.0 is the whole batch, the default; the number 1 is one timestep or episode.
        (
            {"update": {"unit": "episodes", "batch_size": 10, "frequency": 1.0, "start": None}},
            {"unit": "episodes", "batch_size": 10, "frequency": None},
        ),
        (
            {"update": {"unit": "episodes", "batch_size": 10, "frequency": 1}},
            {"unit": "episodes", "batch_size": 10, "frequency": 1},
        ),
        ({"update_frequency": 1.0}, {"frequency": None}),
        ({"update_frequency": np.float32(1.0)}, {"frequency": None}),
        ({"update_frequency": 0.5}, {"frequency": 0.5}),
        ({"update_frequency": "never"}, {"frequency": 0}),
        ({"start_updating": None, "baseline_objective": None}, {}),
        ({"start_updating": 7}, {"start": 7}),
        ({"memory": 5000}, {"memory": "replay", "capacity": 5000}),
        ({"memory": {"type": "recent", "capacity": 90}}, {"memory": "recent", "capacity": 90}),
        ({"memory": {"capacity": 90}}, {"memory": "replay", "capacity": 90}),
        ({"memory": "minimum"}, {}),
        ({"objective": "action_value"}, {"objective": "action_value"}),
        (
            {"objective": {"type": "value", "value": "action", "huber_loss": 0.5}},
            {"objective": "action_value", "huber_loss": 0.5},
        ),
        (
            {"objective": {"type": "policy_gradient", "importance_sampling": True, "clipping_value": 0.2}},
            {"objective": "policy_gradient", "importance_sampling": True, "clipping_value": 0.2},
        ),
        (
            {"reward_estimation": {"horizon": "episode", "discount": 0.9, "predict_horizon_values": "early"}},
            {"horizon": None, "gamma": 0.9, "predict_horizon_values": True},
        ),
        (
            {"reward_estimation": {"horizon": 1, "estimate_advantage": "late", "gae_decay": 0.9}},
            {"horizon": None, "lam": 0.9, "predict_horizon_values": True, "estimate_advantage": True},
        ),
        ({"reward_estimation": {"horizon": 4, "trace_decay": 0.8}}, {"horizon": 4, "lam": 0.8}),
        ({"policy": "auto"}, {"model": "auto"}),
        ({"policy": {"type": "auto", "size": 32}}, {"model": {"type": "auto", "size": 32}}),
        (
            {"policy": {"network": "auto", "temperature": 0.5, "use_beta_distribution": True}},
            {"model": "auto", "temperature": 0.5, "distribution": "beta"},
        ),
        (
            {"policy": {"type": "parametrized_value_policy", "state_value_mode": "separate"}},
            {"model": "auto", "dueling": True},
        ),
        (
            {
                "policy": {
                    "network": "auto",
                    "distributions": {"float": {"type": "gaussian", "stddev_mode": "global"}},
                }
            },
            {"model": "auto", "std": "global", "distribution": "squash"},
        ),
        (
            {
                "policy": {
                    "network": "auto",
                    "distributions": {"int": "categorical", "float": {"type": "beta"}},
                }
            },
            {"model": "auto", "distribution": "beta"},
        ),
        ({"optimizer": "rmsprop"}, {"optimizer": "rmsprop"}),
        (
            {
                "optimizer": {
                    "optimizer": "adam",
                    "learning_rate": 1e-3,
                    "clipping_threshold": 0.5,
                    "multi_step": 4,
                }
            },
            {"optimizer": "adam", "lr": 1e-3, "grad_norm": 0.5, "multi_step": 4},
        ),
        (
            {
                "optimizer": {
                    "type": "clipping_step",
                    "threshold": 2.0,
                    "optimizer": {
                        "type": "subsampling_step",
                        "fraction": 0.3,
                        "optimizer": {"type": "rmsprop", "learning_rate": 0.1, "centered": True},
                    },
                }
            },
            {
                "optimizer": {"type": "rmsprop", "centered": True},
                "lr": 0.1,
                "subsampling_fraction": 0.3,
                "grad_norm": 2.0,
            },
        ),
        ({"baseline": {"type": "parametrized_state_value", "network": "auto"}}, {"baseline_model": "auto"}),
        ({"baseline_objective": "state_value"}, {"baseline_model": "shared"}),
        ({"baseline_optimizer": 0.5}, {"baseline_weight": 0.5}),
        (
            {"baseline_optimizer": {"optimizer": "adam", "learning_rate": 2e-3, "multi_step": 10}},
            {"baseline_optimizer": "adam", "baseline_lr": 2e-3, "baseline_multi_step": 10},
        ),
        (
            {"baseline_optimizer": {"type": "synchronization", "update_weight": 0.5, "sync_frequency": 9}},
            {"target_update_weight": 0.5, "target_sync_frequency": 9},
        ),
        ({"advantage_processing": {"type": "batch_normalization"}}, {"normalize_advantage": True}),
    ],
)
def test_modules_are_read_into_options(given, wanted):
    assert read(**given) == wanted
    again = read(**read(**given))
    assert again == wanted  # what are options already stay


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"update": {"unit": "episodes"}}, r"update needs 'batch_size'"),
        (
            {"update": {"unit": "episodes", "batch_sise": 3}},
            r"update takes no argument 'batch_sise'\. Did you mean 'batch_size'",
        ),
        ({"memory": {"type": "replai"}}, r"Unknown memory 'replai'\. Did you mean 'replay'"),
        (
            {"objective": "policy_gradiant"},
            r"Unknown objective 'policy_gradiant'\. Did you mean 'policy_gradient'",
        ),
        ({"objective": "value"}, r"The value of states alone makes no actions"),
        ({"objective": {"type": "value"}}, r"The value of states alone makes no actions"),
        ({"reward_estimation": {"horison": 1}}, r"takes no argument 'horison'\. Did you mean 'horizon'"),
        ({"reward_estimation": 3}, r"reward_estimation must be a dict"),
        ({"reward_estimation": {"horizon": 5, "gae_decay": 0.9}}, r"gae_decay is .* Use horizon=1"),
        (
            {"reward_estimation": {"horizon": 1, "estimate_advantage": "soon"}},
            r"estimate_advantage must be False, True",
        ),
        (
            {"policy": {"network": "auto", "temperatur": 1}},
            r"policy takes no argument 'temperatur'\. Did you mean 'temperature'",
        ),
        (
            {"optimizer": {"type": "multi_step", "num_steps": 3}},
            r"The optimizer 'multi_step' needs another one inside",
        ),
        (
            {"optimizer": {"optimizer": "adam", "multi_stepp": 3}},
            r"takes no argument 'multi_stepp'\. Did you mean 'multi_step'",
        ),
        (
            {"optimizer": {"optimizer": "adam", "doublecheck_update": 1}},
            "doublecheck_update must be True or False",
        ),
        (
            {"optimizer": {"type": "clipping_step", "optimizer": "adam", "threshold": 0.5, "mode": "value"}},
            "mode must be 'global_norm'.*clipvalue",
        ),
        (
            {"optimizer": {"type": "doublechek_step", "optimizer": "adam"}},
            r"'doublechek_step' is not an optimizer that wraps another\. Did you mean 'doublecheck_step'",
        ),
        (
            {
                "policy": {
                    "network": "auto",
                    "distributions": {"int": {"type": "categorical", "temperature_mode": "global"}},
                }
            },
            r"temperature_mode must be None.*Received: temperature_mode='global'.*give temperature of",
        ),
        ({"objective": "state_value"}, r"The value of states alone makes no actions"),
        ({"policy": {"type": "parametrized_action_value"}}, "type must be parametrized_value_policy for int"),
        ({"policy": {"temperature": {"a": 0.5}}}, "temperature must be one number or schedule for all"),
        ({"objective": {"type": "plus"}}, r"There is no objective 'plus' here.*baseline_optimizer=0.5"),
        (
            {"objective": "action_value", "baseline": [8]},
            r"is the target network: it has the form of the policy's.*: baseline=\[8\], policy='auto'",
        ),
        (
            {"objective": "action_value", "baseline": "auto", "baseline_optimizer": "adam"},
            r"Received: baseline_optimizer='adam'\. Give .*dict\(type='synchronization'",
        ),
        ({"optimizer": {"type": "plus"}}, r"There is no optimizer 'plus' here"),
        (
            {"baseline_optimizer": {"optimizer": "adam", "clipping_threshold": 1.0}},
            r"baseline_optimizer has no 'grad_norm' of its own",
        ),
        (
            {"reward_processing": {"type": "clipping"}},
            r"reward_processing is not supported.*normalize_rewards",
        ),
        ({"update": 32, "batch_size": 16}, r"batch_size is given twice, as 32 and, by batch_size, as 16"),
    ],
)
def test_what_cannot_be_read_is_named(given, message):
    with pytest.raises(SpecError, match=message):
        read(**given)


def test_a_whole_specification_becomes_a_config_that_is_plain_data():
    definition = parse_agent(
        {"agent": "tensorforce", "update": {"unit": "episodes", "batch_size": 4}},
        policy={"network": [{"type": "dense", "size": 8}], "temperature": 0.5},
        optimizer={
            "optimizer": "adam",
            "learning_rate": {
                "type": "linear",
                "unit": "updates",
                "num_steps": 10,
                "initial_value": 0.01,
                "final_value": 0.001,
            },
        },
        objective="policy_gradient",
        reward_estimation={"horizon": "episode", "discount": 0.9},
        baseline="auto",
        baseline_optimizer=0.5,
        exploration={"type": "ornstein_uhlenbeck", "absolute": True},
    )
    c = definition.config
    assert (definition.name, c.unit, c.batch_size, c.horizon, c.gamma) == (
        "modular",
        "episodes",
        4,
        None,
        0.9,
    )
    assert (c.temperature, c.baseline_model, c.baseline_weight) == (0.5, "auto", 0.5)
    assert c.lr == Schedule("linear", 0.01, 0.001, 10, "updates")
    assert parse_agent(json.loads(json.dumps(definition.to_dict()))) == definition


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"predict_horizon_values": True}, "predict_horizon_values needs something that predicts values"),
        ({"estimate_advantage": True}, "estimate_advantage needs a baseline"),
        ({"lam": 0.5}, "lam mixes rewards with predicted values, and nothing is predicted"),
        ({"predict_terminal_values": True}, "predict_terminal_values needs predict_horizon_values"),
        (
            {"baseline": "auto", "baseline_optimizer": "adem"},
            "baseline_optimizer: Unknown optimizer 'adem'. Did you mean 'adam'",
        ),
        ({"memory": "replay", "horizon": None}, "memory='replay' needs a horizon"),
        ({"memory": "replay", "horizon": 1, "lam": 0.5}, "memory='replay' has no λ-returns"),
        ({"memory": "replay", "horizon": 1, "capacity": 8}, "capacity must be at least batch_size"),
        (
            {"objective": "action_value", "baseline_model": "auto"},
            r"baseline_model \(baseline\) belongs to objective='policy_gradient'",
        ),
        (
            {"objective": "action_value", "temperature": 0.5},
            "temperature belongs to objective='policy_gradient'. Received: temperature=0.5, "
            "objective='action_value'",
        ),
        (
            {"objective": "action_value", "use_beta_distribution": True},
            "distribution belongs to objective='policy_gradient'",
        ),
        ({"objective": "action_value", "std": "predicted"}, "std belongs to objective='policy_gradient'"),
        (
            {"double": True},
            r"double \(predict_action_values\) belongs to objective='action_value'. Received: double=True, "
            "objective='policy_gradient'",
        ),
        ({"dueling": True}, "dueling belongs to objective='action_value'"),
        (
            {"target_sync_frequency": 3},
            "target_sync_frequency belongs to objective='action_value' or 'deterministic_policy_gradient'",
        ),
        (
            {"huber_loss": 1.0},
            "huber_loss belongs to values: give baseline_model. Received: huber_loss=1.0, "
            "baseline_model=None",
        ),
        ({"baseline_optimizer": 0.5}, "baseline_weight belongs to a baseline"),
        ({"baseline_optimizer": "adam"}, "baseline_optimizer belongs to a baseline"),
        (
            {"baseline": "auto", "baseline_weight": 0.5, "baseline_optimizer": "adam"},
            "baseline_weight belongs to a baseline without an opt",
        ),
        (
            {"baseline": "auto", "baseline_lr": 0.1},
            "baseline_lr belongs to a baseline with an optimizer of its own",
        ),
        (
            {"baseline": "auto", "baseline_multi_step": 3},
            "baseline_multi_step belongs to a baseline with an optimizer of its own",
        ),
        (
            {"cg_damping": 0.2},
            "cg_damping belongs to gradient='natural'. Received: cg_damping=0.2, gradient='exact'",
        ),
        (
            {"evolutionary_samples": 4},
            r"evolutionary_samples \(num_samples\) belongs to gradient='evolutionary'",
        ),
        (
            {"gradient": "natural", "optimizer": "sgd"},
            "optimizer belongs to gradient='exact' or 'evolutionary'. Received: optimizer='sgd'",
        ),
        (
            {"linesearch_factor": 0.5},
            r"linesearch_factor \(backtracking_factor\) belongs to linesearch_iterations above 1",
        ),
    ],
)
def test_contradictions_are_refused(options, message):
    with pytest.raises(SpecError, match=message):
        parse_agent("modular", **options)


def test_modules_may_be_in_files(tmp_path):
    path = tmp_path / "update.json"
    path.write_text('{"unit": "episodes", "batch_size": 3}')
    assert read(update=str(path)) == {"unit": "episodes", "batch_size": 3}
    with pytest.raises(SpecError, match=r"The optimizer file 'missing.json' does not exist"):
        read(optimizer="missing.json")


def test_modules_that_say_more_than_the_objective_asks():
    """In one specification with the objective they are words for what a baseline is here."""
    spec = {
        "policy": {"type": "parametrized_value_policy", "network": "auto"},
        "reward_estimation": {"horizon": 1, "predict_action_values": True},
    }
    config = parse_agent("modular", objective="policy_gradient", **spec).config
    assert not config.double and not config.dueling
    config = parse_agent("modular", objective="action_value", **spec).config
    assert config.double and config.dueling
    assert parse_agent("dpg", use_beta_distribution=True, update_frequency=2).name == "modular"


LAYERS = [{"type": "dense", "size": 8}]


@pytest.mark.parametrize("policy", [LAYERS, {"network": LAYERS}, {"type": "default", "network": LAYERS}])
@pytest.mark.parametrize(
    "name, network",
    [("ppo", "model"), ("dqn", "model"), ("a2c", "model"), ("trpo", "actor_model"), ("td3", "actor_model")],
)
def test_a_policy_that_is_a_network_is_the_algorithms_own(name, network, policy):
    found = parse_agent(name, policy=policy)
    assert found.name == name and list(getattr(found.config, network)) == LAYERS
    with pytest.raises(SpecError, match="Give one of them"):
        parse_agent(name, **{"policy": policy, network: LAYERS})


def test_a_policy_with_more_than_a_network_is_modular():
    assert parse_agent("ppo", policy={"network": LAYERS, "temperature": 0.5}).name == "modular"
    with pytest.raises(SpecError, match="policy"):
        parse_agent("td3", policy={"network": LAYERS, "temperature": 0.5})


@pytest.mark.parametrize(
    "spec, found",
    [
        (
            {"type": "natural_gradient", "learning_rate": 0.01, "cg_damping": 0.2},
            {"gradient": "natural", "lr": 0.01, "cg_damping": 0.2},
        ),
        (
            {"type": "evolutionary", "learning_rate": 0.01, "num_samples": 4},
            {"gradient": "evolutionary", "lr": 0.01, "evolutionary_samples": 4},
        ),
        (
            {"type": "linesearch_step", "optimizer": "sgd", "max_iterations": 7, "backtracking_factor": 0.5},
            {"optimizer": "sgd", "linesearch_iterations": 7, "linesearch_factor": 0.5},
        ),
        (
            {"type": "doublecheck_step", "optimizer": "adam"},
            {"optimizer": "adam", "linesearch_iterations": 1},
        ),
        (
            {"optimizer": "adam", "doublecheck_update": True},
            {"optimizer": "adam", "linesearch_iterations": 1},
        ),
        (
            {"optimizer": "adam", "doublecheck_update": True, "linesearch_iterations": 5},
            {"optimizer": "adam", "linesearch_iterations": 5},
        ),
        ({"optimizer": "adam", "doublecheck_update": False}, {"optimizer": "adam"}),
        (
            {"type": "clipping_step", "optimizer": "adam", "threshold": 0.5, "mode": "global_norm"},
            {"optimizer": "adam", "grad_norm": 0.5},
        ),
    ],
)
def test_other_ways_to_a_step(spec, found):
    assert tensorforce_spec.options({"optimizer": spec}) == found


def test_unknown_arguments_of_other_ways_to_a_step():
    with pytest.raises(
        SpecError, match="natural_gradient takes no argument 'cg_dampning'. Did you mean 'cg_damping'"
    ):
        tensorforce_spec.options(
            {"optimizer": {"type": "natural_gradient", "learning_rate": 0.1, "cg_dampning": 1.0}}
        )


def test_trpo_in_the_words_of_the_modular_agent():
    found = parse_agent(
        "trpo",
        batch_size=5,
        learning_rate=0.02,
        linesearch_iterations=7,
        subsampling_fraction=0.5,
        baseline="auto",
    )
    config = found.config
    assert found.name == "modular" and (config.gradient, config.lr, config.linesearch_iterations) == (
        "natural",
        0.02,
        7,
    )
    assert (config.unit, config.batch_size, config.baseline_optimizer) == ("episodes", 5, "adam")
    assert parse_agent("trpo", learning_rate=0.02, cg_damping=0.2).name == "trpo"


@pytest.mark.parametrize("agent", ["dqn", "ddqn", "dueling_dqn", "dpg"])
def test_defaults_of_tensorforce_that_are_written_out_are_understood(agent):
    """All arguments of its agents on replay, but for `state_preprocessing` each with the default that they
    have there."""
    given = {
        "memory": 1000,
        "batch_size": 32,
        "network": "auto",
        "start_updating": None,
        "huber_loss": None,
        "learning_rate": 1e-3,
        "horizon": 1,
        "discount": 0.99,
        "reward_processing": None,
        "return_processing": None,
        "predict_terminal_values": False,
        "exploration": 0.1,
        "variable_noise": 0.0,
        "l2_regularization": 0.0,
        "entropy_regularization": 0.0,
        "tracking": None,
        "update_frequency": 1.0,
    }
    config = parse_agent(agent, **given).config
    assert (config.start, config.frequency, config.batch_size, config.capacity) == (0, None, 32, 1000)


def test_what_neither_form_of_an_agent_has_is_named():
    with pytest.raises(
        SpecError,
        match=r"ppo with 'batch_size' takes no argument 'learning_rat'\. Did you mean 'learning_rate'",
    ):
        parse_agent("ppo", batch_size=10, learning_rat=1e-3)
    with pytest.raises(SpecError, match=r"ppo takes no argument 'learning_rat'"):
        parse_agent("ppo", learning_rat=1e-3)


def test_classes_read_the_words_of_the_modular_agent():
    given = {
        "update_frequency": 1.0,
        "start_updating": None,
        "critic": {"network": [8]},
        "learning_rate": 0.1,
    }
    own = named("modular", (), given)
    config = parse_agent("modular", **own).config
    assert (config.frequency, config.start, config.baseline_model, config.lr) == (None, 0, (8,), 0.1)
    with pytest.raises(UsageError, match="got 'lr' twice, once as 'learning_rate'"):
        named("modular", (), {"lr": 0.1, "learning_rate": 0.1})
