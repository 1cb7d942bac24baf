"""Exported policies, loaded to act."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from operant.checkpoint.arrays import fitted
from operant.errors import CheckpointError, SpaceError, UsageError, reading
from operant.execution.export import READ, require
from operant.execution.export.interface import VERSION, Flat, Interface, flat
from operant.execution.saving import find_file
from operant.spec import from_json, runtime
from operant.spec.spaces import nested

Run = Callable[[Flat], Mapping[str, Any]]


class ExportedPolicy:
    """A policy that acts and does not learn. Made by `load_policy`; `run` computes outputs by name."""

    def __init__(self, interface: Interface, run: Run) -> None:
        self.interface = interface
        self.spaces = interface.spaces
        self._run = run

    def initial_internals(self) -> Any:
        """Return the recurrent state at the start of an episode; empty for a feed-forward policy."""
        return nested(self.interface.initial) if self.interface.initial else ()

    def act(self, states: Any, internals: Any = None) -> Any:
        """Choose the best actions, as `agent.act(states, internals, independent=True)`.

        Args:
            states: one state in the structure of the specification, masks included, or several along a
                leading axis.
            internals: recurrent state: what `initial_internals` or the previous call returned.

        Returns:
            Actions in the structure of the specification; `(actions, internals)` if `internals` were given.

        Raises:
            SpaceError: states or internals do not fit.
            UsageError: the policy is recurrent, and `internals` are missing.
        """
        observation = self.spaces.observe(states, None)
        batch = self.spaces.states.batch_shape(observation)
        if len(batch) > 1:
            raise SpaceError(f"states may have one leading axis. Received: {len(batch)} leading axes.")
        if self.interface.initial and internals is None:
            raise UsageError("A recurrent policy needs internals. Start with initial_internals().")
        if not batch:
            observation = {name: x[None] for name, x in observation.items()}
        before = self._internals(internals, batch)
        actions, after = self.interface.write(self._run(self.interface.read(observation, before)))
        if not batch:
            actions, after = ({k: x[0] for k, x in each.items()} for each in (actions, after))
        emitted = self.spaces.actions.unflatten(actions)
        return emitted if internals is None else (emitted, nested(after) if after else ())

    def choose(self, observation: Flat, internals: Flat, first: np.ndarray, row: int) -> tuple[Flat, Flat]:
        """Act in a vector of environments: on stored observations `[n, ...]`, with internals by path.

        Where `first` `[n]` is True an episode begins, and the internals start anew; `row` is not used.
        """
        begun = {
            path: np.where(first.reshape(-1, *[1] * x.ndim), x[None], internals[path])
            for path, x in self.interface.initial.items()
        }
        return self.interface.write(self._run(self.interface.read(observation, begun)))

    def start(self, n: int) -> Flat:
        """Return the internals of `n` actors at the start of an episode, for `choose`."""
        return {path: np.repeat(x[None], n, axis=0) for path, x in self.interface.initial.items()}

    def _internals(self, internals: Any, batch: tuple[int, ...]) -> Flat:
        given = flat(internals)
        expected = {path: (*batch, *x.shape) for path, x in self.interface.initial.items()}
        received = {path: np.shape(x) for path, x in given.items()}
        if expected != received:
            raise SpaceError(f"internals must have the shapes {expected}. Received: {received}.")
        return given if batch else {path: np.asarray(x)[None] for path, x in given.items()}


def load_policy(path: str | Path, filename: str | None = None) -> ExportedPolicy:
    """Load a policy that `agent.save(format='stablehlo' or 'onnx')` wrote.

    Args:
        path: the file, or the folder that holds it.
        filename: its name in the folder, with or without suffix (default: the newest).

    Raises:
        CheckpointError: there is none, or it cannot be read.
        UsageError: the package that runs the format is not installed.
    """
    suffixes = list(READ.values())
    file = find_file(Path(path), filename, suffixes)
    if file is None:
        named = "" if filename is None else f" {filename!r}"
        raise CheckpointError(
            f"There is no exported policy{named} ({', '.join(suffixes)}) in {str(path)!r}. "
            "Write one: agent.save(directory, format='onnx')."
        )
    interface, digest = _described(file)
    with reading(f"The policy {str(file)!r}"):
        program = file.read_bytes()
        if hashlib.sha256(program).hexdigest() != digest:
            raise ValueError("it is not the one of the description beside it")
        run = _onnx(program) if file.suffix == READ["onnx"] else _stablehlo(program)
        _try(run, interface)
    return ExportedPolicy(interface, run)


def _try(run: Run, interface: Interface) -> None:
    """Act once, and refuse outputs that are not as the description says."""
    outputs = run(interface.sample(np.random.default_rng(0), 1))
    for port in interface.outputs:
        try:
            fitted(np.asarray(outputs[port.name]), (1, *port.leaf.shape), port.leaf.storage)
        except ValueError as error:
            raise ValueError(f"its output {port.name!r} {error}.") from None


def _described(file: Path) -> tuple[Interface, str]:
    """Return what the description beside a policy says: its inputs and outputs, and its SHA-256."""
    beside = file.with_name(f"{file.name}.json")
    with reading(f"The description {str(beside)!r} of an exported policy"):
        data = from_json(beside.read_text(encoding="utf-8"))
        if data["version"] != VERSION:
            raise CheckpointError(
                f"{str(beside)!r} is of version {data['version']}, and this operant reads version {VERSION}. "
                "Use the operant that wrote it, or export anew."
            )
        return Interface.from_json(data), data["sha256"]


def _onnx(program: bytes) -> Run:
    require("onnx", "onnxruntime")
    from onnxruntime import InferenceSession

    session = InferenceSession(program, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def _stablehlo(program: bytes) -> Run:
    import jax
    from jax import export

    runtime.prepare()
    call = jax.jit(export.deserialize(bytearray(program)).call)
    return lambda inputs: jax.device_get(call(inputs))
