"""Algorithms as classes: `PPO(envs, model).fit(target_reward=475)`.

One class for each algorithm of the table, made from it. They train through the same session and loop as the command line; what
differs is only that environments and networks are objects of the user's program.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import gymnasium

from operant.agents import AGENTS, config_class
from operant.agents.making import define
from operant.envs import table, vector
from operant.errors import SpecError, UsageError, suggest, value_error
from operant.execution.config import RunConfig
from operant.execution.episodes import Score
from operant.execution.monitor import Monitor
from operant.execution.training import Outcome, Training
from operant.play import PlayConfig, Played, environment
from operant.play import run as run_episodes
from operant.session import Environments, Session
from operant.spec import options
from operant.tracking import Console, History, Tracker
from operant.train import monitored

MODELS = {"model": "model", "actor_model": "actor", "critic_model": "critic"}
"""Options that take a network, and what the algorithm calls it."""
CLASSES = {entry.cls: agent for agent, entry in reversed(AGENTS.items())}
"""Classes by name, and the agent of the table that each stands for."""
NOT_OPTIONS = frozenset(
    {"env", "n_envs", "max_steps", "target_reward", "monitor_session", "resume", "weights"}
)
"""Options of a run that are no keyword arguments here: others say the same."""


def create_envs(
    env_name: str,
    n: int = 1,
    preprocess: bool = True,
    max_frame: bool = False,
    **kwargs: Any,
) -> list[Any]:
    """Make several Gymnasium environments.

    Args:
        env_name: id, such as `CartPole-v1` or `PongNoFrameskip-v4`.
        n: how many.
        preprocess: whether to treat observations as Atari frames (grey, 84 x 84, every fourth frame, stacks of four).
        max_frame: with `preprocess`: take the maximum over the last two frames, against flicker.
        kwargs: arguments of the environment itself.

    Raises:
        SpecError: the id is unknown, or the observations are no frames to preprocess.
    """
    if isinstance(n, bool) or not isinstance(n, int) or n < 1:
        raise value_error("n", "a whole number of at least 1", n)
    if max_frame and not preprocess:
        raise value_error("max_frame", "False without preprocess", max_frame, "Set preprocess=True.")
    if preprocess:
        from operant.envs.atari import preprocessed

        return [preprocessed(env_name, max_frame=max_frame, **kwargs) for _ in range(n)]
    source = table.resolve(env_name, arguments=kwargs)
    return [source.make() for _ in range(n)]


class ReplayBuffer1:
    """Size of one environment's share of the replay memory, for the class of an algorithm that has one.

    The memory itself lives on the device that trains, one for all environments; shares are summed up.

    Args:
        size: most rows.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.

    Raises:
        SpecError: sizes that do not fit one another.
    """

    def __init__(self, size: int, *, initial_size: int | None = None, batch_size: int = 32) -> None:
        self.size = size
        self.initial_size = size if initial_size is None else initial_size
        self.batch_size = batch_size
        for name in ("size", "initial_size", "batch_size"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise value_error(name, "a whole number of at least 1", value)
        for name in ("initial_size", "batch_size"):
            if getattr(self, name) > size:
                raise value_error(name, f"at most size ({size})", getattr(self, name))


class ReplayBuffer2(ReplayBuffer1):
    """As `ReplayBuffer1`; `slots` (arrays of a transition) is accepted and means nothing here.

    Args:
        size: most rows.
        slots: ignored.
        initial_size: environment steps before learning starts (default: `size`).
        batch_size: transitions of this share in a batch.
    """

    def __init__(
        self, size: int, slots: int = 5, *, initial_size: int | None = None, batch_size: int = 32
    ) -> None:
        super().__init__(size, initial_size=initial_size, batch_size=batch_size)
        self.slots = slots


class Trainer:
    """Base of the algorithm classes. Holds everything between calls of `fit`, which goes on where it stopped.

    Args:
        envs: Gymnasium environments (a list of objects), or an id, a vector of Gymnasium's or a JAX-native
            environment.
        parts: the networks, actor before critic, then the replay buffers (a list, one for each environment), as far as the
            algorithm has them. Keywords `model`, `actor_model`, `critic_model` and `buffers` do the same.
        n_envs: how many environments, if `envs` is an id.
        weights: files of variables to start from, one for each model.
        trial: an Optuna trial to report the mean reward to; it may end `fit` by `optuna.TrialPruned`.
        settings: hyperparameters, and options of the run that concern a program (`seed`, `checkpoints`, `quiet`,
            `history_checkpoint`, `reward_buffer_size`, ...).

    Networks given as compiled Keras models bring their optimizer. Their weights are the trained ones after `fit`.

    Raises:
        OperantError: environments, networks and options do not fit; the message names which and the remedy.
    """

    agent: ClassVar[str]
    """Name of the algorithm in the table."""

    def __init__(
        self,
        envs: Any,
        *parts: Any,
        n_envs: int | None = None,
        weights: Sequence[str] = (),
        trial: Any = None,
        **settings: Any,
    ) -> None:
        self.trial = trial
        self._envs = envs
        given = self._named(parts, settings)
        run, own = _split(self.agent, given)
        self.models = {name: own[name] for name in MODELS if name in own}
        own |= _buffers(own.pop("buffers", None))
        own = {**_optimizer(self.models, own), **own}
        environments = _environments(envs, n_envs, run)
        count = n_envs or 1 if environments.vector is None else environments.vector.num_envs
        name = envs if isinstance(envs, str) else getattr(environments.vector, "name", type(envs).__name__)
        seed = run.pop("seed", None)
        self.run = RunConfig.from_dict(
            {
                **run,
                "env": name,
                "n_envs": count,
                "weights": tuple(weights),
                "seed": secrets.randbelow(2**31) if seed is None else seed,
                "max_steps": 1,
            }
        )
        try:
            self.session = Session(define(self.agent, **own), environments, self.run)
            if weights:
                self.session.weights.load(self.session.driver)
        except BaseException:
            environments.close()
            raise
        self._score = Score(self.run.reward_buffer_size)
        self._monitor = Monitor(self.run)
        self.elapsed = 0.0
        """Seconds of training so far."""

    def _named(self, parts: Sequence[Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        """Give positional arguments their names."""
        known = options(config_class(self.agent))
        slots = [name for name in MODELS if name in known]
        if "buffer_max_size" in known:
            slots.append("buffers")
        if len(parts) > len(slots):
            raise UsageError(
                f"{type(self).__name__} takes envs, {', '.join(slots)}. Received: {len(parts) + 1} positional arguments. "
                "Give options by name."
            )
        named = dict(zip(slots, parts, strict=False))
        for name in named:
            if name in settings:
                raise UsageError(f"{type(self).__name__} got {name!r} twice, by place and by name.")
        return {name: value for name, value in {**named, **settings}.items() if value is not None}

    def fit(
        self,
        target_reward: float | None = None,
        max_steps: int | None = None,
        monitor_session: str | None = None,
    ) -> Outcome:
        """Train until the mean of the last episodes reaches a reward, or for a number of steps.

        Args:
            target_reward: mean reward of the last `reward_buffer_size` episodes at which training ends.
            max_steps: environment steps of all environments, over all calls, at which training ends.
            monitor_session: name of a Weights & Biases run to write metrics to.

        Raises:
            UsageError: neither was given.
            OperantError: an environment failed.
        """
        if target_reward is None and max_steps is None:
            raise UsageError("`target_reward` or `max_steps` should be specified when fit() is called.")
        changes = {"target_reward": target_reward, "max_steps": max_steps, "monitor_session": monitor_session}
        run = RunConfig.from_dict({**self.run.to_dict(), **changes})
        directory = Path(run.run_dir) / "checkpoints" if run.run_dir else None
        training = self.session.training(run, Tracker(), directory, self._report)
        training.score, training.monitor, training.elapsed = self._score, self._monitor, self.elapsed
        training.sinks = Tracker(self._sinks(run))
        try:
            outcome = training.loop()
            training.sinks.message(outcome.message)
        finally:
            training.sinks.close()
            self.elapsed = training.elapsed
            self._put_back()
        return outcome

    def play(
        self,
        video_dir: str | None = None,
        render: bool = False,
        frame_dir: str | None = None,
        frame_delay: float = 0.0,
        max_steps: int | None = None,
        action_idx: int = 0,
        frame_frequency: int = 1,
        episodes: int = 1,
    ) -> Played:
        """Play with the policy as it is, in an environment of its own; training is not touched.

        Args:
            video_dir: folder for a video (mp4) of each episode.
            render: show a window.
            frame_dir: folder for pictures (jpg).
            frame_delay: seconds between rendered frames.
            max_steps: environment steps after which it ends.
            action_idx: 0: the best action, 1: one drawn from the policy.
            frame_frequency: write every n-th frame to `frame_dir`.
            episodes: how many.

        Raises:
            SpecError: the environment cannot be rendered, or made once more.
        """
        config = PlayConfig.from_dict(
            {
                "env": self.run.env,
                "video_dir": video_dir,
                "render": render,
                "frame_dir": frame_dir,
                "frame_delay": float(frame_delay),
                "max_steps": max_steps,
                "action_idx": action_idx,
                "frame_frequency": frame_frequency,
                "episodes": episodes,
                "seed": self.run.seed,
            }
        )
        env = self._another(config)
        played = run_episodes(self.session.learner, self.session.driver.train, env, config)
        if not self.run.quiet:
            print(played)
        return played

    def _another(self, config: PlayConfig) -> vector.VectorEnv:
        """Make one more environment like those that train."""
        first = self._envs[0] if isinstance(self._envs, list | tuple) else self._envs
        if isinstance(first, str):
            return environment(config)
        if not isinstance(first, gymnasium.Env):
            raise SpecError(
                f"play makes an environment like the first one, and cannot make another {first!r}."
            )
        return vector.create(_made_again(first), mode="in-process")

    def _sinks(self, run: RunConfig) -> list[Any]:
        console = Console(
            max_steps=run.max_steps,
            target_reward=run.target_reward,
            display_precision=run.display_precision,
            log_frequency=run.log_frequency,
            quiet=run.quiet,
            start_step=self.steps,
            start_time=self.elapsed,
            start_games=self.games,
        )
        sinks: list[Any] = [History(run.history_checkpoint)] if run.history_checkpoint else []
        if run.monitor_session is not None:
            place = Path(run.run_dir or ".")
            sinks.append(monitored(place, run, self.session.specification["agent"]))
        return [*sinks, console]

    def _report(self, training: Training) -> None:
        if self.trial is None or not training.score.episodes:
            return
        self.trial.report(training.score.mean, training.driver.step)
        if self.trial.should_prune():
            import optuna

            raise optuna.TrialPruned

    def _put_back(self) -> None:
        """Write the trained variables into the Keras models that the user gave."""
        algorithm = self.session.learner.algorithm
        weights = algorithm.weights(self.session.driver.train.state)
        for option, given in self.models.items():
            name = next(name for name in weights if name.startswith(MODELS[option]))
            if hasattr(given, "stateless_call"):
                _model(algorithm, name).assign(weights[name])

    @property
    def steps(self) -> int:
        """Environment steps so far, of all environments."""
        return int(self.session.driver.step)

    @property
    def games(self) -> int:
        """Episodes finished so far."""
        return self._score.episodes

    @property
    def total_rewards(self) -> list[float]:
        """Returns of the last `reward_buffer_size` episodes."""
        return list(self._score.rewards)

    @property
    def mean_reward(self) -> float:
        """Mean of `total_rewards`; NaN before the first episode."""
        return self._score.mean

    @property
    def best_reward(self) -> float:
        """Best that the mean has been."""
        return self._score.best

    def close(self) -> None:
        """Close the environments."""
        self.session.environments.close()


@functools.cache
def trainer(name: str) -> type[Trainer]:
    """Return the class of an algorithm by the name of its class in the table: `PPO`.

    Raises:
        SpecError: no algorithm is called so.
    """
    if name not in CLASSES:
        raise SpecError(f"There is no algorithm class {name!r}.{suggest(name, CLASSES)}")
    agent = CLASSES[name]
    known = options(config_class(agent))
    lines = "\n".join(f"    {option}: {' '.join(meta.help.split())}" for option, meta in known.items())
    doc = f"{AGENTS[agent].help}.\n\n{Trainer.__doc__}\nHyperparameters:\n{lines}\n"
    return type(name, (Trainer,), {"agent": agent, "__doc__": doc, "__module__": __name__})


def __getattr__(name: str) -> Any:
    if name in CLASSES:
        return trainer(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _model(algorithm: Any, name: str) -> Any:
    """Return the model that an algorithm's `weights` calls so.

    It is an attribute, or one of several that stand in a dict; the actor may be the algorithm's `model`.
    """
    places = [vars(algorithm), *(value for value in vars(algorithm).values() if isinstance(value, dict))]
    return next(place[n] for n in (name, "model") for place in places if n in place)


def _split(agent: str, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell options of the run from the algorithm's own."""
    known = set(options(RunConfig)) - NOT_OPTIONS
    for name in given.keys() & NOT_OPTIONS:
        raise UsageError(f"{name} is no argument of the class. Give max_steps and target_reward to fit().")
    return (
        {name: value for name, value in given.items() if name in known},
        {name: value for name, value in given.items() if name not in known},
    )


def _optimizer(models: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that the optimizers of compiled Keras models stand for."""
    given = [m.optimizer for m in models.values() if getattr(m, "optimizer", None) is not None]
    if "optimizer" in own or not given:
        return {}
    from operant.nn.keras_optimizers import options_of

    found = [options_of(optimizer) for optimizer in given]
    if any(other != found[0] for other in found):
        raise SpecError(
            "The models are compiled with different optimizers. Compile them with the same, or give optimizer= and lr=."
        )
    return found[0] if found else {}


def _buffers(buffers: Any) -> dict[str, Any]:
    """Return the options that a list of replay buffers stands for."""
    if buffers is None:
        return {}
    parts = list(buffers) if isinstance(buffers, list | tuple) else [buffers]
    for part in parts:
        if not isinstance(part, ReplayBuffer1):
            raise value_error("buffers", "a list of ReplayBuffer1 or ReplayBuffer2", part)
    return {
        "buffer_max_size": sum(part.size for part in parts),
        "buffer_initial_size": sum(part.initial_size for part in parts),
        "buffer_batch_size": sum(part.batch_size for part in parts),
    }


def _made_again(env: Any) -> Any:
    """Make an environment once more, one that gives pictures."""
    from operant.envs.atari import Preprocessed

    if isinstance(env, Preprocessed):
        return Preprocessed(_made_again(env.env), env.settings)
    if env.spec is None:
        raise SpecError(
            f"{env!r} was not made by gymnasium.make, so play cannot make another. Register it, or evaluate by hand."
        )
    return gymnasium.make(env.spec, render_mode="rgb_array")


def _environments(envs: Any, n_envs: int | None, run: Mapping[str, Any]) -> Environments:
    """Make environments of what the user gave."""
    if isinstance(envs, list | tuple) and not envs:
        raise value_error("envs", "at least one environment", envs)
    if isinstance(envs, str) and table.is_native(envs):
        return Environments(table.native(envs), None)
    from operant.envs.atari import Preprocessed

    frames = isinstance(envs, list | tuple) and all(isinstance(env, Preprocessed) for env in envs)
    return Environments(
        None,
        vector.create(
            envs,
            n_envs,
            mode=run.get("vector", "auto"),
            max_episode_timesteps=run.get("max_episode_timesteps"),
            clip_rewards=frames and run.get("clip_rewards", True),
            episodic_life=frames and run.get("episodic_life", True),
        ),
    )
