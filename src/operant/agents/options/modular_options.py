"""Options of the modular agent, grouped by module; read without JAX, for help."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

from operant.agents.options import tensorforce_spec
from operant.agents.options.shared_options import AgentConfig, ModelConfig, PolicyConfig, changed, number
from operant.errors import SpecError
from operant.spec import Config, Scalar, default, option, optional, options

DETERMINISTIC = "deterministic_policy_gradient"


class UpdateConfig(Config):
    """When an update is due, and from which rows."""

    unit: Literal["timesteps", "episodes"] = option(
        "timesteps", "Unit of batch-size, frequency and start", choices=("timesteps", "episodes")
    )
    batch_size: int = option(64, "Timesteps or episodes per update", low=1, search="categorical")
    frequency: Scalar | None = option(
        None,
        "Timesteps or episodes between updates; below 1: a fraction of batch-size; 0: never update "
        "(default: batch-size)",
        low=0.0,
        search="int",
        traced=True,
        aliases=("update_frequency",),
        settled=True,
    )
    start: Scalar = option(
        0,
        "Timesteps or episodes before the first update",
        low=0,
        search="int",
        traced=True,
        aliases=("start_updating",),
    )
    memory: Literal["recent", "replay"] = option(
        "recent",
        "Where batches come from: the newest timesteps or episodes (recent), or uniform draws from all that "
        "are held (replay)",
        choices=("recent", "replay"),
    )
    capacity: int | None = option(
        None,
        "Rows that the memory holds (default: as many as batch-size and horizon need, 10000 for replay)",
        unit="rows of all environments together",
        low=2,
        search="int",
    )
    episode_limit: int | None = option(
        None, "Longest episode (default: the environment's own limit)", unit="environment steps", low=1
    )


class EstimationConfig(Config):
    """How returns and advantages are estimated."""

    horizon: Scalar | None = option(
        20,
        "Number of rewards in a return (None: up to the episode's end)",
        unit="environment steps",
        low=1,
        search="int",
        traced=True,
        settled=True,
    )
    lam: Scalar = number(
        1.0,
        "λ of the returns within the horizon (0: one reward and the predicted value; 1: all rewards)",
        high=1.0,
        aliases=("trace_decay",),
    )
    predict_horizon_values: bool | None = option(
        None, "Add the predicted value of what follows the horizon (default: if there is a prediction)"
    )
    predict_terminal_values: bool = option(
        False, "Also add the predicted value of the last state of an episode that terminated"
    )
    estimate_advantage: bool | None = option(
        None, "Subtract the predicted value of the state from the return (default: if there is a baseline)"
    )
    normalize_advantage: bool = option(False, "Standardise advantages (or returns) in each batch")


class ObjectiveConfig(Config):
    """What is optimised, and how it is regularised."""

    objective: Literal["policy_gradient", "deterministic_policy_gradient", "action_value"] = option(
        "policy_gradient",
        "What is learned: a stochastic policy (policy_gradient), a deterministic one that ascends the "
        "baseline's values of its actions (deterministic_policy_gradient), or the values of actions "
        "(action_value)",
        choices=("policy_gradient", DETERMINISTIC, "action_value"),
    )
    importance_sampling: bool = option(
        False,
        "policy_gradient: weight rows by how much more probable their actions have become since the update "
        "began",
    )
    clipping_value: Scalar | None = number(
        None,
        "policy_gradient: importance sampling with weights clipped to this range around 1",
        low_open=True,
        aliases=("likelihood_ratio_clipping",),
    )
    huber_loss: Scalar | None = number(
        None, "Error of values beyond which the loss is linear (default: squared everywhere)", low_open=True
    )
    entropy_regularization: Scalar = number(
        0.0,
        "policy_gradient: weight of the policy's entropy. Larger: more exploration",
        aliases=("entropy_coef",),
    )
    l2_regularization: Scalar = number(0.0, "Weight of the sum of squared parameters")


class BaselineConfig(Config):
    """What predicts values."""

    baseline_model: Any = option(
        None,
        "Network that predicts the value of the state, or for deterministic_policy_gradient of the action: "
        "'auto', a list of widths or of layers, a Keras model, the path to a model file, or 'shared' for "
        "one more output of the policy's own network (default: none)",
        aliases=("baseline", "critic"),
    )
    baseline_weight: Scalar = number(1.0, "Weight of the baseline's loss relative to the policy's")
    baseline_optimizer: Any = option(
        None,
        "Separate optimizer for the baseline: a name or a dict (default: one for both losses together). The "
        "agent's beta1, beta2 and opt_epsilon count for it if it has the same defaults, else its defaults",
    )
    baseline_lr: Scalar | None = number(None, "Learning rate of the baseline's own optimizer (default: lr)")
    baseline_multi_step: Scalar = option(
        1, "Gradient steps per update of the baseline's own optimizer", low=1, search="int", traced=True
    )
    target_update_weight: Scalar = number(
        1.0,
        "How far target networks move towards the online ones at each sync (1: copy); policy_gradient has "
        "none",
        low_open=True,
        high=1.0,
    )
    target_sync_frequency: Scalar = option(
        1, "Updates between syncs of target networks", low=1, search="int", traced=True
    )
    double: bool = option(
        False,
        "action_value: the online network chooses the next action, the target network values it",
        aliases=("predict_action_values",),
    )
    dueling: bool = option(
        False, "action_value: separate streams for the value of the state and the advantages of the actions"
    )


class StepConfig(Config):
    """How many gradient steps an update takes, on which rows, and how."""

    multi_step: Scalar = option(1, "Gradient steps per update", low=1, search="int", traced=True)
    subsampling_fraction: Scalar | None = number(
        None,
        "Fraction of the batch in each gradient step, drawn anew every time; above 1: a number of rows "
        "(default: the whole batch)",
        low_open=True,
    )
    gradient: Literal["exact", "natural", "evolutionary"] = option(
        "exact",
        "exact: by backpropagation; natural: natural-gradient steps of at most a KL divergence of lr, in "
        "place of the optimizer's; evolutionary: estimated from losses at randomly perturbed parameters",
        choices=("exact", "natural", "evolutionary"),
    )
    cg_iterations: int = option(
        10,
        "gradient='natural': iterations of conjugate gradient",
        low=1,
        search="int",
        aliases=("cg_max_iterations",),
    )
    cg_damping: Scalar = number(0.1, "gradient='natural': added to the diagonal of the Fisher matrix")
    evolutionary_samples: int = option(
        16,
        "gradient='evolutionary': pairs of random perturbations",
        low=1,
        search="int",
        aliases=("num_samples",),
    )
    evolutionary_deviation: Scalar = number(
        0.02, "gradient='evolutionary': standard deviation of the perturbations", low_open=True
    )
    linesearch_iterations: int = option(
        0, "Step lengths to try until the loss falls (0: steps are taken as they are)", low=0, search="int"
    )
    linesearch_factor: Scalar = number(
        0.75,
        "Factor by which a step that did not lower the loss is shortened",
        low_open=True,
        high=1.0,
        aliases=("backtracking_factor",),
    )


class StatesConfig(Config):
    """What is done to states before networks see them."""

    state_preprocessing: Any = option(
        None,
        "Layers applied to states before every network: one, a list for all states of numbers, or a dict "
        "of these by state (default: none)",
    )


class ActingConfig(PolicyConfig):
    """What acting adds to the policy."""

    exploration: Scalar | None = number(
        None,
        "Probability of a random value, for each element of an int or bool action; standard deviation of "
        "the noise added to floats (default: none)",
    )
    variable_noise: Scalar | None = number(
        None,
        "Standard deviation of the noise added to the policy's parameters while it explores (default: none)",
        settled=True,
    )
    distributions: Any = option(
        None,
        "Other distributions of single actions, by name or type: {'speed': {'distribution': 'beta'}, 'turn': "
        "{'std': 'predicted'}}; of choices {'int': {'linear': False}}, for a network whose output is the "
        "logits (default: none)",
    )
    temperature: Scalar = number(
        1.0, "policy_gradient: scale of the policy's randomness while it explores (0: none)"
    )


class ModularConfig(
    ActingConfig,
    StepConfig,
    BaselineConfig,
    ObjectiveConfig,
    EstimationConfig,
    UpdateConfig,
    StatesConfig,
    ModelConfig,
):
    """Options of all modules."""

    lr: Scalar = changed(AgentConfig, "lr", 0.001)

    @classmethod
    def words(cls) -> Iterable[str]:
        """Return the names of modules."""
        return tensorforce_spec.READERS

    @classmethod
    def translated(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Read nested specifications of modules as well; None, where it is no value, is the default."""
        read = tensorforce_spec.options(given).items()
        known = options(cls)
        return {key: x for key, x in read if x is not None or key not in known or optional(cls, key)}

    def batch(self, actors: int) -> int:
        """Return roughly how many rows a gradient step has."""
        return self.batch_size if self.unit == "timesteps" else 100 * self.batch_size

    @property
    def learns(self) -> bool:
        """Whether updates ever come."""
        return self.frequency is None or bool(self.frequency != 0)

    @property
    def predicts(self) -> bool:
        """Whether something predicts values."""
        return self.objective == "action_value" or self.baseline_model is not None

    @property
    def bootstraps(self) -> bool:
        """Whether returns end in a predicted value."""
        return self.predicts if self.predict_horizon_values is None else self.predict_horizon_values

    @property
    def weighs(self) -> bool:
        """Whether rows are weighted by how much more probable their actions have become."""
        return self.importance_sampling or self.clipping_value is not None

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """The optimizers: the agent's, and the baseline's if it has its own."""
        baseline = self.baseline_optimizer
        return (*super().optimizers, *(() if baseline is None else (baseline,)))

    @property
    def advantage(self) -> bool:
        """Whether the predicted value is subtracted from returns."""
        chosen, able = self.estimate_advantage, self.objective == "policy_gradient"
        return able and self.baseline_model is not None if chosen is None else chosen

    def check(self) -> Iterator[str]:
        """Refuse what contradicts itself."""
        yield from super().check()
        if self.bootstraps and not self.predicts:
            yield (
                "predict_horizon_values needs something that predicts values. Received: baseline_model=None. "
                "Give baseline_model='auto'."
            )
        if not self.bootstraps and self.lam != 1.0:
            yield (
                "lam mixes rewards with predicted values, and nothing is predicted: it would be a second "
                f"discount. Received: lam={self.lam!r}. Leave lam at 1, or give baseline_model='auto'."
            )
        if self.estimate_advantage and self.baseline_model is None:
            yield (
                "estimate_advantage needs a baseline to subtract. Received: baseline_model=None. Give "
                "baseline_model='auto'."
            )
        if self.predict_terminal_values and not self.bootstraps:
            yield (
                "predict_terminal_values needs predict_horizon_values. Received: "
                "predict_horizon_values=False."
            )
        if self.baseline_optimizer is not None:
            from operant.ops import optimise  # imports JAX, so only if there is one to check

            try:
                optimise.Recipe.read(self.baseline_optimizer)
            except SpecError as fault:
                yield f"baseline_optimizer: {fault}"
        yield from self._memory_faults()
        yield from self._objective_faults()
        yield from self._step_faults()

    def _step_faults(self) -> Iterator[str]:
        if self.gradient != "natural":
            return
        if self.objective != "policy_gradient":
            yield (
                "gradient='natural' is that of a policy. "
                f"Received: objective={self.objective!r}. Use objective='policy_gradient'."
            )
        if self.baseline_model and self.baseline_optimizer is None:
            yield (
                "gradient='natural' steps the policy alone: a baseline needs an optimizer of "
                f"its own. Received: baseline_model={self.baseline_model!r}, "
                f"baseline_optimizer={self.baseline_optimizer!r}. Give "
                "baseline_optimizer='adam', baseline_lr=0.001."
            )

    def _memory_faults(self) -> Iterator[str]:
        if self.memory != "replay" or self.unit == "episodes":
            return
        if not isinstance(self.horizon, int | float) or self.horizon != int(self.horizon):
            yield (
                "memory='replay' needs a horizon that is a whole number. Received: "
                f"horizon={self.horizon!r}. Try horizon=1."
            )
        if self.lam != 1.0:
            yield (
                f"memory='replay' has no λ-returns. Received: lam={self.lam!r}. Leave lam out, or use "
                "memory='recent'."
            )
        if self.predict_terminal_values:
            yield "predict_terminal_values needs memory='recent'. Received: memory='replay'."
        if self.capacity is not None and self.capacity < self.batch_size:
            yield (
                "capacity must be at least batch_size. "
                f"Received: capacity={self.capacity}, batch_size={self.batch_size}."
            )

    def _objective_faults(self) -> Iterator[str]:
        if self.objective == DETERMINISTIC:
            yield from self._deterministic_faults()
        for decides, works, to, names in self._effects():
            for name in () if works else names:
                value = getattr(self, name)
                if value not in (default(type(self), name), None, False):  # 0 asks for nothing, either
                    also = "".join(f" ({alias})" for alias in (options(type(self))[name].aliases or ())[:1])
                    yield (
                        f"{name}{also} belongs to {to}. Received: {name}={value!r}, "
                        f"{decides}={getattr(self, decides)!r}. Leave it out."
                    )

    def _effects(self) -> Iterator[tuple[str, bool, str, tuple[str, ...]]]:
        """Yield an option on which others depend, if they have an effect, what they are of, their names."""
        policy, values = (self.objective == kind for kind in ("policy_gradient", "action_value"))
        baseline, own = self.baseline_model is not None, self.baseline_optimizer is not None
        natural, evolutionary = (self.gradient == kind for kind in ("natural", "evolutionary"))
        to_policy = (
            "importance_sampling",
            "clipping_value",
            "entropy_regularization",
            "normalize_advantage",
            "std",
            "distributions",
            "temperature",
        )
        yield "objective", policy, "objective='policy_gradient'", to_policy
        yield "objective", policy or values, "objective='policy_gradient'", ("estimate_advantage",)
        # Specifications from elsewhere may give `dpg` a `use_beta_distribution`: there it serves any actions.
        yield "objective", not values, "objective='policy_gradient'", ("baseline_model", "distribution")
        yield "objective", values, "objective='action_value'", ("double", "dueling")
        targets = ("target_update_weight", "target_sync_frequency")
        yield "objective", not policy, f"objective='action_value' or {DETERMINISTIC!r}", targets
        yield "baseline_model", baseline or not policy, "values: give baseline_model", ("huber_loss",)
        yield "baseline_model", baseline, "a baseline (baseline_model)", ("baseline_weight",)
        # The form of `trpo` sets an optimizer in case a baseline is given.
        yield "baseline_model", baseline or natural, "a baseline (baseline_model)", ("baseline_optimizer",)
        together = "a baseline without an optimizer of its own"
        yield "baseline_optimizer", not own, together, ("baseline_weight",)
        separate = "a baseline with an optimizer of its own (baseline_optimizer)"
        yield "baseline_optimizer", own, separate, ("baseline_lr", "baseline_multi_step")
        yield "gradient", natural, "gradient='natural'", ("cg_iterations", "cg_damping")
        to_samples = ("evolutionary_samples", "evolutionary_deviation")
        yield "gradient", evolutionary, "gradient='evolutionary'", to_samples
        yield "gradient", not natural, "gradient='exact' or 'evolutionary'", ("optimizer",)
        searched = self.linesearch_iterations > 1
        yield "linesearch_iterations", searched, "linesearch_iterations above 1", ("linesearch_factor",)

    def _deterministic_faults(self) -> Iterator[str]:
        if self.baseline_model is None or self.baseline_model == "shared":
            yield (
                f"objective={DETERMINISTIC!r} climbs the values of actions, so it needs a baseline with a "
                "network of its own. "
                f"Received: baseline_model={self.baseline_model!r}. Give baseline_model='auto'."
            )
        if self.baseline_optimizer is None and (
            self.gradient == "evolutionary" or self.linesearch_iterations
        ):
            yield (
                f"objective={DETERMINISTIC!r} stops gradients of its policy's loss to keep the baseline "
                "fixed. Evolutionary gradients and a line search compare losses instead, so that the "
                f"baseline would climb too. Received: gradient={self.gradient!r}, "
                f"linesearch_iterations={self.linesearch_iterations}, baseline_optimizer=None. Give "
                "baseline_optimizer='adam'."
            )
        if self.exploration is None:
            yield (
                f"objective={DETERMINISTIC!r} explores by noise alone. Received: exploration=None. "
                "Give its deviation, in the actions' own unit, such as exploration=0.1 (0: none)."
            )
