"""Networks as flowcharts in the language of Mermaid, which GitHub, GitLab and many editors draw.

Inputs are round, layers are boxes; outputs (heads and recurrent states) are slanted. A tensor named by
`register` has its name on the arrows that lead away from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from operant.nn.backend import keras
from operant.nn.graph import safe_name
from operant.nn.model import Model


def mermaid(models: Mapping[str, Model]) -> str:
    """Return one flowchart of several models, each in a frame with its name."""
    lines = ["flowchart TD"]
    for i, (name, model) in enumerate(models.items()):
        lines += [f"    subgraph m{i}[{_quoted(name)}]"]
        lines += [f"        {line}" for line in _Chart(f"m{i}", model).lines]
        lines += ["    end"]
    return "\n".join(lines)


class _Chart:
    def __init__(self, prefix: str, model: Model) -> None:
        self.lines: list[str] = []
        self._prefix, self._count = prefix, 0
        self._inputs = {safe_name(name): name for name in model.inputs}
        self._names = {id(x): name for name, x in model.registered.items()}
        self._nodes: dict[tuple[int, int], str] = {}
        heads = {safe_name(name): name for name in model.heads}
        for inner, tensor in model.network.output.items():
            label = heads.get(inner, inner)
            self._edge(tensor, self._node("[/", [label, _shape(tensor)], "/]"))

    def _node(self, left: str, parts: list[str], right: str) -> str:
        node = f"{self._prefix}n{self._count}"
        self._count += 1
        self.lines.append(f"{node}{left}{_quoted('<br/>'.join(parts))}{right}")
        return node

    def _edge(self, tensor: Any, node: str) -> None:
        source = self._drawn(tensor)
        name = self._names.get(id(tensor))
        arrow = "-->" if name is None else f"-- {_quoted(name)} -->"
        self.lines.append(f"{source} {arrow} {node}")

    def _drawn(self, tensor: Any) -> str:
        operation, index, _ = tensor._keras_history
        key = id(operation), index
        if key not in self._nodes:
            node = operation._inbound_nodes[index]
            if node.is_input:
                label = self._inputs.get(operation.name, operation.name)
                parts = [label, f"{_shape(tensor)} {tensor.dtype}"]
                self._nodes[key] = self._node("([", parts, "])")
            else:
                sources = [(x, self._drawn(x)) for x in node.input_tensors]
                parts = [operation.name, _kind(operation), _shape(node.output_tensors[0])]
                self._nodes[key] = self._node("[", parts, "]")
                for x, _ in sources:
                    self._edge(x, self._nodes[key])
        return self._nodes[key]


def _kind(operation: Any) -> str:
    kind = type(operation).__name__
    function = getattr(operation, "activation", None)
    name = getattr(function, "__name__", None)
    return (
        kind
        if name in (None, "linear") or not isinstance(operation, keras().layers.Layer)
        else f"{kind}, {name}"
    )


def _shape(tensor: Any) -> str:
    return " × ".join("?" if n is None else str(n) for n in tensor.shape[1:]) or "1"


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "#quot;") + '"'
