"""Gradient steps: optimisers by name, and a step that a non-finite gradient cannot spoil."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Float

from operant.errors import SpecError, suggest
from operant.types import Array, Metrics, Tree

Scalar: TypeAlias = float | Float[Array, ""]
_Make: TypeAlias = Callable[[Scalar, Scalar, Scalar], optax.GradientTransformation]

WEIGHT_DECAY = 1e-4
"""Decoupled weight decay of the optimisers whose name ends in `w` and of `lamb`, per step and learning rate."""


def _decayed(scale: optax.GradientTransformation) -> optax.GradientTransformation:
    return optax.chain(scale, optax.add_decayed_weights(WEIGHT_DECAY))


_OPTIMIZERS: dict[str, _Make] = {
    "adabelief": lambda b1, b2, eps: optax.scale_by_belief(b1=b1, b2=b2, eps=eps),
    "adadelta": lambda b1, b2, eps: optax.scale_by_adadelta(rho=b2, eps=eps),
    "adagrad": lambda b1, b2, eps: optax.scale_by_rss(initial_accumulator_value=0.1, eps=eps),
    "adam": lambda b1, b2, eps: optax.scale_by_adam(b1=b1, b2=b2, eps=eps),
    "adamax": lambda b1, b2, eps: optax.scale_by_adamax(b1=b1, b2=b2, eps=eps),
    "adamw": lambda b1, b2, eps: _decayed(optax.scale_by_adam(b1=b1, b2=b2, eps=eps)),
    "amsgrad": lambda b1, b2, eps: optax.scale_by_amsgrad(b1=b1, b2=b2, eps=eps),
    "lamb": lambda b1, b2, eps: optax.chain(
        _decayed(optax.scale_by_adam(b1=b1, b2=b2, eps=eps)), optax.scale_by_trust_ratio()
    ),
    "lion": lambda b1, b2, eps: optax.scale_by_lion(b1=b1, b2=b2),
    "momentum": lambda b1, b2, eps: optax.trace(decay=b1),
    "nadam": lambda b1, b2, eps: optax.scale_by_adam(b1=b1, b2=b2, eps=eps, nesterov=True),
    "nadamw": lambda b1, b2, eps: _decayed(optax.scale_by_adam(b1=b1, b2=b2, eps=eps, nesterov=True)),
    "nesterov": lambda b1, b2, eps: optax.trace(decay=b1, nesterov=True),
    "radam": lambda b1, b2, eps: optax.scale_by_radam(b1=b1, b2=b2, eps=eps),
    "rmsprop": lambda b1, b2, eps: optax.scale_by_rms(decay=b2, eps=eps, eps_in_sqrt=False),
    "sgd": lambda b1, b2, eps: optax.identity(),
    "sgdw": lambda b1, b2, eps: _decayed(optax.identity()),
    "yogi": lambda b1, b2, eps: optax.scale_by_yogi(b1=b1, b2=b2, eps=eps),
}


_LAYERWISE = frozenset({"lamb"})
"""Optimisers that treat each leaf by itself."""

FLAT_SIZE = 2**18
"""Parameters up to which a step works on one long vector. It saves a dozen small kernels per leaf, which is most of the time
of a small network's step; copying a large network would cost more than it saves."""


class Optimizer(NamedTuple):
    """A gradient transformation, and whether it may see all parameters as one vector."""

    transformation: optax.GradientTransformation
    elementwise: bool

    def init(self, params: Tree) -> Tree:
        """Return the state before the first step."""
        return self.transformation.init(self.form(params))

    def form(self, tree: Tree) -> Tree:
        """Return parameters or gradients in the form that the transformation works on: one vector, or the tree."""
        return jax.flatten_util.ravel_pytree(tree)[0] if self._flat(tree) else tree

    def unform(self, value: Tree, like: Tree) -> Tree:
        """Undo `form`."""
        return jax.flatten_util.ravel_pytree(like)[1](value) if self._flat(like) else value

    def _flat(self, tree: Tree) -> bool:
        leaves = jax.tree.leaves(tree)
        same = len({leaf.dtype for leaf in leaves}) == 1
        return self.elementwise and same and sum(leaf.size for leaf in leaves) <= FLAT_SIZE


def names() -> tuple[str, ...]:
    """Return the names that `optimizer` knows, in order."""
    return tuple(_OPTIMIZERS)


def optimizer(
    name: str,
    lr: Scalar,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    epsilon: Scalar = 1e-7,
    max_norm: Scalar | None = None,
) -> Optimizer:
    """Build an optimiser. Its numbers may be traced: its state has no place for them.

    Args:
        name: one of `names()`.
        lr: learning rate.
        beta1: decay of the mean of gradients; the momentum of `momentum` and `nesterov`.
        beta2: decay of the mean of squared gradients; that of `rmsprop` and `adadelta` too. `sgd`, `momentum`,
            `nesterov` and `adagrad` have none.
        epsilon: keeps the quotient finite, added outside of the square root (Kingma and Ba 2015, algorithm 1).
        max_norm: bound of the norm of the whole gradient, over all leaves together (`optax.clip_by_global_norm`),
            applied before anything else; None: no bound. Pascanu et al. 2013, algorithm 1.

    Raises:
        SpecError: the name is unknown.
    """
    if name not in _OPTIMIZERS:
        raise SpecError(f"Unknown optimizer {name!r}.{suggest(name, _OPTIMIZERS)}")
    bound = optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm)
    scale = _OPTIMIZERS[name](beta1, beta2, epsilon)
    return Optimizer(optax.chain(bound, scale, optax.scale_by_learning_rate(lr)), name not in _LAYERWISE)


def apply(optimizer: Optimizer, params: Tree, opt_state: Tree, grads: Tree) -> tuple[Tree, Tree, Metrics]:
    """Take one step, unless the gradient is not finite: then parameters and state stay as they are, bit for bit.

    Args:
        optimizer: of `optimizer`.
        params: parameters.
        opt_state: state that `optimizer.init(params)` or an earlier step gave.
        grads: gradient, a tree like `params`.

    Returns:
        Parameters, state, and `grad_norm` (global norm before any clipping; a norm that overflows float32 counts
        as not finite) and `skipped` (1 if nothing changed, else 0).
    """
    old, grads = optimizer.form(params), optimizer.form(grads)
    grad_norm = optax.tree.norm(grads)
    finite = jnp.isfinite(grad_norm)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the power of an integer count
        updates, new_state = optimizer.transformation.update(grads, opt_state, old)
    new = optax.apply_updates(old, updates)

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(finite, new, old)

    kept, opt_state = jax.tree.map(keep, (new, new_state), (old, opt_state))
    info = {"grad_norm": grad_norm, "skipped": 1.0 - finite.astype(jnp.float32)}
    return optimizer.unform(kept, params), opt_state, info
