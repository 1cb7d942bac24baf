"""For the agent, an episode aborted by a time limit is not over: terminal=2 counts the value of what would
have followed."""

from operant import Agent, Environment


class Treadmill(Environment):
    """Every step is worth 1, for ever."""

    def states(self):
        return dict(type="float", shape=(1,))

    def actions(self):
        return dict(type="int", num_values=2)

    def reset(self):
        return [0.0]

    def execute(self, actions):
        return [0.0], False, 1.0


DISCOUNT = 0.9


def learnt_value(abort):
    environment = Environment.create(environment=Treadmill, max_episode_timesteps=5)
    agent = Agent.create(
        agent="dqn", environment=environment, gamma=DISCOUNT, lr=0.01, model=[dict(type="dense", size=16)],
        buffer_initial_size=50, train_every=1, target_sync_steps=20, seed=0,
    )  # fmt: skip
    for _ in range(200):
        states, terminal = environment.reset(), False
        while not terminal:
            actions = agent.act(states=states)
            states, terminal, reward = environment.execute(actions=actions)
            agent.observe(reward=reward, terminal=terminal if abort else min(terminal, 1), next_states=states)
    network = agent.learner.algorithm.models["model"]
    outputs, _ = network.apply(agent.engine.train.state.variables, {"state": [[0.0]]})
    return float(max(value.max() for value in outputs.values()))


print(f"the value of an endless stream of ones: {1 / (1 - DISCOUNT):.1f}")
print(f"learnt with terminal=2 at the time limit: {learnt_value(abort=True):.1f}")
print(f"learnt with terminal=1 at the time limit: {learnt_value(abort=False):.1f}")
