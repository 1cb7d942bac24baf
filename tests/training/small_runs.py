"""Small agents, steps and runs for tests of what goes on after an interruption."""

import jax
import numpy as np
from tests.execution.test_agent import CHOICE, NET, ROLLOUT, STATE

from operant import Agent, checkpoint
from operant.agents.base.agent_spec import parse_agent
from operant.training.environments import make_environments
from operant.training.session import ExperimentSetup
from operant.training.train import resumed

A2C = {"agent": "a2c", "model": NET}


def create(spec=ROLLOUT, states=STATE, **kwargs):
    return Agent.create(**spec, states=states, actions=CHOICE, max_episode_timesteps=50, **kwargs)


def play(agent, steps, seed=0):
    """Act and observe; return the updates that each call of observe told."""
    told, draw = [], np.random.default_rng(seed)
    for step in range(steps):
        agent.act(draw.normal(size=3).astype(np.float32))
        told.append(agent.observe(reward=1.0, terminal=step % 7 == 6))
    return told


def weights(agent):
    return jax.tree.map(np.asarray, agent.learner.algorithm.weights(agent.engine.train.state))


def same(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


def opened(directory):
    """Return what a run in a folder trained, as its newest checkpoint has it, and its options."""
    plan = resumed(directory, {})
    run = plan.run.replace(checkpoints=(), weights=())
    session = ExperimentSetup(parse_agent(plan.agent), make_environments(run), run)
    session.training(run).restore(checkpoint.newest(f"{directory}/checkpoints"))
    return session, run
