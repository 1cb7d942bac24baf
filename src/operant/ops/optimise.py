"""Gradient steps: optimisers by name, a step that a non-finite gradient cannot spoil, and parameters that
follow others slowly.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Bool

from operant.errors import SpecError, suggest, value_error
from operant.ops import gradient_transforms, schedules
from operant.spec import Schedule, build
from operant.types import Array, Metrics, Scalar, Tree

WEIGHT_DECAY = 1e-4
"""Decoupled weight decay of the optimisers whose name ends in `w` and of `lamb`, per step and learning
rate."""

_LAYERWISE = "lamb"
"""The optimiser that treats each leaf by itself."""

_DECAYING = frozenset({"adamw", "nadamw", "sgdw"})
"""Optimisers with weight decay of their own."""

GIVEN = "optax"
"""Placeholder in files for an optimizer that no file can hold."""

FLAT_SIZE = 2**18
"""Number of parameters up to which a step works on one long vector. It saves a dozen small kernels per leaf,
which is most of the time of a small network's step; copying a large network would cost more than it saves."""


class Optimizer(NamedTuple):
    """A gradient transformation, and whether it may see all parameters as one vector."""

    transformation: optax.GradientTransformation
    elementwise: bool

    def init(self, params: Tree) -> Tree:
        """Return the state before the first step."""
        return self.transformation.init(self.form(params))

    def form(self, tree: Tree) -> Tree:
        """Return parameters or gradients as the transformation works on them: one vector, or the tree."""
        return jax.flatten_util.ravel_pytree(tree)[0] if self._flat(tree) else tree

    def unform(self, value: Tree, like: Tree) -> Tree:
        """Undo `form`."""
        return jax.flatten_util.ravel_pytree(like)[1](value) if self._flat(like) else value

    def _flat(self, tree: Tree) -> bool:
        leaves = jax.tree.leaves(tree)
        same = len({leaf.dtype for leaf in leaves}) == 1
        return self.elementwise and same and sum(leaf.size for leaf in leaves) <= FLAT_SIZE


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """An optimizer given as a dict: its name and what its four numbers (`optimizer`'s arguments) do not say.

    A step clips the gradient, scales it by the named optimizer and the learning rate (times `decay`), then
    adds momentum.
    """

    type: str
    weight_decay: float | int | None = None
    """Share of each parameter, times the learning rate, that a step subtracts (Loshchilov and Hutter 2019).
    None: that of the name, 1e-4 if it ends in `w` and for `lamb`."""
    clipnorm: float | int | None = None
    """Bound of the norm of each array of the gradient by itself."""
    clipvalue: float | int | None = None
    """Bound of each number of the gradient."""
    momentum: float | int = 0.0
    """Share of the last step that is repeated."""
    nesterov: bool = False
    """Whether momentum looks ahead."""
    centered: bool = False
    """`rmsprop`: divide by the standard deviation, not by the root of the mean square."""
    eps_in_sqrt: bool = False
    """`rmsprop`: add epsilon under the root."""
    initial_accumulator_value: float | int = 0.1
    """`adagrad`: the initial sum of squares."""
    decay: Any = None
    """A schedule of factors of the learning rate, by gradient steps."""

    OWN: ClassVar[dict[str, str]] = {
        "centered": "rmsprop",
        "eps_in_sqrt": "rmsprop",
        "initial_accumulator_value": "adagrad",
    }

    @classmethod
    def read(cls, value: str | Mapping[str, Any]) -> Recipe:
        """Make one from a name or a dict with `type`; SpecError: a name or argument is not legal."""
        if isinstance(value, str):
            return cls(type=value)
        if not isinstance(value, Mapping) or "type" not in value:
            raise value_error("optimizer", "a name or a dict with 'type'", value)
        return build(cls, dict(value), "optimizer")

    def __post_init__(self) -> None:
        if self.type == GIVEN:
            raise SpecError(
                "The optimizer was an object of optax, which no file holds. Give it again, as optimizer= of "
                "the agent: Agent.load(..., agent={'type': ..., 'optimizer': ...})."
            )
        if self.type not in gradient_transforms.SCALINGS:
            raise SpecError(
                f"Unknown optimizer {self.type!r}.{suggest(self.type, gradient_transforms.SCALINGS)}"
            )
        for name in ("clipnorm", "clipvalue", "weight_decay", "momentum", "initial_accumulator_value"):
            value = getattr(self, name)
            low = "above 0" if name.startswith("clip") else "of at least 0"
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            legal = number and (value > 0 or (value == 0 and not name.startswith("clip")))
            if value is not None and not legal:
                raise value_error(f"optimizer's {name}", f"a number {low}", value)
        for name, only in self.OWN.items():
            if self.type != only and getattr(self, name) != getattr(Recipe, name):
                raise SpecError(
                    f"The optimizer {self.type!r} takes no {name!r}, only {only!r} does. Leave it out."
                )
        if self.decay is not None:
            if isinstance(self.decay, Mapping) and "unit" in self.decay:
                raise SpecError("The optimizer's decay counts gradient steps. Leave 'unit' out.")
            object.__setattr__(self, "decay", Schedule.read(self.decay))

    def scale(self, b1: Scalar, b2: Scalar, eps: Scalar) -> optax.GradientTransformation:
        """Return the transformation that the name stands for."""
        if self.centered:
            return optax.scale_by_stddev(decay=b2, eps=eps, eps_in_sqrt=self.eps_in_sqrt)
        if self.eps_in_sqrt:
            return optax.scale_by_rms(decay=b2, eps=eps)
        if self.type == "adagrad":
            return optax.scale_by_rss(initial_accumulator_value=self.initial_accumulator_value, eps=eps)
        scale = gradient_transforms.SCALINGS[self.type](b1, b2, eps)
        if self.type == _LAYERWISE:
            decayed = optax.add_decayed_weights(
                WEIGHT_DECAY if self.weight_decay is None else self.weight_decay
            )
            return optax.chain(scale, decayed, optax.scale_by_trust_ratio())
        return scale

    def descend(self, lr: Scalar) -> list[optax.GradientTransformation]:
        """Return what follows scaling: the learning rate, momentum, weight decay."""
        steps = [optax.scale_by_learning_rate(lr)]
        if self.decay is not None:
            steps.append(optax.scale_by_schedule(lambda count: schedules.value(self.decay, count)))
        if self.momentum:
            steps.append(optax.trace(self.momentum, nesterov=self.nesterov))
        share = self.weight_decay
        if share is None and self.type in _DECAYING:
            share = WEIGHT_DECAY
        if share and self.type != _LAYERWISE:
            whole = -lr * share
            taken = whole if self.decay is None else lambda n: whole * schedules.value(self.decay, n)
            steps.append(optax.add_decayed_weights(taken))
        return steps


class CustomOptimizer:
    """An optax transformation that the user made; it is used as it is, and no file can hold it."""

    def __init__(self, transformation: optax.GradientTransformation) -> None:
        self.transformation = transformation

    def __repr__(self) -> str:
        return "an optax transformation"

    def to_dict(self) -> dict[str, Any]:
        """Return its placeholder in a file; reading that is an error that asks for the object."""
        return {"type": GIVEN}


NUMBERS = {
    **dict.fromkeys(("lr", "learning_rate"), "lr"),
    **dict.fromkeys(("beta1", "beta_1"), "beta1"),
    **dict.fromkeys(("beta2", "beta_2", "rho"), "beta2"),
    **dict.fromkeys(("epsilon", "opt_epsilon"), "opt_epsilon"),
    **dict.fromkeys(("grad_norm", "global_clipnorm"), "grad_norm"),
}
"""Keys of an optimizer's dict that are options of every agent."""


def options_of(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Split an optimizer's dict into the options of an agent that it stands for, so that each number has one
    place.

    >>> options_of({"type": "adam", "learning_rate": 0.01})
    {'lr': 0.01, 'optimizer': 'adam'}

    Raises:
        SpecError: see `Recipe.read`; or a number is given twice.
    """
    if "type" not in optimizer:
        raise value_error("optimizer", "a name or a dict with 'type'", dict(optimizer))
    known = {field.name for field in dataclasses.fields(Recipe)}
    numbers: dict[str, Any] = {}
    arguments: dict[str, Any] = {}
    for key, value in optimizer.items():
        if key not in known and key not in NUMBERS:
            raise SpecError(f"optimizer takes no argument {key!r}.{suggest(key, [*known, *NUMBERS])}")
        name = NUMBERS.get(key)
        if name in numbers:
            raise SpecError(f"optimizer got {name!r} twice, once as {key!r}. Give one of them.")
        if name is None:
            arguments[key] = value
        else:
            numbers[name] = value
    recipe = Recipe.read(arguments)
    if recipe.decay is not None:
        arguments["decay"] = {k: v for k, v in dataclasses.asdict(recipe.decay).items() if k != "unit"}
    return {**numbers, "optimizer": arguments if len(arguments) > 1 else recipe.type}


def optimizer(
    name: str | Mapping[str, Any] | CustomOptimizer,
    lr: Scalar,
    beta1: Scalar = 0.9,
    beta2: Scalar = 0.999,
    epsilon: Scalar = 1e-7,
    max_norm: Scalar | None = None,
) -> Optimizer:
    """Build an optimiser. Its numbers may be traced, as its state does not hold them.

    Args:
        name: one of `gradient_transforms.SCALINGS`, or a dict with it as `type` and arguments of `Recipe`; or
            a transformation of the user's (`CustomOptimizer`), which replaces all but `max_norm`.
        lr: learning rate.
        beta1: decay of the mean of gradients; the momentum of `momentum` and `nesterov`.
        beta2: decay of the mean of squared gradients; that of `rmsprop` and `adadelta` too. `sgd`,
            `momentum`, `nesterov` and `adagrad` have none.
        epsilon: keeps the quotient finite, added outside of the square root (Kingma and Ba 2015, algorithm
            1).
        max_norm: bound of the norm of the whole gradient, over all leaves together
            (`optax.clip_by_global_norm`), applied before anything else; None: no bound. Pascanu et al. 2013,
            algorithm 1.

    Raises:
        SpecError: the name or an argument is unknown.
    """
    bound = optax.identity() if max_norm is None else optax.clip_by_global_norm(max_norm)
    if isinstance(name, CustomOptimizer):
        return Optimizer(optax.chain(bound, name.transformation), elementwise=False)
    recipe = Recipe.read(name)
    clips = []
    if recipe.clipnorm is not None:
        clips.append(gradient_transforms.clip_each(recipe.clipnorm))
    if recipe.clipvalue is not None:
        clips.append(optax.clip(recipe.clipvalue))
    steps = [optax.chain(bound, *clips) if clips else bound, recipe.scale(beta1, beta2, epsilon)]
    elementwise = recipe.type != _LAYERWISE and recipe.clipnorm is None
    return Optimizer(optax.chain(*steps, *recipe.descend(lr)), elementwise)


def without_decay(
    name: str | Mapping[str, Any] | CustomOptimizer,
) -> str | Mapping[str, Any] | CustomOptimizer:
    """Return an optimizer whose steps do not depend on parameters' size: no decay, no layerwise scale."""
    if isinstance(name, CustomOptimizer):
        return name
    arguments = {"type": name} if isinstance(name, str) else dict(name)
    arguments.pop("weight_decay", None)
    kind = str(arguments["type"])
    if kind == _LAYERWISE:
        kind = "adam"
    elif kind in _DECAYING:
        kind = kind.removesuffix("w")
    return {**arguments, "type": kind}


def apply(
    optimizer: Optimizer,
    params: Tree,
    opt_state: Tree,
    grads: Tree,
    *,
    has_rows: Bool[Array, ""] | None = None,
) -> tuple[Tree, Tree, Metrics]:
    """Take one step; if the gradient or the step is not finite, parameters and state stay, bit for bit.

    Args:
        optimizer: from `optimizer`.
        params: parameters.
        opt_state: state that `optimizer.init(params)` or an earlier step returned.
        grads: gradient, a tree like `params`.
        has_rows: whether there is a step to take (default: yes). Without any data there is none, though
            momentum would move the parameters on a gradient of 0. If False, nothing changes, and the step
            does not count as skipped.

    Returns:
        Parameters, state, and `grad_norm` (global norm before any clipping; a norm that overflows float32
        counts as not finite) and `skipped` (1 if the step was left out for not being finite, else 0).
    """
    old, grads = optimizer.form(params), optimizer.form(grads)
    grad_norm = optax.tree.norm(grads)
    with jax.numpy_dtype_promotion("standard"):  # optax raises floats to the power of an integer count
        updates, new_state = optimizer.transformation.update(grads, opt_state, old)
    # A finite gradient can make a step that is not: 0 / 0 where epsilon is 0, or a learning rate that
    # overflows.
    finite = jnp.isfinite(grad_norm) & jnp.isfinite(optax.tree.norm(updates))
    new = optax.apply_updates(old, updates)
    taken = finite if has_rows is None else finite & has_rows

    def keep(new: Array, old: Array) -> Array:
        return jnp.where(taken, new, old)

    kept, opt_state = jax.tree.map(keep, (new, new_state), (old, opt_state))
    left_out = ~finite if has_rows is None else ~finite & has_rows
    info = {"grad_norm": grad_norm, "skipped": left_out.astype(jnp.float32)}
    return optimizer.unform(kept, params), opt_state, info


def interpolate(start: Tree, end: Tree, share: Scalar) -> Tree:
    """Return start + share (end - start), exactly `end` at a share of 1: Polyak averaging, where `start` is a
    target network.

    In this form, unlike (1 - share) start + share end, what is equal stays as it is, and a rounded 1 - share
    adds no bias.

    Args:
        start: leaves of floats.
        end: a tree like it.
        share: from 0 to 1.
    """
    share = jnp.asarray(share, jnp.float32)

    def between(start: Array, end: Array) -> Array:
        return jnp.where(share == 1.0, end, start + share.astype(start.dtype) * (end - start))

    return jax.tree.map(between, start, end)
