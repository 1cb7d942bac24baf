"""The Keras model inside a model: given variables to hold, and asked for those that it holds."""

import jax.numpy as jnp

from operant.nn.weights import named_variables


def keras_model(model, variables):
    """Return the Keras model of a model, which then holds the variables."""
    model.assign(variables)
    return model.network


def held(network):
    """Return the variables that a Keras model holds, by name."""
    return {name: jnp.array(v.value, copy=True) for name, v in named_variables(network)}


def flat(variables):
    """Return variables by name alone."""
    return {**variables["params"], **variables["state"]}
