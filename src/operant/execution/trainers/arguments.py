"""Arguments of the algorithms' classes: networks, replay buffers, options of algorithm and run."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from operant.agents import SLOTS
from operant.agents.base.agent_spec import words
from operant.agents.table import AGENTS, DEFAULT, config_class
from operant.errors import SpecError, UsageError, minibatch_hint, suggest, value_error, whole
from operant.spec import Config, aliases, default, options
from operant.spec.run import PROCESSES, RunConfig

MODELS = {option: option.removesuffix("_model") for option in SLOTS}
"""Options that take a network, and what the names of its models begin with."""
NOT_OPTIONS = frozenset(
    {
        "env",
        "n_envs",
        "max_steps",
        "target_reward",
        "monitor_session",
        "logger",
        "resume",
        "weights",
        *PROCESSES,
    }
)
"""Options of a run that are no keyword arguments here: others say the same, or they are for
`operant train`."""
BOUNDED = ("tanh", "sigmoid", "hard_sigmoid", "softmax", "softsign", "hard_tanh")
"""Activations whose values are between -1 and 1."""
NONE_IS_A_VALUE = frozenset({"keep_checkpoints"})
"""Options of a run for which None is a value other than the default."""


def slots(config: type[Config]) -> list[str]:
    """Return what an algorithm's class takes by place after the environments: networks, then buffers."""
    known = options(config)
    return [*(name for name in MODELS if name in known), *(["buffers"] if "buffer_max_size" in known else [])]


def named(agent: str, parts: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give the positional arguments of an algorithm's class, and options given by an alias, their names.

    None for a network, for buffers or for an option of the run is left out, as it stands for the default;
    except in `NONE_IS_A_VALUE`. `parts` are networks, actor before critic, then replay buffers, as far as the
    algorithm has them.

    Raises:
        UsageError: there are more parts than the algorithm has, or something is given twice.
    """
    config, name_of_class = config_class(agent), AGENTS[agent].cls
    known, places = options(config), slots(config)
    if len(parts) > len(places):
        raise UsageError(
            f"{name_of_class} takes envs, {', '.join(places)}. Received: {len(parts) + 1} positional "
            "arguments. Give options by name."
        )
    placed = dict(zip(places, parts, strict=False))
    for name in placed:
        if name in settings:
            raise UsageError(f"{name_of_class} got {name!r} twice, by place and by name.")
    # What a config reads itself says more than the option's own name.
    meant = {
        word: name
        for word, name in {**aliases(RunConfig), **aliases(config)}.items()
        if word not in config.words()
    }
    options_by_name: dict[str, Any] = {}
    for word, value in {**placed, **settings}.items():
        name = meant.get(word, word)
        if name in options_by_name:
            raise UsageError(f"{name_of_class} got {name!r} twice, once as {word!r}. Give one of them.")
        if value is not None or name in NONE_IS_A_VALUE or name in known.keys() - set(places):
            options_by_name[name] = value
    return options_by_name


def split(
    agent: str, arguments: Mapping[str, Any], n_envs: int | None = None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide keyword arguments into options of the run and the algorithm's own.

    `n_envs` is how many environments, as far as known, for the message.

    Raises:
        UsageError: an option of the run that no class takes.
        SpecError: there is no such option; says what is meant, also by other libraries' words.
    """
    known = set(options(RunConfig)) - NOT_OPTIONS
    for name in arguments.keys() & NOT_OPTIONS:
        raise UsageError(
            f"{name} is no argument of the class. Give max_steps, target_reward and logger to fit(); the "
            "rest is for `operant train`."
        )
    config = config_class(agent)
    names = known | words(config)
    for name in arguments.keys() - names - {"buffers"}:
        raise SpecError(f"{agent} takes no argument {name!r}.{_meant(agent, name, arguments, n_envs)}")
    return (
        {name: value for name, value in arguments.items() if name in known},
        {name: value for name, value in arguments.items() if name not in known},
    )


def _meant(agent: str, name: str, arguments: Mapping[str, Any], n_envs: int | None) -> str:
    config, label = config_class(agent), AGENTS[agent].cls
    if {"mini_batches", "n_steps"} <= options(config).keys():
        n_steps = arguments.get("n_steps", default(config, "n_steps"))
        if hint := minibatch_hint(name, arguments[name], n_steps, n_envs):
            return hint
    if AGENTS[agent].form is not None and name in words(config_class(DEFAULT)):
        form = f"Agent.create(agent={agent!r}, {name}=...)"
        return f" It belongs to the {DEFAULT} agent's form of {agent}: {form}."
    hint = suggest(name, words(config) | options(RunConfig).keys(), listed=False)
    return hint or f" help(operant.{label}) lists them."


class ReplayBuffer1:
    """Size of one environment's share of the replay memory, for the class of an algorithm that has one.

    The memory itself lives on the device that trains, one for all environments; shares are summed up.

    Args:
        size: most rows.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.

    Raises:
        SpecError: sizes that do not fit one another.
    """

    def __init__(self, size: int, *, initial_size: int | None = None, batch_size: int = 32) -> None:
        self.size = whole("size", size)
        self.initial_size = whole("initial_size", size if initial_size is None else initial_size)
        self.batch_size = whole("batch_size", batch_size)
        for name in ("initial_size", "batch_size"):
            if getattr(self, name) > size:
                raise value_error(name, f"at most size ({size})", getattr(self, name))


class ReplayBuffer2(ReplayBuffer1):
    """Like `ReplayBuffer1`; `slots` (arrays of a transition) is accepted and has no effect here."""

    def __init__(
        self, size: int, slots: int = 5, *, initial_size: int | None = None, batch_size: int = 32
    ) -> None:
        super().__init__(size, initial_size=initial_size, batch_size=batch_size)
        self.slots = slots


def buffer_options(
    config: type[Config], buffers: Any, environments: int | None, others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that replay buffers, one for each environment or one for all, stand for.

    Shares are summed up, except for an option that counts something per environment anyway.

    Args:
        config: the algorithm's.
        buffers: the list, the one buffer, or None: none are given.
        environments: how many there are; None: not known.
        others: options that are given beside them, which must not say the same.
    """
    if buffers is None:
        return {}
    parts = list(buffers) if isinstance(buffers, list | tuple) else [buffers]
    if isinstance(buffers, list | tuple) and environments not in (None, len(parts)):
        raise SpecError(
            f"buffers must be one for each environment. Received: {len(parts)} for {environments} "
            "environments. Give as many, or a single one (no list) for all together."
        )
    for part in parts:
        if not isinstance(part, ReplayBuffer1):
            raise value_error("buffers", "a list of ReplayBuffer1 or ReplayBuffer2", part)
    sizes = {}
    for name in ("size", "initial_size", "batch_size"):
        option = "buffer_max_size" if name == "size" else f"buffer_{name}"
        each = (options(config)[option].unit or "").endswith("per environment")
        if others.get(option) is not None:
            raise SpecError(f"{option} is given twice, by itself and by buffers. Give one of them.")
        values = [getattr(part, name) for part in parts]
        sizes[option] = max(values) if each else sum(values)
    return sizes


def optimizer_options(
    config: type[Config], models: Mapping[str, Any], others: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that optimizers of compiled Keras models stand for, without those in `others`."""
    optimizers = [m.optimizer for m in models.values() if getattr(m, "optimizer", None) is not None]
    if "optimizer" in others or not optimizers:
        return {}
    from operant.nn.keras_optimizers import options_of

    each, apart = [options_of(optimizer) for optimizer in optimizers], {}
    if len(each) == 2 and "critic_lr" in options(config) and each[0].get("lr") != each[1].get("lr"):
        apart = {"critic_lr": each[1]["lr"]}  # actor before critic
        each[1] = {**each[1], "lr": each[0]["lr"]}
    if any(other != each[0] for other in each):
        raise SpecError(
            "The models are compiled with different optimizers. Compile them with the same (the learning "
            "rates of actor and critic may differ for agents with a critic_lr), or give optimizer= and lr=."
        )
    return {name: value for name, value in (each[0] | apart).items() if name not in others}


def refuse_shared_weights(models: Mapping[str, Any]) -> None:
    """Refuse Keras models with common trained weights: each is trained by itself, the last would win."""
    owners: dict[int, str] = {}
    for option, model in models.items():
        # A class makes models that are not made yet; what is not trained stays as it is, in both networks.
        built = hasattr(model, "stateless_call") and not isinstance(model, type)
        for variable in model.trainable_variables if built else ():
            if (other := owners.setdefault(id(variable), option)) != option:
                raise SpecError(
                    f"{other} and {option} share the weights {variable.path!r}, and each network is trained "
                    "by itself. Give each layers of its own."
                )


def warn_of_bounded_values(agent: str, models: Mapping[str, Any]) -> None:
    """Warn of a Keras critic whose values cannot be large, such as one made from the actor's file."""
    layers = getattr(models.get("critic_model"), "layers", None) or [None]
    activation = getattr(getattr(layers[-1], "activation", None), "__name__", "")
    if activation in BOUNDED:
        kind = "cnn" if len(models["critic_model"].inputs[0].shape) > 2 else "ann"
        warnings.warn(
            f"critic_model ends in {activation}, so it cannot learn values beyond 1. Build it from the "
            f"critic's file: ModelReader(operant.agents[{agent!r}]['critic_model'][{kind!r}][0], ...).",
            RuntimeWarning,
            stacklevel=4,
        )
