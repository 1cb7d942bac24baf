"""Steps of which a program learns only while it runs how many are due."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import Countdown, assert_close, compile_agent, countdown, equal, learner

from operant.agents.base.compiled import CompiledAgent
from operant.ops import repeat as module
from operant.ops.repeat import compiled_for, once_if, repeat


def growing(i, carry):
    total, same = carry
    return total * 2 + i, same


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
@pytest.mark.parametrize("most", [1, 4])
def test_as_many_steps_are_taken_as_are_due(platform, most):
    expected, total = [], 3
    for i in range(most + 1):
        expected.append(total)
        total = total * 2 + i
    with compiled_for(platform):
        found = jax.vmap(lambda count: repeat(count, most, growing, (jnp.int32(3), jnp.int32(7))))(
            jnp.arange(most + 1, dtype=jnp.int32)
        )
        assert once_if(jnp.bool_(True), lambda x: x + 1, jnp.int32(1)) == 2
        assert once_if(jnp.bool_(False), lambda x: x + 1, jnp.int32(1)) == 1
    np.testing.assert_array_equal(found[0], expected)
    assert (found[1] == 7).all()


def test_outside_of_a_cpu_no_loop_depends_on_what_only_the_device_knows():
    """Nor is a leaf that no step changes selected from: of a replay memory that would be a copy."""

    texts = {}
    for platform in ("cpu", "gpu"):

        def program(count, x):
            return repeat(count, 3, growing, (x, jnp.zeros(1000, jnp.float32)))

        with compiled_for(platform):
            texts[platform] = str(jax.make_jaxpr(program)(jnp.int32(2), jnp.int32(1)))
    assert "while[" in texts["cpu"]
    assert "while[" not in texts["gpu"]
    selected = [line for line in texts["gpu"].splitlines() if "select_n" in line]
    assert selected and all("1000" not in line for line in selected)


def test_default_is_the_platform_of_the_default_device(monkeypatch):
    def loops():
        return "while[" in str(jax.make_jaxpr(lambda n: repeat(n, 3, growing, (n, n)))(jnp.int32(2)))

    assert loops()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert not loops()
    with jax.default_device(jax.devices("cpu")[0]):
        assert loops()


def test_an_engine_compiles_for_the_device_that_it_is_on(monkeypatch):
    made, asked = learner("dqn", Countdown(), 2), []
    monkeypatch.setattr(module, "_platform", lambda: asked.append(module._PLATFORM.get()) or "cpu")
    engine = CompiledAgent(made, jax.random.key(0), 2)
    key = jax.random.key_data(jax.random.key(1))
    with compiled_for("gpu"):
        jax.eval_shape(engine._update, engine.train, engine.metric_sums, made.block_shape(2), key)
    assert asked == ["cpu"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dqn", {}),
        ("dqn", {"prioritized": True, "gradient_steps": 2, "double": True}),
        pytest.param("ddpg", {}, marks=pytest.mark.exhaustive),  # with the updates of td3
        ("td3", {}),
        ("sac", {}),
        ("sac", {"gradient_steps": None}),
    ],
    ids=["dqn", "prioritized", "ddpg", "td3", "sac", "a step for each"],
)
@pytest.mark.slow
def test_an_agent_learns_the_same_whichever_way(name, options):
    """While the memory is being filled nothing changes, and afterwards the same does."""
    env = countdown(name)
    runs = []
    for platform in ("cpu", "gpu"):
        with compiled_for(platform):
            agent = compile_agent(name, env, **options)
            runs.append([agent.run(1, blocks) for blocks in (1, 6)])
    for (one, _, metrics), (two, _, metrics_too) in zip(*runs, strict=True):
        assert_close(one, two)
        for a, b in zip(metrics, metrics_too, strict=True):
            assert a.keys() == b.keys()
            np.testing.assert_allclose(list(a.values()), list(b.values()), 1e-4, 1e-5)
    assert equal(runs[0][0][0].state, runs[1][0][0].state)
    assert not equal(runs[1][0][0].state, runs[1][1][0].state)
