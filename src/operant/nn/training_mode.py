"""Layers that are applied differently in training and in use: noise such as dropout, batch normalisation."""

from __future__ import annotations

from typing import Any

from operant.nn.backend import keras

LEARNING = "learning"
"""Entry of ``variables["state"]`` that tells a call to apply layers as in training. It holds no array."""

_RATES = ("dropout", "recurrent_dropout")


def differs(network: Any) -> bool:
    """Return whether any layer of a Keras model computes a different function in training than in use."""
    return any(_differs(layer) for layer in leaves(network))


def averages(network: Any) -> list[Any]:
    """Return the running averages of a Keras model: what calls in training change, but for random numbers."""
    variables = [v for layer in leaves(network) if _differs(layer) for v in layer.non_trainable_variables]
    return list({id(v): v for v in variables}.values())


def leaves(network: Any) -> list[Any]:
    """Return the layers of a Keras model that are not models themselves, at any depth."""
    model = keras().Model
    return [layer for layer in network._flatten_layers() if not isinstance(layer, model)]


def _differs(layer: Any) -> bool:
    k = keras().layers
    if isinstance(layer, k.BatchNormalization):
        return bool(layer.trainable)  # a frozen one keeps its averages in training as well
    if not type(layer).__module__.startswith(("keras.", "operant.")):
        return bool(layer._call_has_training_arg)  # a user's class says so itself
    if all(hasattr(layer, name) for name in _RATES):  # recurrent ones have a seed whether they draw or not
        return any(getattr(layer, name) for name in _RATES)
    return bool(layer._seed_generators)
