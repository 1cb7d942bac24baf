"""An environment in another process or on another machine, as an `Environment`."""

from __future__ import annotations

from typing import Any

from operant.envs.environment import SpacesEnv
from operant.envs.remote.connection import Answer, Connection
from operant.errors import UsageError


class RemoteEnv(SpacesEnv):
    """An environment at the other side of a connection; every call waits for its answer."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.spaces = connection.spaces

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in ("connection", "spaces"):
            raise UsageError(
                f"{name!r} cannot be set on an environment elsewhere. Give it as an argument when the "
                "environment is made."
            )
        super().__setattr__(name, value)

    def max_episode_timesteps(self) -> int | None:
        """Return the time limit."""
        return self.connection.max_episode_timesteps

    def num_actors(self) -> int:
        """Return how many actors act in it."""
        return self.connection.num_actors

    def reset(self, seed: int | None = None) -> Any:
        """Begin an episode and wait for its first states; this works after an interrupted call, too."""
        self.connection.forget()
        self.connection.send_reset(seed)
        answer = self.connection.receive()
        return answer.states if self.num_actors() == 1 else (answer.parallel, answer.states)

    def execute(self, actions: Any) -> tuple[Any, ...]:
        """Take a step and wait for its result; terminal 2 with the last states if it was lost."""
        self.connection.send_execute(actions)
        answer: Answer = self.connection.receive()
        if self.num_actors() == 1:
            return answer.states, answer.terminal, answer.reward
        return answer.parallel, answer.states, answer.terminal, answer.reward

    def episode_return(self, parallel: int | None = None) -> float | None:
        """Return what the environment reports."""
        return self.connection.episode_return()

    def close(self) -> None:
        """Close the environment, or leave the server."""
        self.connection.close()
