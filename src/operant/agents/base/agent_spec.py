"""From a specification (a name, dict, file or class, and options) to an algorithm's definition."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import optax

from operant.agents.base.protocol import Algorithm, config_type
from operant.agents.options.shared_options import AgentConfig, own_numbers
from operant.agents.table import (
    AGENTS,
    ALIASES,
    DEFAULT,
    algorithm_class,
    identify,
    not_an_agent,
    represented,
    resolve,
)
from operant.errors import FIELD, CheckpointError, value_error
from operant.nn import keras_optimizers
from operant.ops import optimise
from operant.spec import (
    Config,
    aliases,
    build,
    canonical,
    data_only,
    import_object,
    options,
    read_json,
    traced,
)

UNKNOWN_WIDTH = 256
"""Width that a network given as a file or an object is assumed to have."""


class AgentSpec(NamedTuple):
    """An algorithm and its options, before it meets an environment."""

    name: str
    """Name in the table, or import path of a class that is not in it."""
    cls: type[Algorithm]
    config: Config

    def to_dict(self) -> dict[str, Any]:
        """Return JSON data that `parse_agent` reads, with networks of objects or files written out."""
        written = {name: _network(value) for name, value in self.networks().items()}
        return {"type": self.name, **self.config.with_values(written).to_dict()}

    def networks(self) -> dict[str, Any]:
        """Return the options that are networks."""
        return {name: value for name, value in vars(self.config).items() if name.endswith("model")}

    def usual(self) -> AgentSpec:
        """Return the same agent with default options."""
        return parse_agent(self.name if self.name in AGENTS else self.cls)

    @property
    def learns(self) -> bool:
        """Whether updates ever come, as far as the options tell."""
        return bool(getattr(self.config, "learns", True))

    def limited(self, steps: int | None) -> AgentSpec:
        """Return it with the longest episode's length, if its options ask for that and none was given."""
        if steps is None or getattr(self.config, "episode_limit", steps) is not None:
            return self
        return self._replace(config=self.config.replace(episode_limit=steps))

    def remarks(self, steps: int | None) -> list[str]:
        """Say which files networks come from, and which options have no effect in so many steps."""
        from operant.nn.network import SavedNetwork

        networks = self.networks().items()
        taken = [
            f"{network.source} bring their network ({name})"
            for name, network in networks
            if isinstance(network, SavedNetwork)
        ]
        return [*taken, *(self.config.remarks(steps) if isinstance(self.config, AgentConfig) else ())]

    def product(self, actors: int) -> int:
        """Return roughly how many multiplications the largest matrix product of a gradient step takes."""
        if not isinstance(self.config, AgentConfig):
            return 0
        from operant.nn.network import written

        networks = map(written, self.networks().values())
        width = max((_width(network, self.config.auto_width) for network in networks), default=0)
        return self.config.batch(actors) * width**2


def _width(network: Any, auto: int) -> int:
    from operant.nn.network import SavedNetwork

    if isinstance(network, SavedNetwork):
        return _width(network.network, auto)
    if network is None or (isinstance(network, str) and not Path(network).suffix):
        return auto
    if isinstance(network, Mapping):
        size = network.get("size", auto if network.get("type") == "auto" else 0)
        if isinstance(size, list | tuple):
            return int(max(size, default=0))
        inner = (
            _width(value, auto) for value in network.values() if isinstance(value, Mapping | list | tuple)
        )
        return max([int(size) if isinstance(size, int | float) else 0, *inner])
    if isinstance(network, list | tuple):
        return max((_width(part, auto) for part in network if not isinstance(part, str)), default=0)
    return UNKNOWN_WIDTH


def _network(value: Any) -> Any:
    """Return a network as data: a file, or an object of this program, may be gone tomorrow."""
    from operant.nn.network import NETWORKS, SavedNetwork, parse

    if isinstance(value, SavedNetwork):
        return value.network
    kind = value.get("type") if isinstance(value, Mapping) else value
    known = _is_word(value) or isinstance(value, list | tuple) or (isinstance(kind, str) and kind in NETWORKS)
    return value if known and _is_data(value) else parse(value).to_spec()


def _is_word(value: Any) -> bool:
    """Tell whether a network is None or a word: `'auto'`, or a baseline's `'shared'`."""
    return value is None or (isinstance(value, str) and not any(mark in value for mark in "./:"))


def _read(network: Any) -> Any:
    """Read a network of files or code; words stay, as each algorithm adds its own defaults."""
    from operant.nn.network import parse, written

    spec = written(network)
    auto = isinstance(spec, Mapping) and spec.get("type") == "auto"
    return network if auto or _is_word(network) else parse(network)


def _is_data(value: Any) -> bool:
    """Tell if a value is JSON data as it stands; a list of layers may hold objects as well."""
    if isinstance(value, Mapping):
        return all(map(_is_data, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_data, value))
    return value is None or isinstance(value, bool | int | float | str)


def parse_agent(agent: Any, **options: Any) -> AgentSpec:
    """Read the specification of an agent.

    Args:
        agent: name, dict with `type` or `agent` (without them the modular agent), path of a JSON file,
            algorithm class (its own or the one with `fit`), import path of one, or a `AgentSpec`.
        options: hyperparameters besides those in the specification; they override the specification's.

    Raises:
        SpecError: an unknown name or option, with the close match, or a value out of bounds.
    """
    layers: list[Mapping[str, Any]] = [options]  # in order of precedence
    while not isinstance(agent, type):
        if isinstance(agent, AgentSpec):
            return _defined(agent.name, agent.cls, [*layers, vars(agent.config)])
        elif isinstance(agent, Mapping):
            inner = dict(agent)
            agent = inner.pop("agent", None) or inner.pop("type", None)
            layers.append(inner)
            if agent is None:
                label = f"{DEFAULT}, the agent of a dict without 'type',"
                return _defined(DEFAULT, algorithm_class(DEFAULT), layers, label)
        elif isinstance(agent, Path) or (isinstance(agent, str) and agent.endswith(".json")):
            agent = read_json(agent, "agent")
        elif isinstance(agent, str) and (agent in AGENTS or agent in ALIASES):
            return _named(resolve(agent), layers)
        elif isinstance(agent, str) and ("." in agent or ":" in agent):
            agent = import_object(agent, "agent")
        else:
            raise not_an_agent(agent)
    name = represented(agent)
    if name is not None:
        return _named(name, layers)
    return _defined(identify(agent)[0], agent, layers)


def parse_saved_agent(saved: Mapping[str, Any], source: str, own: AgentSpec | None = None) -> AgentSpec:
    """Read what `AgentSpec.to_dict` wrote to a file, perhaps somebody else's: make it in `from_file`, too.

    Args:
        saved: what it wrote.
        source: the file, for messages.
        own: the caller's definition, for what the file cannot hold: an algorithm that is not operant's, the
            optimizer, networks made by code. Its networks take precedence over the file's, unless they are
            the default.

    Raises:
        CheckpointError: the algorithm is not operant's, and not given; the caller's is another one, or has
            other options.
        SpecError: the file is not understood.
    """
    arguments = dict(saved)
    kind = arguments.pop("type")
    if own is None:
        if not isinstance(kind, str) or kind not in AGENTS:
            raise CheckpointError(
                f"{source} is of an algorithm {kind!r} that is not operant's own. Give its class, if you "
                "trust it: "
                "agent=TheClass; on the command line before the folder: operant play module:TheClass RUN."
            )
        with from_file(source):
            return parse_agent(kind, **arguments)
    if kind in AGENTS and algorithm_class(kind) is not own.cls:
        raise CheckpointError(
            f"{source} is of the agent {kind!r}. Received: agent={own.name!r}. Give agent={kind!r}, with "
            "what the file cannot hold, or leave agent out."
        )
    default = own.usual()
    lost = arguments.get("optimizer") == {"type": optimise.GIVEN}
    if lost and vars(own.config).get("optimizer") == vars(default.config).get("optimizer"):
        optimise.Recipe.read(arguments["optimizer"])  # says to give it again
    networks, usual = own.networks(), default.networks()
    arguments |= {name: _read(x) for name, x in networks.items() if x != usual[name]}
    with from_file(source):
        loaded = parse_agent(own, **arguments)
    _refuse_changes(own, default, loaded, source)
    return loaded


def _refuse_changes(caller: AgentSpec, default: AgentSpec, loaded: AgentSpec, source: str) -> None:
    """Refuse options of the caller's, but networks, that are neither the default's nor the file's."""
    networks = caller.networks()
    unset = {**vars(default.config), **own_numbers(vars(caller.config).get("optimizer"))}
    for name, value in vars(caller.config).items():
        saved = getattr(loaded.config, name)
        if name not in networks and value not in (unset[name], saved):
            raise CheckpointError(
                f"{source} was saved with {name}={saved!r}, and a loaded agent goes on as it was saved. "
                f"Received: {name}={value!r}. Give the same, or leave it out."
            )


def refuse_numbers(
    cls: type[Config], here: Mapping[str, Any], saved: Mapping[str, Any], source: str, exchanged: bool = False
) -> None:
    """Refuse (CheckpointError) options in force that were saved with other values than the agent has.

    With `exchanged`, a saved number may take the place of another one, but not of a schedule or of None:
    what was saved of those is a factor.
    """
    for name in traced(cls):
        was, now = saved.get(name, here[name]), here[name]
        numbers = isinstance(was, int | float) and isinstance(now, int | float)
        if was != now and not (exchanged and numbers):
            raise CheckpointError(
                f"{source} was saved with {name}={was!r}, and goes on with it. The agent has {name}={now!r}. "
                "Give the same."
            )


def from_file(source: str) -> contextlib.AbstractContextManager[None]:
    """Return a context in which agents are made from a file, read as data only: it may be anybody's."""
    return data_only(
        source,
        "Import and register what is Keras's, or give the networks yourself: Agent.load(..., agent={'type': "
        "..., 'model': ...}).",
    )


def _named(name: str, layers: list[Mapping[str, Any]]) -> AgentSpec:
    """Define an agent of the table; options that only one form of `DEFAULT` has choose it."""
    entry, cls = AGENTS[name], algorithm_class(name)
    if entry.form is not None:
        config, other = config_type(cls), algorithm_class(DEFAULT)
        only_there = words(config_type(other)) - words(config) - FIELD.keys()
        if meant := [key for layer in layers for key in config.translated(layer) if key in only_there]:
            label = f"{name} with {meant[0]!r}"
            _log_form(name, meant[0])
            return _defined(DEFAULT, other, [*layers, entry.form], label)
    return _defined(name, cls, [*layers, entry.options])


@functools.cache
def _log_form(name: str, argument: str) -> None:
    logging.getLogger("operant").warning(
        f"{name} with {argument!r} is the {DEFAULT} agent's form of {name}. For the algorithm itself leave "
        f"out what help(operant.{AGENTS[name].cls}) does not list."
    )


def words(config: type[Config]) -> set[str]:
    """Return the names of all arguments that a config understands."""
    return {*options(config), *config.words(), *aliases(config)}


def _defined(
    name: str, cls: type[Algorithm], layers: list[Mapping[str, Any]], label: str | None = None
) -> AgentSpec:
    """Merge layers of options, the first of which wins; aliases count as the options' own names."""
    config = config_type(cls)
    arguments: dict[str, Any] = {}
    lost = None
    for layer in reversed(layers):
        read = canonical(config, config.translated(layer), label or name)
        if read.get("optimizer") == {"type": optimise.GIVEN}:
            lost = read.pop("optimizer")  # which no file holds: some layer must give the object again
        elif "optimizer" in read:
            read = {**_optimizer(read.pop("optimizer")), **read}
        arguments |= read
    if lost is not None and "optimizer" not in arguments:
        optimise.Recipe.read(lost)
    arguments = {key: _located(value) if key.endswith("model") else value for key, value in arguments.items()}
    return AgentSpec(name, cls, build(config, arguments, name))


def _located(network: Any) -> Any:
    """Make a network's path absolute, as the working directory may change."""
    if not (isinstance(network, str | Path) and Path(network).suffix):
        return network
    from operant.nn.network import FILES

    path = Path(network)
    # A preset has no file here: its name is enough.
    return str(path.absolute()) if path.suffix in FILES and path.is_file() else network


def _optimizer(value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        return {"optimizer": optimise.Recipe.read(value).type}
    if isinstance(value, Mapping):
        return optimise.options_of(value)
    if isinstance(value, optimise.CustomOptimizer):
        return {"optimizer": value}
    if isinstance(value, optax.GradientTransformation):
        return {"optimizer": optimise.CustomOptimizer(value)}
    if keras_optimizers.is_keras(value):
        numbers = keras_optimizers.options_of(value)
        return {**numbers, **_optimizer(numbers["optimizer"])}
    must = "a name, a dict with 'type', a Keras optimizer or an optax transformation"
    raise value_error("optimizer", must, value)
