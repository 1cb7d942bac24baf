"""Files of weights know their networks: those that nobody has chosen are theirs."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import operant
from operant import checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.errors import MismatchError, SpecError
from operant.execution.play import PlayConfig, play
from operant.nn.network import SavedNetwork, parse
from operant.training.session import fitting

SMALL = [{"type": "dense", "size": 8}]


def written(folder, header, name="a.tf"):
    checkpoint.save(folder, {"params": {}}, header, name=name)
    return str(folder / name)


@pytest.mark.slow
def test_weights_of_a_program_play_and_train_without_its_network(tmp_path, capsys):
    """A Keras model of the user's, as `ModelReader` makes them: neither `play` nor `train` knows it."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(8, "tanh")(inputs)
    model = keras.Model(inputs, [keras.layers.Dense(2)(hidden), keras.layers.Dense(1)(hidden)])
    path = str(tmp_path / "ppo.tf")
    operant.PPO("CartPole-v1", model, n_steps=16, checkpoints=[path], quiet=True).fit(max_steps=16)
    given = {"env": "CartPole-v1", "weights": [path], "episodes": 2}
    played = play(PlayConfig.from_dict(given), "ppo")
    assert played == play(PlayConfig.from_dict(given), "ppo", model=model)
    again = operant.PPO("CartPole-v1", weights=[path], n_steps=16)
    now = again.session.driver.train.state.variables
    kept = checkpoint.load(path, now)[0]
    assert all(np.array_equal(now["params"][name], x) for name, x in kept["params"].items())
    capsys.readouterr()
    again.fit(max_steps=16)
    assert f"The weights {path!r} bring their network (model)" in capsys.readouterr().out
    with pytest.raises(MismatchError, match="The weights belong to another network"):
        play(PlayConfig.from_dict(given), "ppo", model=[16])


def test_networks_that_are_chosen_stay(tmp_path):
    header = {"agent": "ddpg", "networks": {"actor_model": SMALL, "critic_model": [32], "other": "auto"}}
    path = written(tmp_path, header)
    found = fitting(parse_agent("ddpg", critic_model=[16]), [path, str(tmp_path / "none.tf")])
    assert found.config.actor_model == SavedNetwork(SMALL, f"The weights {path!r}")
    assert found.config.critic_model == (16,)
    assert found.to_dict()["actor_model"] == SMALL
    assert parse(found.config.actor_model) == parse(SMALL)
    assert fitting(found, [path]) == found
    assert found.product(1) == parse_agent("ddpg", actor_model=SMALL, critic_model=[16]).product(1)


@pytest.mark.parametrize(
    "header",
    [
        {"weights": "model"},
        {"agent": "a2c", "networks": {"model": SMALL}},
        {"agent": "ppo", "networks": {"model": "auto"}},
        {"agent": "ppo", "networks": {"model": None}},
        {"agent": "ppo", "networks": [SMALL]},
    ],
)
def test_weights_that_say_nothing_of_this_agent_change_nothing(tmp_path, header):
    definition = parse_agent("ppo")
    assert fitting(definition, [written(tmp_path, header)]) is definition


@pytest.mark.parametrize("network", [[{"type": "evil:Layer"}], {"type": "evil.module.Layer"}, "evil.keras"])
def test_weights_never_say_what_to_import_or_to_open(tmp_path, network):
    path = written(tmp_path, {"agent": "ppo", "networks": {"model": network}})
    with pytest.raises(
        SpecError, match=r"a file never says what to import or to open\. Give the network yourself"
    ):
        operant.PPO("CartPole-v1", weights=[path], quiet=True)


def test_weights_bring_the_network_of_their_own_model(tmp_path):
    """Of two runs each file brings its own; a policy without the file of its baseline stays without one."""
    other = [{"type": "dense", "size": 16}]
    actor = {"agent": "td3", "weights": "actor", "networks": {"actor_model": SMALL, "critic_model": SMALL}}
    critics = {"agent": "td3", "networks": {"actor_model": other, "critic_model": other}}
    paths = [
        written(tmp_path, actor, "actor.tf"),
        *(written(tmp_path, {**critics, "weights": name}, f"{name}.tf") for name in ("critic1", "critic2")),
    ]
    found = fitting(parse_agent("td3"), paths).config
    assert found.actor_model == SavedNetwork(SMALL, f"The weights {paths[0]!r}")
    assert found.critic_model == SavedNetwork(other, f"The weights {paths[1]!r}")
    networks = {"model": "auto", "baseline_model": "auto"}
    header = {"agent": "modular", "networks": networks}
    policy, baseline = (
        written(tmp_path, {**header, "weights": name}, f"{name}.tf") for name in ("model", "baseline")
    )
    assert fitting(parse_agent("modular"), [policy]).config.baseline_model is None
    assert fitting(parse_agent("modular"), [policy, baseline]).config.baseline_model.network == "auto"


@pytest.mark.slow
def test_a_checkpoint_keeps_its_network_beside_weights_of_another(tmp_path):
    folder, path = tmp_path / "run", str(tmp_path / "a.tf")
    short = {"n_steps": 16, "quiet": True}
    operant.PPO("CartPole-v1", run_dir=str(folder), **short).fit(max_steps=16)
    operant.PPO("CartPole-v1", [8], checkpoints=[path], **short).fit(max_steps=16)
    with pytest.raises(MismatchError, match="The weights belong to another network"):
        play(PlayConfig.from_dict({"run_dir": str(folder), "weights": [path]}))
