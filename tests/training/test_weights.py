"""`weights` and `checkpoints`: what they take, and in which format they are written."""

import itertools

import jax
import numpy as np
import pytest

import operant
from operant.checkpoint import weight_files
from operant.errors import MismatchError, SpecError

NET = [{"type": "dense", "size": 4}]
PPO = {"model": NET, "n_steps": 8, "mini_batches": 2}
SAC = {"actor_model": NET, "critic_model": NET, "buffer_max_size": 64, "buffer_initial_size": 16}
ENVS = {"PPO": ("jax:CartPole-v1", PPO), "SAC": ("jax:Pendulum-v1", SAC)}


def made(name, n_envs=1, **options):
    env, own = ENVS[name]
    return getattr(operant, name)(env, n_envs=n_envs, quiet=True, **{"seed": 1, **own, **options})


def weights_of(agent):
    learner = agent.session.learner
    return jax.tree.map(np.asarray, learner.algorithm.weights(agent.session.driver.train.state))


@pytest.fixture(
    scope="module", params=[x if x == "PPO" else pytest.param(x, marks=pytest.mark.slow) for x in ENVS]
)
def trained(request, tmp_path_factory):
    """A trained agent's name, the folder of its run and saved agents, and its weights."""
    place = tmp_path_factory.mktemp(request.param)
    with made(request.param, 2, run_dir=str(place / "run"), save_memory=False) as agent:
        agent.fit(max_steps=64)
        loaded = operant.Agent.load(place / "run")
        for format in ("checkpoint", *weight_files.FORMATS):
            loaded.save(place / "saved", format=format)
        return request.param, place, weights_of(agent)


@pytest.mark.filterwarnings("ignore:The replay memory starts empty")
@pytest.mark.parametrize(
    "path",
    [
        "run",
        "run/checkpoints",
        "saved",
        "saved/agent",
        *(f"saved/agent{x}" for x in weight_files.FORMATS.values()),
    ],
)
def test_weights_are_those_of_a_whole_agent(trained, path):
    name, place, expected = trained
    with made(name, 3, weights=[str(place / path)], seed=9) as agent:
        jax.tree.map(np.testing.assert_array_equal, weights_of(agent), expected)
        assert agent.steps == 0


SUFFIXES = [*weight_files.KINDS, ".tf"]


@pytest.mark.slow
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_the_suffix_chooses_the_format_of_checkpoints(suffix, tmp_path):
    for name in ENVS:
        count = 1 if name == "PPO" else 3
        paths = [str(tmp_path / f"{name} 模型 {i}{suffix}") for i in range(count)]
        with made(name, 2, checkpoints=paths) as agent:
            agent.fit(max_steps=64)
            expected = weights_of(agent)
        for path, model in zip(paths, expected, strict=True):
            if suffix != ".tf":
                arrays = weight_files.read(tmp_path / path)
                assert all(key.startswith(f"{model}/") for key in arrays)
        options = dict.fromkeys(ENVS[name][1].keys() & {"model", "actor_model", "critic_model"}, "auto")
        with made(name, weights=paths, seed=5, **options) as agent:  # takes the networks from the files
            jax.tree.map(np.testing.assert_array_equal, weights_of(agent), expected)
            with pytest.raises(SpecError, match=r"checkpoints must be \d path"):
                made(name, checkpoints=list(itertools.chain(paths, paths)))


def test_weights_that_do_not_fit_are_refused(trained):
    name, place, _ = trained
    other = "SAC" if name == "PPO" else "PPO"
    with pytest.raises(MismatchError, match=r"(?s)missing: .*The weights belong to another network"):
        made(other, weights=[str(place / "run")])
    with pytest.raises(SpecError, match=r"weights must be what --checkpoints wrote, the folder of a run"):
        made(name, weights=[str(place)])
    if name == "SAC":
        with pytest.raises(SpecError, match=r"files of one model each, or a single one of a whole agent"):
            made(name, weights=[str(place / "run")] * 3)
