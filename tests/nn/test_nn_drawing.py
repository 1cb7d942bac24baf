"""Drawings of networks: every input, layer, head and registered tensor, and the arrows between them."""

from __future__ import annotations

import re

import pytest

from operant import Agent
from operant.errors import SpecError
from operant.nn import Head, build
from operant.nn.drawing import mermaid
from operant.spec.spaces import Leaf

INPUTS = {
    "image": Leaf("float", (6, 6, 3), dtype="uint8"),
    "body/level": Leaf("int", (), 5),
    "speed": Leaf("float", (2,)),
}
NETWORK = [
    [
        {"type": "retrieve", "tensors": "image"},
        {"type": "conv2d", "size": 4, "window": 3},
        {"type": "flatten"},
        {"type": "dense", "size": 8, "name": "eye"},
        {"type": "register", "tensor": "seen"},
    ],
    [
        {"type": "retrieve", "tensors": "body/level"},
        {"type": "embedding", "size": 8},
        {"type": "register", "tensor": 'the "level"'},
    ],
    [
        {"type": "retrieve", "tensors": ["seen", 'the "level"'], "aggregation": "product"},
        {"type": "register", "tensor": "both"},
    ],
    [{"type": "retrieve", "tensors": ["both", "seen", "speed"]}, {"type": "gru", "size": 4}],
]


def read(chart):
    """Return the labels of nodes, and the arrows as (from, name on it, to)."""
    lines = [line.strip() for line in chart.splitlines()]
    nodes = dict(m.groups() for line in lines if (m := re.fullmatch(r"""(m\d+n\d+)\W+"(.*)"\W+""", line)))
    edges = [m.groups() for line in lines if (m := re.fullmatch(r"""(\w+) (?:-- "(.*)" )?--> (\w+)""", line))]
    assert len(nodes) + len(edges) + chart.count("subgraph ") * 2 + 1 == len(lines), chart
    short = {node: label.split("<br/>")[0] for node, label in nodes.items()}
    return list(nodes.values()), {(short[a], name, short[b]) for a, name, b in edges}


def test_a_network_with_registered_tensors():
    model = build(NETWORK, INPUTS, {"q/left": Head((3,)), "value": Head(())})
    chart = mermaid({"critic": model})
    assert chart.startswith('flowchart TD\n    subgraph m0["critic"]\n')
    labels, edges = read(chart)
    assert {
        "image<br/>6 × 6 × 3 uint8",
        "body/level<br/>1 int32",
        "speed<br/>2 float32",
        "body.gru0.h<br/>4 float32",
        "body.conv2d0<br/>Conv2D, relu<br/>6 × 6 × 4",
        "body.eye<br/>Dense, tanh<br/>8",
        "body.embedding0<br/>Embedding<br/>8",
        "body.gru0<br/>GRUCell, tanh<br/>4",
        "head.q.left<br/>Dense<br/>3",
        "q/left<br/>3",
        "value<br/>1",
        "body.gru0.h<br/>4",
    } <= set(labels)
    named = {name: {(a, b) for a, n, b in edges if n == name} for _, name, _ in edges if name}
    assert named.keys() == {"seen", "the #quot;level#quot;", "both"}
    assert len(named["seen"]) == 2 and {a for a, _ in named["seen"]} == {"body.eye"}
    joined = next(b for a, n, b in edges if a == "speed")
    assert joined.startswith("concatenate") and joined in {b for _, b in named["both"]}
    assert (joined, None, "body.gru0") in edges and ("body.gru0.h", None, "body.gru0") in edges
    assert ("head.q.left", None, "q/left") in edges


def test_towers_have_a_network_each():
    network = [
        [{"type": "dense", "size": 4}, {"type": "register", "tensor": "x"}],
        [{"type": "retrieve", "tensors": "x"}],
    ]
    heads = {"p": Head((2,)), "v": Head(())}
    model = build(network, {"state": Leaf("float", (3,))}, heads, towers=(("p",), ("v",)))
    _, edges = read(mermaid({"model": model}))
    assert {("tower0.dense0", "x (0)", "head.p"), ("tower1.dense0", "x (1)", "head.v")} <= edges


def test_an_agent_draws_all_of_its_models():
    bounded = {"type": "float", "shape": (1,), "min_value": -1.0, "max_value": 1.0}
    agent = Agent.create(agent="ddpg", states={"type": "float", "shape": (3,)}, actions=bounded)
    chart = agent.get_architecture(format="mermaid")
    names = re.findall(r'subgraph m\d+\["(.*)"\]', chart)
    assert names == list(agent.learner.algorithm.models) and len(names) == 2
    read(chart)
    assert "Total params" in agent.get_architecture()
    with pytest.raises(SpecError, match="format must be 'text' or 'mermaid'"):
        agent.get_architecture(format="png")
