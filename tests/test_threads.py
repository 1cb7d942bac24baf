"""How many threads XLA gets on CPU: few for small products, all for large ones and images."""

from __future__ import annotations

import pytest

from operant.agents.making import define
from operant.runtime import LARGE_PRODUCT, threads_for


@pytest.mark.parametrize(
    ("agent", "options", "actors", "product"),
    [
        ("dqn", {}, 1, 32 * 64**2),
        ("td3", {"buffer_batch_size": 256}, 1, 256 * 256**2),
        ("ppo", {}, 8, 8 * 128 // 4 * 64**2),
        ("ppo", {"model": {"type": "auto", "depth": 3}}, 8, 8 * 128 // 4 * 64**2),
        ("ppo", {"model": [{"type": "dense", "size": 8}, {"type": "dense", "size": 512}]}, 8, 256 * 512**2),
        ("ppo", {"model": [[{"type": "dense", "size": 96}, "flatten"]]}, 8, 256 * 96**2),
        ("acer", {}, 4, 4 * 20 * 64**2),
        ("trpo", {"actor_model": [{"type": "dense", "size": 32}]}, 2, 2 * 512 * 64**2),
    ],
)
def test_largest_product_of_a_gradient_step(agent, options, actors, product):
    assert define(agent, **options).product(actors) == product


def test_threads_for_products_and_images():
    assert threads_for([(4,)]) == 1
    assert threads_for([(4,)], LARGE_PRODUCT - 1) == 1
    assert threads_for([(4,)], LARGE_PRODUCT) is None
    assert threads_for([(4,), (84, 84, 4)]) is None
