"""Masks that an environment gives outside its observations, moved to where agents look for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict, Discrete, MultiBinary, MultiDiscrete

from operant.errors import SpaceError

MASK = "action_mask"


class ActionMasks(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A Gymnasium environment whose observations have the mask of its actions as an entry, `action_mask`.

    The mask is what the method `action_masks()` of the environment returns (as for sb3-contrib's
    MaskablePPO), or, where there is no such method, `info["action_mask"]` (as of Taxi-v4). Observations are
    `Dict` spaces: the environment's own entries and `action_mask`, or `observation` and `action_mask`.

    Args:
        env: with actions `Discrete` (mask: `n` entries, 1 where allowed) or `MultiDiscrete` (one choice after
            the other, `sum(nvec)` entries).

    Raises:
        SpaceError: the actions are of another kind; the observations have such an entry already; in `reset`
            and `step`: the environment gives no mask, or one of another size.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        actions, space = env.action_space, env.observation_space
        if isinstance(actions, Discrete):
            self._size = int(actions.n)
        elif isinstance(actions, MultiDiscrete):
            self._size = int(actions.nvec.sum())
        else:
            raise SpaceError(f"ActionMasks needs Discrete or MultiDiscrete actions. Received: {actions}.")
        if isinstance(space, Dict) and MASK in space.spaces:
            raise SpaceError(f"The observations have an entry {MASK!r} already. Leave ActionMasks out.")
        entries = dict(space.spaces) if isinstance(space, Dict) else {"observation": space}
        self.observation_space = Dict({**entries, MASK: MultiBinary(self._size)})
        self._by_method = env.has_wrapper_attr("action_masks")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; the observation comes with its mask."""
        observation, info = self.env.reset(seed=seed, options=options)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; the observation comes with its mask."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._with_mask(observation, info), reward, terminated, truncated, info

    def _with_mask(self, observation: Any, info: Mapping[str, Any]) -> dict[str, Any]:
        mask = self.env.get_wrapper_attr("action_masks")() if self._by_method else info.get(MASK)
        if mask is None:
            raise SpaceError(
                f"{self.env} tells no mask. It is taken from the environment's method action_masks() or "
                f"from info['{MASK}']."
            )
        entry = np.asarray(mask).reshape(-1)
        if entry.shape != (self._size,):
            raise SpaceError(
                f"The mask must have {self._size} entries, one for each value of {self.env.action_space}. "
                f"Received: {np.shape(mask)}."
            )
        entries = (
            observation if isinstance(self.env.observation_space, Dict) else {"observation": observation}
        )
        return {**entries, MASK: entry.astype(np.int8)}
