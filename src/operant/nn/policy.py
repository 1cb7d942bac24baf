"""Stochastic policies: which heads each action needs, and the distribution that their outputs define."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from operant.errors import SpecError, suggest, value_error
from operant.nn.build import Head
from operant.ops.distributions import Bernoulli, Beta, Categorical, NoiseKind, Normal, Product, SquashedNormal
from operant.spec.spaces import Leaf
from operant.types import Array, Arrays, Key, Tree

Std = Literal["global", "predicted"]
Bounded = Literal["clip", "squash", "beta"]

LOG_STD = (-20.0, 2.0)
"""Range of a predicted log standard deviation (Haarnoja et al. 2018, the authors' code)."""
KINDS: dict[str, Any] = {
    "categorical": Categorical,
    "bernoulli": Bernoulli,
    "normal": Normal,
    "squash": SquashedNormal,
    "beta": Beta,
}


@dataclasses.dataclass(frozen=True)
class Policy:
    """A policy over a flat dict of actions.

    Choices are categorical (masked if the observation holds a mask), bools Bernoulli. Floats:

    - unbounded, or with `bounded="clip"`: a Gaussian. Its mean is ``centre + half * output`` with the centre
      and half the width of the bounds (0 and 1 if a bound is open), its standard deviation is
      ``half * exp(log_std)``: an output of 0 is the middle and ±1 the bounds, whatever the action's unit.
      Samples are not clipped here; environments get them clipped.
    - ``"squash"``: the tanh of a Gaussian, scaled to the bounds (Haarnoja et al. 2018, appendix C).
    - ``"beta"``: Beta with both concentrations ``1 + softplus(output)``, scaled to the bounds (Chou et al.
      2017).

    `std` says whether a Gaussian's log standard deviation is a learned number per action element that starts
    at 0 (``"global"``), or an output of the network (``"predicted"``).

    `own` are other choices for single actions, by name or by type: `distribution` (in place of `bounded`) and
    `std` of floats; for choices `linear`, False if the network's output itself is the logits.

    Log-probabilities are densities in the action's own unit.

    Raises:
        SpecError: `std` or `bounded` is none of these, or `own` names no action.
    """

    actions: Mapping[str, Leaf]
    std: Std = "global"
    bounded: Bounded = "clip"
    own: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, choices in self.own.items():
            leaf = self.actions.get(name)
            kind = name if leaf is None else leaf.type
            if kind not in ("float", "int", "bool"):
                raise SpecError(
                    f"distributions must name actions or types of them.{suggest(name, self.actions)}"
                )
            known = {"float": {"distribution", "std"}, "int": {"linear"}, "bool": set()}[kind]
            if not isinstance(choices, Mapping) or choices.keys() - known:
                must = (
                    f"a dict of {' and '.join(sorted(known)) or 'nothing'}, as the actions are of type {kind}"
                )
                raise value_error(f"distributions[{name!r}]", must, choices)
        for choices in ({"std": self.std, "distribution": self.bounded}, *self.own.values()):
            if choices.get("std", "global") not in ("global", "predicted"):
                raise value_error("std", "'global' or 'predicted'", choices["std"])
            if choices.get("distribution", "clip") not in ("clip", "squash", "beta"):
                raise value_error("distribution", "'clip', 'squash' or 'beta'", choices["distribution"])

    def _own(self, name: str, choice: str, usual: Any) -> Any:
        """Return what is chosen for an action by its name, else by its type, else for all."""
        by_type = self.own.get(self.actions[name].type, {}).get(choice, usual)
        return self.own.get(name, {}).get(choice, by_type)

    def kind(self, name: str) -> str:
        """Return the distribution of an action, one of `KINDS`."""
        leaf = self.actions[name]
        if leaf.type != "float":
            return "bernoulli" if leaf.type == "bool" else "categorical"
        bounded: str = self._own(name, "distribution", self.bounded)
        return bounded if leaf.bounded and bounded != "clip" else "normal"

    def heads(self) -> dict[str, Head]:
        """Return the heads, ``action/parameter``, with kernels of gain 0.01: it starts near the middle."""
        heads = {}
        for name, leaf in self.actions.items():
            kind = self.kind(name)
            if kind == "categorical":
                assert leaf.num_values is not None
                shape, linear = (*leaf.shape, leaf.num_values), self._own(name, "linear", True)
                heads[f"{name}/logits"] = Head(shape, scale=0.01, logits=True, linear=linear)
            elif kind == "bernoulli":
                heads[f"{name}/logits"] = Head(leaf.shape, scale=0.01)
            elif kind == "beta":
                heads[f"{name}/alpha"] = Head(leaf.shape, scale=0.01)
                heads[f"{name}/beta"] = Head(leaf.shape, scale=0.01)
            else:
                heads[f"{name}/mean"] = Head(leaf.shape, scale=0.01)
                constant = 0.0 if self._own(name, "std", self.std) == "global" else None
                heads[f"{name}/log_std"] = Head(leaf.shape, scale=0.01, constant=constant)
        return heads

    def noise(self, key: Key, n: int) -> Tree:
        """Return the randomness of one draw for `n` rows: plain arrays `[n, ...]` by action."""
        kinds = {}
        for name, leaf in self.actions.items():
            kind = self.kind(name)
            shape = (*leaf.shape, leaf.num_values or 0) if kind == "categorical" else leaf.shape
            kinds[name] = NoiseKind(KINDS[kind], shape)
        return Product.noise(key, kinds, (n,))

    def distribution(self, outputs: Arrays, masks: Arrays | None = None) -> Product:
        """Return the policy at a model's outputs `[*B, *head.shape]` by head; other heads' are ignored.

        `masks` are `[*B, *action shape, num_values]` by action, True where allowed.
        """
        masks = masks or {}
        return Product({name: self._part(name, leaf, outputs, masks) for name, leaf in self.actions.items()})

    def _part(self, name: str, leaf: Leaf, outputs: Arrays, masks: Arrays) -> Any:
        kind, event = self.kind(name), len(leaf.shape)
        if kind == "categorical":
            return Categorical(outputs[f"{name}/logits"], masks.get(name), event)
        if kind == "bernoulli":
            return Bernoulli(outputs[f"{name}/logits"], event)
        low, high = jnp.asarray(leaf.low, jnp.float32), jnp.asarray(leaf.high, jnp.float32)
        fixed = np.equal(leaf.low, leaf.high)
        if fixed.any():  # an element with only one value has nothing to learn: its distribution stays fixed
            parts = {f"{name}/{part}" for part in ("alpha", "beta", "mean", "log_std")}
            outputs = {
                k: jnp.where(_like(fixed, x).astype(bool), 0.0, x) if k in parts else x
                for k, x in outputs.items()
            }
        if kind == "beta":
            alpha, beta = (_above_one(outputs[f"{name}/{part}"]) for part in ("alpha", "beta"))
            return Beta(alpha, beta, low, high, event)
        mean, log_std = outputs[f"{name}/mean"], outputs[f"{name}/log_std"]
        if self._own(name, "std", self.std) == "predicted":
            log_std = jnp.clip(log_std, *LOG_STD)
        if kind == "squash":
            return SquashedNormal(mean, log_std, low, high, event)
        finite = np.isfinite(leaf.low) & np.isfinite(leaf.high)
        centre = np.where(finite, np.where(finite, leaf.low, 0) / 2 + np.where(finite, leaf.high, 0) / 2, 0.0)
        half = np.where(finite, np.where(finite, leaf.high, 2) / 2 - np.where(finite, leaf.low, 0) / 2, 1.0)
        # A density needs a width, even for an element with only one value.
        width = np.where(half > 0, half, 1.0)
        return Normal(
            _like(centre, mean) + _like(half, mean) * mean, _like(np.log(width), mean) + log_std, event
        )


def _like(x: np.typing.ArrayLike, other: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(x, jnp.float32), other.shape)


def _above_one(output: Array) -> Array:
    return 1.0 + jnp.logaddexp(output, jnp.zeros_like(output))
