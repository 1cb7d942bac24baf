"""The environments of a training run, made as its options say."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

from operant.envs.env_spec import is_native
from operant.envs.gymnasium.games import Games
from operant.envs.vector.base import VectorEnv
from operant.errors import SpecError
from operant.spec import default, plain
from operant.spec.run import GAMES, RunConfig, images

LARGE_IMAGE = 128 * 128 * 3
"""Numbers in an observation above which it is said that they cost time."""


class Environments(NamedTuple):
    """Either a JAX-native environment or a vector on the host."""

    native: Any
    vector: Any

    @property
    def spaces(self) -> Any:
        """Spaces of one environment."""
        return (self.vector if self.native is None else self.native).spaces

    @property
    def state_shapes(self) -> list[tuple[int, ...]]:
        """Shapes of the components of one environment's state."""
        return [leaf.shape for leaf in self.spaces.states.components.values()]

    @property
    def limit(self) -> int | None:
        """Steps after which an episode is cut; None if there is no limit, or it is not known."""
        limit: int | None = (self.vector if self.native is None else self.native).max_episode_timesteps
        return limit

    @property
    def preprocessed(self) -> bool:
        """Whether they are preprocessed games, or other such images."""
        return self.vector is not None and bool(self.vector.preprocessed)

    @property
    def remarks(self) -> Iterator[str]:
        """What the user might change before training, in sentences."""
        for name, leaf in () if self.native is not None else self.spaces.states.components.items():
            if leaf.dtype == "uint8" and len(leaf.shape) == 3 and math.prod(leaf.shape) > LARGE_IMAGE:
                yield (
                    f"Observations of {' x '.join(map(str, leaf.shape))} ({name}) make training slow (about "
                    "22 steps/s on two cores with images of 240 x 320 x 3), memories and checkpoints large. "
                    "Make them smaller: --resize 84, --gray (resize=84, gray=True), and stack the last by "
                    "--frame-stack 4 (frame_stack=4)."
                )

    @property
    def how(self) -> str:
        """How they run, for the user."""
        if self.native is not None:
            return "compiled with the agent"
        return f"{self.vector.mode}" + (f" ({self.vector.why})" if self.vector.why else "")

    def close(self) -> None:
        """Close what must be closed."""
        if self.vector is not None:
            self.vector.close()


def make_environments(run: RunConfig, envs: Any = None, count: int | None = None) -> Environments:
    """Make a run's environments, or take those of the user's program: one, a list, a vector, a native one.

    `count` is how many of what was given, if that does not say so itself.

    Raises:
        OperantError: they cannot be made, or not with these options.
    """
    built = _build(run, envs, count)
    if built.native is not None and run.vector != default(RunConfig, "vector"):
        raise SpecError(
            f"vector is for environments that are not JAX-native. Received: vector={run.vector!r} with "
            f"{run.env!r}, which is compiled with the agent. Leave it out."
        )
    # A vector of operant's own has its own rules, and is left as it is.
    idle = isinstance(envs, VectorEnv) or not built.preprocessed
    for name in GAMES if idle else ():
        if not getattr(run, name):
            if envs is None or _are_made(envs):
                built.close()
            raise SpecError(
                f"{name} is for preprocessed games. Received: {name}=False, preprocess=False. "
                f"Add --preprocess (preprocess=True), or leave --no-{name.replace('_', '-')} out."
            )
    return built


def _are_made(envs: Any) -> bool:
    """Tell classes and functions from objects, which are closed by whoever made them."""
    return all(map(callable, envs if isinstance(envs, list | tuple) else [envs]))


def _build(run: RunConfig, envs: Any, count: int | None) -> Environments:
    from operant.envs import catalog
    from operant.envs.gymnasium import preprocessing
    from operant.envs.vector import create
    from operant.envs.vector.base import info_refusal

    arguments, run_images = plain(run.env_kwargs or {}), images(run)
    if arguments and envs is not None and not isinstance(envs, type):
        raise SpecError(
            f"env_kwargs is for an id or a class. Received: env_kwargs={arguments!r} with environments that "
            "are made already. Give it where they are made: gymnasium.make(id, **env_kwargs)."
        )
    native = envs if is_native(envs) else catalog.native(run.env, **arguments) if envs is None else None
    if native is not None:
        if run.preprocess:
            shapes = [leaf.shape for leaf in native.spaces.states.components.values()]
            raise preprocessing.refusal(run.env, shapes)
        for name in run_images:
            raise SpecError(f"{name}: for environments of Gymnasium, not JAX-native ones as {run.env!r} is.")
        if run.info_keywords:
            raise info_refusal(run.info_keywords, run.env)
        from operant.envs.native.validate import accepted

        return Environments(accepted(native, run.env, run.max_episode_timesteps), None)
    if envs is not None and run_images and (run.preprocess or not _are_made(envs)):
        raise SpecError(
            f"{next(iter(run_images))} is for an id. Preprocess objects where they are made: "
            "create_envs(name, n)."
        )
    built = create.create(
        run.env if envs is None else envs,
        run.n_envs if envs is None else count,
        mode=run.vector,
        max_episode_timesteps=run.max_episode_timesteps,
        clip_rewards=run.clip_rewards,
        episodic_life=run.episodic_life,
        games_only=True,
        env_kwargs=arguments,
        images=run_images,
        info_keywords=run.info_keywords,
    )
    return Environments(None, built)


def host_vector(run: RunConfig, num_envs: int, envs: Any = None) -> VectorEnv:
    """Make `num_envs` environments of a run (or of `envs`) again, as a vector on the host even if JAX-native.

    Atari games are whole games with unclipped rewards: what a policy is judged by, not what it learns from.
    """
    counted = not isinstance(envs, list | tuple)
    built = _build(run.replace(n_envs=num_envs), envs, num_envs if counted else None)
    if built.native is None:
        vector: VectorEnv = built.vector
        # As in training, FIRE continues a game after a lost life if lives were episodes.
        return vector.judged() if isinstance(vector, Games) and vector is not envs else vector
    from operant.envs.native.native_vector import NativeVector

    return NativeVector(built.native, num_envs, run.env)


def evaluation_count(run: RunConfig) -> int:
    """Return how many environments evaluate by default: as many as train, but at most one per episode."""
    return min(run.eval_episodes, run.n_envs)
