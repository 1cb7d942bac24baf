"""Agents to export, random inputs for them, and a process that runs an exported policy without operant."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from operant import Agent
from operant.execution.export.interface import Interface

VECTOR = {"type": "float", "shape": (3,)}
CHOICE = {"type": "int", "num_values": 3, "min_value": 5}
BOUNDED = {"type": "float", "shape": (2,), "min_value": [-2.0, 0.0], "max_value": [1.0, 0.5]}
NET = [{"type": "dense", "size": 8}]
SMALL = {"n_steps": 4, "mini_batches": 1, "ppo_epochs": 1}
DQN = {"buffer_max_size": 50, "buffer_initial_size": 4, "buffer_batch_size": 4, "model": NET}
TD3 = {
    "actor_model": NET,
    "critic_model": NET,
    "buffer_max_size": 50,
    "buffer_initial_size": 4,
    "buffer_batch_size": 4,
}
HYBRID = {
    "states": {
        "image": {"type": "float", "shape": (8, 8, 3), "dtype": "uint8"},
        "body": {"speed": VECTOR, "gear": {"type": "int", "num_values": 5, "min_value": -1}},
        "lamps": {"type": "bool", "shape": (2,)},
        "move_mask": {"type": "bool", "shape": (2, 4)},
    },
    "actions": {
        "move": {"type": "int", "num_values": 4, "shape": (2,), "min_value": [1, -1]},
        "steer": BOUNDED,
        "horn": {"type": "bool"},
        "gear": CHOICE,
    },
}
CASES = {
    "ppo": {
        "agent": "ppo",
        **SMALL,
        "states": VECTOR,
        "actions": CHOICE,
        "model": NET,
        "normalize_observations": True,
    },
    "hybrid": {"agent": "ppo", **SMALL, **HYBRID, "normalize_observations": True},
    "beta": {"agent": "ppo", **SMALL, "states": VECTOR, "actions": BOUNDED, "distribution": "beta"},
    "recurrent": {
        "agent": "ppo",
        **SMALL,
        "states": VECTOR,
        "actions": CHOICE,
        "model": [*NET, {"type": "lstm", "size": 4}],
    },
    "dqn": {
        "agent": "dqn",
        **DQN,
        "states": {"state": VECTOR, "action_mask": {"type": "bool", "shape": (3,)}},
        "actions": CHOICE,
    },
    "td3": {"agent": "td3", **TD3, "states": VECTOR, "actions": BOUNDED},
    "frames": {
        "agent": "dqn",
        **{**DQN, "model": "auto"},
        "states": {"type": "float", "shape": (40, 40, 2), "dtype": "uint8"},
        "actions": CHOICE,
    },
}

STABLEHLO = """
import sys
import numpy as np
from jax import export
inputs = dict(np.load(sys.argv[2]))
outputs = export.deserialize(bytearray(open(sys.argv[1], 'rb').read())).call(inputs)
np.savez(sys.argv[3], **outputs)
assert 'operant' not in sys.modules
"""
ONNX = """
import sys
import numpy as np
import onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1])
names = [output.name for output in session.get_outputs()]
assert [i.shape[0] for i in session.get_inputs()] == ['batch'] * len(session.get_inputs())
np.savez(sys.argv[3], **dict(zip(names, session.run(names, dict(np.load(sys.argv[2]))))))
assert 'operant' not in sys.modules and 'jax' not in sys.modules
"""
SAVED_MODEL = """
import sys
import numpy as np
import tensorflow as tf
policy, inputs = tf.saved_model.load(sys.argv[1]), dict(np.load(sys.argv[2]))
parts = {'internals': {}, 'auxiliaries': {}}
for name, x in inputs.items():
    *path, last = name.split('/')
    branch = parts
    for key in path:
        branch = branch.setdefault(key, {})
    branch[last] = x
outputs = policy.act(**{name: x for name, x in parts.items() if name == 'states' or x}, deterministic=True)
def flat(tree, prefix):
    if isinstance(tree, dict):
        return {k: v for name, x in tree.items() for k, v in flat(x, f'{prefix}/{name}').items()}
    return {prefix: tree.numpy()}
start = flat(policy.initial_internals(), 'internals')
assert {k: x.shape for k, x in start.items() if k != 'internals'} == {
    k: x.shape[1:] for k, x in inputs.items() if k.startswith('internals/')
}
if start:
    outputs = {**flat(outputs[0], 'actions'), **flat(outputs[1], 'next_internals')}
else:
    outputs = flat(outputs, 'actions')
np.savez(sys.argv[3], **outputs)
given = {k.replace('/', '_'): tf.constant(x) for k, x in inputs.items()}
served = policy.signatures['serving_default'](**given)
assert served.keys() == outputs.keys() and all((served[k].numpy() == x).all() for k, x in outputs.items())
assert 'operant' not in sys.modules  # TensorFlow looks for JAX by itself
"""
OUTSIDE = {"stablehlo": STABLEHLO, "onnx": ONNX, "saved-model": SAVED_MODEL}


def create(case, seed=1):
    return Agent.create(**CASES[case], seed=seed)


def shake(agent):
    """Change weights and running moments, so that they are not those of the start.

    Training would compile for a minute.
    """
    rng = np.random.default_rng(0)
    algorithm, engine = agent.learner.algorithm, agent.engine

    def shaken(name, key, x):
        if x.dtype.kind == "i":
            return jnp.full(x.shape, 1 if key.endswith("exponent") else 7, x.dtype)
        drawn = rng.normal(size=x.shape) / (np.sqrt(np.prod(x.shape[:-1])) if x.ndim > 1 else 10.0)
        return x + jnp.asarray(np.abs(drawn) if name == "state" else drawn, x.dtype)

    weights = {
        model: {part: {k: shaken(part, k, x) for k, x in parts.items()} for part, parts in variables.items()}
        for model, variables in algorithm.weights(engine.train.state).items()
    }
    engine.put(engine.train._replace(state=algorithm.with_weights(engine.train.state, weights)))


def interface(agent):
    """Return what an exported policy takes and gives: of the internals those on which actions depend."""
    initial = agent.initial_internals() or {}
    heeded = zip(initial.items(), agent.learner.relevant_carry, strict=True)
    return Interface(agent.spaces, dict(item for item, heeds in heeded if heeds))


def asked(agent, rng, n):
    """Return random states as a program gives them, and the same by the names of an exported policy."""
    inputs = interface(agent).sample(rng, n)
    for name, x in inputs.items():
        if x.dtype == np.uint8:  # plain noise looks all the same to convolutions: parts of a picture in three
            inputs[name] = x * (rng.random((n, x.shape[1] // 2, 1, 1)) < 0.2).repeat(2, 1)
    tree = {}
    for port in interface(agent).inputs:
        if port.kind == "internals":
            continue
        path = port.path or (("state",) if agent.spaces.masks else ())
        if not path:
            return inputs[port.name], inputs
        branch = tree
        for key in path[:-1]:
            branch = branch.setdefault(key, {})
        branch[path[-1]] = inputs[port.name]
    return tree, inputs


def act(agent, states, inputs):
    """Return what the agent answers, by the names of an exported policy."""
    internals = {
        name.removeprefix("internals/"): x for name, x in inputs.items() if name.startswith("internals/")
    }
    n = len(next(iter(inputs.values())))
    others = {
        name: np.broadcast_to(x, (n, *np.shape(x))) for name, x in (agent.initial_internals() or {}).items()
    }
    actions, after = agent.act(states, internals={**others, **internals} or (), independent=True)
    flat = {f"next_internals/{name}": after[name] for name in internals}
    for port in interface(agent).outputs:
        if port.kind == "action":
            flat[port.name] = actions if not port.path else actions[port.path[0]]
    return flat


def run_outside(path: Path, inputs, format):
    """Run an exported policy in a process that knows neither operant nor (for ONNX) JAX."""
    given, got = path.with_name("given.npz"), path.with_name("got.npz")
    np.savez(given, **inputs)
    # isolated: neither PYTHONPATH nor the folder of the tests
    command = [sys.executable, "-I", "-c", OUTSIDE[format], str(path), str(given), str(got)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
    with np.load(got) as file:
        return {name: file[name] for name in file.files}


def assert_same(wanted, got):
    assert wanted.keys() == got.keys()
    for name, x in wanted.items():
        x = np.asarray(x)
        assert x.shape == got[name].shape, name
        if x.dtype.kind == "f":
            np.testing.assert_allclose(got[name], x, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], x, err_msg=name)
