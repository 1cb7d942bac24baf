"""Keras optimizers as operant's options, and back.

They are read, not run: class and numbers say which of `operant.ops.optimise` to use, with the same meaning,
down to where ε stands in the denominator.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from operant.errors import SpecError, suggest, value_error
from operant.nn.backend import keras, refuse_modules

ADAM = {"beta_1": "beta1", "beta_2": "beta2", "epsilon": "opt_epsilon"}
CLASSES: dict[str, tuple[str, dict[str, str]]] = {
    "Adadelta": ("adadelta", {"rho": "beta2", "epsilon": "opt_epsilon"}),
    "Adagrad": ("adagrad", {"epsilon": "opt_epsilon"}),
    "Adam": ("adam", ADAM),
    "AdamW": ("adam", ADAM),
    "Adamax": ("adamax", ADAM),
    "Lamb": ("lamb", ADAM),
    "Lion": ("lion", {"beta_1": "beta1", "beta_2": "beta2"}),
    "Nadam": ("nadam", ADAM),
    "RMSprop": ("rmsprop", {"rho": "beta2", "epsilon": "opt_epsilon"}),
    "SGD": ("sgd", {}),
}
"""Keras's classes: operant's name, and which of their arguments are options of the agent."""
KEPT = ("weight_decay", "clipnorm", "clipvalue", "momentum", "nesterov", "centered")
"""Arguments that a dict with `type` takes under the same name, if they are not 0."""
REFUSED = {
    "use_ema": "Leave it out: average weights outside of the optimizer",
    "loss_scale_factor": "Leave it out: training is in float32",
    "gradient_accumulation_steps": "Leave it out and use larger batches, or give optax.MultiSteps(...)",
}
"""Arguments without a counterpart, and what to do instead."""


def is_keras(value: Any) -> bool:
    """Return whether this is a Keras optimizer, without loading Keras."""
    return "keras" in sys.modules and isinstance(value, keras().optimizers.Optimizer)


def options_of(optimizer: Any) -> dict[str, Any]:
    """Return an optimizer of Keras (or what `keras.optimizers.get` reads) as options of an agent.

    Every number becomes an option: `lr`, `beta1`, `beta2`, `opt_epsilon`, `grad_norm` (from
    `global_clipnorm`); the rest stays with the name in `optimizer`.

    Raises:
        SpecError: its class, its schedule or an argument is not supported; says what to give instead.
    """
    k = keras()
    if not isinstance(optimizer, k.optimizers.Optimizer):
        optimizer = keras_optimizer(optimizer)
    kind = type(optimizer).__name__
    if kind not in CLASSES or type(optimizer) is not getattr(k.optimizers, kind):
        raise SpecError(
            f"The Keras optimizer {kind} is not supported. Known: {', '.join(CLASSES)}. "
            "Give an optax transformation instead: optimizer=optax.chain(...)."
        )
    name, numbers = CLASSES[kind]
    config = optimizer.get_config()
    for argument, remedy in REFUSED.items():
        if config.get(argument):
            raise SpecError(f"{kind}({argument}={config[argument]!r}) is not supported. {remedy}.")
    if any(getattr(optimizer, f"_exclude_from_weight_decay{of}", None) for of in ("", "_pattern")):
        raise SpecError(
            f"{kind}.exclude_from_weight_decay is not supported. Give optax.add_decayed_weights with a mask."
        )
    extra = {key: config[key] for key in KEPT if config.get(key)}
    if name == "rmsprop":
        extra["eps_in_sqrt"] = True
    if name == "lamb":
        if "weight_decay" in extra:
            raise SpecError("Lamb(weight_decay=...) is not supported. Leave it out, or give optax.lamb(...).")
        extra["weight_decay"] = 0.0  # operant's lamb has weight decay by default
    if (start := config.get("initial_accumulator_value", 0.1)) != 0.1:  # 0 is a value too
        extra["initial_accumulator_value"] = start
    lr, decay = _learning_rate(config["learning_rate"])
    if decay is not None:
        extra["decay"] = decay
    if config.get("amsgrad"):
        name = "amsgrad"
    options = {"optimizer": {"type": name, **extra} if extra else name, "lr": lr}
    options |= {option: float(config[argument]) for argument, option in numbers.items()}
    if config.get("global_clipnorm"):
        options["grad_norm"] = float(config["global_clipnorm"])
    return options


def _learning_rate(value: Any) -> tuple[float, dict[str, Any] | None]:
    """Return the first learning rate, and the schedule of its factors over gradient steps, if any."""
    if not isinstance(value, Mapping):
        # Keras keeps it as float32; the shortest decimal that means the same is what the user wrote.
        return float(str(np.float32(value))), None
    kind, c = value.get("class_name"), value.get("config", {})
    if value.get("module") != "keras.optimizers.schedules" or kind not in SCHEDULES:
        raise SpecError(
            f"The learning rate schedule {kind!r} is not supported. Known: {', '.join(SCHEDULES)}. "
            "Give a number, or lr='linear:START:END:STEPS' beside the optimizer."
        )
    if c.get("cycle"):
        raise SpecError(f"{kind}(cycle=True) is not supported. Use PiecewiseConstantDecay.")
    first = float(c["values"][0] if kind == "PiecewiseConstantDecay" else c["initial_learning_rate"])
    if c.get("warmup_target") is not None:
        remedy = "Give lr={'type': 'cosine', 'start': ..., 'steps': ..., 'warmup': ...} beside the optimizer."
        raise value_error(f"{kind}'s warmup_target", "None", c["warmup_target"], remedy)
    if first <= 0.0:
        raise value_error(f"{kind}'s first learning rate", "above 0", first)
    return first, SCHEDULES[kind](c, first)


def _polynomial(c: Mapping[str, Any], first: float) -> dict[str, Any]:
    end = float(c["end_learning_rate"]) / first
    return {
        "type": "polynomial",
        "start": 1.0,
        "end": end,
        "steps": int(c["decay_steps"]),
        "power": float(c["power"]),
    }


def _cosine(c: Mapping[str, Any], first: float) -> dict[str, Any]:
    return {"type": "cosine", "start": 1.0, "end": float(c["alpha"]), "steps": int(c["decay_steps"])}


def _exponential(c: Mapping[str, Any], first: float) -> dict[str, Any]:
    rate = {"decay_rate": float(c["decay_rate"]), "staircase": bool(c["staircase"])}
    return {"type": "exponential", "start": 1.0, "steps": int(c["decay_steps"]), **rate}


def _piecewise(c: Mapping[str, Any], first: float) -> dict[str, Any]:
    # Keras changes the value after the step at a boundary, operant at that step.
    boundaries = [int(step) + 1 for step in c["boundaries"]]
    values = [float(value) / first for value in c["values"][1:]]
    return {"type": "piecewise", "start": 1.0, "boundaries": boundaries, "values": values}


SCHEDULES = {
    "CosineDecay": _cosine,
    "ExponentialDecay": _exponential,
    "PiecewiseConstantDecay": _piecewise,
    "PolynomialDecay": _polynomial,
}


def keras_optimizer(value: Any) -> Any:
    """Return a Keras optimizer: the object, or one of a name or a dict; SpecError: this is unknown."""
    k = keras()
    if isinstance(value, k.optimizers.Optimizer):
        return value
    arguments = dict(value) if isinstance(value, Mapping) else {}
    if "class_name" in arguments:
        refuse_modules(arguments)
        return k.optimizers.deserialize(arguments)
    name = arguments.pop("type", None) if isinstance(value, Mapping) else value
    if not isinstance(name, str):
        raise value_error("optimizer", "a Keras optimizer, its name, or a dict with 'type'", value)
    known = {cls.lower(): cls for cls in dir(k.optimizers) if cls[0].isupper()}
    if name.lower() not in known:
        raise SpecError(f"Keras has no optimizer {name!r}.{suggest(name.lower(), known)}")
    ours = {"lr": "learning_rate", "beta1": "beta_1", "beta2": "beta_2", "opt_epsilon": "epsilon"}
    arguments = {ours.get(key, key): number for key, number in arguments.items()}
    try:
        return getattr(k.optimizers, known[name.lower()])(**arguments)
    except (TypeError, ValueError) as error:
        reason = str(error).strip().split("\n")[0]
        raise SpecError(
            f"The Keras optimizer {known[name.lower()]} refuses its arguments: {reason}"
        ) from None
