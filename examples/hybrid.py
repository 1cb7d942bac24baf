"""States of an image, a vector and a choice.

Actions of a masked choice, a bounded number and a switch: in three styles of interaction.
"""

import sys

import numpy as np

from operant import Agent, Environment


class Cockpit(Environment):
    """Three things to do at once: choose the gear that the level asks for, follow a number, light the lamp
    when it is dark."""

    def __init__(self, seed=0):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def states(self):
        return dict(
            camera=dict(type="float", shape=(8, 8, 1), min_value=0.0, max_value=1.0),
            sensors=dict(type="float", shape=(3,)),
            level=dict(type="int", num_values=4),
        )

    def actions(self):
        return dict(
            gear=dict(type="int", num_values=3),
            controls=dict(
                throttle=dict(type="float", shape=(), min_value=-1.0, max_value=1.0),
                lamp=dict(type="bool"),
            ),
        )

    def reset(self):
        self.step = 0
        return self.observe()

    def observe(self):
        self.bright = self.random.random() < 0.5
        self.sensors = self.random.uniform(-0.8, 0.8, size=3)
        self.level = int(self.random.integers(4))
        broken = int(self.random.integers(3))  # a gear that must not be chosen
        return dict(
            camera=np.full((8, 8, 1), 0.9 if self.bright else 0.1) + self.random.normal(0, 0.02, (8, 8, 1)),
            sensors=self.sensors,
            level=self.level,
            gear_mask=np.arange(3) != broken,
        )

    def execute(self, actions):
        gear, controls = actions["gear"], actions["controls"]
        reward = float(gear == self.level % 3) - abs(float(controls["throttle"]) - self.sensors[0])
        reward += float(bool(controls["lamp"]) != self.bright)
        self.step += 1
        return self.observe(), 2 if self.step == 16 else 0, float(reward)


NETWORK = [
    [
        dict(type="retrieve", tensors="camera"),
        dict(type="flatten"),
        dict(type="dense", size=16),
        dict(type="register", tensor="seen"),
    ],
    [
        dict(type="retrieve", tensors=["seen", "sensors", "level"]),
        dict(type="dense", size=64),
    ],
]
AGENTS = dict(
    ppo=dict(agent="ppo", model=NETWORK, n_steps=256, lr=3e-3),
    a2c=dict(agent="a2c", model=NETWORK, n_steps=32, lr=3e-3),
    trpo=dict(agent="trpo", actor_model=NETWORK, critic_model=NETWORK, n_steps=512),
    modular=dict(
        agent="modular", model=NETWORK, update=256, multi_step=10, clipping_value=0.2, horizon=8, lr=3e-3
    ),
)


def make(name, **more):
    return Agent.create(
        **AGENTS[name], environment=Cockpit(), max_episode_timesteps=16, gamma=0.5, seed=1, **more
    )


def score(agent, episodes=20):
    """Return the mean reward per step under the best actions."""
    environment, total = Cockpit(seed=99), 0.0
    for _ in range(episodes):
        states, terminal = environment.reset(), 0
        while not terminal:
            actions = agent.act(states=states, independent=True)
            assert states["gear_mask"][actions["gear"]]
            states, terminal, reward = environment.execute(actions)
            total += reward
    return total / (16 * episodes)


def act_observe(agent, steps):
    environment = Cockpit()
    states = environment.reset()
    for _ in range(steps):
        states, terminal, reward = environment.execute(agent.act(states=states))
        agent.observe(reward=reward, terminal=terminal, next_states=states)
        if terminal:
            states = environment.reset()


def batched(agent, steps, actors=4):
    environments = [Cockpit(seed=i) for i in range(actors)]
    states = [environment.reset() for environment in environments]
    parallel = list(range(actors))
    for _ in range(steps // actors):
        actions = agent.act(states=states, parallel=parallel)
        each = [
            dict(gear=actions["gear"][i], controls={k: v[i] for k, v in actions["controls"].items()})
            for i in parallel
        ]
        results = [environment.execute(own) for environment, own in zip(environments, each, strict=True)]
        states, terminals, rewards = (list(x) for x in zip(*results, strict=True))
        agent.observe(reward=rewards, terminal=terminals, parallel=parallel, next_states=states)
        states = [environments[i].reset() if terminals[i] else states[i] for i in parallel]


def act_experience_update(agent, steps, episodes=16):
    environment = Cockpit()
    for _ in range(steps // (16 * episodes)):
        for _ in range(episodes):
            states, actions, terminals, rewards = [environment.reset()], [], [], []
            while not terminals or not terminals[-1]:
                actions.append(agent.act(states=states[-1], independent=True, deterministic=False))
                after, terminal, reward = environment.execute(actions[-1])
                states.append(after)
                terminals.append(terminal)
                rewards.append(reward)
            agent.experience(
                states=states[:-1],
                actions=actions,
                terminal=terminals,
                reward=rewards,
                next_states=[states[-1]],
            )
        agent.update()


def main(names, steps=10_000):
    for name in names or AGENTS:
        for style in (act_observe, batched, act_experience_update):
            agent = make(name, parallel_interactions=4 if style is batched else 1)
            before = score(agent)
            style(agent, steps)
            print(f"{name} {style.__name__}: {before:.2f} {score(agent):.2f}", flush=True)
            agent.close()


if __name__ == "__main__":
    main(sys.argv[1:])
