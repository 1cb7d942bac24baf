"""Options of a training run that belong to no algorithm. Imports neither JAX nor Keras."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from operant.errors import SpecError, as_folder, value_error, working_directory
from operant.spec import Config, default, option

NATIVE = ("jax:", "gymnax:", "brax:")
"""How ids of JAX-native environments begin."""
PROCESSES = ("coordinator", "n_processes", "process_id")
"""Options of a run that say which processes train together this time."""
TOGETHER = ("n_devices", *PROCESSES)
"""Options of a run that say which devices and processes compute it."""
MONITORING = ("plateau_reduce_factor", "plateau_reduce_patience", "early_stop_patience")
"""Options of a run that have no effect unless `divergence_monitoring_steps` is given."""
GAMES = ("clip_rewards", "episodic_life")
"""Options of a run that have no effect unless games are preprocessed."""
IMAGES = ("preprocess", "max_frame", "resize", "gray", "frame_stack", "frame_skip")
"""Options of a run, and of playing, that say what is done to images."""
ENVIRONMENTS = "Arguments of the environment itself: NAME=VALUE ..., or a JSON object"
"""Help of `env_kwargs`."""
_WATCH = "Watch a policy with `operant play`: --render, --video-dir, --frame-dir."
_LIMIT = "Give --max-episode-timesteps (max_episode_timesteps=)."
SET = {
    "render_mode": _WATCH,
    "visualize": _WATCH,
    "max_episode_timesteps": _LIMIT,
    "max_episode_steps": _LIMIT,
    "preprocess": "Give --preprocess (preprocess=True).",
    "max_frame": "Give --max-frame (max_frame=True), with --preprocess.",
    "num_envs": "Give --n-envs (n_envs=).",
    "import_modules": "Give the module with the id: --env my_package:MyEnv-v0.",
}
"""Arguments of environments that operant sets itself, and what the user gives instead."""
_SHOW = "Give --visualize, or --visualize-directory for videos."
_OWN = "It is no argument of the environment. `operant run --help` lists the flags."
SET_BY_RUN = {
    "render_mode": _SHOW,
    "visualize": _SHOW,
    "max_episode_timesteps": "Give --max-episode-timesteps.",
    "max_episode_steps": "Give --max-episode-timesteps.",
    "import_modules": "Give --import-modules.",
    **dict.fromkeys(
        ("environment", "type", "level", "reward_shaping", "remote", "blocking", "host", "port"), _OWN
    ),
}
"""The same for `operant run`."""


def argument_faults(arguments: Mapping[str, Any] | None, owned: Mapping[str, str] = SET) -> Iterator[str]:
    """Yield what is wrong with an environment's arguments: those in `owned`, or that no file can hold."""
    for name, value in (arguments or {}).items():
        if name in owned:
            yield (
                f"env_kwargs must be without {name!r}, which operant sets itself. Received: "
                f"{name}={value!r}. {owned[name]}"
            )
    try:
        json.dumps(arguments, allow_nan=False)
    except (TypeError, ValueError):
        must = "plain data: finite numbers, strings, True, False, None, lists and dicts of them"
        yield str(
            value_error(
                "env_kwargs", must, arguments, "Give an environment that is made with it instead of an id."
            )
        )


class ClusterConfig(Config):
    """Where seeds and trials are computed."""

    cluster: str | None = option(
        None,
        "Compute each seed or trial in a task of a Ray cluster: ray (at RAY_ADDRESS, else one of this "
        "machine) or ray:HOST:PORT",
    )
    cluster_cpus: float = option(1.0, "Processors that each task reserves", low=0.0)
    cluster_gpus: float = option(0.0, "GPUs that each task reserves", low=0.0)


class RunConfig(Config):
    """Options of `operant train` beside the algorithm's own."""

    env: str = option(
        "",
        "Environment id: a Gymnasium id, a JAX-native one with its prefix (jax:CartPole-v1), or "
        "module:Name for one of your own",
    )
    n_envs: int = option(1, "Number of environments", low=1, search="categorical", aliases=("n_env",))
    env_kwargs: dict[str, Any] | None = option(None, ENVIRONMENTS)
    max_episode_timesteps: int | None = option(
        None, "Time limit of an episode, if shorter than the environment's own", low=1
    )
    preprocess: bool = option(
        False,
        "Preprocess frames as usual for Atari: grey, 84 x 84, every 4th frame, stacks of 4",
    )
    max_frame: bool = option(
        False,
        "With preprocess: take the maximum of the last two frames of every four",
        search="categorical",
    )
    resize: int | tuple[int, ...] | None = option(None, "Height and width of images, or one number for both")
    gray: bool = option(False, "Make images gray (those of --preprocess always are)")
    frame_stack: int | None = option(None, "Number of successive images in an observation", low=1)
    frame_skip: int | None = option(None, "Number of frames for which each action is repeated", low=1)
    clip_rewards: bool = option(
        True, "For preprocessed games: learn from the sign of rewards; scores are reported unclipped"
    )
    episodic_life: bool = option(
        True,
        "For preprocessed games: treat a lost life as the end of an episode in learning; scores are of "
        "whole games",
    )
    vector: Literal["auto", "native-vector", "in-process", "processes"] = option(
        "auto",
        "How several environments run: auto (chosen by measured step time), native-vector, in-process, "
        "processes",
        choices=("auto", "native-vector", "in-process", "processes"),
    )
    threads: int | None = option(
        None,
        "XLA threads on the CPU (default: 1, or one for each of several seeds at once; all of them if "
        "observations are images, or networks and batches large)",
        low=1,
    )
    n_devices: int | None = option(
        None,
        "Devices among which (JAX-native) environments and learning are divided (default: 1; all of them "
        "if several processes train together)",
        low=1,
    )
    coordinator: str | None = option(
        None, "HOST:PORT of the first of several processes that train together; auto: ask the cluster"
    )
    n_processes: int | None = option(None, "Number of processes that train together", low=2)
    process_id: int | None = option(None, "Index of this process among them; process 0 writes the run", low=0)
    seed: int | None = option(
        None, "Random seed (default: a random one, which is printed)", low=0, high=2**32 - 1
    )
    max_steps: int | None = option(
        None,
        "Stop after this many environment steps, of all environments together (rounded up to whole updates; "
        "rollouts of n-steps count whole)",
        unit="environment steps",
        low=1,
    )
    target_reward: float | None = option(
        None, "Stop when the mean return of the last reward-buffer-size episodes reaches this"
    )
    reward_buffer_size: int = option(
        100,
        "Episodes over which the mean return is taken",
        low=1,
    )
    info_keywords: tuple[str, ...] = option(
        (),
        "Names of numbers in the environments' info, such as is_success: those of the last step of each "
        "episode are recorded, and their means reported",
    )
    checkpoints: tuple[str, ...] = option(
        (), "Files for the weights of the best policy, one for each model, written during training"
    )
    weights: tuple[str, ...] = option(
        (), "Weights to start from: files, or the folder of a run or of a saved agent"
    )
    history_checkpoint: str | None = option(
        None, "Path of the training history, .parquet (default: in the run's folder)"
    )
    monitor_session: str | None = option(
        None, "Name of a Weights & Biases run (offline if wandb has no key, or with WANDB_MODE=offline)"
    )
    logger: tuple[str, ...] = option(
        (), "Loggers of your own, each as module:Name of a class or function that makes one"
    )
    run_dir: str | None = option(None, "Folder of the run (default: a new one under runs/)")
    resume: str | None = option(None, "Folder of a run to continue")
    save_seconds: float = option(
        300.0, "Seconds between checkpoints of the run; one is always written at the end", low=0.0
    )
    save_frequency: int | None = option(
        None,
        "Environment steps between checkpoints of the run (default: by time, save-seconds)",
        unit="environment steps",
        low=1,
    )
    keep_checkpoints: int | None = option(
        3, "Number of the run's newest checkpoints to keep; none: all", low=1
    )
    save_memory: bool = option(
        True,
        "Save the replay memory in checkpoints; with --no-save-memory they are small, and a resumed run "
        "refills its memory before it learns from it",
    )
    log_frequency: int | None = option(
        None,
        "Log progress after every n-th episode, of all environments together (default: about every second)",
        low=1,
    )
    display_precision: int = option(2, "Decimals of returns on the console", low=0, high=17)
    quiet: bool = option(False, "Print nothing")
    eval_frequency: int | None = option(
        None,
        "Evaluate the policy's best actions every n steps, in separate environments; the best policy is "
        "kept in the run's folder (default: no evaluations)",
        unit="environment steps",
        low=1,
    )
    eval_episodes: int = option(10, "Episodes per evaluation", low=1)
    divergence_monitoring_steps: int | None = option(
        None,
        "Step from which plateaus are looked for and early stopping is active",
        unit="environment steps",
        low=0,
    )
    plateau_reduce_factor: float = option(
        0.9,
        "Factor by which lr is multiplied at a plateau",
        low=0.0,
        low_open=True,
        high=1.0,
    )
    plateau_reduce_patience: int = option(10, "Checks without improvement before lr is reduced", low=1)
    early_stop_patience: int = option(3, "Reductions of lr after which training is stopped", low=1)

    def check(self) -> Iterator[str]:
        """Ask for an environment and a reason to stop."""
        if not self.env:
            yield "env must be given: an environment id such as CartPole-v1. `operant list envs` shows ids."
        yield from argument_faults(self.env_kwargs)
        if self.max_steps is None and self.target_reward is None:
            yield "train requires --target-reward or --max-steps: without them it would not end."
        if self.history_checkpoint is not None and Path(self.history_checkpoint).suffix != ".parquet":
            must = "a path that ends with .parquet"
            yield str(value_error("history_checkpoint", must, self.history_checkpoint))
        if self.coordinator is None:
            for name in ("n_processes", "process_id"):
                if getattr(self, name) is not None:
                    yield f"{name} is for processes that train together. Give --coordinator too."
        elif {self.n_processes is None, self.process_id is None} != {self.coordinator == "auto"}:
            yield "coordinator needs --n-processes and --process-id, or is auto, without them."
        elif self.seed is None and self.resume is None:
            yield "Processes that train together need the same --seed."
        if self.eval_frequency is None:
            if self.eval_episodes != default(RunConfig, "eval_episodes"):
                yield (
                    f"eval_episodes is for evaluations. Received: eval_episodes={self.eval_episodes} without "
                    "eval_frequency. Add --eval-frequency."
                )
        elif self.coordinator is not None:
            yield (
                f"eval_frequency is for a single process. Received: eval_frequency={self.eval_frequency} "
                "with coordinator. Leave it out, and evaluate the run by `operant play RUN --episodes N`."
            )
        if len(set(self.info_keywords)) < len(self.info_keywords) or "" in self.info_keywords:
            yield str(value_error("info_keywords", "different names in info", self.info_keywords))
        if self.max_frame and not self.preprocess:
            yield (
                "max_frame is a part of preprocessing. Received: max_frame=True, preprocess=False. "
                "Add --preprocess (preprocess=True)."
            )
        if self.divergence_monitoring_steps is None:
            for name in MONITORING:
                if getattr(self, name) != default(RunConfig, name):
                    yield (
                        f"{name} is for divergence monitoring. Received: {name}={getattr(self, name)!r} "
                        "without divergence_monitoring_steps. Add --divergence-monitoring-steps (0: from the "
                        "beginning)."
                    )


def images(config: Config) -> dict[str, Any]:
    """Return the options of a config that say what is done to images, as far as they are given."""
    kind = type(config)
    return {name: getattr(config, name) for name in IMAGES if getattr(config, name) != default(kind, name)}


def without_images(config: Any) -> Any:
    """Return the options of a run, or of playing, with images left as they are."""
    return config.replace(**{name: default(type(config), name) for name in IMAGES})


def located(run: RunConfig) -> RunConfig:
    """Return options whose paths are absolute, as of the working directory now."""
    base = working_directory()
    several = {name: getattr(run, name) for name in ("checkpoints", "weights")}
    places = {name: tuple(path and str(base / path) for path in paths) for name, paths in several.items()}
    single = {name: getattr(run, name) for name in ("history_checkpoint", "run_dir")}
    return run.replace(**places, **{name: path and str(base / path) for name, path in single.items()})


class ProcessConfig(Config):
    """Options of commands that compile programs: of this process, and of no run."""

    compilation_cache: bool = option(
        True, "Keep compiled programs for later commands (OPERANT_COMPILATION_CACHE says where; 0: nowhere)"
    )


class RunnerConfig(Config):
    """Options of `operant run` and `run.py`, which start a `Runner`."""

    agent: str | None = option(
        None, "Agent: a name, a JSON file, an importable class, or the directory of a saved agent"
    )
    environment: str | None = option(
        None, "Environment: an id, a JSON file, an importable class, or gym with --level"
    )
    level: str | None = option(None, "Level of the environment: for gym the id")
    env_kwargs: dict[str, Any] | None = option(None, ENVIRONMENTS)
    max_episode_timesteps: int | None = option(
        None, "Time limit of an episode, if shorter than the environment's own", low=1
    )
    import_modules: str | None = option(
        None, "Modules to import before the environment is made, separated by commas"
    )
    visualize: bool = option(False, "Show the environment in a window")
    visualize_directory: str | None = option(None, "Directory for a video (mp4) of each episode")
    episodes: int | None = option(None, "Episodes to run, over all environments", low=1)
    timesteps: int | None = option(None, "Timesteps to run, over all environments", low=1)
    updates: int | None = option(None, "Updates of the agent to run", low=1)
    num_parallel: int | None = option(None, "Number of environments", low=2)
    batch_agent_calls: bool = option(False, "Call the agent once for all environments")
    sync_timesteps: bool = option(False, "Step all environments together")
    sync_episodes: bool = option(False, "Begin the episodes of all environments together")
    remote: str | None = option(
        None,
        "Run environments in processes (multiprocessing), on servers (socket-client) or on a Ray cluster "
        "(ray); socket-server: serve environments",
        choices=("multiprocessing", "socket-client", "ray", "socket-server"),
    )
    blocking: bool = option(False, "Wait for the answer to each call of a remote environment")
    host: str | None = option(
        None,
        "Hosts of the servers, separated by commas; with ray: head of the cluster; with socket-server: "
        "address to listen on",
    )
    port: str | None = option(
        None, "Ports of the servers, separated by commas, or the first of consecutive ones"
    )
    token_file: str | None = option(
        None, "File with the token that the servers require (default: the variable OPERANT_TOKEN)"
    )
    certificate: str | None = option(
        None, "File with the servers' certificate, or its issuer's, or system; turns TLS on"
    )
    evaluation: bool = option(
        False, "Use the last of several environments for evaluation; a single one only evaluates"
    )
    mean_horizon: int = option(1, "Episodes over which figures and the score are averaged", low=1)
    save_best_agent: str | None = option(None, "Directory for the agent with the best score")
    checkpoints: str | None = option(
        None, "DIRECTORY[,NAME] to save the agent to, every five minutes and at the end"
    )
    summaries: str | None = option(
        None, "Directory for TensorBoard's event files, or DIRECTORY,NAME for a folder within it"
    )
    recordings: str | None = option(
        None, "Directory for traces of the agent's episodes, on which another agent can be pretrained"
    )
    repeat: int = option(1, "Number of runs, each with a fresh agent and the next seed", low=1)
    path: str | None = option(
        None, "Write returns, lengths and times to PATH.json and a plot to PATH.png; needs --episodes"
    )
    seaborn: bool = option(False, "Draw the plot in the style of seaborn")
    seed: int | None = option(None, "Random seed (default: the agent's own, else 0)", low=0, high=2**32 - 1)
    quiet: bool = option(False, "Show no progress bar")

    def check(self) -> Iterator[str]:
        """Ask for what a run needs."""
        yield from self._folder_faults()
        yield from argument_faults(self.env_kwargs, SET_BY_RUN)
        if self.remote == "socket-client":
            if any(value is not None for value in (self.environment, self.level, self.env_kwargs)):
                yield (
                    "With --remote socket-client the servers have the environments. "
                    "Leave --environment, --level and --env-kwargs out."
                )
        elif self.environment is None and self.level is None:
            yield (
                "run needs an environment: --environment CartPole-v1, or --environment gym --level "
                "CartPole-v1."
            )
        for name in ("token_file", "certificate"):
            if self.remote != "socket-client" and getattr(self, name) is not None:
                yield f"{name} is for --remote socket-client. Received: {name}={getattr(self, name)!r}."
        if self.remote == "socket-server":
            if self.agent is not None:
                yield (
                    "--remote socket-server serves an environment; the agent is elsewhere. Leave --agent out."
                )
            return
        if self.agent is None:
            yield "run needs an agent: --agent with a name (see `operant list agents`) or a JSON file."
        if self.episodes is None and self.timesteps is None and self.updates is None:
            yield "run needs a limit: --episodes, --timesteps or --updates."
        if self.path is not None and self.episodes is None:
            yield "--path writes a row for each episode. Give --episodes."

    def _folder_faults(self) -> Iterator[str]:
        """Yield why folders cannot be made, before a run that would write to them at its end."""
        for name in (
            "visualize_directory",
            "save_best_agent",
            "checkpoints",
            "summaries",
            "recordings",
            "path",
        ):
            value = getattr(self, name)
            if value is None:
                continue
            place: str | Path = value.partition(",")[0] if name in ("checkpoints", "summaries") else value
            try:
                as_folder(name, Path(value).parent if name == "path" else place, value)
            except SpecError as fault:
                yield str(fault)


SHORT = {
    "agent": "a",
    "checkpoints": "c",
    "summaries": "s",
    "environment": "e",
    "level": "l",
    "max_episode_timesteps": "m",
    "evaluation": "v",
    "episodes": "n",
    "timesteps": "t",
    "updates": "u",
    "repeat": "r",
}
"""Short forms of flags of `operant run`."""
