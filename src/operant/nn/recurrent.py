"""Recurrent layers. Their state is an input and an output of the model, so that calls stay pure."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from operant.nn.backend import keras
from operant.nn.graph import Graph, activation
from operant.nn.layers import FLOAT, Layer, Nonlinearity, Rate, dropped


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rnn(Layer):
    """A recurrent cell, with its state passed from row to row (see `Model.apply` and `Model.unroll`)."""

    type = "rnn"
    ranks = (1,)
    size: int
    cell: Literal["gru", "lstm"] = "gru"
    horizon: int | None = None
    """Rows through which gradients should flow back; None leaves that to the agent."""
    bias: bool = True
    activation: Nonlinearity = "tanh"
    dropout: Rate = 0.0

    def _add(self, graph: Graph, x: Any) -> Any:
        layers = keras().layers
        name = graph.name(self.type, self.name)
        parts = ("h", "c") if self.cell == "lstm" else ("h",)
        before = [graph.carries.add(f"{name}.{part}", self.size) for part in parts]
        make = layers.LSTMCell if self.cell == "lstm" else layers.GRUCell
        cell = make(self.size, use_bias=self.bias, activation=activation(self.activation), name=name, **FLOAT)
        x, after = cell(x, before)
        graph.carries.outputs.update(
            {f"{name}.{part}": state for part, state in zip(parts, after, strict=True)}
        )
        graph.carries.want(self.horizon)
        return dropped(x, self.dropout, name)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gru(Rnn):
    """Gated recurrent unit (Cho et al. 2014)."""

    type = "gru"
    cell: Literal["gru", "lstm"] = dataclasses.field(default="gru", init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lstm(Rnn):
    """Long short-term memory (Hochreiter and Schmidhuber 1997)."""

    type = "lstm"
    cell: Literal["gru", "lstm"] = dataclasses.field(default="lstm", init=False)
