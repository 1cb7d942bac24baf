"""An algorithm joined to its environments, for the command line and the algorithm classes alike."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from operant import checkpoint
from operant.agents.base.agent_spec import AgentSpec
from operant.agents.base.compiled import CompiledAgent
from operant.agents.base.learner import Learner, TrainState
from operant.agents.base.protocol import Algorithm
from operant.checkpoint import weight_files
from operant.errors import MismatchError, SpecError, as_folder, shown, value_error
from operant.nn.network import SavedNetwork
from operant.spec import runtime
from operant.spec.run import RunConfig
from operant.tracking.runs import BEST
from operant.training import provenance
from operant.training.drivers.device_driver import DeviceDriver
from operant.training.drivers.device_mesh import Devices
from operant.training.drivers.driver import Driver
from operant.training.drivers.host_driver import HostDriver
from operant.training.environments import Environments
from operant.training.loop import TrainingLoop
from operant.training.progress import Progress


class ExperimentSetup:
    """A built algorithm, with the weights that a run begins from, and the driver of its environments.

    The run's seed must be set.

    A learner that has been built (`build`) is used, and a driver of another's.

    Raises:
        OperantError: algorithm, environments and options do not fit together; nothing has been written then.
    """

    def __init__(
        self,
        definition: AgentSpec,
        environments: Environments,
        run: RunConfig,
        learner: Learner | None = None,
        driver: Driver | None = None,
    ) -> None:
        self.definition = definition = definition.limited(environments.limit)
        self.environments = environments
        self.learner = build(definition, environments, run) if learner is None else learner
        agent = definition.to_dict()
        origin = {"agent": definition.name, "networks": {name: agent[name] for name in definition.networks()}}
        self.weights = WeightFiles(self.learner, run, origin)
        self.driver = _driver(self.learner, environments, run) if driver is None else driver
        self.specification = {
            "agent": agent,
            "spaces": environments.spaces.to_spec(),
            "parallel_interactions": run.n_envs,
            "max_episode_timesteps": None,
            "seed": run.seed,
        }
        if run.weights:
            train = self.driver.train
            self.driver.put(
                train._replace(state=load_weights(self.learner.algorithm, train.state, run.weights))
            )

    def training(
        self, run: RunConfig, directory: Path | None = None, progress: Progress | None = None
    ) -> TrainingLoop:
        """Return a training run of this session; SpecError: weights would go where it keeps its own."""
        if directory is not None:
            self.weights.stay_out_of(directory)
            if run.eval_frequency is not None:
                self.weights.stay_out_of(directory.with_name(BEST))
        return TrainingLoop(
            self.definition,
            self.driver,
            run,
            self.specification,
            directory,
            on_best=self.weights.save,
            unjudged=self.weights.save_unjudged,
            progress=progress,
        )


def threads_together(
    definition: AgentSpec, environments: Environments, run: RunConfig, runs: int
) -> int | None:
    """Return how many XLA threads each of that many runs needs for the same numbers; None: as alone."""
    product = definition.limited(environments.limit).product(run.n_envs)
    if run.threads is not None or product <= runtime.SAME_PRODUCT:
        return run.threads
    return runtime.threads_for(environments.state_shapes, product, runs)


def build(definition: AgentSpec, environments: Environments, run: RunConfig, runs: int = 1) -> Learner:
    """Start JAX as the networks of that many runs at once need it, and build the algorithm."""
    definition = definition.limited(environments.limit)
    runtime.start(environments.state_shapes, run.threads, definition.product(run.n_envs), runs)
    return Learner(definition.cls.create(definition.config, environments.spaces, run.n_envs))


def _driver(learner: Learner, environments: Environments, run: RunConfig) -> Driver:
    key = jax.random.key(run.seed or 0)
    if environments.native is None:
        if run.n_devices is not None or run.coordinator is not None:
            name, value = ("n_devices", run.n_devices) if run.n_devices else ("coordinator", run.coordinator)
            raise value_error(
                name,
                "left out where environments are not JAX-native",
                value,
                "Ids of JAX-native ones begin with jax:, gymnax: or brax:.",
            )
        return HostDriver(CompiledAgent(learner, key, run.n_envs), environments.vector, run.seed or 0)
    together = jax.device_count() if jax.process_count() > 1 else 1
    devices = Devices(run.n_devices or together)
    return DeviceDriver(learner, environments.native, run.n_envs, key, devices, name=run.env)


class WeightFiles:
    """The `checkpoints` files of a run: one for each model of the algorithm, variables only.

    Beside the variables, a file says which agent and networks they belong to, for `fitting`.

    Raises:
        SpecError: they are not as many as the models, or cannot be written to.
    """

    def __init__(self, learner: Learner, run: RunConfig, origin: Mapping[str, Any]) -> None:
        self.algorithm = learner.algorithm
        self.origin = origin
        self.paths = run.checkpoints
        if self.paths:
            _one_for_each(self.algorithm.models, "checkpoints", self.paths)
            if run.history_checkpoint is not None:
                self.stay_out_of(run.history_checkpoint)
            _expect_places(self.paths)

    def stay_out_of(self, other: str | Path) -> None:
        """Refuse to write weights where something else is written: each would overwrite the other."""
        for file in self.paths:
            if _overlap(file, other):
                must = f"paths other than {shown(other)!r}, which is written too"
                raise value_error("checkpoints", must, shown(file), "Give a path of its own for each.")

    def save(self, train: TrainState, judged: bool = True) -> None:
        """Write the variables of a better policy than before, or (not `judged`) of one never judged."""
        weights = self.algorithm.weights(train.state)
        for path, (name, variables) in zip(self.paths, weights.items(), strict=False):
            file = Path(path)
            header = {"weights": name, **self.origin, **({} if judged else {"judged": False})}
            if file.suffix in weight_files.KINDS:
                arrays = weight_files.flatten({name: variables})
                weight_files.write(file, arrays, header, file.name)
            else:
                checkpoint.save(file.parent, variables, header, name=file.name)

    def save_unjudged(self, train: TrainState) -> str | None:
        """Write the variables of a run that ended before anything judged its policy, never over others."""
        if not self.paths:
            return None
        files = ", ".join(map(shown, self.paths))
        kept = (path for path in self.paths if Path(path).is_file() or checkpoint.is_checkpoint(path))
        if any(_origin(path).get("judged", True) for path in kept):
            return f"{files} left as before"
        self.save(train, judged=False)
        return f"the last weights were written to {files}"


def fitting(definition: AgentSpec, weights: Sequence[str]) -> AgentSpec:
    """Return the definition with the networks of the weights in place of those left at their defaults.

    Each file determines the network of its own model: files may be from different runs, and a policy's alone
    says nothing of the baseline. Weights of another agent change nothing.

    Raises:
        CheckpointError: one cannot be read.
    """
    if not weights:
        return definition
    current, usual = definition.networks(), definition.usual().networks()
    fitted: dict[str, Any] = {}
    for path in filter(os.path.exists, weights):  # `_expect_weights` refuses others
        header = _origin(path)
        networks = header.get("networks")
        if header.get("agent") != definition.name or not isinstance(networks, Mapping):
            continue
        for name in current.keys() & _networks_of(str(header.get("weights")), networks) - fitted.keys():
            network = networks[name]
            if current[name] == usual[name] != network and isinstance(network, str | list | Mapping):
                fitted[name] = SavedNetwork(network, f"The weights {shown(path)!r}")
    return definition._replace(config=definition.config.replace(**fitted)) if fitted else definition


def _networks_of(model: str, names: Iterable[str]) -> set[str]:
    """Return the options whose networks a model is made of: `critic1` is of `critic_model`; else all."""
    return {name for name in names if model.startswith(name.removesuffix("_model"))} or {*names}


def load_weights(algorithm: Algorithm, state: Any, paths: Sequence[str]) -> Any:
    """Return a state whose models hold the variables of files: one for each model in order, or a single one
    of a whole agent.
    """
    weights = algorithm.weights(state)
    _expect_weights(weights, paths)
    try:
        for path, name in zip(paths, weights, strict=False):
            found = _found(path)
            if isinstance(found, Path):
                like = weights if len(paths) == 1 else {name: weights[name]}
                weights |= weight_files.unflatten(weight_files.read(found), like, found)[0]
            elif "weights" in found.header:
                weights[name] = found.load(weights[name])
            else:  # of a whole agent, in whose tree they have these names
                names = jax.tree_util.tree_map_with_path(
                    lambda at, _: f"['train'].state{jax.tree_util.keystr(at)}", state
                )
                weights = found.fitting(algorithm.weights(names), weights)
    except MismatchError as error:
        raise MismatchError(
            f"{error}\nThe weights belong to another network: give the one of their training (model=, "
            "on the command line --model, "
            "--actor-model or --critic-model), and normalize_observations and preprocess if it had them."
        ) from None
    return algorithm.with_weights(state, weights)


def _expect_places(paths: Sequence[str]) -> None:
    """Refuse, before training, paths to which weights cannot be written in the middle of it."""
    for i, file in enumerate(paths):
        path = Path(file)
        if not checkpoint.named_well(path.name):
            raise value_error("checkpoints", f"paths whose last part is {checkpoint.NAMED}", shown(file))
        as_folder("checkpoints", path.parent, shown(file))
        is_file = path.suffix in weight_files.KINDS and path.is_file() and weight_files.is_described(path)
        if not (is_file or checkpoint.replaceable(path)):
            must = "new paths, or weights that were written before"
            remedy = "Something else is there, which would be lost. Give another path."
            raise value_error("checkpoints", must, shown(file), remedy)
        for other in paths[:i]:
            if _overlap(file, other):
                must = "different paths, none inside another, one for each model"
                raise value_error("checkpoints", must, list(map(shown, paths)))


def _overlap(one: str | Path, other: str | Path) -> bool:
    a, b = Path(one).resolve(), Path(other).resolve()
    return a.is_relative_to(b) or b.is_relative_to(a)


def _found(path: str) -> checkpoint.Checkpoint | Path:
    """Return what stands at a path of `weights`: a checkpoint, the newest one in the folder of a run or of
    checkpoints, or a file of arrays.
    """
    place = Path(path)
    if place.suffix in weight_files.KINDS and place.is_file():
        return place
    folder = place / "checkpoints" if (place / "checkpoints").is_dir() else place
    if (saved := checkpoint.found(folder, without=checkpoint.MEMORY)) is not None:
        return saved
    if not place.exists():
        raise SpecError(f"The weights {shown(path)!r} do not exist.")
    kinds = ", ".join(weight_files.KINDS)
    must = f"what --checkpoints wrote, the folder of a run, a saved agent or a file of it ({kinds})"
    raise value_error("weights", must, shown(path), "There is no manifest.json in it.")


def weights_digest(path: str) -> str:
    """Return the SHA-256 of what stands at a path of `weights`."""
    found = _found(path)
    return provenance.digest(found) if isinstance(found, Path) else found.sha256


def _origin(path: str) -> Mapping[str, Any]:
    """Return what is recorded of the agent and the networks that weights belong to, and of which model they
    are (`weights`; missing: of a whole agent).
    """
    found = _found(path)
    if not isinstance(found, Path):
        header: Mapping[str, Any] = found.header
    elif weight_files.is_described(found):
        header = weight_files.header(found)
    else:
        return {}
    agent = header.get("specification", header).get("agent")
    if not isinstance(agent, Mapping):
        return header
    return {"agent": agent.get("type"), "networks": {k: v for k, v in agent.items() if k.endswith("model")}}


def _expect_weights(models: Collection[str], paths: Sequence[str]) -> None:
    """Refuse paths that cannot be weights, or are not as many as the models."""
    if len(paths) != 1 or "weights" in _origin(paths[0]):
        _one_for_each(models, "weights", paths)
    if len(paths) > 1 and not all("weights" in _origin(path) for path in paths):
        must = "files of one model each, or a single one of a whole agent"
        raise value_error("weights", must, list(map(shown, paths)))


def _one_for_each(models: Collection[str], name: str, paths: Sequence[str]) -> None:
    if len(paths) != len(models):
        raise SpecError(
            f"{name} must be {len(models)} path(s), one for each model ({', '.join(models)}). Received: "
            f"{len(paths)}."
        )
