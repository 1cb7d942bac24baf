"""What does not fit into memory is refused before it is allocated."""

import types

import gymnasium
import jax
import numpy as np
import pytest

import operant
from operant.agents.base import allocation
from operant.errors import BackendError, SpecError
from operant.spec import runtime

CPU = types.SimpleNamespace(platform="cpu", id=0)


class Image(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 255, (84, 84, 4), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, seed=None, options=None):
        return self.observation_space.sample(), {}


def create(**options):
    states = dict(type="int", num_values=2000)
    actions = dict(type="int", num_values=2)
    return operant.Agent.create(states=states, actions=actions, max_episode_timesteps=9, **options)


def test_no_machine_has_room_for_so_many_images():
    """28,224 bytes of observation, 16 of action, reward, mark and order: 10^8 rows take 2,824 GB."""
    with pytest.raises(
        SpecError, match=r"2,824\.\d\d of them for the replay memory.*buffer_max_size=100000000"
    ):
        operant.DQN([Image()], buffer_max_size=10**8, quiet=True)


@pytest.mark.parametrize(
    ("gigabytes", "words", "make"),
    [
        # CartPole: 16 bytes of observation, 16 of action, reward, mark and order.
        (3.1, "3.20 of them for the replay memory. Received: buffer_max_size=100000000. Lower",
         lambda: operant.DQN("jax:CartPole-v1", buffer_max_size=10**8, quiet=True)),
        (2.5, "2.60 of them for the replay memory. Received: capacity=130000000. Lower capacity.",
         lambda: create(agent="tensorforce", memory=dict(type="replay", capacity=130_000_000), batch_size=1,
                        update=1, optimizer="adam", objective="policy_gradient",
                        reward_estimation=dict(horizon=1))),
        # 16 bytes of observation, 4 of action, reward and log-probability each, 3 flags.
        (3.0, "3.10 of them for the rollouts. Received: n_steps=12500000, environments=8. Lower n_steps or "
         "the environments", lambda: operant.PPO("jax:CartPole-v1", n_envs=8, n_steps=12_500_000, quiet=True,
                                             model=[dict(type="dense", size=1)], mini_batches=1)),
        # One of 2,000 values, one-hot: 8,000 bytes a row.
        (0.9, "0.98 of them for a batch within the networks. Received: n_steps=122880, environments=1.",
         lambda: create(agent="ppo", n_steps=122_880, model=[dict(type="dense", size=4)])),
        (0.5, "of them for the networks and their optimizers. Use smaller networks.",
         lambda: create(agent="ppo", model=[dict(type="dense", size=4000)] * 4)),
    ],
)  # fmt: skip
def test_the_largest_part_and_its_option_are_named(monkeypatch, gigabytes, words, make):
    monkeypatch.setattr(allocation, "free_memory", lambda device: int(gigabytes * 1e9))
    with pytest.raises(SpecError) as caught:
        make()
    assert words in str(caught.value)
    assert f"where {gigabytes:.2f} GB are free" in str(caught.value)


def test_copies_of_runs_and_devices_count(monkeypatch):
    """A run of a million rows of CartPole takes 32 MB."""
    monkeypatch.setattr(allocation, "free_memory", lambda device: int(100e6))
    learner = operant.DQN("jax:CartPole-v1", buffer_max_size=10**6, quiet=True).session.learner
    arguments = jax.random.key(0), learner.hyper()
    allocation.initializer(learner, 1, learner.init, *arguments, copies=3)
    with pytest.raises(SpecError, match=r"0\.13 of them for the replay memory"):
        allocation.initializer(learner, 1, learner.init, *arguments, copies=4)


def test_what_a_loop_computes_in_between_counts(monkeypatch):
    monkeypatch.setattr(allocation, "free_memory", lambda device: 10**6)
    sort = jax.jit(lambda x: jax.numpy.sort(jax.numpy.arange(1_000_000) + x)[5])
    with pytest.raises(SpecError, match="0.00 GB are free.*for intermediate results"):
        allocation.compiled(sort, (0,))


def test_memory_that_runs_out_later_is_told_in_a_sentence():
    told = pytest.raises(BackendError, match="too little memory: RESOURCE_EXHAUSTED: Out of memory")
    with told as caught, allocation.memory_errors:
        raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Out of memory.\nBuffers:\n...")
    assert "\n" not in str(caught.value)
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"), allocation.memory_errors:
        raise jax.errors.JaxRuntimeError("INTERNAL: a fault")


def write(root, files):
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def test_free_memory_is_the_least_of_machine_and_control_groups(tmp_path):
    write(tmp_path, {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 8 kB\n", "proc/self/statm": "1 1"})
    write(tmp_path, {"proc/self/cgroup": "4:cpu,memory:/a/b\n3:cpuset:/\n0::/c\n"})
    assert list(runtime._free(tmp_path)) == [8192]
    old, new = "sys/fs/cgroup/memory/a", "sys/fs/cgroup/c"
    write(tmp_path, {f"{old}/memory.limit_in_bytes": "5000\n", f"{old}/memory.usage_in_bytes": "3000\n"})
    write(tmp_path, {f"{old}/memory.stat": "cache 7\ntotal_inactive_file 500\n"})
    write(
        tmp_path, {f"{new}/memory.max": "max\n", f"{new}/memory.current": "30\n", f"{new}/memory.stat": "a 1"}
    )
    assert list(runtime._free(tmp_path)) == [8192, 2500]
    write(tmp_path, {f"{new}/memory.max": "400\n", f"{new}/memory.stat": "inactive_file 5\n"})
    assert list(runtime._free(tmp_path)) == [8192, 2500, 375]


def test_free_memory_of_an_accelerator_is_what_its_allocator_says():
    def device(stats):
        return types.SimpleNamespace(platform="gpu", memory_stats=lambda: stats)

    assert runtime.free_memory(device({"bytes_limit": 10, "bytes_in_use": 4})) == 6
    assert runtime.free_memory(device(None)) is None
    assert runtime.free_memory(CPU) > 0
