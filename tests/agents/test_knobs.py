"""Every option of every agent makes a difference: another legal value gives another run.

Each option needs a line here. Options that compiled code takes as numbers are changed without compiling
again.
"""

from __future__ import annotations

import dataclasses
import typing
from typing import Any

import jax
import pytest
from tests.small_agents import (
    MODEL,
    ONCE,
    RECURRENT,
    Compiled,
    assert_close,
    compile_agent,
    compiled,
    countdown,
    differing,
    learner,
    networks,
    small,
)

from operant.agents.base.agent_spec import parse_agent
from operant.errors import SpecError
from operant.spec import Config, options

BLOCKS, SEED = 14, 3
Shapes = typing.Literal["shapes", "numbers"]


@dataclasses.dataclass(frozen=True)
class Knob:
    """Another legal value of an option, and what it changes."""

    value: Any
    changes: Shapes = "numbers"
    """Whether shapes tell (of state, memory or blocks), or only the numbers of a run."""
    context: dict[str, Any] = dataclasses.field(default_factory=dict)
    """Options without which it has nothing to say."""
    kind: str = "int"
    """Kind of actions to which it applies."""
    recurrent: bool = False
    """Whether only recurrent networks heed it."""

    def of(self, name: str, owner: str) -> Knob:
        """Return it with what an agent lacks in its context."""
        context = dict(self.context)
        if self.recurrent:
            context |= networks(name, RECURRENT)
        if owner == "BaselineConfig" and parse_agent(name, **small(name)).config.baseline_model is None:
            context.setdefault("baseline_model", MODEL)
        return dataclasses.replace(self, context=context)


NATURAL = {"gradient": "natural", "baseline_optimizer": "adam"}
VALUES = {"objective": "action_value", "baseline_model": None}
KNOBS: dict[str, dict[str, Knob]] = {
    "AgentConfig": {
        "gamma": Knob(0.5),
        "lr": Knob(0.002),
        "beta1": Knob(0.5),
        "beta2": Knob(0.9),
        "opt_epsilon": Knob(0.1),
        "optimizer": Knob("sgd", "shapes"),
        "grad_norm": Knob(0.01),
        "normalize_observations": Knob(True, "shapes"),
        "normalize_rewards": Knob(True, "shapes"),
    },
    "ModelConfig": {"model": Knob([{"type": "dense", "size": 8}], "shapes")},
    "SharedModelConfig": {"separate": Knob(False, "shapes")},
    "ActorCriticConfig": {
        "actor_model": Knob([{"type": "dense", "size": 8}], "shapes"),
        "critic_model": Knob([{"type": "dense", "size": 8}], "shapes"),
    },
    "PolicyConfig": {
        "distribution": Knob("beta", "shapes", kind="float"),
        "std": Knob("predicted", "shapes", kind="float"),
    },
    "RolloutConfig": {
        "entropy_coef": Knob(0.5),
        "grad_norm": Knob(0.01),
        "lam": Knob(0.2),
        "n_steps": Knob(4, "shapes"),
        "value_loss_coef": Knob(2.0),
    },
    "EpsilonConfig": {
        "epsilon_start": Knob(0.5),
        "epsilon_end": Knob(0.5),
        "epsilon_decay_steps": Knob(10.0),
    },
    "ReplayConfig": {
        "buffer_max_size": Knob(64, "shapes"),
        "buffer_initial_size": Knob(60),
        "buffer_batch_size": Knob(4),
    },
    "SequenceConfig": {
        "sequence_length": Knob(3, recurrent=True),
        "burn_in": Knob(0, recurrent=True),
    },
    "ContinuousConfig": {
        "critic_lr": Knob(0.002, context={"critic_lr": 0.02}),
        "gradient_steps": Knob(3),
        "tau": Knob(0.5),
        "train_every": Knob(3, "shapes"),
    },
    "DeterministicConfig": {"step_noise_coef": Knob(0.5)},
    "UpdateConfig": {
        "unit": Knob("episodes", "shapes", context={"episode_limit": 3}),
        "batch_size": Knob(12, "shapes"),
        "frequency": Knob(36, context={"frequency": 18}),
        "start": Knob(100),
        "memory": Knob("replay", "shapes", context={"horizon": 1}),
        "capacity": Knob(60, "shapes"),
        "episode_limit": Knob(5, "shapes", context={"unit": "episodes", "episode_limit": 3}),
    },
    "EstimationConfig": {
        "horizon": Knob(1, context={"horizon": 3}),
        "lam": Knob(0.3, context={"baseline_model": MODEL, "horizon": 3}),
        "predict_horizon_values": Knob(False, "shapes", context={"horizon": 2, "baseline_model": MODEL}),
        "predict_terminal_values": Knob(True, context={"baseline_model": MODEL}),
        "estimate_advantage": Knob(False, context={"baseline_model": MODEL}),
        "normalize_advantage": Knob(True),
    },
    "ObjectiveConfig": {
        "objective": Knob("action_value", "shapes", context={"baseline_model": None, "horizon": 2}),
        "importance_sampling": Knob(True, context={"multi_step": 2}),
        "clipping_value": Knob(0.001, context={"clipping_value": 0.2, "multi_step": 3}),
        "huber_loss": Knob(0.01, context={"huber_loss": 1.0, "baseline_model": MODEL}),
        "entropy_regularization": Knob(0.5),
        "l2_regularization": Knob(0.1),
    },
    "BaselineConfig": {
        "baseline_model": Knob([{"type": "dense", "size": 8}], "shapes"),
        "baseline_weight": Knob(0.1),
        "baseline_optimizer": Knob("adam", "shapes"),
        "baseline_lr": Knob(0.002, context={"baseline_optimizer": "adam", "baseline_lr": 0.02}),
        "baseline_multi_step": Knob(3, context={"baseline_optimizer": "adam"}),
        "target_update_weight": Knob(0.5, context=VALUES),
        "target_sync_frequency": Knob(5, context=VALUES),
        "double": Knob(True, context={**VALUES, "target_sync_frequency": 5}),
        "dueling": Knob(True, "shapes", context=VALUES),
    },
    "StepConfig": {
        "multi_step": Knob(3),
        "subsampling_fraction": Knob(0.5, context={"subsampling_fraction": 0.9}),
        "gradient": Knob("evolutionary"),
        "cg_iterations": Knob(2, context=NATURAL),
        "cg_damping": Knob(1.0, context=NATURAL),
        "evolutionary_samples": Knob(3, context={"gradient": "evolutionary"}),
        "evolutionary_deviation": Knob(0.5, context={"gradient": "evolutionary"}),
        "linesearch_iterations": Knob(3, context={"lr": 1.0}),
        "linesearch_factor": Knob(0.3, context={"lr": 1.0, "linesearch_iterations": 3}),
    },
    "StatesConfig": {
        "state_preprocessing": Knob([{"type": "clipping", "lower": -0.5, "upper": 0.5}]),
    },
    "ActingConfig": {
        "exploration": Knob(0.1, context={"exploration": 0.5}),
        "variable_noise": Knob(0.1, context={"variable_noise": 0.5}),
        "temperature": Knob(0.1),
        "distributions": Knob({"float": {"distribution": "beta"}}, "shapes", kind="float"),
    },
    "modular": {},
    "a2c": {"normalize_advantage": Knob(True)},
    "acer": {
        "delta": Knob(0.01),
        "ema_alpha": Knob(0.5),
        "entropy_coef": Knob(0.5),
        "epsilon": Knob(0.1),
        "importance_c": Knob(0.5),
        "n_steps": Knob(4, "shapes"),
        "replay_ratio": Knob(5.0),
        "trust_region": Knob(False),
        "value_loss_coef": Knob(2.0),
    },
    "ddpg": {},
    "dqn": {
        "double": Knob(True),
        "target_sync_steps": Knob(7),
        "tau": Knob(0.5),
        "train_every": Knob(3, "shapes"),
        "gradient_steps": Knob(2),
        "n_steps": Knob(3),
        "huber": Knob(0.1),
        "dueling": Knob(True, "shapes"),
        "prioritized": Knob(True, "shapes"),
        "priority_alpha": Knob(0.0, context={"prioritized": True}),
        "priority_beta": Knob(1.0, context={"prioritized": True}),
        "distributional": Knob("c51", "shapes"),
        "atoms": Knob(11, "shapes", context={"distributional": "quantile"}),
        "value_min": Knob(-2.0, context={"distributional": "c51"}),
        "value_max": Knob(3.0, context={"distributional": "c51"}),
        "noisy": Knob(True, "shapes"),
        "noisy_std": Knob(0.1, context={"noisy": True}),
    },
    "pqn": {
        "lam": Knob(0.2),
        "n_steps": Knob(4, "shapes"),
        "mini_batches": Knob(3),
        "epochs": Knob(3),
    },
    "ppo": {
        "advantage_epsilon": Knob(1.0),
        "clip_norm": Knob(0.001),
        "mini_batches": Knob(3),
        "ppo_epochs": Knob(3),
        "clip_value": Knob(False),
        "normalize_advantage": Knob(False),
        "target_kl": Knob(1e-5, context={"target_kl": 10.0}),
    },
    "sac": {
        "learn_temperature": Knob(False),
        "target_entropy": Knob(1.0),
        "temperature": Knob(0.1),
        "temperature_lr": Knob(0.1, context={"temperature_lr": 0.01}),
    },
    "td3": {"noise_clip": Knob(0.01), "policy_delay": Knob(1), "policy_noise_coef": Knob(1.0)},
    "trpo": {
        "max_kl": Knob(0.1),
        "cg_iterations": Knob(2),
        "cg_residual_tolerance": Knob(1.0),
        "cg_damping": Knob(0.5),
        "fvp_n_steps": Knob(3),
        "actor_iterations": Knob(1, context={"max_kl": 100.0}),
        "critic_iterations": Knob(3),
        "ppo_epochs": Knob(3),
        "mini_batches": Knob(3),
        "advantage_epsilon": Knob(1.0),
        "clip_value": Knob(True),
        "clip_norm": Knob(0.001, context={"clip_value": True}),
    },
}
"""The options by the class or the module that declares them."""


def declared(config: type[Config]) -> dict[str, str]:
    """Return where each option of a config is declared: the name of a shared class, or of the agent's
    module."""
    found = {}
    for option in options(config):
        owner = next(
            cls for cls in reversed(config.__mro__) if option in vars(cls).get("__dataclass_fields__", {})
        )
        module = owner.__module__.rpartition(".")[2]
        shared = module in ("shared_options", "modular_options")
        found[option] = owner.__name__ if shared else module.removesuffix("_options")
    return found


def knobs(name: str) -> dict[str, Knob]:
    """Return what is known of the options of an agent."""
    config = type(parse_agent(name).config)
    return {
        option: KNOBS[owner][option].of(name, owner)
        for option, owner in declared(config).items()
        if option in KNOBS.get(owner, {})
    }


def missing(config: type[Config]) -> list[str]:
    """Return the options without a line."""
    return [
        f"tests/agents/test_knobs.py has no line for {option!r} of {owner}. Add another legal value to "
        f"KNOBS[{owner!r}]."
        for option, owner in declared(config).items()
        if option not in KNOBS.get(owner, {})
    ]


@pytest.mark.parametrize("name", ONCE)
def test_every_option_has_a_line(name):
    config = type(parse_agent(name).config)
    assert missing(config) == []
    for owner in set(declared(config).values()):
        stale = set(KNOBS[owner]) - set(options(config))
        assert not stale, f"KNOBS[{owner!r}] has lines for options that are gone: {sorted(stale)}"


def test_an_option_without_a_line_is_found():
    from operant.agents.options.shared_options import AgentConfig
    from operant.spec import option

    class Foo(AgentConfig):
        dead: float = option(1.0, "Does nothing")

    assert len(missing(Foo)) == 1
    assert "has no line for 'dead'" in missing(Foo)[0]


def cases(traced: bool) -> list[Any]:
    """Every option of every agent; those that make a compilation necessary are slow."""
    found = []
    for entry in ONCE:
        name = entry if isinstance(entry, str) else entry.values[0]
        config = type(parse_agent(name).config)
        for option, knob in knobs(name).items():
            if options(config)[option].traced is not traced:
                continue
            quick = not knob.context if traced else knob.changes == "shapes"
            slow = not isinstance(entry, str) or not quick
            found.append(pytest.param(name, option, marks=pytest.mark.exhaustive if slow else ()))
    return found


def other(name: str, option: str, knob: Knob) -> Any:
    """Return a value that the small settings do not have already."""
    now = getattr(parse_agent(name, **small(name, **knob.context)).config, option)
    return not now if isinstance(now, bool) else knob.value


def outcome(agent: Compiled, hyper: Any = None) -> Any:
    """Run an agent: all that it became and did."""
    train, blocks, _ = agent.run(SEED, BLOCKS, hyper)
    return train._replace(hyper=()), blocks


@pytest.mark.parametrize(("name", "option"), cases(traced=True))
def test_traced_option_makes_a_difference_without_compilation(name, option):
    knob = knobs(name)[option]
    agent = compiled(name, countdown(name, knob.kind), **knob.context)
    config = agent.learner.algorithm.config
    value = other(name, option, knob)
    assert getattr(config, option) != value
    hyper = agent.learner.hyper(config.replace(**{option: value}))
    assert differing(outcome(agent), outcome(agent, hyper)) != []


@pytest.mark.parametrize(("name", "option"), cases(traced=False))
def test_option_makes_a_difference(name, option):
    knob = knobs(name)[option]
    env = countdown(name, knob.kind)
    value = other(name, option, knob)
    assert getattr(parse_agent(name, **small(name, **knob.context)).config, option) != value
    changed = {**knob.context, option: value}
    shapes = [shape_of(learner(name, env, 3, **chosen)) for chosen in (knob.context, changed)]
    assert (shapes[0] != shapes[1]) == (knob.changes == "shapes")
    if knob.changes == "shapes":
        return
    one, two = compiled(name, env, **knob.context), compile_agent(name, env, **changed)
    assert differing(outcome(one), outcome(two)) != []


NEEDY = {
    (owner, option): name
    for name in (entry if isinstance(entry, str) else entry.values[0] for entry in ONCE)
    for option, owner in declared(type(parse_agent(name).config)).items()
    if options(type(parse_agent(name).config))[option].needs is not None
}
"""An agent for each option that says which other it needs."""


def test_what_an_option_needs_is_an_option():
    for (_, option), name in NEEDY.items():
        config = type(parse_agent(name).config)
        switch, wanted = options(config)[option].needs
        for value in wanted if isinstance(wanted, tuple) else (wanted,):
            config(**{switch: value})
    assert {("dqn", "noisy_std"), ("trpo", "clip_norm"), ("sac", "temperature_lr")} <= set(NEEDY)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option"), [(name, option) for (_, option), name in NEEDY.items()])
def test_without_what_it_needs_an_option_makes_no_difference_and_that_is_told(name, option):
    own = parse_agent(name, **small(name)).config
    switch = options(type(own))[option].needs[0]
    off = {"distributional": "none"}.get(switch, False)
    knob = knobs(name)[option]
    context, value = {switch: off}, knob.value
    told = parse_agent(name, **{**context, option: value}).remarks(None)
    assert len(told) == 1 and told[0].startswith(f"{option}={value!r} has no effect without {switch}=")
    one, two = (
        compile_agent(name, countdown(name, knob.kind), **context, **more) for more in ({}, {option: value})
    )
    found = differing(outcome(one), outcome(two))
    assert [leaf for leaf in found if ".average" not in leaf] == []  # which ACER keeps up to date in any case


def shape_of(made: Any) -> Any:
    """Return structure, shapes and types of everything that an agent holds and reads."""
    train = jax.eval_shape(made.init, jax.random.key(0), made.hyper())
    described = jax.tree.map(lambda x: (x.shape, str(x.dtype)), (train, made.block_shape(3)))
    return str(described)


def test_control_a_value_that_is_the_same_makes_no_difference():
    """The comparison itself: the same settings give the same run, bit for bit."""
    name = next(entry for entry in ONCE if isinstance(entry, str))
    agent = compiled(name, countdown(name))
    assert differing(outcome(agent), outcome(agent, agent.learner.hyper())) == []
    one, two = learner(name, countdown(name), 3), learner(name, countdown(name), 3, model=list(MODEL))
    assert shape_of(one) == shape_of(two)


def idle(config: Config) -> set[str]:
    """Options of the modular agent that have no effect as the others are, and are refused."""
    if not hasattr(config, "_effects"):
        return set()
    unmixed = set() if config.bootstraps else {"lam"}
    return unmixed | {option for _, works, _, names in config._effects() if not works for option in names}


@pytest.mark.parametrize("name", ONCE)
def test_every_traced_option_takes_a_schedule(name):
    own = parse_agent(name).config
    config = type(own)
    for option, meta in options(config).items():
        if option in idle(own):
            continue
        if meta.traced:
            now = float(getattr(config(), option) or 0.001)
            changed = parse_agent(
                name, **{option: {"type": "linear", "start": now, "end": now, "steps": 10}}
            ).config
            assert getattr(changed, option).range() == (now, now), option
        elif not option.endswith(("model", "state_preprocessing", "distributions")):  # which may be any dict
            with pytest.raises(SpecError, match=option):
                parse_agent(name, **{option: {"type": "linear", "start": 1.0, "end": 1.0, "steps": 10}})


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ONCE)
def test_constant_schedules_are_the_numbers(name):
    """All traced options at once, as schedules that never change.

    Halved by the vector of factors, as numbers are.
    """
    plain_agent = compiled(name, countdown(name))
    config = plain_agent.learner.algorithm.config
    constant = {
        option: {"type": "constant", "start": float(getattr(config, option))}
        for option, meta in options(type(config)).items()
        if meta.traced and getattr(config, option) is not None and option not in idle(config)
    }
    agent = compile_agent(name, countdown(name), **constant)
    train, blocks, _ = plain_agent.run(SEED, BLOCKS)
    scheduled, scheduled_blocks, _ = agent.run(SEED, BLOCKS)
    assert_close(train._replace(hyper=()), scheduled._replace(hyper=()))
    assert_close(blocks, scheduled_blocks)
    halved = plain_agent.run(SEED, BLOCKS, plain_agent.learner.hyper() * 0.5)[0]
    factors = agent.run(SEED, BLOCKS, agent.learner.hyper() * 0.5)[0]
    assert_close(halved._replace(hyper=()), factors._replace(hyper=()))
