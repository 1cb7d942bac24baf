"""Experience from elsewhere: `Agent.experience` and `update`, trace files, the recorder, pretraining."""

from __future__ import annotations

import os

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.small_agents import NAMES, RECURRENT, SMALL, networks, small
from tests.trace_files import write as write_trace

from operant.agents.parts import imitation
from operant.agents.table import AGENTS
from operant.envs import Environment
from operant.errors import SpaceError, SpecError, UsageError
from operant.execution import pretraining, traces
from operant.execution.agent import Agent
from operant.execution.traces import Trace
from operant.spec.spaces import Spaces

STATES = {"type": "float", "shape": (3,)}
ACTIONS = {
    "int": {"type": "int", "num_values": 3},
    "float": {"type": "float", "shape": (2,), "min_value": -1.0, "max_value": 2.0},
}


def make(name, **options):
    kind = "int" if "int" in AGENTS[name].actions else "float"
    return Agent.create(agent=name, states=STATES, actions=ACTIONS[kind], seed=3, **small(name, **options))


def play(agent, steps, ends, seed=0):
    """Act and observe; return what happened. `ends` maps steps to terminals."""
    draw = np.random.default_rng(seed)
    states, actions, terminals, rewards, lasts = [], [], [], [], []
    for i in range(steps):
        states.append(draw.normal(size=3).astype(np.float32))
        actions.append(agent.act(states=states[-1]))
        terminals.append(ends.get(i, 0))
        rewards.append(float(draw.normal()))
        last = draw.normal(size=3).astype(np.float32) if terminals[-1] else None
        if terminals[-1]:
            lasts.append(last)
        agent.observe(reward=rewards[-1], terminal=terminals[-1], next_states=last)
    return np.stack(states), np.asarray(actions), terminals, rewards, np.stack(lasts)


def params(agent):
    return jax.tree.leaves(agent.learner.algorithm.weights(agent.engine.train.state))


def same(a, b):
    return all(np.allclose(x, y, rtol=1e-5, atol=1e-6) for x, y in zip(params(a), params(b), strict=True))


ROLLOUTS = [name for name in NAMES if "buffer_max_size" not in SMALL[name].options or name == "acer"]
BY_TIMESTEPS = ("modular", "ac", "vpg")
"""Agents whose updates are of a number of timesteps: the four in the six rows of the others' blocks are too
few for one that is due."""


LATE = {"buffer_max_size": 1000, "buffer_initial_size": 500}
"""Updates that follow steps begin later than the test ends."""


@pytest.mark.parametrize("name", ROLLOUTS)
@pytest.mark.slow
def test_experience_and_update_do_what_act_and_observe_do(name):
    due = name not in BY_TIMESTEPS
    acting, told, other = (make(name, **({} if due else {"batch_size": 6})) for _ in range(3))
    # Four steps and the ends of two episodes: the six rows of a block.
    seen = play(acting, 4, {1: 2, 3: 1})
    acting.act(states=np.zeros(3))  # the observation after the block's last row
    told.experience(*seen[:4], next_states=seen[4])
    assert acting.updates == 1 if due else acting.update() == 1
    assert (told.updates, told.update(), acting.updates) == (0, 1, 1)
    assert (told.timesteps, told.episodes) == (4, 2)
    assert same(acting, told)
    other.experience(
        *seen[:4]
    )  # what came after the cut episode is not known: another value, if values are predicted
    other.update()
    assert same(acting, other) == (name == "vpg")


@pytest.mark.slow
def test_update_makes_one_that_is_not_due():
    agent = make("vpg", batch_size=6, frequency=100)
    seen = play(agent, 8, {2: 1, 5: 1, 7: 1})
    assert agent.updates == 0 and agent.update() == 1 == agent.updates
    before = params(agent)
    for _ in range(2):  # due or not, a call of observe makes none
        play(agent, 3, {2: 1})
    assert agent.updates == 1 and all((a == b).all() for a, b in zip(before, params(agent), strict=True))
    agent.experience(*seen[:4])
    assert agent.update() == 1


@pytest.mark.parametrize(("name", "options"), [*((name, {}) for name in NAMES), ("dqn", LATE)])
@pytest.mark.slow
def test_update_changes_the_networks_and_can_be_repeated(name, options):
    agent = make(name, **options)
    with pytest.raises(UsageError, match="no experience to learn from"):
        agent.update()
    draw = np.random.default_rng(1)
    kind = agent.spaces.actions.components["action"].type
    actions = draw.integers(0, 3, 40) if kind == "int" else draw.uniform(-1, 2, (40, 2))
    terminal = [0] * 19 + [1] + [0] * 20
    agent.experience(
        states=draw.normal(size=(40, 3)), actions=actions, terminal=terminal, reward=draw.normal(size=40)
    )
    before = [np.array(x) for x in params(agent)]
    assert agent.updates == 0
    made = agent.update()
    assert made >= 1 and agent.updates == made and (agent.timesteps, agent.episodes) == (40, 2)
    after = [np.array(x) for x in params(agent)]
    assert any((a != b).any() for a, b in zip(before, after, strict=True))
    assert agent.update() == 1  # nothing waits: once more
    assert all(np.isfinite(x).all() for x in params(agent))
    agent.close()


@pytest.mark.parametrize("name", [n for n in NAMES if n in ("ppo", "trpo")])
def test_recurrent_states_are_those_that_acting_would_have_kept(name):
    whole = {**networks(name, RECURRENT), "mini_batches": 1}
    acting, told = make(name, **whole), make(name, **whole)
    states, actions, terminals, rewards, last = play(acting, 5, {4: 1})
    kept = [jax.tree.leaves(row.carry) for row in acting.actors[0].rows[:5]]
    told.experience(states, actions, terminals, rewards, next_states=last)
    found = [jax.tree.leaves(row.carry) for row in told.actors[0].rows[:5]]
    for ours, theirs in zip(found, kept, strict=True):
        assert ours and all(np.allclose(a, b, atol=1e-6) for a, b in zip(ours, theirs, strict=True))
    internals = jax.tree.map(lambda *x: np.stack(x), *[row.carry for row in acting.actors[0].rows[:5]])
    again = make(name, **whole)
    again.experience(states, actions, terminals, rewards, internals=internals)
    listed = make(name, **whole)
    steps = [jax.tree.map(lambda x, i=i: x[i], internals) for i in range(5)]
    listed.experience(states, actions, terminals, rewards, internals=steps)
    for ours, theirs in zip(listed.actors[0].rows, again.actors[0].rows, strict=True):
        jax.tree.map(np.testing.assert_array_equal, ours.carry, theirs.carry)
    with pytest.raises(SpaceError, match="internals in a list must be alike"):
        again.experience(states, actions, terminals, rewards, internals=[*steps[:4], ()])
    with pytest.raises(SpaceError, match="internals must have the shapes"):
        again.experience(states[:4], actions[:4], [0, 0, 0, 1], rewards[:4], internals=internals)


def test_a_feed_forward_agent_takes_the_internals_that_acting_gave():
    agent, states = make("ppo"), np.zeros((3, 3))
    internals, kept = agent.initial_internals(), []
    for state in states:
        kept.append(internals)
        _, internals = agent.act(state, internals=internals, independent=True)
    agent.experience(states, [0, 1, 2], [0, 0, 1], [0.0] * 3, internals=kept)
    assert agent.timesteps == 3 or len(agent.actors[0].rows) == 3


def test_experience_is_checked():
    agent = make("ppo")
    states, draw = np.zeros((2, 3)), [0, 1]
    for arguments, message in [
        ((states, draw, [0, 3], [0.0, 0.0]), "terminal must be a list of 0, 1 and 2"),
        ((states, draw, [0, 1], [0.0]), "reward must be a list of 2 finite numbers"),
        ((states, draw, [0, 1], [0.0, np.nan]), "reward must be a list of 2 finite numbers"),
        ((states[:1], draw, [0, 1], [0.0, 0.0]), "shape"),
        ((states, [0, 7], [0, 1], [0.0, 0.0]), "action"),
    ]:
        with pytest.raises((SpaceError, SpecError), match=message):
            agent.experience(*arguments)
    agent.act(states=np.zeros(3))
    with pytest.raises(UsageError, match="in the middle of an episode"):
        agent.experience(states, draw, [0, 1], [0.0, 0.0])


def test_experience_obeys_masks():
    agent = Agent.create(agent="ppo", states=STATES, actions=ACTIONS["int"], **small("ppo"))
    mask = np.ones((2, 3), bool)
    mask[1, 2] = False
    states = {"state": np.zeros((2, 3)), "action_mask": mask}
    with pytest.raises(SpaceError, match="at step 1 is forbidden by its mask"):
        agent.experience(states, [0, 2], [0, 1], [0.0, 1.0])
    agent.experience(states, [2, 1], [0, 1], [0.0, 1.0])
    assert agent.update() == 1


# Traces


SPACES = Spaces.read(
    states={
        "eye": {"left": {"type": "float", "shape": (2,)}},
        "level": {"type": "int", "num_values": 4},
        "go_mask": {"type": "bool", "shape": (3,)},
    },
    actions={"go": {"type": "int", "num_values": 3}, "push": {"type": "float", "shape": ()}},
)


def random_trace(steps, seed=0, last=True):
    draw = np.random.default_rng(seed)
    mask = np.ones((steps, 3), bool)
    go = draw.integers(0, 3, steps)
    mask[np.arange(steps), (go + 1) % 3] = False
    terminal = [0] * steps
    terminal[1], terminal[-1] = 2, 1
    states = {
        "eye": {"left": draw.normal(size=(steps, 2))},
        "level": draw.integers(0, 4, steps),
        "go_mask": mask,
    }
    ends = {"eye": {"left": draw.normal(size=(2, 2))}, "level": draw.integers(0, 4, 2)} if last else None
    return Trace.read(
        SPACES, states, {"go": go, "push": draw.normal(size=steps)}, terminal, draw.normal(size=steps), ends
    )


@pytest.mark.parametrize("last", [True, False])
def test_a_trace_file_holds_plain_arrays_and_comes_back(tmp_path, last):
    trace = random_trace(5, last=last)
    write_trace(tmp_path / "a.npz", SPACES, trace)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        names = {
            "states/eye/left",
            "states/level",
            "actions/go",
            "actions/push",
            "auxiliaries/go/mask",
            "reward",
            "terminal",
        }
        assert set(file.files) == names | ({"last_states/eye/left", "last_states/level"} if last else set())
        assert file["terminal"].tolist() == [0, 2, 0, 0, 1]
    again = traces.read(tmp_path / "a.npz", SPACES)
    for a, b in zip(jax.tree.leaves(trace), jax.tree.leaves(again), strict=True):
        if not (last and a.shape == (2, 3)):  # the mask after an episode's last action is not recorded
            np.testing.assert_array_equal(a, b)
    assert [steps.stop for steps, _ in again.episodes()] == [2, 5]
    both = traces.join([trace, random_trace(4, seed=1, last=last)])
    assert [steps.stop for steps, _ in both.episodes()] == [2, 5, 7, 9]
    assert (both.last is not None) == last


def test_a_trace_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    done = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (done.append(os.fstat(file).st_ino), fsync(file)))
    monkeypatch.setattr(os, "replace", lambda old, new: (done.append("named"), replace(old, new)))
    traces.add(tmp_path, 0, SPACES, random_trace(3))
    [trace] = tmp_path.iterdir()
    assert done == [trace.stat().st_ino, "named", tmp_path.stat().st_ino]


def test_bad_trace_files_are_named(tmp_path):
    with pytest.raises(SpecError, match=r"There are no traces \(\*.npz\)"):
        traces.files(tmp_path)
    (tmp_path / "a.npz").write_bytes(b"nothing")
    with pytest.raises(SpecError, match=r"a.npz' cannot be read"):
        traces.read(tmp_path / "a.npz", SPACES)
    np.savez(tmp_path / "b.npz", terminal=[1], reward=[0.0])
    with pytest.raises(SpecError, match=r"b.npz' has no array 'states/eye/left'. It has: reward, terminal"):
        traces.read(tmp_path / "b.npz", SPACES)
    objects = np.empty(1, object)
    objects[0] = print
    np.savez(tmp_path / "c.npz", terminal=objects)
    with pytest.raises(SpecError, match=r"c.npz' cannot be read.*[Oo]bject arrays"):
        traces.read(tmp_path / "c.npz", SPACES)
    other = Spaces.read(states=STATES, actions=ACTIONS["int"])
    write_trace(tmp_path / "d.npz", other, Trace.read(other, np.zeros((1, 3)), [1], [1], [0.0]))
    wide = Spaces.read(states={"type": "float", "shape": (4,)}, actions=ACTIONS["int"])
    with pytest.raises(SpecError, match=r"d.npz' does not fit the agent"):
        traces.read(tmp_path / "d.npz", wide)
    whole = (tmp_path / "d.npz").read_bytes()
    central = whole.index(b"PK\x01\x02")
    for place, value in ((central + 10, 99), (central + 8, 1), (100, whole[100] ^ 0xFF)):
        (tmp_path / "e.npz").write_bytes(whole[:place] + bytes([value]) + whole[place + 1 :])
        with pytest.raises(SpecError, match=r"e.npz' cannot be read"):
            traces.read(tmp_path / "e.npz", other)
    with np.load(tmp_path / "d.npz") as file:
        np.savez(tmp_path / "f.npz", **{**file, "reward": ["much"]})
    with pytest.raises(SpecError, match=r"f.npz' does not fit the agent"):
        traces.read(tmp_path / "f.npz", other)


def test_recorder_writes_whole_episodes_and_keeps_the_newest(tmp_path):
    folder = tmp_path / "traces"
    agent = Agent.create(
        agent="ppo", states=STATES, actions=ACTIONS["int"], parallel_interactions=2,
        recorder={"directory": str(folder), "frequency": 2, "start": 1, "max-traces": 2}, **small("ppo"),
    )  # fmt: skip
    seen = {0: [], 1: []}
    draw = np.random.default_rng(0)
    for i in range(24):
        for actor in (0, 1):
            states = draw.normal(size=3).astype(np.float32)
            action = agent.act(states=states, parallel=actor)
            terminal = 1 if i % 4 == 3 else 0
            seen[actor].append((states, action, terminal))
            agent.observe(reward=float(i), terminal=terminal, parallel=actor)
    agent.act(states=np.zeros(3))
    agent.observe(reward=0.0)  # an unfinished episode is not written
    agent.close()
    # 12 episodes, the first left out: files after episodes 3, 5, 7, 9, 11, and one more of a single one at
    # the end
    assert [p.name for p in traces.files(folder)] == ["trace-000000010.npz", "trace-000000011.npz"]
    trace = traces.read(folder / "trace-000000011.npz", agent.spaces)
    assert trace.terminal.tolist() == [0, 0, 0, 1] and trace.reward.tolist() == [20, 21, 22, 23]
    np.testing.assert_array_equal(trace.observation["state"], [s for s, _, _ in seen[1][20:]])
    assert trace.action["action"].tolist() == [a for _, a, _ in seen[1][20:]]
    for spec, message in [
        ({}, "recorder must say the directory"),
        ({"directry": "x"}, "directry.*directory"),
    ]:
        with pytest.raises(SpecError, match=message):
            Agent.create(agent="ppo", states=STATES, actions=ACTIONS["int"], recorder=spec)


def test_recorders_one_after_the_other_replace_nothing(tmp_path):
    for _ in range(2):
        agent = Agent.create(agent="random", states=STATES, actions=ACTIONS["int"], recorder=str(tmp_path))
        for _ in range(2):
            agent.act(states=np.zeros(3))
            agent.observe(reward=0.0, terminal=1)
        agent.close()
    assert [p.name for p in traces.files(tmp_path)] == [f"trace-{i:09d}.npz" for i in range(4)]


def test_a_recorder_outlives_a_full_disk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    agent = Agent.create(agent="random", states=STATES, actions=ACTIONS["int"], recorder=str(tmp_path))

    def play(reward):
        agent.act(states=np.zeros(3))
        agent.observe(reward=reward, terminal=1)

    with monkeypatch.context() as patched:
        patched.setattr("operant.execution.traces.np.savez_compressed", full)
        with pytest.warns(RuntimeWarning, match=rf"No trace of 1 episode\(s\) in '{tmp_path}': .*No space"):
            play(1.0)
    play(2.0)
    agent.close()
    (file,) = traces.files(tmp_path)
    assert traces.read(file, agent.spaces).reward.tolist() == [2.0]


def test_recorders_at_the_same_time_replace_nothing(tmp_path):
    agents = [
        Agent.create(agent="random", states=STATES, actions=ACTIONS["int"], recorder=str(tmp_path))
        for _ in range(2)
    ]
    for _ in range(2):
        for i, agent in enumerate(agents):
            agent.act(states=np.zeros(3))
            agent.observe(reward=float(i), terminal=1)
    found = traces.files(tmp_path)
    assert [p.name for p in found] == [f"trace-{i:09d}.npz" for i in range(4)] == sorted(os.listdir(tmp_path))
    assert [traces.read(p, agents[0].spaces).reward.tolist() for p in found] == [[0.0], [1.0], [0.0], [1.0]]


def test_of_the_old_traces_only_a_recorders_go(tmp_path):
    (tmp_path / "trace-mine.npz").touch()
    recorder = {"directory": str(tmp_path), "max_traces": 1}
    agent = Agent.create(agent="random", states=STATES, actions=ACTIONS["int"], recorder=recorder)
    for _ in range(3):
        agent.act(states=np.zeros(3))
        agent.observe(reward=0.0, terminal=1)
    assert sorted(os.listdir(tmp_path)) == ["trace-000000002.npz", "trace-mine.npz"]


@pytest.mark.parametrize("name", NAMES)
def test_pretraining_imitates(name, tmp_path):
    """Of two actions, traces show the right one: which one that is depends on the state's sign."""
    agent = make(name)
    kind = agent.spaces.actions.components["action"].type
    draw = np.random.default_rng(0)
    states = draw.normal(size=(200, 3)).astype(np.float32)
    right = states[:, 0] > 0
    actions = (
        np.where(right, 2, 0) if kind == "int" else np.where(right, 0.8, -0.8)[:, None] * np.ones((1, 2))
    )
    terminal = np.arange(200) % 50 == 49
    write_trace(
        tmp_path / "t.npz", agent.spaces, Trace.read(agent.spaces, states, actions, terminal, np.ones(200))
    )
    test = draw.normal(size=(100, 3)).astype(np.float32)

    def agreement():
        chosen = np.asarray(agent.act(states=test, independent=True))
        return np.mean(
            (chosen == np.where(test[:, 0] > 0, 2, 0))
            if kind == "int"
            else (chosen[:, 0] > 0) == (test[:, 0] > 0)
        )

    before = agreement()
    agent.pretrain(tmp_path, num_iterations=5, num_updates=10, lr=0.01)
    assert agreement() > max(0.9, before)
    assert agent.timesteps == agent.updates == 0
    if name == "ppo":
        agent.pretrain(tmp_path, num_iterations=1, num_traces=None, num_updates=2, imitate=False)
        assert agent.timesteps == 200
        with pytest.raises(Exception, match="num_iterations must be a whole number of at least 1"):
            agent.pretrain(tmp_path, num_iterations=0)
        with pytest.raises(Exception, match="num_traces must be a whole number of at least 1, or None"):
            agent.pretrain(tmp_path, num_iterations=1, num_traces=0)
    agent.close()


@pytest.mark.slow
def test_pretraining_of_recurrent_networks_goes_on_from_the_states_of_what_was_learnt(tmp_path, monkeypatch):
    """Episodes are cut into columns: one within an episode begins in the state that the network has there
    by now."""
    model = [{"type": "lstm", "size": 4}]
    agent = make("ppo", model=model, mini_batches=1)
    draw, n = np.random.default_rng(0), pretraining.SEGMENT + 6
    states, actions = draw.normal(size=(n, 3)).astype(np.float32), draw.integers(0, 3, n)
    trace = Trace.read(agent.spaces, states, actions, np.arange(n) == n - 1, np.ones(n))
    write_trace(tmp_path / "t.npz", agent.spaces, trace)
    cut, seen = pretraining.BehavioralCloning._cut, []

    def noted(self, trace):
        found = cut(self, trace)
        seen.append([np.concatenate(jax.tree.leaves(column[0].carry)) for column in found])
        return found

    monkeypatch.setattr(pretraining.BehavioralCloning, "_cut", noted)
    agent.pretrain(tmp_path, num_iterations=2, num_updates=3, lr=0.05)
    (start, before), (start_again, after) = seen
    np.testing.assert_array_equal(start, start_again)
    assert np.max(np.abs(before - after)) > 1e-3
    agent.close()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ppo", "dqn", "modular"])
def test_what_ten_won_games_teach_wins_all_games(tmp_path, kind):
    """By default, with five seeds. With 256 rows in a step and a rate of 0.001, none won a single game."""
    environment = Environment.create(environment="CartPole-v1")
    spaces, draw = Agent.create(agent="random", environment=environment).spaces, np.random.default_rng(0)
    for game in range(10):  # a teacher that draws its actions, as agents do
        states, terminal, rows = environment.reset(seed=100 + game), False, []
        while not terminal:
            logit = 10.0 * np.dot([0.1, 0.3, 3.0, 1.0], states)
            rows.append((states, int(draw.random() < 1.0 / (1.0 + np.exp(-logit)))))
            states, terminal, _ = environment.execute(actions=rows[-1][1])
        assert len(rows) == 500
        columns, ends = map(np.asarray, zip(*rows, strict=True)), np.where(np.arange(500) == 499, 2, 0)
        write_trace(tmp_path / f"{game}.npz", spaces, Trace.read(spaces, *columns, ends, np.ones(500)))
    for seed in range(5):
        form = {"agent": "ppo", "batch_size": 10} if kind == "modular" else {"agent": kind}
        agent = Agent.create(environment=environment, seed=seed, **form)
        agent.pretrain(tmp_path, num_iterations=30)
        assert won_games(agent, 10) == 10, f"seed {seed}"


def won_games(agent, count):
    """Play games of CartPole side by side; return how many last for 500 steps."""
    envs = [gymnasium.make("CartPole-v1") for _ in range(count)]
    states, going = np.stack([env.reset(seed=i)[0] for i, env in enumerate(envs)]), set(range(count))
    for _ in range(500):
        actions = agent.act(states, independent=True)
        for i in sorted(going):
            states[i], _, fell, _, _ = envs[i].step(int(actions[i]))
            going -= {i} if fell else set()
    return len(going)


@pytest.mark.slow
def test_pretraining_takes_what_schedules_say(tmp_path):
    draw = np.random.default_rng(0)
    halved = {"type": "linear", "unit": "updates", "start": 0.5, "end": 0.5, "steps": 10}
    found = {}
    for gamma in (0.5, 1.0, halved):
        agent = make("a2c", gamma=gamma)
        trace = Trace.read(
            agent.spaces, draw.normal(size=(20, 3)), np.zeros(20, int), np.arange(20) == 19, np.ones(20)
        )
        if not found:
            write_trace(tmp_path / "t.npz", agent.spaces, trace)
        agent.pretrain(tmp_path, num_iterations=2, lr=0.01)
        found[str(gamma)] = agent
    assert same(found[str(halved)], found["0.5"]) and not same(found["0.5"], found["1.0"])


@pytest.mark.parametrize("count", [None, 1])
def test_pretraining_counts_every_observation_once(tmp_path, monkeypatch, count):
    """Moments that had counted the passes, too, would hardly adapt to what the agent itself sees
    afterwards."""
    monkeypatch.setattr("operant.execution.pretraining.COUNTED", 64)  # in several calls
    agent, draw = make("ppo", normalize_observations=True), np.random.default_rng(0)
    states = draw.normal(2.0, 3.0, size=(160, 3)).astype(np.float32)
    for name, own in (("a", states[:70]), ("b", states[70:])):
        n = len(own)
        trace = Trace.read(agent.spaces, own, np.zeros(n, int), np.arange(n) == n - 1, np.ones(n))
        write_trace(tmp_path / f"{name}.npz", agent.spaces, trace)
    agent.pretrain(tmp_path, num_iterations=6, num_traces=count, num_updates=2, batch_size=64)
    found = agent.learner.algorithm.weights(agent.engine.train.state)["model"]["state"]
    rows, mean, var = (
        next(x for k, x in found.items() if k.endswith(f"/{f}")) for f in ("rows", "mean", "var")
    )
    assert rows == len(states)
    np.testing.assert_allclose(mean, states.mean(axis=0), rtol=1e-4)
    np.testing.assert_allclose(var, states.var(axis=0), rtol=1e-4)


@pytest.mark.parametrize(
    ("name", "count"),
    [("ppo", 1), *[pytest.param(name, None, marks=pytest.mark.slow) for name in ("a2c", "ac", "trpo")]],
)
def test_pretraining_fits_values_to_normalised_rewards(name, count, tmp_path, monkeypatch):
    """The unit of the rewards makes no difference, as it makes none in updates.

    And each reward is counted once.
    """
    monkeypatch.setattr("operant.execution.pretraining.COUNTED", 64)  # in several calls
    draw = np.random.default_rng(0)
    states, rewards = draw.normal(size=(160, 3)).astype(np.float32), draw.normal(1.0, 2.0, 160)
    found = []
    for unit in (1.0, 1000.0):
        agent, directory = make(name, normalize_rewards=True), tmp_path / str(unit)
        directory.mkdir()
        for file, own in (("a", slice(70)), ("b", slice(70, 160))):
            n = len(states[own])
            terminal = np.arange(n) % 10 == 9  # in the middle, too
            trace = Trace.read(agent.spaces, states[own], np.zeros(n, int), terminal, unit * rewards[own])
            write_trace(directory / f"{file}.npz", agent.spaces, trace)
        agent.pretrain(directory, num_iterations=6, num_traces=count, num_updates=2, batch_size=64)
        found.append(agent)
    assert same(*found)
    scales = [agent.engine.train.state.reward_scale for agent in found]
    assert all(scale.moments.rows == len(rewards) and not scale.total.any() for scale in scales)
    np.testing.assert_allclose(scales[1].moments.var, 1e6 * scales[0].moments.var, rtol=1e-4)


def test_in_imitation_every_element_of_actions_weighs_the_same():
    """Of five elements four are wrong, those of one action; the second row does not count."""
    valid, wrong = jnp.asarray([True, False]), jnp.asarray([[1.0], [9.0]])
    wanted = {"arm": jnp.zeros((2, 4)), "leg": jnp.zeros(2)}
    chosen = {**wanted, "arm": jnp.broadcast_to(wrong, (2, 4))}
    np.testing.assert_allclose(imitation.distance(chosen, wanted, valid), 4 / 5, rtol=1e-6)
    q = {"arm": jnp.zeros((2, 4, 3)), "leg": jnp.asarray([[2.0, 0.0], [0.0, 2.0]])}
    found = imitation.margin(q, wanted, {}, valid)
    np.testing.assert_allclose(found, 4 / 5 * imitation.MARGIN, rtol=1e-6)


def test_losses_of_imitation_by_hand():
    """The taken action is worth 1; another 2, with the margin 2.8, and a forbidden one 9: short by 1.8.

    If it is the best, by 0.
    """
    valid = jnp.asarray([True, True, False])
    q = {"go": jnp.asarray([[1.0, 2.0, 9.0], [5.0, 2.0, 9.0], [0.0, 9.0, 9.0]])}
    taken = {"go": jnp.zeros(3, jnp.int32)}
    mask = {"go": jnp.asarray([[True, True, False]] * 3)}
    np.testing.assert_allclose(imitation.margin(q, taken, mask, valid), 1.8 / 2, rtol=1e-6)
    np.testing.assert_allclose(imitation.margin(q, taken, {}, valid), (8.8 + 4.8) / 2, rtol=1e-6)
    # errors 1 and 2, returns 2 and 5: half of 2.5 / (1 + 14.5); returns are constants
    predicted, target = jnp.asarray([1.0, 3.0, 7.0]), jnp.asarray([2.0, 5.0, 0.0])
    value, slope = jax.value_and_grad(imitation.value, argnums=(0, 1))(predicted, target, valid)
    np.testing.assert_allclose(value, 0.5 * 2.5 / 15.5, rtol=1e-6)
    np.testing.assert_allclose(slope[0], [-0.5 / 15.5, -1.0 / 15.5, 0.0], rtol=1e-6)
    assert not np.any(slope[1])
    np.testing.assert_allclose(imitation.policy(jnp.log(predicted), valid), -np.log(3.0) / 2, rtol=1e-6)


def test_all_agents_are_here():
    assert set(SMALL) == set(NAMES)


def test_update_inside_hold_is_refused():
    agent = make("ppo")
    agent.experience(np.zeros((2, 3)), [0, 1], [0, 1], [0.0, 1.0])
    with agent.hold(), pytest.raises(UsageError, match=r"inside hold\(\)"):
        agent.update()
    assert agent.update() == 1


def test_hold_lets_some_updates_through():
    agent = make("ppo")
    with agent.hold(updates=1):
        play(agent, 18, {17: 1})
        assert agent.updates == 1
        with agent.hold(updates=5):  # an inner one does not widen it
            agent.act(states=np.zeros(3))
            assert agent.updates == 1
    agent.observe(reward=0.0)
    assert agent.updates == 3
