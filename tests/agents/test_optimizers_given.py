"""Optimizers given as objects of Keras or optax, or as dicts: the same steps, and one place for each
number."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from operant import Agent
from operant.agents.base import updates
from operant.agents.base.agent_spec import parse_agent
from operant.errors import SpecError
from operant.nn.backend import keras, numpy_promotion
from operant.nn.keras_optimizers import keras_optimizer, options_of
from operant.ops import optimise

k = keras()
o = k.optimizers
START = {"b": np.asarray([4.0, -1.0], np.float32), "w": np.asarray([[1.0, -2.0], [0.5, 3.0]], np.float32)}
STEPS = 12


def gradients(step):
    """Gradients of the size that networks have, tiny ones included, where ε counts."""
    scale = (1.0, 0.3, 1e-3)[step % 3]
    return {name: scale * np.cos(x * (step + 1)).astype(np.float32) for name, x in START.items()}


def steps_of_keras(optimizer):
    with numpy_promotion():
        variables = [k.Variable(x, name=name) for name, x in START.items()]
        found = []
        for step in range(STEPS):
            optimizer.apply([jnp.asarray(g) for g in gradients(step).values()], variables)
            found.append({name: np.asarray(v) for name, v in zip(START, variables, strict=True)})
    return found


def steps_of_ours(options):
    config = parse_agent(
        "ppo", grad_norm=options.get("grad_norm"), **{n: v for n, v in options.items() if n != "grad_norm"}
    ).config
    optimizer = optimise.optimizer(
        config.optimizer, config.lr, config.beta1, config.beta2, config.opt_epsilon, config.grad_norm
    )
    params, found = jax.tree.map(jnp.asarray, START), []
    state = optimizer.init(params)
    apply = jax.jit(lambda *x: optimise.apply(optimizer, *x))
    for step in range(STEPS):
        params, state, info = apply(params, state, gradients(step))
        assert info["skipped"] == 0
        found.append(params)
    return found


def assert_same_steps(ours, theirs, **tolerance):
    for mine, other in zip(ours, theirs, strict=True):
        for name in START:
            np.testing.assert_allclose(mine[name], other[name], **tolerance)


schedules = o.schedules
GIVEN = {
    "Adam": lambda: o.Adam(0.01, beta_1=0.8, beta_2=0.95),
    "Adam-amsgrad": lambda: o.Adam(0.01, amsgrad=True),
    "Adam-decay": lambda: o.Adam(0.01, weight_decay=0.1),
    "Adam-clipnorm": lambda: o.Adam(0.01, clipnorm=0.2),
    "Adam-clipvalue": lambda: o.Adam(0.01, clipvalue=0.05),
    "Adam-global": lambda: o.Adam(0.01, global_clipnorm=0.2),
    "AdamW": lambda: o.AdamW(0.01, weight_decay=0.02),
    "Adamax": lambda: o.Adamax(0.01),
    "Adadelta": lambda: o.Adadelta(1.0, rho=0.9, epsilon=1e-3),
    "Adagrad": lambda: o.Adagrad(0.1),
    "Adagrad-start": lambda: o.Adagrad(0.1, initial_accumulator_value=2.0, epsilon=0.1),
    "Adagrad-from-0": lambda: o.Adagrad(0.1, initial_accumulator_value=0.0),
    "Lamb": lambda: o.Lamb(0.01),
    "Lion": lambda: o.Lion(0.01, beta_1=0.8),
    "Nadam": lambda: o.Nadam(0.01, beta_1=0.8, beta_2=0.95),
    "RMSprop": lambda: o.RMSprop(0.01, rho=0.8, epsilon=1e-4),
    "RMSprop-all": lambda: o.RMSprop(0.01, momentum=0.5, centered=True, epsilon=1e-3, weight_decay=0.1),
    "SGD": lambda: o.SGD(0.1),
    "SGD-momentum": lambda: o.SGD(schedules.ExponentialDecay(0.1, 4, 0.5), momentum=0.9),
    "SGD-nesterov": lambda: o.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.3),
    "polynomial": lambda: o.Adam(schedules.PolynomialDecay(0.1, 8, 0.01, power=2.0), weight_decay=0.1),
    "cosine": lambda: o.SGD(schedules.CosineDecay(0.1, 8, alpha=0.2)),
    "exponential": lambda: o.SGD(schedules.ExponentialDecay(0.1, 3, 0.8)),
    "staircase": lambda: o.SGD(schedules.ExponentialDecay(0.1, 3, 0.8, staircase=True)),
    "piecewise": lambda: o.SGD(schedules.PiecewiseConstantDecay([2, 5], [0.1, 0.02, 0.5])),
}


@pytest.mark.parametrize("name", GIVEN)
def test_steps_are_those_of_keras(name):
    optimizer = GIVEN[name]()
    options = options_of(optimizer)
    assert json.loads(json.dumps(options)) == options
    assert_same_steps(steps_of_ours(options), steps_of_keras(optimizer), rtol=2e-5, atol=2e-6)


def test_control_another_number_gives_other_steps():
    theirs = steps_of_keras(o.RMSprop(0.01, epsilon=1e-4))
    for other in (o.RMSprop(0.01, epsilon=1e-5), o.RMSprop(0.01, epsilon=1e-4, rho=0.95), o.Adam(0.01)):
        with pytest.raises(AssertionError):
            assert_same_steps(steps_of_ours(options_of(other)), theirs, rtol=2e-5, atol=2e-6)


def test_numbers_of_a_keras_optimizer_become_options():
    numbers = {"lr": 7e-4, "beta1": 0.8, "beta2": 0.999, "opt_epsilon": 1e-5}
    given = o.Adam(learning_rate=7e-4, beta_1=0.8, epsilon=1e-5, global_clipnorm=3.0)
    assert options_of(given) == {"optimizer": "adam", **numbers, "grad_norm": 3.0}
    assert options_of("adam") == options_of(o.Adam())
    assert options_of(o.Adam())["lr"] == 1e-3 and "grad_norm" not in options_of(o.Adam())
    config = parse_agent("ppo", optimizer=o.SGD(0.25, momentum=0.5), lr=0.5).config
    assert config.optimizer == {"type": "sgd", "momentum": 0.5}
    assert config.lr == 0.5  # given beside it


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"type": "adam", "lr": 0.1}, {"optimizer": "adam", "lr": 0.1}),
        (
            {"type": "adam", "learning_rate": 0.1, "beta_1": 0.5, "epsilon": 1e-3},
            {"lr": 0.1, "beta1": 0.5, "opt_epsilon": 1e-3},
        ),
        (
            {"type": "rmsprop", "rho": 0.5, "centered": True},
            {"optimizer": {"type": "rmsprop", "centered": True}, "beta2": 0.5},
        ),
        ({"type": "sgd", "global_clipnorm": 2.0}, {"optimizer": "sgd", "grad_norm": 2.0}),
        ("lion", {"optimizer": "lion", "lr": 7e-4}),
    ],
)
def test_dicts_and_names(given, expected):
    definition = parse_agent("ppo", optimizer=given)
    config = vars(definition.config)
    assert {name: config[name] for name in expected} == expected
    assert parse_agent(json.loads(json.dumps(definition.to_dict()))) == definition


@pytest.mark.parametrize(
    ("name", "gradients", "steps"),
    [
        ("adam", [1.0], [1.0]),
        ("rmsprop", [1.0], [10**0.5]),  # 1 / √0.1
        ("rmsprop", [1.0, 1.0], [10**0.5, 0.19**-0.5]),
        ("adadelta", [1.0], [(1e-7 / 0.05) ** 0.5]),
        # mean 0.01 of 1; then 0.9 x 0.01 - 0.1 x 0.05 is above 0, with 0.999 it would be below
        ("lion", [1.0, -0.05], [1.0, 1.0]),
        # the sum of squares starts at 1e-6: √(0.001001 / 0.001) + 0.001
        ("yogi", [1.0], [1 / (1.001**0.5 + 0.001)]),
        # 0.001 of the square of 0.9e-6, and optax's 1e-16: 9.1e-16 / 0.001; ε of 1e-7 would make it 0.949
        ("adabelief", [1e-6], [0.91**-0.5]),
    ],
)
def test_first_steps_by_name_have_the_defaults_of_the_optimizer(name, gradients, steps):
    c = parse_agent("ppo", optimizer=name).config
    optimizer = optimise.optimizer(c.optimizer, 1.0, c.beta1, c.beta2, c.opt_epsilon)
    x = {"x": jnp.zeros(1)}
    state = optimizer.init(x)
    for gradient, step in zip(gradients, steps, strict=True):
        new, state, _ = optimise.apply(optimizer, x, state, {"x": jnp.full(1, gradient)})
        np.testing.assert_allclose(x["x"] - new["x"], step, rtol=1e-4)
        x = new


@pytest.mark.parametrize("cls", [o.Adadelta, o.Adam, o.Adagrad, o.Adamax, o.Lion, o.Nadam, o.RMSprop])
def test_names_have_the_defaults_of_the_keras_class(cls):
    by_name = vars(parse_agent("ppo", optimizer=cls.__name__.lower()).config)
    numbers = {name: x for name, x in options_of(cls()).items() if name not in ("lr", "optimizer")}
    assert {name: by_name[name] for name in numbers} == numbers


def test_given_numbers_precede_those_of_the_optimizer():
    assert parse_agent("ppo", optimizer="rmsprop", beta2=0.999).config.beta2 == 0.999
    assert parse_agent({"type": "ppo", "beta2": 0.95}, optimizer="rmsprop").config.beta2 == 0.95
    assert parse_agent({"type": "ppo", "optimizer": "rmsprop"}).config.beta2 == 0.9
    assert parse_agent("ppo", optimizer={"type": "rmsprop", "centered": True}).config.beta2 == 0.9


def test_a_decay_survives_as_data():
    definition = parse_agent(
        "ppo", optimizer=o.SGD(schedules.PiecewiseConstantDecay([2, 5], [0.5, 0.25, 1.0]))
    )
    # Keras changes after the step at a boundary, operant with it
    assert definition.config.optimizer["decay"]["boundaries"] == (3, 6)
    assert definition.config.optimizer["decay"]["values"] == (0.5, 2.0)
    assert definition.config.lr == 0.5
    assert parse_agent(json.loads(json.dumps(definition.to_dict()))) == definition


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            3,
            r"optimizer must be a name, a dict with 'type', a Keras optimizer or an optax transformation. "
            r"Received: optimizer=3",
        ),
        ("adm", r"Unknown optimizer 'adm'\. Did you mean 'adam'\?"),
        ({"lr": 0.1}, r"optimizer must be a name or a dict with 'type'. Received: optimizer=\{'lr': 0.1\}"),
        (
            {"type": "adam", "learning_rat": 1.0},
            r"takes no argument 'learning_rat'\. Did you mean 'learning_rate'\?",
        ),
        (
            {"type": "adam", "lr": 1.0, "learning_rate": 1.0},
            r"optimizer got 'lr' twice, once as 'learning_rate'",
        ),
        ({"type": "adam", "lr": -1.0}, r"lr must be at least 0. Received: lr=-1.0"),
        ({"type": "adam", "clipnorm": 0}, r"optimizer's clipnorm must be a number above 0. Received: .*=0\."),
        ({"type": "adam", "weight_decay": -1}, r"optimizer's weight_decay must be a number of at least 0"),
        ({"type": "sgd", "centered": True}, r"'sgd' takes no 'centered', only 'rmsprop' does. Leave it out"),
        (
            {"type": "sgd", "decay": {"type": "linear", "start": 1, "unit": "updates"}},
            r"decay counts gradient steps. Leave 'unit'",
        ),
        (o.Ftrl(0.1), r"Keras optimizer Ftrl is not supported. Known: .*Adam.*optimizer=optax"),
        (type("Adam", (o.Adam,), {})(0.1), r"Keras optimizer Adam is not supported"),
        (o.Adam(0.1, use_ema=True), r"Adam\(use_ema=True\) is not supported. Leave it out"),
        (
            o.Adam(0.1, gradient_accumulation_steps=4),
            r"gradient_accumulation_steps=4\) is not .*optax.MultiSteps",
        ),
        (o.Lamb(0.1, weight_decay=0.1), r"Lamb\(weight_decay=...\) is not supported.*optax.lamb"),
        (
            o.SGD(schedules.CosineDecayRestarts(0.1, 5)),
            r"schedule 'CosineDecayRestarts' is not supported. Known: Cos.*Give a number",
        ),
        (
            o.SGD(schedules.CosineDecay(0.0, 5, warmup_target=0.1, warmup_steps=3)),
            r"CosineDecay's warmup_target must be None. Received: .*'warmup'",
        ),
        (
            o.SGD(schedules.PolynomialDecay(0.1, 5, cycle=True)),
            r"PolynomialDecay\(cycle=True\) is not supported",
        ),
        (
            o.SGD(schedules.ExponentialDecay(0.1, 5, 1.5)),
            r"decay_rate must be .*Received: .*=1.5",
        ),
        (o.SGD(schedules.PolynomialDecay(0.0, 5)), r"PolynomialDecay's first learning rate must be above 0"),
    ],
)
def test_optimizers_that_are_refused(given, message):
    with pytest.raises(SpecError, match=message):
        parse_agent("ppo", optimizer=given)


@pytest.mark.parametrize("by", ["name", "variable"])
def test_weight_decay_may_not_leave_variables_out(by):
    optimizer = o.AdamW(0.1)
    if by == "name":
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    else:
        optimizer.exclude_from_weight_decay(var_list=[keras().Variable(np.ones(3, np.float32))])
    with pytest.raises(SpecError, match="exclude_from_weight_decay is not supported. Give optax.add_decayed"):
        options_of(optimizer)


@pytest.mark.parametrize(
    ("given", "cls", "number"),
    [
        ("adam", o.Adam, 1e-3),
        ({"type": "rmsprop", "lr": 0.5}, o.RMSprop, 0.5),
        ({"type": "SGD", "learning_rate": 0.25, "momentum": 0.5}, o.SGD, 0.25),
        ({"class_name": "Adam", "config": {"learning_rate": 0.5}}, o.Adam, 0.5),
    ],
)
def test_keras_optimizers_by_name_or_dict(given, cls, number):
    made = keras_optimizer(given)
    assert type(made) is cls
    np.testing.assert_allclose(made.learning_rate, number)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("adm", r"Keras has no optimizer 'adm'\. Did you mean 'adam'"),
        ({"lr": 1.0}, r"optimizer must be a Keras optimizer, its name, or a dict with 'type'"),
        (
            {"type": "adam", "lrr": 1.0},
            r"Keras optimizer Adam refuses its arguments: Argument\(s\) not recognized",
        ),
    ],
)
def test_keras_optimizers_that_are_none(given, message):
    with pytest.raises(SpecError, match=message):
        keras_optimizer(given)


# Transformations of optax


def steps(given, **options):
    """Steps of an agent's optimizer, made of its options."""
    optimizer = updates.optimizer(parse_agent("ppo", optimizer=given, grad_norm=None, **options).config)
    params, found = jax.tree.map(jnp.asarray, START), []
    state = optimizer.init(params)
    for step in range(3):
        params, state, _ = optimise.apply(optimizer, params, state, gradients(step))
        found.append(params)
    return found


def test_an_optax_transformation_is_used_as_it_is():
    assert_same_steps(steps(optax.sgd(0.1), lr=5.0), steps("sgd", lr=0.1), rtol=1e-6)
    with pytest.raises(AssertionError):
        assert_same_steps(steps(optax.sgd(0.2), lr=5.0), steps("sgd", lr=0.1), rtol=1e-6)


def test_gradients_are_clipped_before_an_optax_transformation():
    # the norm of (3, 4) is 5, the bound 0.5: a tenth is left
    config = parse_agent("ppo", optimizer=optax.sgd(1.0), grad_norm=0.5).config
    optimizer = updates.optimizer(config)
    params = {"x": jnp.zeros(2)}
    new, _, _ = optimise.apply(optimizer, params, optimizer.init(params), {"x": jnp.asarray([3.0, 4.0])})
    np.testing.assert_allclose(new["x"], [-0.3, -0.4], rtol=1e-6)


def test_what_an_optax_transformation_makes_idle_is_said():
    told = parse_agent("sac", optimizer=optax.sgd(1.0), lr=0.5, critic_lr=0.1, gamma=0.9).remarks(None)
    assert [each.partition(": ")[0] for each in told] == [
        "lr=0.5 has no effect",
        "critic_lr=0.1 has no effect",
    ]
    assert parse_agent("ppo", optimizer=optax.sgd(1.0)).remarks(None) == []
    assert parse_agent("ppo", optimizer="sgd", lr=0.5).remarks(None) == []
    own = {"baseline_model": "auto", "baseline_optimizer": "sgd", "baseline_lr": 0.1}
    assert parse_agent("modular", optimizer=optax.sgd(1.0), **own).remarks(None) == []  # the baseline's


def test_the_learning_rate_of_an_optax_transformation_is_not_reported():
    assert np.isnan(updates.lr(parse_agent("ppo", optimizer=optax.sgd(0.1)).config))
    assert updates.lr(parse_agent("ppo", lr=0.5).config) == 0.5


def test_an_optax_transformation_is_given_again_on_loading(tmp_path):
    agent = Agent.create(
        agent="ppo",
        states={"type": "float", "shape": (3,)},
        actions={"type": "int", "num_values": 2},
        optimizer=optax.trace(0.5),
        model=[{"type": "dense", "size": 4}],
    )
    agent.save(directory=tmp_path / "agent")
    for agent in (None, "ppo"):
        with pytest.raises(SpecError, match=r"an object of optax, which no file holds. Give it again"):
            Agent.load(directory=tmp_path / "agent", agent=agent)
    again = Agent.load(directory=tmp_path / "agent", agent={"type": "ppo", "optimizer": optax.trace(0.5)})
    assert isinstance(again.definition.config.optimizer, optimise.CustomOptimizer)


def test_a_definition_keeps_the_object():
    definition = parse_agent("ppo", optimizer=optax.adam(0.1))
    assert parse_agent(definition) == definition
    assert parse_agent(definition, gamma=0.5).config.optimizer is definition.config.optimizer
    assert parse_agent(definition, optimizer="sgd").config.optimizer == "sgd"
