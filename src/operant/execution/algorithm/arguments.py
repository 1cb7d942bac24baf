"""Arguments of the classes of `operant.execution.algorithm.fit` beside environments: networks, replay
buffers, options of the algorithm and of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from operant.agents.base.agent_spec import words
from operant.agents.base.card import SLOTS
from operant.agents.table import AGENTS, DEFAULT, config_class
from operant.errors import SpecError, UsageError, suggest, value_error, whole
from operant.spec import Config, options
from operant.spec.run import PROCESSES, RunConfig

MODELS = {option: option.removesuffix("_model") for option in SLOTS}
"""Options that take a network, and what the names of its models begin with."""
NOT_OPTIONS = frozenset(
    {"env", "n_envs", "max_steps", "target_reward", "monitor_session", "resume", "weights", *PROCESSES}
)
"""Options of a run that are no keyword arguments here: others say the same, or they are for
`operant train`."""
NONE_IS_A_VALUE = frozenset({"keep_checkpoints"})
"""Options of a run for which None is a value other than the default."""


def named(agent: str, parts: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Give the positional arguments of an algorithm's class their names, and options that are given by an
    alias their own.

    None for a network, for buffers or for an option of the run is left out, as it stands for the default;
    except in `NONE_IS_A_VALUE`.

    Args:
        agent: the algorithm, by its name in the table.
        parts: networks, actor before critic, and replay buffers, as far as the algorithm has them.
        settings: keyword arguments.

    Raises:
        UsageError: there are more parts than the algorithm has, or something is given twice.
    """
    config, name_of_class = config_class(agent), AGENTS[agent].cls
    known = options(config)
    slots = [name for name in MODELS if name in known]
    if "buffer_max_size" in known:
        slots.append("buffers")
    if len(parts) > len(slots):
        raise UsageError(
            f"{name_of_class} takes envs, {', '.join(slots)}. Received: {len(parts) + 1} positional "
            "arguments. "
            "Give options by name."
        )
    placed = dict(zip(slots, parts, strict=False))
    for name in placed:
        if name in settings:
            raise UsageError(f"{name_of_class} got {name!r} twice, by place and by name.")
    # What a config reads itself says more than the option's own name.
    aliases = {
        alias: name for name, meta in known.items() for alias in meta.aliases if alias not in config.words()
    }
    told: dict[str, Any] = {}
    for given, value in {**placed, **settings}.items():
        name = aliases.get(given, given)
        if name in told:
            raise UsageError(f"{name_of_class} got {name!r} twice, once as {given!r}. Give one of them.")
        if value is not None or name in NONE_IS_A_VALUE or name in known.keys() - set(slots):
            told[name] = value
    return told


def split(agent: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Divide keyword arguments into options of the run and the algorithm's own.

    Raises:
        UsageError: an option of the run that no class takes.
        SpecError: there is no such option.
    """
    known = set(options(RunConfig)) - NOT_OPTIONS
    for name in given.keys() & NOT_OPTIONS:
        raise UsageError(
            f"{name} is no argument of the class. Give max_steps and target_reward to fit(); the rest is "
            "for `operant train`."
        )
    own = known | words(config_class(agent))
    for name in given.keys() - own - words(config_class(DEFAULT)) - {"buffers"}:
        remedy = suggest(name, own | options(RunConfig).keys(), listed=False)
        remedy = remedy or f" help(operant.{AGENTS[agent].cls}) lists them."
        raise SpecError(f"{agent} takes no argument {name!r}.{remedy}")
    return (
        {name: value for name, value in given.items() if name in known},
        {name: value for name, value in given.items() if name not in known},
    )


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
    """Like `ReplayBuffer1`; `slots` (arrays of a transition) is accepted and has no effect here.

    Args:
        size: most rows.
        slots: ignored.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.
    """

    def __init__(
        self, size: int, slots: int = 5, *, initial_size: int | None = None, batch_size: int = 32
    ) -> None:
        super().__init__(size, initial_size=initial_size, batch_size=batch_size)
        self.slots = slots


def buffer_options(
    config: type[Config], buffers: Any, environments: int | None, own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options of an algorithm that a list of replay buffers, one for each environment, stands for.

    Shares are summed up, except for an option that counts something per environment anyway.

    Args:
        config: the algorithm's.
        buffers: the list; or one buffer that is for all; None: none are given.
        environments: how many there are; None: not known.
        own: options that are given beside them, which must not say the same.
    """
    if buffers is None:
        return {}
    parts = list(buffers) if isinstance(buffers, list | tuple) else [buffers]
    if isinstance(buffers, list | tuple) and environments not in (None, len(parts)):
        raise SpecError(
            f"buffers must be one for each environment. Received: {len(parts)} for {environments} "
            "environments. "
            "Give as many, or a single one (no list) for all together."
        )
    for part in parts:
        if not isinstance(part, ReplayBuffer1):
            raise value_error("buffers", "a list of ReplayBuffer1 or ReplayBuffer2", part)
    found = {}
    for name in ("size", "initial_size", "batch_size"):
        option = "buffer_max_size" if name == "size" else f"buffer_{name}"
        each = (options(config)[option].unit or "").endswith("per environment")
        if own.get(option) is not None:
            raise SpecError(f"{option} is given twice, by itself and by buffers. Give one of them.")
        values = [getattr(part, name) for part in parts]
        found[option] = max(values) if each else sum(values)
    return found


def optimizer_options(
    config: type[Config], models: Mapping[str, Any], own: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the options that the optimizers of compiled Keras models stand for, except those that are
    given (`own`).
    """
    given = [m.optimizer for m in models.values() if getattr(m, "optimizer", None) is not None]
    if "optimizer" in own or not given:
        return {}
    from operant.nn.keras_optimizers import options_of

    found, apart = [options_of(optimizer) for optimizer in given], {}
    if len(found) == 2 and "critic_lr" in options(config) and found[0].get("lr") != found[1].get("lr"):
        apart = {"critic_lr": found[1]["lr"]}  # actor before critic
        found[1] = {**found[1], "lr": found[0]["lr"]}
    if any(other != found[0] for other in found):
        raise SpecError(
            "The models are compiled with different optimizers. Compile them with the same (the learning "
            "rates of actor and "
            "critic may differ for agents with a critic_lr), or give optimizer= and lr=."
        )
    return {name: value for name, value in (found[0] | apart).items() if name not in own}


def refuse_shared_weights(models: Mapping[str, Any]) -> None:
    """Refuse Keras models that share trained weights: each network is trained by itself, and the last
    would overwrite the others'.
    """
    owners: dict[int, str] = {}
    for option, model in models.items():
        # A class makes models that are not made yet; what is not trained stays as it is, in both networks.
        made = hasattr(model, "stateless_call") and not isinstance(model, type)
        for variable in model.trainable_variables if made else ():
            if (other := owners.setdefault(id(variable), option)) != option:
                raise SpecError(
                    f"{other} and {option} share the weights {variable.path!r}, and each network is trained "
                    "by itself. Give each layers of its own."
                )
