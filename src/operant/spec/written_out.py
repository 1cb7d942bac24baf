"""Keys that ask for nothing: defaults of other libraries written out, and settings that only they have."""

from __future__ import annotations

import contextlib
import contextvars
import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Literal

from operant.errors import SpecError

NOTHING: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("activation", "attention_size", "axes", "clipping_threshold", "gradient_norm_clipping"), ()
    ),
    **dict.fromkeys(
        ("max_hour_frequency", "max_norm", "output_shape", "output_width", "temperature_mode"), ()
    ),
    **dict.fromkeys(
        ("cycle", "decoupled_weight_decay", "doublecheck_update", "increasing", "inverse"), (False,)
    ),
    **dict.fromkeys(("lookahead", "moving_average", "only_mean", "staircase"), (False,)),
    **dict.fromkeys(("single_output", "vars_trainable"), (True,)),
    **dict.fromkeys(("initialization_scale", "multi_step", "scale", "subsampling_fraction"), (1,)),
    **dict.fromkeys(("l2_regularization", "linesearch_iterations"), (0,)),
    "bias": (True, False),  # of layers that leave no choice here
    "min_variance": (1e-4,),
    "mode": ("global_norm",),
    "only_positive_updates": (True, False),  # steps are never made against the estimated improvement
}
"""Arguments that are understood where they ask for nothing: as None, or one of these values."""

Place = Literal["agent", "config", "module"]
_SETTINGS = (
    "always_apply_exploration always_apply_variable_noise buffer_observe create_debug_assertions "
    "create_tf_assertions eager_mode enable_int_action_masking name tf_log_level"
)
MEANINGLESS = {"agent": {"tracking"}, "config": {*_SETTINGS.split()}, "module": {"device"}}
"""Keys of other libraries that are taken, whatever their value, and have no effect: a note says so."""

ELSEWHERE: dict[str, str] = {
    "deltafier": "Use a wrapper of Gymnasium, or a recurrent network.",
    "exponential_normalization": "Give normalize_observations=True, which keeps running moments with the "
    "agent.",
    "function": "A function cannot be saved. Write a registered Keras layer, and give its class.",
    "image": "Use gymnasium.wrappers.ResizeObservation and GrayscaleObservation, or --preprocess.",
    "input_gru": "Give {'type': 'keras', 'layer': 'GRU', 'units': ...}.",
    "input_lstm": "Give {'type': 'keras', 'layer': 'LSTM', 'units': ...}.",
    "input_rnn": "Give {'type': 'keras', 'layer': 'GRU', 'units': ...}.",
    "reuse": "Give baseline_objective='state_value' without a baseline, which reads the policy's network.",
    "sequence": "Use gymnasium.wrappers.FrameStackObservation, or a recurrent network.",
}
"""Layers that are not there, and what to use instead."""

_NOTED: contextvars.ContextVar[dict[str, None] | None] = contextvars.ContextVar("_NOTED", default=None)


@contextlib.contextmanager
def noting() -> Iterator[None]:
    """Gather what is noted within into one line of the log."""
    noted: dict[str, None] = {}
    token = _NOTED.set(noted)
    try:
        yield
    finally:
        _NOTED.reset(token)
    if noted:
        _log(noted)


def _log(keys: Collection[str]) -> None:
    logging.getLogger("operant").warning(
        "Of no effect here (docs/coming-from.md says what is there instead): %s.", ", ".join(keys)
    )


def asked(arguments: Mapping[str, Any], known: Collection[str], place: Place = "module") -> dict[str, Any]:
    """Return the arguments without those unknown ones that ask for nothing; meaningless ones are noted."""
    result = {}
    for key, value in arguments.items():
        if key in known or not (key in MEANINGLESS[place] or asks_for_nothing(key, value)):
            result[key] = value
        elif value is not None and key in MEANINGLESS[place]:
            noted, shown = _NOTED.get(), key if place == "agent" else f"{key} of a {place}"
            if noted is None:
                _log([shown])
            else:
                noted[shown] = None
    return result


def asks_for_nothing(key: str, value: Any) -> bool:
    """Return whether an argument is a default that is written out."""
    if key not in NOTHING:
        return False
    return value is None or (isinstance(value, bool | int | float | str) and value in NOTHING[key])


def refuse_elsewhere(layer: Any) -> None:
    """Refuse (SpecError) a layer that is not there, by its type, and say what to use instead."""
    kind = layer.get("type") if isinstance(layer, Mapping) else layer
    if isinstance(kind, str) and kind in ELSEWHERE:
        raise SpecError(f"There is no layer {kind!r} here. {ELSEWHERE[kind]}")
