"""The policy of an agent as one pure function of named arrays."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from operant.agents.base.learner import Learner, PolicyState
from operant.errors import UsageError
from operant.execution.export.interface import Interface, PolicyPort
from operant.spec.spaces import Leaf, mask_name
from operant.types import Action, Array, Arrays, Tree


class PolicyFunction:
    """Deterministic acting with parameters as they are now; UsageError: the agent always draws."""

    def __init__(self, learner: Learner, acting: PolicyState) -> None:
        self._learner, self._acting = learner, acting
        paths, self._carry = jax.tree_util.tree_flatten_with_path(learner.algorithm.initial_carry(1))
        self._start = [np.asarray(x[0]) for _, x in paths]
        initial = {
            jax.tree_util.keystr(path, simple=True, separator="/"): start
            for (path, _), start, relevant in zip(paths, self._start, learner.relevant_carry, strict=True)
            if relevant
        }
        self.interface = Interface(learner.algorithm.spaces, initial)
        self.batch: Any = export.symbolic_shape("batch")[0]
        self._noise = learner.algorithm.noise(jax.random.key(0), 1)
        self._refuse_chance()

    @property
    def shapes(self) -> dict[str, jax.ShapeDtypeStruct]:
        """Inputs by name, with a batch of any size."""
        return {
            port.name: jax.ShapeDtypeStruct((self.batch, *port.leaf.shape), port.leaf.storage)
            for port in self.interface.inputs
        }

    def __call__(self, inputs: Arrays) -> Arrays:
        """Return outputs by name."""
        return self._outputs(self._act(inputs, self._noise))

    def _act(self, inputs: Arrays, noise: Tree) -> Action:
        observation: Arrays = {}
        carry: list[Array] = []
        for port in self.interface.inputs:
            x = inputs[port.name]
            if port.kind == "internals":
                carry.append(x)
            elif port.kind == "mask":
                observation[mask_name(port.component)] = x
            else:
                observation[port.component] = self._stored(port, x)
        algorithm = self._learner.at(self._acting.hyper)
        size, leaves = next(iter(inputs.values())).shape[0], iter(carry)
        before = [
            next(leaves) if relevant else jnp.broadcast_to(start, (size, *start.shape))
            for start, relevant in zip(self._start, self._learner.relevant_carry, strict=True)
        ]
        whole = jax.tree.unflatten(self._carry, before)
        return algorithm.act(self._acting.policy, observation, whole, noise, False)

    def _stored(self, port: PolicyPort, x: Array) -> Array:
        leaf = self.interface.spaces.states.components[port.component]
        return (x - _offset(leaf, x)).astype(leaf.storage) if leaf.has_offset else x

    def _outputs(self, acted: Action) -> Arrays:
        actions, leaves = self._learner.emit(acted.action), jax.tree.leaves(acted.carry)
        after = [x for x, relevant in zip(leaves, self._learner.relevant_carry, strict=True) if relevant]
        flat: Arrays = {}
        for port in self.interface.outputs:
            if port.kind == "internals":
                flat[port.name] = after[len(flat) - len(actions)]
                continue
            x = actions[port.component].astype(port.leaf.storage)
            flat[port.name] = x + _offset(port.leaf, x) if port.leaf.has_offset else x
        return flat

    def _refuse_chance(self) -> None:
        """Refuse a policy whose actions depend on noise even without exploration."""
        noise = jax.tree.map(lambda x: jax.ShapeDtypeStruct((self.batch, *x.shape[1:]), x.dtype), self._noise)
        traced = jax.make_jaxpr(lambda noise, inputs: self._outputs(self._act(inputs, noise)))(
            noise, self.shapes
        )
        drawn = {id(x) for x in traced.jaxpr.invars[: len(jax.tree.leaves(noise))]}
        used = [x for equation in traced.jaxpr.eqns for x in equation.invars] + list(traced.jaxpr.outvars)
        if any(id(x) in drawn for x in used):
            raise UsageError("An agent that draws all of its actions has no deterministic policy to export.")


def _offset(leaf: Leaf, x: Array) -> Array:
    return jnp.broadcast_to(jnp.asarray(leaf.offset, x.dtype), x.shape)
