"""Nested specifications of an agent's modules, read into its options, so that each number has one place.

>>> options({"update": {"unit": "episodes", "batch_size": 10}, "reward_estimation": {"discount": 0.9}})
{'unit': 'episodes', 'batch_size': 10, 'gamma': 0.9}

Imports neither JAX nor Keras.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from operant.errors import SpecError, expect_like, suggest, value_error
from operant.spec import read_json
from operant.spec.written_out import asked

Given = Mapping[str, Any]

POLICIES = ("default", "parametrized_distributions", "parametrized_value_policy", "parametrized_policy")
BASELINES = ("default", "parametrized_state_value", "parametrized_action_value", "parametrized_value_policy")
NETWORKS = ("policy", "baseline", "critic")
"""Arguments whose files hold a network."""
DISTRIBUTIONS = {"gaussian": "float", "beta": "float", "categorical": "int", "bernoulli": "bool"}
"""Distributions, and the type of actions that each serves."""
WRAPPERS: dict[str, dict[str, str]] = {
    "optimizer_wrapper": {},
    "default": {},
    "multi_step": {"num_steps": "multi_step"},
    "subsampling_step": {"fraction": "subsampling_fraction"},
    "clipping_step": {"threshold": "grad_norm"},
    "linesearch_step": {
        "max_iterations": "linesearch_iterations",
        "backtracking_factor": "linesearch_factor",
    },
    "doublecheck_step": {},
    "global_optimizer": {},
    "tf_optimizer": {},
}
"""Optimizers that wrap another one, and the options that their arguments stand for."""
GRADIENTS: dict[str, dict[str, str]] = {
    "natural_gradient": {"cg_max_iterations": "cg_iterations", "cg_damping": "cg_damping"},
    "evolutionary": {"num_samples": "evolutionary_samples"},
}
"""Optimizers that obtain the gradient in another way, and the options that their arguments stand for."""
WRAPPED = {
    "learning_rate": "lr",
    "clipping_threshold": "grad_norm",
    "gradient_norm_clipping": "grad_norm",
    "multi_step": "multi_step",
    "subsampling_fraction": "subsampling_fraction",
    "linesearch_iterations": "linesearch_iterations",
}
"""Arguments of an optimizer that are options of the agent."""


def options(given: Given) -> dict[str, Any]:
    """Return the options that a specification stands for; what is already an option stays as it is.

    Raises:
        SpecError: a module takes no such argument (with the close match), or is not supported (with what to
            use).
    """
    merged: dict[str, Any] = {}
    for key, value in given.items():
        if key in READERS and key not in NETWORKS and isinstance(value, str) and value.endswith(".json"):
            value = read_json(value, key)
        new = READERS[key](value) if key in READERS else {key: value}
        for name, option_value in new.items():
            if name in merged and merged[name] != option_value:
                raise SpecError(
                    f"{name} is given twice, as {merged[name]!r} and, by {key}, as {option_value!r}. "
                    "Give one of them."
                )
            merged[name] = option_value
    if merged.get("objective", "action_value") != "action_value":
        for name in {"double", "dueling"} - given.keys():
            merged.pop(name, None)  # said by modules, about what is the baseline here
    elif "objective" in merged and given.get("baseline") is not None:
        _check_target(merged.pop("baseline_model"), merged.get("model", "auto"), merged)
    shares = merged.get("objective", "policy_gradient") == "policy_gradient"
    shares &= given.get("baseline_objective") is not None
    if shares and all(given.get(name) is None for name in ("baseline", "baseline_model", "critic")):
        merged["baseline_model"] = "shared"
    return merged


def _check_target(baseline: Any, network: Any, merged: Given) -> None:
    """Refuse a baseline beside action values that is no target network: one of the same form that follows."""
    own = [name for name in ("baseline_optimizer", "baseline_lr", "baseline_weight") if name in merged]
    if own or baseline not in ("auto", network):
        given = f"{own[0]}={merged[own[0]]!r}" if own else f"baseline={baseline!r}, policy={network!r}"
        raise SpecError(
            "A baseline beside objective='action_value' is the target network: it has the form of the "
            f"policy's, and follows it. Received: {given}. Give the same network, and as baseline_optimizer "
            "dict(type='synchronization', update_weight=1.0, sync_frequency=10), or leave these out."
        )


def _arguments(what: str, spec: Given, *known: str, **renamed: str) -> dict[str, Any]:
    """Return a module's arguments but for its type, some by another name; others are errors."""
    names = {**dict(zip(known, known, strict=True)), **renamed}
    arguments = asked({str(key): value for key, value in spec.items() if key != "type"}, names)
    for key in arguments:
        if key not in names:
            raise SpecError(f"{what} takes no argument {key!r}.{suggest(key, names)}")
    return {names[key]: value for key, value in arguments.items()}


def _read(arguments: Given) -> dict[str, Any]:
    """Read each argument whose value may itself be a specification."""
    read: dict[str, Any] = {}
    for key, value in arguments.items():
        read |= READERS[key](value) if key in READERS else {key: value}
    return read


def _type(what: str, spec: Any, known: Iterable[str]) -> str:
    kind = spec.get("type", "default") if isinstance(spec, Mapping) else spec
    known = tuple(known)
    if kind not in known:
        raise SpecError(f"Unknown {what} {kind!r}.{suggest(str(kind), known)}")
    return str(kind)


def _flag(name: str) -> Callable[[Any], dict[str, Any]]:
    def read(value: Any) -> dict[str, Any]:
        if value not in (None, "early", "late") and not isinstance(value, bool):
            raise value_error(name, "False, True, 'early' or 'late'", value)
        return {name: None if value is None else bool(value)}

    return read


def update(spec: Any) -> dict[str, Any]:
    """Read `update`: a number of timesteps, or a dict."""
    if not isinstance(spec, Mapping):
        return {"unit": "timesteps", "batch_size": spec}
    names = {"frequency": "update_frequency", "start": "start_updating"}
    arguments = _arguments("update", spec, "unit", "batch_size", **names)
    for needed in ("unit", "batch_size"):
        if needed not in arguments:
            raise SpecError(
                f"update needs {needed!r}. Received the keys: {', '.join(map(str, spec)) or 'none'}."
            )
    return _read(arguments)


def update_frequency(spec: Any) -> dict[str, Any]:
    """Read how often updates are made: a float is a part of the batch (1.0: once per batch), 1 every step."""
    once = isinstance(spec, numbers.Real) and not isinstance(spec, numbers.Integral) and spec == 1.0
    return {"frequency": 0 if spec == "never" else None if once else spec}


def memory(spec: Any) -> dict[str, Any]:
    """Read `memory`: a type, the capacity of a replay memory, or a dict."""
    if spec is None or spec == "minimum":
        return {}
    if isinstance(spec, int) and not isinstance(spec, bool):
        return {"memory": "replay", "capacity": spec}
    if not isinstance(spec, Mapping):
        return {"memory": spec}
    arguments = _arguments("memory", spec, "capacity")
    return {"memory": _type("memory", {"type": "replay", **spec}, ("recent", "replay")), **arguments}


def objective(spec: Any) -> dict[str, Any]:
    """Read `objective`: a type or a dict."""
    deterministic = ("deterministic_policy_gradient", "det_policy_gradient")
    if (spec.get("type") if isinstance(spec, Mapping) else spec) == "plus":
        raise SpecError(
            "There is no objective 'plus' here. The value's is that of the baseline: give baseline='auto', "
            "and baseline_optimizer=0.5 for its weight."
        )
    kind = _type(
        "objective", spec, ("policy_gradient", "action_value", "state_value", "value", *deterministic)
    )
    spec = spec if isinstance(spec, Mapping) else {}
    if kind in deterministic:
        _arguments(kind, spec)
        return {"objective": deterministic[0]}
    if kind == "policy_gradient":
        arguments = _arguments(kind, spec, "importance_sampling", "clipping_value", "early_reduce")
        arguments.pop("early_reduce", None)
        return {"objective": kind, **arguments}
    arguments = _arguments(kind, spec, "value", "huber_loss", "early_reduce")
    arguments.pop("early_reduce", None)
    if kind == "state_value" or (kind == "value" and arguments.get("value", "state") != "action"):
        raise SpecError(
            f"The value of states alone makes no actions. Received: objective={kind!r} with value='state'. "
            "Use objective='action_value', or give the state's value as baseline."
        )
    arguments.pop("value", None)
    return {"objective": "action_value", **arguments}


def reward_estimation(spec: Any) -> dict[str, Any]:
    """Read `reward_estimation`: a dict."""
    if not isinstance(spec, Mapping):
        raise value_error("reward_estimation", "a dict with 'horizon'", spec)
    renamed = {"discount": "gamma", "predict_action_values": "double", "trace_decay": "lam"}
    same = ("horizon", "predict_horizon_values", "estimate_advantage", "predict_terminal_values")
    processing = ("reward_processing", "return_processing", "advantage_processing")
    arguments = _arguments("reward_estimation", spec, *same, "gae_decay", *processing, **renamed)
    gae = arguments.pop("gae_decay", 0.0)
    horizon = arguments.get("horizon")
    if gae:
        if horizon != 1:
            raise SpecError(
                f"gae_decay is the λ of advantages of one reward. Received: horizon={horizon!r}. Use "
                "horizon=1, or trace_decay."
            )
        arguments |= {"horizon": "episode", "lam": gae, "predict_horizon_values": True}
    return _read(arguments)


def policy(spec: Any) -> dict[str, Any]:
    """Read `policy`: a network, or a dict of one as `network` (default 'auto') and of how actions are
    drawn.
    """
    if isinstance(spec, Mapping) and spec.get("type") in {*BASELINES} - {*POLICIES}:
        must = "parametrized_value_policy for int and bool actions; floats need objective="
        raise value_error("policy's type", f"{must}'deterministic_policy_gradient'", spec["type"])
    if not _has_network(spec, POLICIES):
        return {"model": spec}
    kind = _type("policy", spec, POLICIES)
    known = ("network", "distributions", "temperature", "use_beta_distribution", "state_value_mode")
    arguments = _arguments("policy", spec, *known)
    new: dict[str, Any] = {"model": _network(arguments.pop("network", None))}
    mode = arguments.pop("state_value_mode", None)
    if kind == "parametrized_value_policy" or mode is not None:
        new["dueling"] = mode in ("separate", None)
    if arguments.pop("use_beta_distribution", None):
        new["distribution"] = "beta"
    new |= distributions(arguments.pop("distributions", None) or {})
    temperature = arguments.get("temperature")
    if isinstance(temperature, Mapping) and "type" not in temperature:
        raise value_error("temperature", "one number or schedule for all actions", temperature)
    return {**new, **arguments}


def _has_network(spec: Any, modules: tuple[str, ...]) -> bool:
    """Return whether a specification is that of a module with a network, and not of a network itself."""
    return isinstance(spec, Mapping) and ("network" in spec or spec.get("type", modules[0]) in modules)


def _network(spec: Any) -> Any:
    return "auto" if spec is None else spec


def network_of_policy(given: Given, option: str) -> dict[str, Any]:
    """Return options in which a `policy` that is a network and nothing else is given as `option`."""
    result = dict(given)
    if "policy" in result and (read_policy := policy(result["policy"])).keys() == {"model"}:
        del result["policy"]
        if option in result:
            raise SpecError(f"policy and {option} both give the network. Give one of them.")
        result[option] = read_policy["model"]
    return result


def distributions(spec: Any) -> dict[str, Any]:
    """Read `distributions`: one, or a dict of them by type or by name of the actions."""
    if not isinstance(spec, Mapping) or "type" in spec:
        spec = {DISTRIBUTIONS[_type("distribution", spec, DISTRIBUTIONS)]: spec}
    new: dict[str, Any] = {}
    for name, inner in spec.items():
        if (read := _distribution(inner)) and name != "float":
            new.setdefault("distributions", {})[name] = read
        else:
            new |= read
    return new


def _distribution(spec: Any) -> dict[str, Any]:
    kind = _type("distribution", spec, DISTRIBUTIONS)
    inner = spec if isinstance(spec, Mapping) else {}
    if inner.get("temperature_mode") is not None:
        raise value_error(
            "temperature_mode", "None: logits are learned as they are", inner["temperature_mode"],
            "For more or less randomness while acting give temperature of the policy.",
        )  # fmt: skip
    if kind == "categorical":
        linear = not _arguments(kind, inner, "skip_linear").get("skip_linear", False)
        return {} if linear else {"linear": False}
    if kind != "gaussian":
        _arguments(kind, inner)
        return {"distribution": "beta"} if kind == "beta" else {}
    arguments = _arguments("gaussian", inner, "stddev_mode", "bounded_transform")
    shape = {"tanh": "squash", "clipping": "clip"}
    transform = arguments.get("bounded_transform", "tanh")
    if transform not in shape:
        raise value_error("bounded_transform", "'tanh' or 'clipping'", transform)
    return {"std": arguments.get("stddev_mode", "predicted"), "distribution": shape[transform]}


def optimizer(spec: Any) -> dict[str, Any]:
    """Read `optimizer`: a name, an object, or a dict, perhaps of several nested ones."""
    if not isinstance(spec, Mapping):
        return {"optimizer": spec}
    rest = dict(spec)
    kind = rest.pop("type", None)
    inner = rest.pop("optimizer", None)
    if kind == "plus":
        raise SpecError(
            "There is no optimizer 'plus' here. Give one such as 'adam', with multi_step, "
            "subsampling_fraction, "
            "linesearch_iterations and clipping_threshold as wanted, or chain optax transformations."
        )
    if inner is not None and kind is not None and kind not in WRAPPERS:
        raise SpecError(f"{kind!r} is not an optimizer that wraps another.{suggest(str(kind), WRAPPERS)}")
    names = {**WRAPPED, **WRAPPERS.get(kind or "default", {}), **GRADIENTS.get(kind or "default", {})}
    new = {names[key]: value for key in tuple(rest) if key in names and (value := rest.pop(key)) is not None}
    rest = asked(rest, ("doublecheck_update", "mode"))
    checked = rest.pop("doublecheck_update", False)
    expect_like("doublecheck_update", checked, False)
    if (checked or kind == "doublecheck_step") and not new.get("linesearch_iterations"):
        new["linesearch_iterations"] = 1
    if kind == "clipping_step" and (mode := rest.pop("mode", "global_norm")) != "global_norm":
        raise value_error(
            "mode", "'global_norm'", mode, "For others give the optimizer itself clipnorm or clipvalue."
        )
    for key in rest if inner is not None or kind in GRADIENTS else ():
        what = kind if inner is None else "optimizer"
        raise SpecError(f"{what} takes no argument {key!r}.{suggest(key, names)}")
    if inner is not None:
        inside = optimizer(inner)
    elif kind in GRADIENTS:
        inside = {"gradient": {"natural_gradient": "natural"}.get(str(kind), kind)}
    elif kind in WRAPPERS:
        raise SpecError(f"The optimizer {kind!r} needs another one inside. Give optimizer='adam', say.")
    else:
        plain = {"type": kind or "adam", **rest}
        inside = {"optimizer": plain if rest else plain["type"]}
    return {**inside, **new}


def baseline(spec: Any) -> dict[str, Any]:
    """Read `baseline`: a network, or a dict with one as `network`."""
    if not _has_network(spec, BASELINES):
        return {"baseline_model": spec}
    _type("baseline", spec, BASELINES)
    arguments = _arguments("baseline", spec, "network", "state_value_mode")
    return {"baseline_model": _network(arguments.get("network"))}


def baseline_optimizer(spec: Any) -> dict[str, Any]:
    """Read the weight of the baseline's loss, an optimizer of its own, or how targets are synchronised."""
    if spec is None:
        return {}
    if isinstance(spec, int | float) and not isinstance(spec, bool):
        return {"baseline_weight": float(spec)}
    if isinstance(spec, Mapping) and spec.get("type") == "synchronization":
        names = {"update_weight": "target_update_weight", "sync_frequency": "target_sync_frequency"}
        return _arguments("synchronization", spec, **names)
    names = {"optimizer": "baseline_optimizer", "lr": "baseline_lr", "multi_step": "baseline_multi_step"}
    arguments = asked(optimizer(spec), names)
    for key in arguments:
        if key not in names:
            raise SpecError(
                f"baseline_optimizer has no {key!r} of its own: that of the agent counts for both."
            )
    return {names[key]: value for key, value in arguments.items()}


def baseline_objective(spec: Any) -> dict[str, Any]:
    """Read `baseline_objective`: the value of states or of actions; the agent's objective says which."""
    if spec is None:
        return {}
    kind = _type("baseline_objective", spec, ("state_value", "action_value", "value"))
    if not isinstance(spec, Mapping):
        return {}
    arguments = _arguments(kind, spec, "value", "huber_loss", "early_reduce")
    if arguments.get("value", "state") not in ("state", "action"):
        raise value_error("baseline_objective", "'state_value' or 'action_value'", spec)
    return {"huber_loss": arguments["huber_loss"]} if arguments.get("huber_loss") is not None else {}


def advantage_processing(spec: Any) -> dict[str, Any]:
    """Read `advantage_processing`: standardise, or not."""
    if spec is None:
        return {}
    _type("advantage_processing", spec, ("batch_normalization", "instance_normalization"))
    return {"normalize_advantage": True}


def _nothing(name: str, remedy: str) -> Callable[[Any], dict[str, Any]]:
    def read(spec: Any) -> dict[str, Any]:
        if spec is None:
            return {}
        raise SpecError(f"{name} is not supported. Received: {name}={spec!r}. {remedy}")

    return read


READERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "update": update,
    "state_preprocessing": lambda spec: {} if spec is None else {"state_preprocessing": spec},
    "memory": memory,
    "objective": objective,
    "reward_estimation": reward_estimation,
    "policy": policy,
    "optimizer": optimizer,
    "baseline": baseline,
    "critic": baseline,
    "baseline_optimizer": baseline_optimizer,
    "critic_optimizer": baseline_optimizer,
    "baseline_objective": baseline_objective,
    "advantage_processing": advantage_processing,
    "horizon": lambda spec: {"horizon": None if spec == "episode" else spec},
    "predict_horizon_values": _flag("predict_horizon_values"),
    "estimate_advantage": _flag("estimate_advantage"),
    "use_beta_distribution": lambda spec: {"distribution": "beta"} if spec else {},
    "reward_processing": _nothing("reward_processing", "normalize_rewards=True scales rewards."),
    "return_processing": _nothing("return_processing", "normalize_advantage=True standardises returns."),
    "update_frequency": update_frequency,
    "start_updating": lambda spec: {} if spec is None else {"start": spec},
}
"""Arguments whose values may be specifications, and the functions that read them."""
