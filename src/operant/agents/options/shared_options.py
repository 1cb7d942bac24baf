"""Options that several algorithms share, declared once; read without JAX, for help."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from operant.agents.options import tensorforce_spec
from operant.spec import Config, Scalar, Schedule, default, effective, option, options


def number(default: Any, help: str, **meta: Any) -> Any:
    """Declare a traced number of at least 0, which tuning reads on a logarithmic scale."""
    return option(default, help, **{"low": 0.0, "search": "log_uniform", "traced": True, **meta})


def changed(config: type[Config], name: str, default: Any, help: str | None = None, **meta: Any) -> Any:
    """Declare an option of a base again: with another default, and other words if they are given."""
    known = options(config)[name]
    known = dataclasses.replace(known, **{"help": known.help if help is None else help, **meta})
    return dataclasses.field(default=default, metadata={"option": known})


def network(role: str = "", **meta: Any) -> Any:
    """Declare a network."""
    forms = "'auto', a list of widths or of layers, a Keras model, or the path to a model file"
    return option("auto", f"Network{role}: {forms}", **meta)


def rollout_length(default: int) -> Any:
    """Declare the length of the blocks that an algorithm learns from."""
    return option(
        default,
        "Rollout length: steps of each environment between updates",
        unit="environment steps per environment and update",
        low=1,
        search="categorical",
    )


def update_interval() -> Any:
    """Declare how often an algorithm replays."""
    return option(
        1,
        "Steps of each environment between updates",
        unit="environment steps per environment",
        low=1,
        search="categorical",
    )


OWN_NUMBERS: dict[str, dict[str, float]] = {
    "adabelief": {"opt_epsilon": 1e-16},
    "adadelta": {"beta2": 0.95},
    "lion": {"beta2": 0.99},
    "rmsprop": {"beta2": 0.9},
    "yogi": {"opt_epsilon": 0.001},
}
"""Defaults of optimizers other than Adam's: those of Keras and, for what it has not, of optax.

Adam corrects the bias of its second moment; in what does not, 0.999 makes first steps 30 times as long."""


def own_numbers(optimizer: Any) -> dict[str, float]:
    """Return the defaults that an optimizer, given by its name or as a dict, has instead of Adam's."""
    name = optimizer.get("type") if isinstance(optimizer, Mapping) else optimizer
    return OWN_NUMBERS.get(name, {}) if isinstance(name, str) else {}


class AgentConfig(Config):
    """Options of every algorithm that trains a network."""

    auto_width: ClassVar[int] = 64
    """Width of the dense layers of an 'auto' network."""

    gamma: Scalar = number(0.99, "Discount factor", high=1.0, aliases=("discount",))
    lr: Scalar = number(0.0007, "Learning rate of the optimizer", aliases=("learning_rate",))
    beta1: Scalar = number(0.9, "Decay rate of the first moment in Adam-like optimizers", high=1.0)
    beta2: Scalar = number(
        0.999,
        "Decay rate of the second moment in Adam-like optimizers (default for rmsprop 0.9, for adadelta "
        "0.95, for lion 0.99)",
        high=1.0,
    )
    opt_epsilon: Scalar = number(
        1e-07, "Epsilon in the denominator of the optimizer (default for yogi 0.001, for adabelief 1e-16)"
    )
    optimizer: Any = option(
        "adam",
        "Optimizer: a name (adam, adamw, nadam, rmsprop, sgd, ...), a dict with 'type', a Keras optimizer "
        "(its numbers become lr, beta1, ... where these are not given) or an optax transformation (then "
        "lr, beta1, beta2 and opt_epsilon have no effect)",
    )
    grad_norm: float | None = option(
        None,
        "Global norm to which gradients are clipped (None: no clipping)",
        low=0.0,
        low_open=True,
        search="log_uniform",
    )
    normalize_observations: bool = option(
        False,
        "Scale float observations (numbers and vectors; not images) by their running mean and standard "
        "deviation, which are saved with the agent",
    )
    normalize_rewards: bool = option(
        False, "Divide rewards by the running standard deviation of the discounted return"
    )

    def __init__(self, **values: Any) -> None:
        """Take what is not given from the optimizer's own defaults."""
        super().__init__(**{**own_numbers(values.get("optimizer")), **values})

    def batch(self, actors: int) -> int:
        """Return roughly how many rows a gradient step has: how many threads pay off depends on it."""
        return 0

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """The optimizers that take gradient steps."""
        return (self.optimizer,)

    def remarks(self, steps: int | None) -> Iterator[str]:
        """Say which options have no effect given the others, or in so many steps (None: endless)."""
        for name, meta in options(type(self)).items():
            value = getattr(self, name)
            if meta.needs is None or value == default(type(self), name) or effective(meta.needs, vars(self)):
                continue
            switch, wanted = meta.needs
            shown = " or ".join(map(repr, wanted if isinstance(wanted, tuple) else (wanted,)))
            yield f"{name}={value!r} has no effect without {switch}={shown}"
        if not any(isinstance(optimizer, str | Mapping) for optimizer in self.optimizers):  # objects of optax
            for name in options(type(self)):
                value = getattr(self, name)
                number = name in ("lr", "beta1", "beta2", "opt_epsilon") or name.endswith("_lr")
                if number and value != default(type(self), name):
                    yield (
                        f"{name}={value!r} has no effect: the optimizer is an optax transformation, which "
                        "has numbers of its own"
                    )

    def check(self) -> Iterator[str]:
        """Refuse moments that never move: Adam would divide 0 by 0, and every step would be skipped."""
        yield from super().check()
        for name in ("beta1", "beta2"):
            value = getattr(self, name)
            if (value.range()[1] if isinstance(value, Schedule) else value) >= 1.0:
                yield f"{name} must be below 1. Received: {name}={value!r}."


class ModelConfig(AgentConfig):
    """Options of algorithms with one network."""

    model: Any = network(aliases=("network",))

    @classmethod
    def translated(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Read a `policy` that is a network and nothing else."""
        return tensorforce_spec.network_of_policy(given, "model")


class SharedModelConfig(ModelConfig):
    """Options of algorithms whose policy and value are outputs of one model."""

    separate: bool | None = option(
        None,
        "Separate networks for policy and value, or one trunk with two heads (default: one trunk if a "
        "state is an image, else separate networks). No effect on models with outputs of their own",
    )


class ActorCriticConfig(AgentConfig):
    """Options of algorithms with a network for the actor and one for the critic."""

    actor_model: Any = network(" of the actor")
    critic_model: Any = network(" of the critic")

    @classmethod
    def translated(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Read a `policy` that is a network and nothing else."""
        return tensorforce_spec.network_of_policy(given, "actor_model")


class PolicyConfig(Config):
    """Options of stochastic policies over float actions."""

    distribution: Literal["clip", "squash", "beta"] = option(
        "clip",
        "Distribution of bounded continuous actions: clip (clipped Gaussian), squash (tanh of a Gaussian) or "
        "beta",
        choices=("clip", "squash", "beta"),
    )
    std: Literal["global", "predicted"] = option(
        "global",
        "Standard deviation of the Gaussian: one learned number per action (global) or an output of the "
        "network (predicted)",
        choices=("global", "predicted"),
    )


class RolloutConfig(AgentConfig, PolicyConfig):
    """Options of actor-critic algorithms that learn from fresh blocks with a stochastic policy."""

    entropy_coef: Scalar = number(0.01, "Weight of the entropy in the loss. Larger: more exploration")
    grad_norm: float | None = changed(AgentConfig, "grad_norm", 0.5)
    lam: Scalar = number(0.95, "GAE-Lambda for advantage estimation", high=1.0)
    n_steps: int = rollout_length(128)
    value_loss_coef: Scalar = number(0.5, "Weight of the value loss")

    def batch(self, actors: int) -> int:
        """Return the rows of a block."""
        return self.n_steps * actors


class EpsilonConfig(AgentConfig):
    """Options of algorithms that explore by a share of random actions."""

    epsilon_start: Scalar = number(
        1.0,
        "Share of random actions (epsilon) at the beginning",
        high=1.0,
    )
    epsilon_end: Scalar = number(0.02, "Share of random actions (epsilon) at the end", high=1.0)
    epsilon_decay_steps: Scalar = option(
        150000,
        "Steps in which epsilon falls from epsilon-start to epsilon-end",
        unit="environment steps",
        low=1,
        search="int",
        traced=True,
    )

    @property
    def decay_begins(self) -> int | None:
        """Environment step at which ε begins to fall; None if something else explores."""
        return 0

    def remarks(self, steps: int | None) -> Iterator[str]:
        """Report exploration that goes on to the end of the run."""
        yield from super().remarks(steps)
        first, start, end = self.decay_begins, self.epsilon_start, self.epsilon_end
        decay = self.epsilon_decay_steps
        if first is None:
            for name in ("epsilon_start", "epsilon_end", "epsilon_decay_steps"):
                if getattr(self, name) != default(type(self), name):
                    yield f"{name}={getattr(self, name)!r} has no effect: something else explores"
        if steps is None or first is None:
            return
        if isinstance(start, Schedule) or isinstance(end, Schedule) or isinstance(decay, Schedule):
            return
        if end < start and steps < first + decay:
            left = start + (end - start) * max(steps - first, 0) / decay
            yield (
                f"Exploration goes on to the end: ε reaches {end:g} at step {first + decay:,.0f} "
                f"(epsilon_decay_steps), and is {left:.2f} at the run's last, {steps:,}"
            )

    def check(self) -> Iterator[str]:
        """Refuse a rising ε."""
        yield from super().check()
        start, end = self.epsilon_start, self.epsilon_end
        if isinstance(start, float) and isinstance(end, float) and end > start:
            yield (
                "epsilon_end must be at most epsilon_start. "
                f"Received: epsilon_end={self.epsilon_end}, epsilon_start={self.epsilon_start}."
            )


class ReplayConfig(AgentConfig):
    """Options of algorithms that learn from a replay memory."""

    waiting: ClassVar[str] = "Nothing is learnt: learning begins after {:,} random steps"
    """What to say of the time until the memory is filled."""

    buffer_max_size: int = option(
        10000,
        "Size of the replay buffer",
        unit="rows of all environments together",
        low=2,
        search="int",
        aliases=("memory",),
    )
    buffer_initial_size: int | None = option(
        None,
        "Environment steps with random actions before learning starts (default: buffer-max-size)",
        unit="environment steps",
        low=0,
        search="int",
    )
    buffer_batch_size: int = option(
        32,
        "Batch size: transitions per gradient step",
        unit="transitions",
        low=1,
        search="categorical",
        aliases=("batch_size",),
    )

    def batch(self, actors: int) -> int:
        """Return the transitions of a batch."""
        return self.buffer_batch_size

    @property
    def initial_size(self) -> int:
        """Environment steps before the first update."""
        return self.buffer_max_size if self.buffer_initial_size is None else self.buffer_initial_size

    def remarks(self, steps: int | None) -> Iterator[str]:
        """Report a memory that is never full enough for learning to begin."""
        yield from super().remarks(steps)
        if steps is not None and steps <= self.initial_size:
            yield f"{self.waiting.format(self.initial_size)} (buffer_initial_size), and the run has {steps:,}"

    def check(self) -> Iterator[str]:
        """Refuse sizes with which learning would never begin."""
        yield from super().check()
        if self.buffer_initial_size is not None and self.buffer_initial_size > self.buffer_max_size:
            yield (
                "buffer_initial_size must be at most buffer_max_size. Received: "
                f"buffer_initial_size={self.buffer_initial_size}, buffer_max_size={self.buffer_max_size}."
            )
        if self.buffer_batch_size > self.buffer_max_size:
            yield (
                "buffer_batch_size must be at most buffer_max_size. Received: "
                f"buffer_batch_size={self.buffer_batch_size}, buffer_max_size={self.buffer_max_size}."
            )


class SequenceConfig(ReplayConfig):
    """Options of algorithms whose recurrent networks learn from replayed sequences."""

    buffer_batch_size: int = changed(
        ReplayConfig,
        "buffer_batch_size",
        32,
        "Batch size: transitions per gradient step; for a recurrent network, sequences",
        unit="transitions (or sequences)",
    )
    sequence_length: int = option(
        20,
        "Length of the replayed sequences that a recurrent network learns from; other networks learn from "
        "single steps",
        unit="rows",
        low=1,
        search="categorical",
    )
    burn_in: int = option(
        10,
        "Rows replayed before those of sequence-length, without gradients, to warm up a recurrent "
        "network's state",
        unit="rows",
        low=0,
        search="categorical",
    )


class ContinuousConfig(SequenceConfig, ActorCriticConfig):
    """Options of off-policy actor-critic algorithms for float actions."""

    auto_width: ClassVar[int] = 256

    critic_lr: Scalar | None = number(None, "Learning rate of the critic (default: lr)")
    gradient_steps: int | None = option(
        None,
        "Gradient steps per update (default: as many as environment steps since the last update)",
        low=1,
        search="int",
    )
    tau: Scalar = number(
        0.005,
        "How far each target network moves towards its network at an update",
        low_open=True,
        high=1.0,
    )
    train_every: int = update_interval()


class DeterministicConfig(ContinuousConfig):
    """Options of off-policy algorithms whose policy is deterministic and explores by noise."""

    step_noise_coef: Scalar = number(
        0.1, "Standard deviation of the noise added to actions", unit="half ranges of the action"
    )
