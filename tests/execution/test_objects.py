"""What a program holds says what it is, completes in an editor, and leads on from other libraries' words."""

import inspect
import json
import runpy
from pathlib import Path

import gymnasium
import numpy as np
import pytest

import operant
from operant import DQN, PPO, Agent, Environment, Runner
from operant.agents.table import config_class
from operant.errors import SpecError, UsageError
from operant.execution.trainers.arguments import MODELS, NOT_OPTIONS
from operant.execution.trainers.trainer import CLASSES, trainer
from operant.spec import default, options
from operant.spec.run import RunConfig
from operant.tracking import read_history

ROOT = Path(__file__).parents[2]
SMALL = {"n_envs": 2, "n_steps": 8, "mini_batches": 2, "ppo_epochs": 1, "model": [8], "quiet": True}


class Short(gymnasium.Env):
    """Episodes of three steps with reward 2."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(2, self.t / 3, np.float32), 2.0, self.t == 3, False, {}


def test_the_stub_for_editors_is_as_the_configs_say():
    assert runpy.run_path(str(ROOT / "scripts" / "signatures"))["written"]() == (
        ROOT / "src" / "operant" / "__init__.pyi"
    ).read_text(encoding="utf-8"), "run scripts/signatures"


@pytest.mark.parametrize("name", CLASSES)
def test_a_signature_shows_the_hyperparameters(name):
    parameters = inspect.signature(trainer(name)).parameters
    config = config_class(CLASSES[name])
    for each in (config, RunConfig):
        for option in options(each).keys() - NOT_OPTIONS - MODELS.keys():
            assert parameters[option].default == default(each, option)
            assert parameters[option].kind is inspect.Parameter.KEYWORD_ONLY
    placed = [p.name for p in parameters.values() if p.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    assert placed[0] == "envs" and set(placed[1:]) <= {*MODELS, "buffers"}
    assert ("buffers" in placed) == ("buffer_max_size" in options(config))
    assert {"n_envs", "eval_envs", "weights", "trial", "resume"} <= parameters.keys()
    inspect.signature(trainer(name)).bind("CartPole-v1", learning_rate=0.1)  # another name


def test_types_of_public_names_are_those_of_the_stub():
    stub = (ROOT / "src" / "operant" / "__init__.pyi").read_text(encoding="utf-8")
    assert all(
        f" as {name}\n" in stub or f"class {name}(" in stub or f"\n{name}: " in stub
        for name in dir(operant)
        if name[0] != "_"
    )


def test_a_class_says_how_far_it_is_evaluates_and_gives_what_it_holds(tmp_path):
    with PPO(Short, learning_rate="3e-4", gae_lambda=0.9, seed=1, **SMALL) as agent:
        assert repr(agent) == "<PPO on Short: n_envs=2, 0 steps>"
        config = agent.session.definition.config
        assert config.lr == 3e-4 and config.lam == 0.9
        agent.fit(max_steps=48)
        assert repr(agent) == f"<PPO on Short: n_envs=2, {agent.steps} steps, mean return 6>"
        before = agent.steps
        scores = agent.evaluate(4)
        assert scores.rewards == [6.0] * 4 and (scores.mean, scores.std) == (6.0, 0.0)
        assert agent.evaluate(episodes=2, deterministic=False).lengths == [3, 3]
        assert agent.steps == before
        assert all(isinstance(env, Short) for env in agent.envs) and len(agent.envs) == 2
        assert agent.load(agent.save(tmp_path)) is agent
        assert "VectorEnv of 2 x Short: in-process>" in repr(agent.session.environments.vector)
    with PPO("jax:CartPole-v1", **SMALL) as agent:
        assert agent.envs is agent.session.environments.native


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("learn", r"Use fit\(max_steps=\.\.\.\)\.$"),
        ("predict", r"Use act\(observation\)\.$"),
        ("num_timesteps", r"Use steps\.$"),
        ("policy", r"Use act\(observation\), or session"),
        ("logger", r"Use fit\(callback=\.\.\.\)"),
        ("get_env", r"Use envs\.$"),
        ("set_env", r"Use another object with these environments, and load\(directory\)\.$"),
        ("run", r"Use fit; its options are run_config\.$"),
        ("nonsense", r"^PPO has no attribute 'nonsense'\.$"),
    ],
)
def test_other_libraries_words_for_a_class(name, remedy):
    blank = object.__new__(PPO)
    with pytest.raises(AttributeError, match=remedy):
        getattr(blank, name)


def test_an_agent_and_a_runner_say_what_they_are_and_lead_on():
    environment = Environment.create("CartPole-v1", max_episode_timesteps=7)
    agent = Agent.create("ppo", environment=environment, num_steps=4, num_minibatches=1)
    assert repr(agent) == "<Agent ppo: 0 timesteps, 0 episodes, 0 updates; parallel_interactions=1>"
    states = environment.reset()
    assert agent.act(states=states, evaluation=True) == agent.act(states=states, independent=True)
    assert agent.timesteps == 0
    for name, remedy in (
        ("restore", r"Use Agent\.load\(directory=\.\.\.\)"),
        ("tracked_tensors", r"Use a summarizer: Agent\.create\(\.\.\., summarizer=\.\.\.\)"),
        ("learn", "Use a Runner, or act and observe"),
        ("nonsense", "^Agent has no attribute 'nonsense'.$"),
    ):
        with pytest.raises(AttributeError, match=remedy):
            getattr(agent, name)
    with Runner(agent, environment) as runner:
        runner.run(num_episodes=2, use_tqdm=False)
        assert repr(runner) == f"<Runner of {agent!r} in 1 x CartPole-v1: 2 episodes in the last run>"
    assert repr(agent).startswith(f"<Agent ppo: {agent.timesteps} timesteps, 2 episodes, ")
    agent.close()
    assert repr(agent) == "<Agent ppo: closed>" and "closed" in repr(runner)
    environment.close()


def test_a_program_that_is_started_again_goes_on_where_it_was(tmp_path):
    """Two programs, the second after the first ended, leave what one would have left."""
    folder = tmp_path / "run"
    for limit in (32, 64):
        with PPO(Short, run_dir=folder, resume=True, seed=3 if limit == 32 else None, **SMALL) as agent:
            assert (agent.steps > 0) == (limit == 64) and agent.run_config.seed == 3
            agent.fit(max_steps=limit)
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert len(record["resumed"]) == 1
    steps = list(read_history(folder / "history.parquet")["step"])
    assert steps == sorted(steps) and len(steps) == agent.games
    with pytest.raises(UsageError, match="run_dir must be a new or empty folder"):
        PPO(Short, run_dir=folder, **SMALL)
    with pytest.raises(UsageError, match="resume=True goes on with the run in a folder. Give run_dir, too."):
        PPO(Short, resume=True, **SMALL)


def test_callbacks_by_episode_and_by_step():
    seen = []

    def look(agent, record):
        seen.append((record.step, dict(record.values), [env.t for env in agent.envs]))
        return len(seen) < 4

    with PPO(Short, seed=1, **SMALL) as agent:
        # Two environments, whose rows are steps 2, 4, 6: there both are at their third.
        outcome = agent.fit(max_steps=200, callback=look, callback_timestep_frequency=6)
        assert outcome.reason == "callback" and [step for step, *_ in seen[:2]] == [6, 12]
        assert seen[0][1] == {"step/reward": 2.0} and seen[0][2] == [3, 3]
        seen.clear()
        outcome = agent.fit(max_steps=400, callback=look, callback_episode_frequency=3)
        assert outcome.reason == "callback" and len(seen) >= 4
        assert all(values == {"episode/reward": 6.0, "episode/length": 3.0} for _, values, _ in seen)
        seen.clear()
        agent.fit(max_steps=agent.steps + 400, callback=look)  # reports, as before
        assert "episode/reward_mean" in seen[-1][1]
        with pytest.raises(
            SpecError, match="callback_episode_frequency must be a whole number of at least 1"
        ):
            agent.fit(max_steps=9, callback=look, callback_episode_frequency=0)
    with (
        DQN("jax:CartPole-v1", model=[8], quiet=True) as agent,
        pytest.raises(
            UsageError, match="callback_timestep_frequency is for environments that step on the host"
        ),
    ):
        agent.fit(max_steps=9, callback=look, callback_timestep_frequency=1)
