"""Minari datasets: traces go there and come back, and agents learn from them."""

from __future__ import annotations

import dataclasses
import json
import sys

import numpy as np
import pytest
from tests.trace_files import write as write_trace

from operant import Agent
from operant.errors import SpecError, UsageError
from operant.execution import datasets, traces
from operant.execution.traces import Trace
from operant.spec.spaces import Spaces

minari = pytest.importorskip("minari", reason="Minari datasets need minari: the extra `minari`")

FLAT = ({"type": "float", "shape": (3,)}, {"type": "int", "num_values": 3, "min_value": 4})
MASKED = ({"state": FLAT[0], "action_mask": {"type": "bool", "shape": (3,)}}, FLAT[1])
HYBRID = (
    {
        "image": {"type": "float", "shape": (5, 5, 3), "dtype": "uint8"},
        "body": {
            "speed": FLAT[0],
            "gear": {"type": "int", "num_values": 5, "min_value": -1},
            "lamps": {"type": "bool", "shape": (2,)},
        },
        "arm": {"angle": {"type": "float"}, "move_mask": {"type": "bool", "shape": (2, 4)}},
    },
    {
        "arm": {"move": {"type": "int", "num_values": 4, "shape": (2,)}},
        "steer": {"type": "float", "shape": (2,), "min_value": -2.0, "max_value": 1.0},
        "horn": {"type": "bool"},
    },
)


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))


def drawn(spaces, lengths, last=True, seed=0):
    """Return random episodes of these lengths, the first one ended, the others cut."""
    rng = np.random.default_rng(seed)
    steps = sum(lengths)

    def values(leaf, n):
        shape = (n, *leaf.shape)
        if leaf.type == "bool":
            return rng.random(shape) < 0.5
        if leaf.num_values is not None:
            return rng.integers(0, leaf.num_values, shape).astype(leaf.storage)
        if leaf.storage.kind == "u":
            return rng.integers(0, 256, shape, np.uint8)
        return rng.uniform(-1.0, 1.0, shape).astype(leaf.storage)

    def observed(n):
        return {name: values(leaf, n) for name, leaf in spaces.observation_components.items()}

    observation, final = observed(steps), observed(len(lengths)) if last else None
    action = {name: values(leaf, steps) for name, leaf in spaces.actions.components.items()}
    for name in spaces.masks:
        np.put_along_axis(observation[f"{name}_mask"], action[name][..., None], True, -1)
        if final is not None:
            final[f"{name}_mask"][...] = True
    terminal = np.zeros(steps, np.int64)
    ends = np.cumsum(lengths) - 1
    terminal[ends] = 2
    terminal[ends[0]] = 1
    return Trace(observation, action, rng.normal(size=steps).astype(np.float32), terminal, final)


def assert_equal(a, b):
    for x, y in zip(a, b, strict=True):
        if isinstance(x, dict):
            assert x.keys() == y.keys()
            for name in x:
                np.testing.assert_array_equal(x[name], y[name], err_msg=name)
                assert x[name].dtype == y[name].dtype, name
        else:
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("spec", [FLAT, MASKED, HYBRID], ids=["flat", "masked", "hybrid"])
def test_traces_go_round(tmp_path, spec):
    spaces = Spaces.read(*spec)
    given = drawn(spaces, [4, 3, 1])
    write_trace(tmp_path / "traces" / "trace-000000002.npz", spaces, given)
    folder = datasets.from_traces(tmp_path / "traces", "toy/round-v0", spaces, algorithm_name="none")
    assert folder.is_dir() and tmp_path in folder.parents
    episodes = datasets.MinariEpisodes("toy/round-v0", spaces)
    assert [len(episode.reward) for episode in episodes] == [4, 3, 1]
    back = traces.join(list(episodes))
    assert_equal(back, given)
    assert {f"{name}_mask" for name in spaces.masks} <= back.observation.keys()
    files = datasets.to_traces("toy/round-v0", tmp_path / "again", spaces)
    assert len(files) == 3
    assert_equal(traces.read(files[1], spaces)[:1], episodes[1][:1])
    kept = [path.read_bytes() for path in files]
    more = datasets.to_traces("toy/round-v0", tmp_path / "again", spaces)
    assert [path.read_bytes() for path in files] == kept and not set(more) & set(files)
    assert_equal(traces.read(more[1], spaces)[:1], episodes[1][:1])


def test_a_dataset_without_its_spaces_is_refused_before_its_environment_is_made(monkeypatch):
    """Minari would import and call what the file names as the environment."""
    spaces = Spaces.read(*FLAT)
    folder = datasets.write("toy/forged-v0", spaces, [drawn(spaces, [3])])
    file = next(folder.rglob("metadata.json"))
    about = json.loads(file.read_text())
    spec = {"id": "x-v0", "entry_point": "subprocess:getoutput", "kwargs": {"cmd": "true"}}
    kept = {k: x for k, x in about.items() if k not in ("observation_space", "action_space")}
    file.write_text(json.dumps({**kept, "env_spec": json.dumps(spec)}))
    monkeypatch.setattr("subprocess.getoutput", lambda cmd: pytest.fail("called"))
    monkeypatch.setattr("gymnasium.make", lambda *_, **__: pytest.fail("made"))
    with pytest.raises(SpecError, match=r"lacks observation_space or action_space"):
        datasets.MinariEpisodes("toy/forged-v0", spaces)


def test_what_stands_in_a_dataset_is_what_the_environment_knows():
    spaces = Spaces.read(*MASKED)
    given = drawn(spaces, [3], last=False)
    datasets.write("toy/plain-v0", spaces, [given])
    dataset = minari.load_dataset("toy/plain-v0")
    assert dataset.action_space.start == 4 and dataset.action_space.n == 3
    (episode,) = dataset.iterate_episodes()
    np.testing.assert_array_equal(episode.actions, given.action["action"] + 4)
    assert len(episode.observations["state"]) == 4  # the last one is not known: the one before again
    np.testing.assert_array_equal(episode.observations["state"][3], given.observation["state"][2])
    assert list(episode.terminations) == [False, False, True] and not episode.truncations.any()


@pytest.mark.slow
@pytest.mark.parametrize("declared", [(3, 20, 18), (20, 18, 3)], ids=str)
def test_images_are_read_in_the_order_that_the_agent_declares(tmp_path, declared):
    """A dataset of images with their channels first, for an agent of these, and for one of an environment,
    which moves them."""
    image = {"type": "float", "min_value": 0, "max_value": 255, "dtype": "uint8"}
    written = Spaces.read({**image, "shape": (3, 20, 18)}, FLAT[1])
    trace = drawn(written, [4])
    datasets.write("slides/random-v0", written, [trace])
    (read,) = datasets.MinariEpisodes("slides/random-v0", Spaces.read({**image, "shape": declared}, FLAT[1]))
    seen = trace.observation["state"]
    np.testing.assert_array_equal(
        read.observation["state"], seen if declared[0] == 3 else np.moveaxis(seen, 1, -1)
    )


def test_an_agent_imitates_a_dataset(tmp_path):
    rng = np.random.default_rng(0)
    spaces = Spaces.read(*FLAT)
    states = rng.normal(size=(200, 3)).astype(np.float32)
    action = (states[:, 0] > 0).astype(np.int32) * 2
    terminal = np.zeros(200, np.int64)
    terminal[19::20] = 1
    datasets.write(
        "toy/sign-v0",
        spaces,
        [Trace({"state": states}, {"action": action}, np.ones(200, np.float32), terminal)],
    )
    net = [{"type": "dense", "size": 16}]
    agent = Agent.create(agent="a2c", states=FLAT[0], actions=FLAT[1], n_steps=4, model=net)
    agent.pretrain("minari:toy/sign-v0", num_iterations=10, num_traces=None, lr=0.05)
    chosen = np.asarray(agent.act(states, independent=True))
    assert np.mean(chosen == action + 4) > 0.9


def test_what_is_wrong_is_said(monkeypatch):
    spaces, agent = Spaces.read(*FLAT), Spaces.read({"type": "float", "shape": (4,)}, FLAT[1])
    datasets.write("toy/some-v0", spaces, [drawn(spaces, [2])])
    with pytest.raises(SpecError, match=r"no Minari dataset 'toy/none-v0' .* Local datasets: toy/some-v0"):
        datasets.MinariEpisodes("toy/none-v0", spaces)
    with pytest.raises(
        SpecError, match=r"Episode 0 of the Minari dataset 'toy/some-v0' does not fit .* \(4,\)"
    ):
        datasets.MinariEpisodes("toy/some-v0", agent)[0]
    found = datasets.MinariEpisodes("toy/some-v0", spaces)
    (whole,) = found._dataset.iterate_episodes([0])
    none = {name: getattr(whole, name)[:0] for name in ("actions", "rewards", "terminations", "truncations")}
    empty = dataclasses.replace(whole, observations=whole.observations[:1], **none)
    monkeypatch.setattr(found._dataset, "iterate_episodes", lambda indices: [empty])
    with pytest.raises(
        SpecError, match=r"Episode 0 of the Minari dataset 'toy/some-v0' .* It has no steps\."
    ):
        found[0]
    with pytest.raises(SpecError, match="There is a Minari dataset 'toy/some-v0' already"):
        datasets.write("toy/some-v0", spaces, [drawn(spaces, [2])])
    with pytest.raises(SpecError, match="name must be such as 'group/name-v0'"):
        datasets.write("toy", spaces, [drawn(spaces, [2])])
    with pytest.raises(SpecError, match="at least one episode"):
        datasets.write("toy/empty-v0", spaces, [])
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(UsageError, match=r"pip install 'operant\[minari\]'"):
        datasets.MinariEpisodes("toy/some-v0", spaces)
