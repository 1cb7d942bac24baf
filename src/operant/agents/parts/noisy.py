"""Noise of a learnt size on the weights of dense layers: exploration without ε.

Paper: Fortunato et al. 2018, "Noisy Networks for Exploration" (https://arxiv.org/abs/1706.10295).

    w = μ + σ ε,  ε_kernel[i, j] = f(ε_i) f(ε_j),   ε_bias[j] = f(ε_j),   f(x) = sgn(x) √|x| (eqs. 7, 10, 11)

with ε_i and ε_j Gaussian, one per input and output of a layer. The network's own parameters are the μ, with
the network's own initial values; the σ are a dict of arrays beside them. So any network can be made noisy: a
noisy call is a plain call with other parameters. Convolutions and recurrent cells stay as they are, as in the
paper.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from operant.errors import SpecError
from operant.types import Array, Arrays, Key


class Noise(NamedTuple):
    """What training keeps for noisy layers."""

    sigma: Arrays
    """Standard deviations by name of the parameter, of its shape."""
    key: Key
    """Key from which the noise of acting is derived."""


def deviations(params: Arrays, std: float | Array) -> Arrays:
    """Return the initial σ of dense layers, std / √inputs, biases too (section 3.2); SpecError: none."""
    kernels = [
        name
        for name, x in params.items()
        if name.endswith("/kernel")
        and x.ndim == 2
        and name.replace("/kernel", "/recurrent_kernel") not in params
    ]
    if not kernels:
        raise SpecError(f"noisy needs a network with dense layers. Received weights: {', '.join(params)}.")
    scale = {name: 1.0 / math.sqrt(params[name].shape[0]) for name in kernels}
    scale |= {_bias(name): scale[name] for name in kernels if _bias(name) in params}
    return {name: jnp.full_like(params[name], std * factor) for name, factor in scale.items()}


def perturbed(params: Arrays, sigma: Arrays, key: Key) -> Arrays:
    """Return parameters μ + σ ε with noise drawn from the key (consumed), the same for a whole batch."""
    # By name, as compiled functions sort a dict: otherwise the same key would draw different noise outside of
    # them.
    kernels = sorted(name for name, x in sigma.items() if x.ndim == 2)
    sizes = [size for name in kernels for size in sigma[name].shape]
    drawn = jax.random.normal(key, (sum(sizes),), jnp.float32)
    factors = jnp.split(
        jnp.sign(drawn) * jnp.sqrt(jnp.abs(drawn)), [sum(sizes[:i]) for i in range(1, len(sizes))]
    )
    noise: Arrays = {}
    for name, inner, outer in zip(kernels, factors[::2], factors[1::2], strict=True):
        noise[name] = inner[:, None] * outer[None, :]
        noise[_bias(name)] = outer
    return {**params, **{name: params[name] + x * noise[name] for name, x in sigma.items()}}


def _bias(kernel: str) -> str:
    return kernel.removesuffix("kernel") + "bias"
