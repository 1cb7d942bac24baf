"""PettingZoo's parallel environments, shown as one `Environment` with several actors.

All agents of such an environment are played by one policy, each as an actor of its own. They must have the
same spaces: PettingZoo's wrappers can pad observations and actions to that end.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from operant.envs.environment import SpacesEnv
from operant.errors import EnvError, SpaceError, SpecError, suggest, told
from operant.spec.spaces import from_gymnasium

_METHODS = ("reset", "step", "observation_space", "action_space")


def is_parallel(value: Any) -> bool:
    """Tell whether a value is a parallel PettingZoo environment (not one in which agents take turns)."""
    return (
        hasattr(value, "possible_agents")
        and not hasattr(value, "agent_iter")
        and all(callable(getattr(value, name, None)) for name in _METHODS)
    )


def make_parallel(id: str, **arguments: Any) -> Any:
    """Make a parallel environment of PettingZoo, such as `classic/rps-v2`; SpecError: it cannot be made."""
    try:
        import pettingzoo
    except ImportError:
        raise SpecError(
            f"Environment 'pettingzoo:{id}' needs PettingZoo. Install it: pip install 'operant[pettingzoo]'."
        ) from None
    if id not in pettingzoo.parallel_registry:
        raise SpecError(
            f"Unknown environment 'pettingzoo:{id}'.{suggest(id, [*map(str, pettingzoo.parallel_registry)])}"
        )
    try:
        return pettingzoo.make("parallel", id, **arguments)
    except Exception as error:  # a game's package may raise anything
        raise SpecError(f"Environment 'pettingzoo:{id}' cannot be made: it {told(error)}.") from error


class PettingZooEnv(SpacesEnv):
    """A parallel environment of PettingZoo; SpaceError: the agents' spaces differ."""

    def __init__(self, env: Any) -> None:
        self.pettingzoo = env
        self.agents = list(env.possible_agents)
        first = self.agents[0]
        observation, action = env.observation_space(first), env.action_space(first)
        for agent in self.agents[1:]:
            for kind, space, other in (
                ("observation", observation, env.observation_space(agent)),
                ("action", action, env.action_space(agent)),
            ):
                if space != other:
                    raise SpaceError(
                        f"All agents of {env} must have the same {kind} space, since one policy plays them. "
                        f"{first}: {space}. {agent}: {other}. Pad them with PettingZoo's wrappers."
                    )
        self.spaces, self.codec = from_gymnasium(observation, action)
        self._index = {agent: i for i, agent in enumerate(self.agents)}
        self._alive: list[Any] = []

    def num_actors(self) -> int:
        """Return how many agents there are at most."""
        return len(self.agents)

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode of all agents."""
        observations, _ = self.pettingzoo.reset(seed=seed)
        self._alive = list(self.pettingzoo.agents)
        states = self._states(observations, self._alive)
        return (self._parallel(), states) if len(self.agents) > 1 else _only(states)

    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take the actions `[n, ...]` of the agents that are still acting; truncations are terminal 2."""
        single = len(self.agents) == 1
        flat = self.spaces.actions.flatten(actions)
        acting = self._alive
        if single:
            flat = {name: x[None] for name, x in flat.items()}
        decoded = {agent: self.codec.decode_one(flat, i) for i, agent in enumerate(acting)}
        observations, rewards, terminated, truncated, _ = self.pettingzoo.step(decoded)
        missing = [agent for agent in acting if agent not in rewards or agent not in terminated]
        if missing:
            raise EnvError(f"step of {self.pettingzoo} told nothing of the agent {missing[0]!r}.")
        joined = [agent for agent in self.pettingzoo.agents if agent not in acting]
        if joined:
            raise EnvError(
                f"The agent {joined[0]!r} of {self.pettingzoo} joined within an episode. All that act in "
                "one must be there from its beginning: "
                "let reset begin with all agents, and let those act without effect whose time has not come."
            )
        terminal = [1 if terminated[agent] else 2 if truncated[agent] else 0 for agent in acting]
        self._alive = [agent for agent, ended in zip(acting, terminal, strict=True) if not ended]
        reward = [float(rewards[agent]) for agent in acting]
        if single:
            last = self._states(observations, acting)
            return _only(last), terminal[0], reward[0]
        ended = [agent for agent in acting if agent not in self._alive]
        is_known = all(observations.get(agent) is not None for agent in ended)
        observed = [*self._alive, *ended] if is_known else self._alive
        states = self._states(observations, observed) if observed else None
        return self._parallel(), states, np.asarray(terminal), np.asarray(reward, np.float32)

    def close(self) -> None:
        """Close the environment."""
        self.pettingzoo.close()

    def _parallel(self) -> np.ndarray:
        return np.asarray([self._index[agent] for agent in self._alive], np.int64)

    def _states(self, observations: Any, agents: list[Any]) -> Any:
        each = [self.codec.encode(observations[agent], False) for agent in agents]
        flat = {name: np.stack([states[name] for states in each]) for name in each[0]}
        return self.spaces.unflatten(flat)


def _only(states: Any) -> Any:
    return {name: _only(x) for name, x in states.items()} if isinstance(states, dict) else states[0]
