"""The policy of an agent as one pure function of named arrays, and as bytes of each format."""

from __future__ import annotations

import hashlib
import json
import logging
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from operant.agents.base.learner import Learner, PolicyState
from operant.checkpoint import durable
from operant.errors import SpecError, UsageError, as_folder
from operant.execution.export import FORMATS, require
from operant.execution.export.interface import Interface, PolicyPort, flat
from operant.spec.spaces import Leaf, mask_name, nested
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


PLATFORMS = ("cpu", "cuda", "tpu")
ROWS = 64
"""Random observations on which a converted policy is compared with the agent's."""


def write(
    directory: str | Path, name: str, format: str, learner: Learner, acting: PolicyState, agent: str
) -> Path:
    """Write the policy of an agent (`name` without suffix), and the description of its inputs beside it.

    Raises:
        SpecError: a layer cannot be converted, or the directory is a file.
        UsageError: the agent always draws its actions, or what the format needs is not installed.
    """
    function = PolicyFunction(learner, acting)
    folder = as_folder("directory", directory)
    file = folder / f"{name}{FORMATS[format]}"
    parts = {file: _WRITERS[format](function)} if format in _WRITERS else saved_model(function, file)
    *_, data = parts.values()
    digest = hashlib.sha256(data).hexdigest()  # a damaged program can end the process that reads it
    description = {"format": format, "agent": agent, "sha256": digest, **function.interface.to_json()}
    described = file.with_name(f"{file.name}.json"), json.dumps(description, indent=2).encode() + b"\n"
    for path, part in (described, *parts.items()):
        path.parent.mkdir(parents=True, exist_ok=True)
        with durable.replaced(path) as temporary:
            temporary.write_bytes(part)
    return file


def stablehlo(function: PolicyFunction) -> bytes:
    """Return a function, from dict to dict, as `jax.export.deserialize` reads it."""
    with _without_locations():
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(function.shapes)
        return bytes(exported.serialize())


@contextmanager
def _without_locations() -> Iterator[None]:
    """Keep the names of source files out of what is written: they say where operant is installed."""
    before = jax.config.jax_traceback_in_locations_limit  # type: ignore[attr-defined]
    jax.config.update("jax_traceback_in_locations_limit", 0)
    try:
        yield
    finally:
        jax.config.update("jax_traceback_in_locations_limit", before)


def onnx(function: PolicyFunction) -> bytes:
    """Return a function as an ONNX model, tried out; SpecError: a layer cannot be, or acts differently."""
    require("onnx", "jax2onnx", "onnxruntime")
    import jax2onnx

    interface = function.interface
    inputs = [port.name for port in interface.inputs]
    outputs = [port.name for port in interface.outputs]

    def positional(*arrays: Array) -> list[Array]:
        result = function(dict(zip(inputs, arrays, strict=True)))
        return [result[name] for name in outputs]

    with _quiet():
        try:
            model: Any = jax2onnx.to_onnx(
                positional,
                list(function.shapes.values()),
                model_name="policy",
                input_names=inputs,
                output_names=outputs,
            )
        except Exception as error:  # the converter has no error of its own
            raise SpecError(
                f"The policy cannot be converted to ONNX: {str(error).strip().splitlines()[0]}. Use "
                "format='stablehlo', or layers that the converter (jax2onnx) knows."
            ) from error
    data: bytes = model.SerializeToString()
    _compare(function, data)
    return data


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("onnx_ir")
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(before)


def _compare(function: PolicyFunction, data: bytes) -> None:
    from onnxruntime import InferenceSession

    inputs = function.interface.sample(np.random.default_rng(0), ROWS)
    with jax.default_matmul_precision("float32"):  # as in ONNX; JAX's default on a GPU is less precise
        wanted = jax.jit(function)(inputs)
    session = InferenceSession(data, providers=["CPUExecutionProvider"])
    names = list(wanted)
    for name, received in zip(names, session.run(names, inputs), strict=True):
        x = np.asarray(wanted[name])
        if x.dtype.kind == "f":
            same = np.isclose(received, x, rtol=1e-3, atol=1e-4)
        else:
            same = received == x
        # Between two equally good choices, rounding may decide differently.
        if np.mean(same) < 0.95:
            raise SpecError(
                f"The policy as ONNX differs from the agent's in {name!r}: a layer is not converted "
                "faithfully. Use format='stablehlo'."
            )


def saved_model(function: PolicyFunction, folder: Path) -> dict[Path, bytes]:
    """Return a function as the files of a SavedModel in a folder, the program last.

    Its `act(states, internals, auxiliaries, deterministic=True)` takes and returns nested structures, and
    `initial_internals()` has no batch axis. The signature `serving_default` has the names of
    `operant.execution.export.interface`, those of inputs with `_` in place of other characters.
    """
    require("saved-model", "tensorflow")
    import tensorflow as tf
    from jax.experimental import jax2tf

    batches = [dict.fromkeys(function.shapes, "(batch, ...)")]
    run = jax2tf.convert(
        function, polymorphic_shapes=batches, with_gradient=False, native_serialization_platforms=PLATFORMS
    )
    inputs = {
        name: tf.TensorSpec((None, *x.shape[1:]), x.dtype.name, name=re.sub(r"\W", "_", name))
        for name, x in function.shapes.items()
    }
    initial = nested(function.interface.initial)

    def act(states: Any, internals: Any = None, auxiliaries: Any = None, deterministic: bool = True) -> Any:
        given = {"states": states, "internals": internals or {}, "auxiliaries": auxiliaries or {}}
        outputs = nested(run(flat(given)))
        return (outputs["actions"], outputs["next_internals"]) if initial else outputs["actions"]

    module = tf.Module()
    module.act = tf.function(act, autograph=False)
    module.initial_internals = tf.function(lambda: initial, input_signature=[], autograph=False)
    with _without_locations(), tempfile.TemporaryDirectory() as temporary:
        module.act.get_concrete_function(deterministic=True, **nested(inputs))
        serve = tf.function(run, autograph=False).get_concrete_function(inputs)
        tf.saved_model.save(module, temporary, signatures=serve)
        files = sorted(Path(temporary).rglob("*"), key=lambda path: path.name == "saved_model.pb")
        return {folder / path.relative_to(temporary): path.read_bytes() for path in files if path.is_file()}


_WRITERS = {"stablehlo": stablehlo, "onnx": onnx}
