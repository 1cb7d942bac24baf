"""A network as pure functions over named arrays.

A `Model` wraps one functional Keras model. It holds no weights: `init` makes them, and every other method
takes them as `Variables`. Inside compiled code a call is the same program as the layers written out in JAX.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from operant.errors import SpaceError, SpecError
from operant.nn.backend import keras, numpy_promotion
from operant.nn.graph import Carries, safe_name
from operant.nn.weights import Weight, adapted, is_seed, named_variables, reading, write
from operant.ops import normalization, prng
from operant.spec.random_streams import Purpose
from operant.spec.spaces import Leaf
from operant.types import Array, Arrays, Key, Tree

Variables: TypeAlias = dict[str, Arrays]
"""``{"params": {name: array}, "state": {name: array}}``: what gradient steps change, and what they do not.

Running averages of batch normalisation are among `params`, without a gradient: each step moves them
(`Model.averaged`), and whatever follows a network, as target networks do, follows them too.
"""

LEARNING = "learning"
"""Entry of ``variables["state"]`` that tells a call to apply layers as in training. It holds no array."""
_RATES = ("dropout", "recurrent_dropout")


class Model:
    """A network with named inputs and heads. Made by `operant.nn.build`; hashed by identity.

    Observations and outputs may have any leading axes `*B` (the same for all components), also none.
    """

    def __init__(
        self,
        network: Any,
        weights: Sequence[Weight],
        *,
        inputs: Mapping[str, Leaf],
        heads: Iterable[str],
        carries: Carries,
        normalized: Sequence[str],
        registered: Mapping[str, Any],
        to_spec: Callable[[], Any],
    ) -> None:
        self.name: str = network.name
        self.network = network
        """The Keras model. Its inputs and outputs have the `safe_name` of components and heads."""
        self.registered = dict(registered)
        """Keras tensors by the names that `register` gave them."""
        self.inputs = dict(inputs)
        """The components that it reads."""
        self.heads = tuple(heads)
        self.recurrent = bool(carries.sizes)
        self.horizon = carries.horizon
        """Rows through which gradients should flow back, if a recurrent layer asked for a number."""
        self._weights = tuple(weights)
        self._carries = dict(carries.sizes)
        self.normalized = tuple(normalized)
        """Inputs that are standardised by running moments."""
        self._to_spec = to_spec
        order = {id(v): name for name, v in named_variables(network)}
        self._params = [order[id(v)] for v in network.trainable_variables]
        self._state = [order[id(v)] for v in network.non_trainable_variables]
        self._seeds = tuple(name for name in self._state if is_seed(name))
        different = [layer for layer in leaves(network) if _differs(layer)]
        self.learns_otherwise = bool(different)
        """Whether learning applies it differently from use (see `learning`)."""
        changed = dict.fromkeys(order[id(v)] for layer in different for v in layer.non_trainable_variables)
        self.averages = tuple(name for name in changed if not is_seed(name))
        """Running averages among the parameters."""
        from operant.nn.keras_layers import compute_fast

        for layer in leaves(network):
            compute_fast(layer)
            if isinstance(layer, keras().layers.SpectralNormalization):
                raise SpecError(
                    "Spectral normalisation changes its kernel in every call of training, which compiled "
                    f"learning does not keep. Received: the layer {layer.name!r}. Use layer normalisation "
                    "instead (layer_normalization)."
                )
        for layer in reversed(list(network._flatten_layers())):  # inner ones first, which the message names
            _refuse_unlearnable(layer)
        if self.averages and self.recurrent:
            raise SpecError(
                f"Recurrent networks take no layers with running averages, such as batch normalisation. "
                f"Received: {', '.join(self.averages)}. Use layer normalisation instead "
                "(layer_normalization)."
            )
        self._adapted = adapted(network)
        self._draw = jax.jit(self._drawn)

    @property
    def moments(self) -> tuple[str, ...]:
        """Names, among the variables, of the running moments of standardised inputs."""
        return tuple(name for component in self.normalized for name in _moments(component).values())

    @functools.cached_property
    def spec(self) -> Any:
        """The network as JSON data for `build`; SpecError: a Keras model or layer cannot be written so."""
        return self._to_spec()

    @property
    def count(self) -> int:
        """Number of trained parameters."""
        return sum(math.prod(w.shape) for w in self._weights if w.name in self._params)

    @functools.cached_property
    def widest(self) -> int:
        """Numbers of the largest tensor that one observation becomes within the network."""
        nodes = (node for operation in self.network.operations for node in operation._inbound_nodes)
        shapes = (tensor.shape for node in nodes for tensor in node.output_tensors)
        return max(math.prod(size or 1 for size in shape) for shape in shapes)

    def init(self, key: Key) -> Variables:
        """Return initial variables: a pure function of the key, which may be traced or mapped over."""
        drawn = self._draw(key)
        fixed = {w.name: w.draw(key) for w in self._weights if w.name not in drawn}
        values = {**drawn, **fixed}
        return {
            "params": {name: values[name] for name in (*self._params, *self.averages)},
            "state": {name: values[name] for name in self._state if name not in self.averages},
        }

    def _drawn(self, key: Key) -> Arrays:
        fresh = [w for w in self._weights if is_seed(w.name) or w.value is None]
        with numpy_promotion():
            keys = jax.random.split(key, max(len(fresh), 1))
            return {w.name: w.draw(k) for w, k in zip(fresh, keys, strict=False)}

    def learning(self, variables: Variables, key: Key, *path: int | Array) -> Variables:
        """Return variables with which calls apply layers as in training: for losses only.

        Dropout and other noise are drawn anew for every key (and the numbers in `path`, folded into it); all
        calls that read the result share one noise. The noise's key is derived apart, so `key` may serve other
        purposes. Batch normalisation standardises by the batch. For a network without such layers the
        variables are returned as they are, so its compiled programs are unaffected.
        """
        if not self.learns_otherwise:
            return variables
        state: Tree = {**variables["state"], LEARNING: ()}
        if self._seeds:
            for step in (Purpose.PERTURBATION, *path):
                key = jax.random.fold_in(key, step)
            state |= zip(self._seeds, prng.bits(key, (len(self._seeds), 2)), strict=True)
        return {**variables, "state": state}

    def in_use(self, variables: Variables) -> Variables:
        """Undo `learning`: return variables with which calls apply layers as in use."""
        if LEARNING not in variables["state"]:
            return variables
        return {**variables, "state": {k: x for k, x in variables["state"].items() if k != LEARNING}}

    def averaged(
        self, params: Arrays, variables: Variables, observation: Arrays, *, has_rows: Array | None = None
    ) -> Arrays:
        """Return parameters with the running averages moved by the batch of a gradient step.

        XLA finds most of this call in the loss, and computes that once.

        Args:
            params: after the gradient step; themselves, if the model has no such averages.
            variables: those with which the loss called the model: from before the step, returned by
                `learning`.
            observation: the step's batch, as in `apply`.
            has_rows: whether any of its rows counts (default: some do); if none does, the averages stay.
        """
        if not self.averages:
            return params
        after = self._call(variables, observation, ())[2]
        old = variables["params"]
        # The optimizer skips a batch with a NaN in it as well.
        moves = {k: jnp.all(jnp.isfinite(after[k])) for k in self.averages}
        if has_rows is not None:
            moves = {k: finite & has_rows for k, finite in moves.items()}
        moved = {k: jnp.where(moves[k], after[k], old[k]) for k in self.averages}
        return {**params, **moved}

    def apply(self, variables: Variables, observation: Arrays, carry: Tree = ()) -> tuple[Arrays, Tree]:
        """Return outputs by head, `[*B, *head.shape]`, and the recurrent state after the step.

        Layers are applied as in use: dropout off, running averages fixed; with variables from `learning`, as
        in training.

        Args:
            variables: as from `init` or `learning`.
            observation: components `[*B, *leaf.shape]`; masks and components that the model does not read are
                ignored.
            carry: recurrent state before the step, `[*B, size]` by name; `()` for a feed-forward model.

        Raises:
            SpaceError: a component is missing or has another shape.
        """
        outputs, carry, _ = self._call(variables, observation, carry)
        return outputs, carry

    def unroll(
        self, variables: Variables, observation: Arrays, carry: Tree, reset: Array
    ) -> tuple[Arrays, Tree]:
        """Return the outputs of successive rows, and the carry after the last.

        A feed-forward model takes all rows in one call. With variables from `learning`, noise is drawn anew
        for every row.

        Args:
            variables: as from `init` or `learning`.
            observation: components `[T, *B, *leaf.shape]`.
            carry: recurrent state before row 0, `[*B, size]` by name.
            reset: `[T, *B]`, where a row starts from `initial_carry` instead: the first rows of episodes.
        """
        if not self.recurrent:
            return self.apply(variables, observation, carry)
        outputs, _, carry = self._rows(variables, observation, carry, reset)
        return outputs, carry

    def states(self, variables: Variables, observation: Arrays, carry: Tree, reset: Array) -> Tree:
        """Return the recurrent states before successive rows and after the last, `[T + 1, *B, size]` by name.

        With `apply` they tell what the outputs would be if a row had shown something else (see `unroll`).
        """
        _, before, last = self._rows(variables, observation, carry, reset)
        return jax.tree.map(lambda x, end: jnp.concatenate([x, end[None]]), before, last)

    def _rows(
        self, variables: Variables, observation: Arrays, carry: Tree, reset: Array
    ) -> tuple[Arrays, Tree, Tree]:
        """Return outputs of successive rows, the recurrent states before them, and that after the last."""
        rows = {name: observation[name] for name in self.inputs if name in observation}

        def step(
            before: tuple[Tree, Arrays], row: tuple[Arrays, Array]
        ) -> tuple[tuple[Tree, Arrays], tuple[Arrays, Tree]]:
            carry, state = before
            observation, first = row
            carry = {name: jnp.where(first[..., None], jnp.zeros_like(x), x) for name, x in carry.items()}
            current = {"params": variables["params"], "state": state}
            outputs, after, state = self._call(current, observation, carry)
            return (after, {name: state[name] for name in before[1]}), (outputs, carry)

        with jax.numpy_rank_promotion("allow"):  # [*B, 1] against [*B, size]
            (carry, _), (outputs, before) = jax.lax.scan(step, (carry, variables["state"]), (rows, reset))
        return outputs, before, carry

    def _call(self, variables: Variables, observation: Arrays, carry: Tree) -> tuple[Arrays, Tree, Arrays]:
        """Return outputs, carry, and what the call makes of ``variables["state"]``: its running averages."""
        lead, arguments = self._arguments(observation)
        if self.recurrent:
            if set(carry) != set(self._carries):
                raise SpaceError(
                    f"carry must hold {', '.join(self._carries)}. Received: {carry!r}. See initial_carry."
                )
            arguments |= {name: x.reshape(-1, self._carries[name]) for name, x in carry.items()}
        params = [variables["params"][name] for name in self._params]
        held = {
            **variables["state"],
            **{k: jax.lax.stop_gradient(variables["params"][k]) for k in self.averages},
        }
        state = [held[name] for name in self._state]
        marked: Tree = {LEARNING: ()} if LEARNING in variables["state"] else {}
        values = list(zip(self.network.non_trainable_variables, state, strict=True))
        with numpy_promotion(), reading(self._adapted, values):
            outputs, after = self.network.stateless_call(params, state, arguments, training=bool(marked))

        def unflatten(x: Array) -> Array:
            return x.reshape(*lead, *x.shape[1:])

        heads = {name: unflatten(outputs[safe_name(name)]) for name in self.heads}
        carry = {name: unflatten(outputs[name]) for name in self._carries} if self.recurrent else carry
        return heads, carry, dict(zip(self._state, after, strict=True)) | marked

    def _arguments(self, observation: Arrays) -> tuple[tuple[int, ...], dict[str, Array]]:
        lead: tuple[int, ...] | None = None
        arguments = {}
        for name, leaf in self.inputs.items():
            if name not in observation:
                raise SpaceError(
                    f"The model reads {name!r}. Received: {', '.join(observation) or 'nothing'}."
                )
            x = jnp.asarray(observation[name])
            rank = x.ndim - len(leaf.shape)
            if rank < 0 or x.shape[rank:] != leaf.shape or (lead is not None and x.shape[:rank] != lead):
                axes = "any leading axes" if lead is None else f"the leading axes {lead}"
                raise SpaceError(
                    f"{name} must have {axes} and then shape {leaf.shape}. Received: shape {x.shape}."
                )
            lead = x.shape[:rank]
            arguments[safe_name(name)] = x.reshape(math.prod(lead), *leaf.shape).astype(leaf.dtype)
        assert lead is not None
        return lead, arguments

    def initial_carry(self, n: int) -> Tree:
        """Return the recurrent state before an episode: zeros `[n, size]` by name; `()` if there is none."""
        if not self.recurrent:
            return ()
        return {name: jnp.zeros((n, size), jnp.float32) for name, size in self._carries.items()}

    def observe(self, variables: Variables, observation: Arrays, valid: Array) -> Variables:
        """Add rows to the running moments of the normalised inputs; without any, return the variables.

        The observation has components `[T, *B, *leaf.shape]`, of which rows beyond those of `valid` `[T, *B]`
        are ignored; it is False on rows that do not count.
        """
        state = dict(variables["state"])
        for name in self.normalized:
            fields = _moments(name)
            moments = normalization.Moments(**{field: state[inner] for field, inner in fields.items()})
            moments = normalization.update(moments, observation[name][: valid.shape[0]], valid)
            state |= {fields[field]: value for field, value in moments._asdict().items()}
        return {**variables, "state": state}

    def summary(self) -> str:
        """Return Keras's table of layers, shapes and numbers of parameters."""
        lines: list[str] = []
        self.network.summary(print_fn=lambda line, **_: lines.append(line))
        return "\n".join(lines)

    def assign(self, variables: Variables) -> None:
        """Write variables into the Keras model itself, and so into one of the user's that is part of it."""
        with numpy_promotion():
            write(self.network, {**variables["params"], **variables["state"]})


def _refuse_unlearnable(layer: Any) -> None:
    weights = layer.trainable_variables
    if other := {str(v.dtype) for v in weights} - {"float32"}:
        raise SpecError(
            f"Weights are learnt as float32. Received: the layer {layer.name!r} with {other.pop()}. To "
            "compute with fewer bits, give it dtype='mixed_bfloat16'."
        )
    penalties = {
        "an activity regularizer": layer.activity_regularizer is not None,
        "a regularizer": any(v.regularizer is not None for v in weights),
        "a constraint": any(v.constraint is not None for v in weights),
    }
    for what, present in penalties.items():
        if present:
            raise SpecError(
                "Regularizers and constraints of Keras layers have no effect on learning here. Received: the "
                f"layer {layer.name!r} with {what}. Leave it out; for smaller weights give the optimizer's "
                "weight_decay: optimizer={'type': 'adam', 'weight_decay': 1e-4}."
            )


def normalizer_name(component: str) -> str:
    """Return the name of the layer that standardises a component."""
    return f"normalizer.{safe_name(component)}"


def _moments(component: str) -> dict[str, str]:
    """Return a component's moments among the variables, by field of `normalization.Moments`."""
    return {field: f"{normalizer_name(component)}/{field}" for field in normalization.Moments._fields}


def leaves(network: Any) -> list[Any]:
    """Return the layers of a Keras model that are not models themselves, at any depth."""
    model = keras().Model
    return [layer for layer in network._flatten_layers() if not isinstance(layer, model)]


def _differs(layer: Any) -> bool:
    """Return whether a layer computes a different function in training than in use."""
    k = keras().layers
    if isinstance(layer, k.BatchNormalization):
        return bool(layer.trainable)  # a frozen one keeps its averages in training as well
    if not type(layer).__module__.startswith(("keras.", "operant.")):
        return bool(layer._call_has_training_arg)  # a user's class says so itself
    if all(hasattr(layer, name) for name in _RATES):  # recurrent ones have a seed whether they draw or not
        return any(getattr(layer, name) for name in _RATES)
    return bool(layer._seed_generators)
