"""The modular agent: policy, memory, update, optimizer, objective, return estimation, baseline and
exploration by choice.

Well-known algorithms are points in this space (Williams 1992; Sutton et al. 2000; Mnih et al. 2015; van
Hasselt et al. 2016; Wang et al. 2016; Schulman et al. 2016 and 2017); the agents of this module in the table
are such points with names. An update is

    rows     = the newest `batch_size` timesteps or episodes, or as many uniform draws from a replay memory
    G        = returns of at most `horizon` rewards, then V or max_a Q (`modules.reward_estimation`)
    A        = G, less the baseline's V if there is one
    θ        <- `multi_step` steps of the optimizer on the loss of the objective (`modules.objectives`), each
                on all rows or a sample of them
    target   <- the network, every `target_sync_frequency` updates

and is due every `frequency` timesteps or episodes.

Recurrent networks process rows in order, from the state that was stored when the oldest was acted on. As many
rows before the batch as the layer's `horizon` only warm them up: they have no loss of their own, though
gradients flow back through them (Kapturowski et al. 2019, stored state and burn-in). Each draw from a replay
memory is one step with the rows before it.

Deviations: predictions, and the old policy of the importance ratio, are those at the beginning of the update.
Timesteps are environment steps of all actors. The row that holds an episode's last observation is no step,
and takes part in no loss. The importance ratio is clipped to 1 ± ε. At a time limit the return bootstraps
from the prediction for the last observation; if nothing is predicted, the limit counts as a termination.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from operant.agents.base import updates
from operant.agents.base.protocol import Counters, fold
from operant.agents.base.update_counter import UpdateCount, UpdateCounter
from operant.agents.modular_parts import exploration, objectives
from operant.agents.modular_parts.batch import BatchPreparation, as_rows, as_view
from operant.agents.modular_parts.gradient_steps import TrainingPass, fit
from operant.agents.modular_parts.objectives import SHARED, VALUE, Objective
from operant.agents.modular_parts.reward_estimation import estimate
from operant.agents.modular_parts.sizes import (
    REPLAY_WARMUP,
    block_rows,
    extent,
    interval,
    recent_rows,
    replay_rows,
)
from operant.agents.options.modular_options import DETERMINISTIC
from operant.agents.options.modular_options import ModularConfig as Config
from operant.agents.options.shared_options import own_numbers
from operant.agents.parts.action_scaling import require_bounds
from operant.agents.parts.minibatches import gradient_steps, key_of_step
from operant.agents.parts.sequences import refuse_averages
from operant.agents.table import serving
from operant.errors import SpecError
from operant.memory.recent import Recent
from operant.memory.replay import Replay
from operant.nn import Head, Model, build
from operant.ops import optimise
from operant.spec import Schedule, default
from operant.spec.spaces import Spaces, masks_of, require
from operant.types import Action, Array, Arrays, Key, Metrics, Rollout, Tree


class State(NamedTuple):
    """What training changes."""

    variables: Tree
    baseline: Tree
    """Variables of a baseline with a network of its own; `()` without."""
    target: Tree
    """Parameters of the target network, or networks by model; `()` without."""
    optimizer: Tree
    baseline_optimizer: Tree
    reward_scale: Tree
    """`RewardScale`, or `()` without reward normalisation."""
    last: Array
    """Timesteps or episodes at the last update."""
    update_count: UpdateCount
    noise: Tree
    """Key of the noise on parameters; `()` without."""


class ModularPolicyState(NamedTuple):
    """What acting reads."""

    variables: Tree
    exploring: Tree
    """Parameters to explore with; `()` if they are the same."""
    baseline: Tree
    """Variables of a recurrent baseline, whose state is carried along; `()` without."""


def _network(config: Config, network: Any, spaces: Spaces) -> Any:
    """Return a network behind the preprocessing of states; layers of no state are for every float one."""
    layers = config.state_preprocessing
    if layers is None:
        return network
    if not isinstance(layers, Mapping) or "type" in layers:
        layers = {name: layers for name, leaf in spaces.states.components.items() if leaf.type == "float"}
    return {"type": "preprocessed", "network": network, "states": layers}


def _served(config: Config, spaces: Spaces) -> None:
    name = f"modular with objective={config.objective!r}"
    if config.objective == "action_value":
        require(spaces, name, {"int", "bool"}, serving(spaces))
    if config.objective == DETERMINISTIC:
        require(spaces, name, {"float"}, serving(spaces))
        require_bounds(spaces, name, "use objective='policy_gradient'")
    if config.objective != "policy_gradient":
        return
    policy = objectives.PolicyGradient(config, spaces, {}).policy
    bounded = {policy.kind(name) for name in spaces.actions.components} & {"squash", "beta"}
    explores = isinstance(config.exploration, Schedule) or bool(config.exploration)
    if explores and bounded:
        raise SpecError(
            "exploration adds noise to float actions, also beyond the bounds, where "
            f"distribution={bounded.pop()!r} has no density. "
            f"Received: exploration={config.exploration!r}. Use distribution='clip', or "
            "entropy_regularization in place of exploration."
        )


@dataclasses.dataclass(frozen=True, eq=False)
class Modular(UpdateCounter):
    """The modular agent for any mix of float, int and bool actions, masked ones included."""

    config: Config
    spaces: Spaces
    actors: int
    models: dict[str, Model]
    rows: int
    memory: Replay | Recent
    n_step: int
    """Number of rewards in a return from a replay memory."""
    warmup: int
    """Rows before those of a batch that recurrent networks process first, to warm up."""

    @classmethod
    def create(cls, config: Config, spaces: Spaces, actors: int) -> Modular:
        """Build the networks and the memory.

        Raises:
            SpaceError: the objective cannot serve the actions.
            SpecError: options and networks do not fit one another.
        """
        _served(config, spaces)
        states = spaces.states.components
        objective = objectives.OBJECTIVES[config.objective](config, spaces, {})
        network = _network(config, config.model, spaces)
        model = build(network, states, objective.heads(), normalize=config.normalize_observations)
        models = {"model": model}
        if config.baseline_model is not None and config.baseline_model != SHARED:
            head, inputs = {VALUE: Head((), scale=1.0)}, objective.baseline_inputs()
            network = _network(config, config.baseline_model, spaces)
            models["baseline"] = build(network, inputs, head, normalize=model.normalized, name="baseline")
        rows, n_step = block_rows(config, actors), 0
        warmup = max(model.horizon or 0 for model in models.values())
        refuse_averages(models)
        memory: Replay | Recent
        if config.memory == "replay" and config.unit == "timesteps":
            n_step, sequence = int(extent(config.horizon)), 1
            if any(model.recurrent for model in models.values()):
                warmup = warmup or REPLAY_WARMUP
                sequence = warmup + n_step
            memory = Replay(replay_rows(config, actors, sequence), actors, frames=spaces.states.frames)
        else:
            memory = Recent(recent_rows(config, actors, rows, warmup), actors)
        return cls(config, spaces, actors, models, rows, memory, n_step, warmup)

    @property
    def objective(self) -> Objective:
        """What is learned, with the options in force."""
        return objectives.OBJECTIVES[self.config.objective](self.config, self.spaces, self.models)

    @property
    def separate(self) -> bool:
        """Whether the baseline has a network and an optimizer of its own."""
        return self.config.baseline_optimizer is not None and "baseline" in self.models

    @property
    def has_own_steps(self) -> bool:
        """Whether the baseline has an optimizer of its own, perhaps for a network that is the policy's."""
        return self.config.baseline_optimizer is not None and self.config.baseline_model is not None

    @property
    def recurrent(self) -> tuple[str, ...]:
        """Models that remember what they saw."""
        return tuple(name for name, model in self.models.items() if model.recurrent)

    def _optimizers(self) -> tuple[optimise.Optimizer, optimise.Optimizer]:
        """Return the policy's optimizer (and of what is learned with it), and the baseline's own."""
        c = self.config
        name = c.optimizer if c.baseline_optimizer is None else c.baseline_optimizer
        lr = c.lr if c.baseline_lr is None else c.baseline_lr
        numbers = {"beta2": c.beta2, "opt_epsilon": c.opt_epsilon}
        if (own := own_numbers(name)) != own_numbers(c.optimizer):  # numbers of another kind of optimizer
            numbers = {key: own.get(key, default(type(c), key)) for key in numbers}
        baseline = optimise.optimizer(
            name, lr, c.beta1, numbers["beta2"], numbers["opt_epsilon"], c.grad_norm
        )
        return updates.optimizer(c), baseline

    def init(self, key: Key) -> State:
        """Initialise networks and optimizers; the target starts as a copy."""
        c = self.config
        start = {name: m.init(fold(key, i)) for i, (name, m) in enumerate(self.models.items())}
        state = State(
            variables=start["model"],
            baseline=start.get("baseline", ()),
            target=(),
            optimizer=(),
            baseline_optimizer=(),
            reward_scale=updates.reward_scale(c, self.actors),
            last=jnp.zeros((), jnp.uint32),
            update_count=UpdateCount.zero(),
            noise=() if c.variable_noise is None else fold(key, len(start)),
        )
        together, separate = self._learned(state)
        optimizers = self._optimizers()
        return self._synced(state)._replace(
            optimizer=optimizers[0].init(together),
            baseline_optimizer=optimizers[1].init(separate or together) if self.has_own_steps else (),
        )

    def _learned(self, state: State) -> tuple[Tree, Tree]:
        params = self.params(state)
        if not self.separate:
            return params, {}
        return {"model": params["model"]}, {"baseline": params["baseline"]}

    def _synced(self, state: State) -> State:
        return state._replace(target=jax.tree.map(jnp.copy, self.objective.followed(self.params(state))))

    def params(self, state: State) -> dict[str, Tree]:
        """Return the parameters of each model."""
        return {name: variables["params"] for name, variables in self.weights(state).items()}

    def frozen(self, state: State) -> dict[str, Tree]:
        """Return the variables of each model other than its parameters."""
        return {name: variables["state"] for name, variables in self.weights(state).items()}

    def weights(self, state: State) -> dict[str, Tree]:
        """Return the variables of each model."""
        variables = {"model": state.variables, "baseline": state.baseline}
        return {name: variables[name] for name in self.models}

    def with_weights(self, state: State, weights: dict[str, Tree]) -> State:
        """Replace the variables; the target becomes a copy of them."""
        baseline = weights.get("baseline", state.baseline)
        return self._synced(state._replace(variables=weights["model"], baseline=baseline))

    def resumed(self, state: State, counters: Counters) -> State:
        """Return a state that continues counting from these counters."""
        return super().resumed(state, counters)._replace(last=jnp.copy(self._now(counters)))

    def acting(self, state: State, counters: Counters) -> ModularPolicyState:
        """Acting needs the network and, with `variable_noise`, a noisy copy of it for every block."""
        baseline = state.baseline if "baseline" in self.recurrent else ()
        if self.config.variable_noise is None:
            return ModularPolicyState(state.variables, (), baseline)
        key = fold(state.noise, counters.rows)
        params, steady = state.variables["params"], self.models["model"].averages
        moved = exploration.perturbed(params, key, self.config.variable_noise)
        moved |= {name: params[name] for name in steady}
        return ModularPolicyState(state.variables, moved, baseline)

    def noise(self, key: Key, n: int) -> Tree:
        """Return the policy's noise and exploration's."""
        policy = self.objective.noise(fold(key, 0), n)
        if self.config.exploration is None:
            return policy, ()
        return policy, exploration.noise(fold(key, 1), self.spaces, n)

    def initial_carry(self, n: int) -> Tree:
        """Return the recurrent states of the networks at the start of an episode, by model."""
        return {name: self.models[name].initial_carry(n) for name in self.recurrent} or ()

    def act(
        self, acting: ModularPolicyState, observation: Arrays, carry: Tree, noise: Tree, explore: bool
    ) -> Action:
        """Draw actions and explore, or take the best; extras are all recurrent states before."""
        amount = self.config.exploration
        outputs, network_carry = self._forward(acting, observation, carry, explore)
        action = self.objective.act(outputs, observation, noise[0], explore)
        if explore and amount is not None:
            action = exploration.deviate(action, noise[1], amount, masks_of(observation))
        return self._with_carries(acting, observation, carry, network_carry, action)

    def recall(self, acting: ModularPolicyState, observation: Arrays, carry: Tree, action: Arrays) -> Action:
        """Return what `act` would have, had it chosen these actions, which a baseline may remember."""
        network_carry = self._forward(acting, observation, carry, True)[1]
        return self._with_carries(acting, observation, carry, network_carry, action)

    def _forward(
        self, acting: ModularPolicyState, observation: Arrays, carry: Tree, explore: bool
    ) -> tuple[Arrays, Tree]:
        variables = acting.variables
        if explore and acting.exploring != ():
            variables = {**variables, "params": acting.exploring}
        model = self.models["model"]
        return model.apply(variables, observation, carry["model"] if model.recurrent else ())

    def _with_carries(
        self,
        acting: ModularPolicyState,
        observation: Arrays,
        carry: Tree,
        network_carry: Tree,
        action: Arrays,
    ) -> Action:
        """Return an action with all networks' recurrent states: before it as extras, after it as carry."""
        if not self.recurrent:
            return Action(action, (), carry)
        after = {"model": network_carry} if "model" in self.recurrent else {}
        if "baseline" in self.recurrent:
            inputs, model = self.objective.experienced(observation, action), self.models["baseline"]
            after["baseline"] = model.apply(acting.baseline, inputs, carry["baseline"])[1]
        return Action(action, {"carry": carry}, after)

    def _now(self, counters: Counters) -> Array:
        return counters.episodes if self.config.unit == "episodes" else counters.timesteps

    def due(self, state: State, memory: Tree, counters: Counters) -> tuple[Array, Array, Array]:
        """Return whether an update is due, timesteps or episodes so far, and by how many it is late.

        A block is added at once, so an update is late by less than a block. It is due `frequency` after the
        last one was, but not before `start`, and is late by what has passed since both.
        """
        c, now = self.config, self._now(counters)
        frequency = c.batch_size if c.frequency is None else c.frequency
        every = jnp.asarray(interval(c, frequency), jnp.float32)
        since = (now - state.last).astype(jnp.float32)
        passed, start = since >= every, jnp.asarray(c.start, jnp.float32)
        begun = now.astype(jnp.float32) >= start
        beyond = jnp.minimum(since - every, now.astype(jnp.float32) - start)
        late = jnp.clip(beyond, 0.0, self.rows * self.actors - 1.0).astype(jnp.int32)
        if isinstance(self.memory, Replay) and c.unit == "timesteps":  # a memory may be younger than the run
            begun &= self.memory.begun(memory, start)
        return (passed & begun & (jnp.asarray(frequency) > 0)) | state.update_count.forced, now, late

    def update(
        self, state: State, memory: Tree, block: Rollout, counters: Counters, key: Key
    ) -> tuple[State, Tree, Metrics]:
        """Observe the block, and learn from the memory if an update is due.

        The update is a loop of one iteration or none, not a conditional: XLA copies what a conditional
        returns, a loop works in place.
        """
        scale, _ = updates.scale_block(self.config, state.reward_scale, block)
        observed = {
            name: self.models[name].observe(variables, block.observation, block.valid)
            for name, variables in self.weights(state).items()
        }
        state = state._replace(
            variables=observed["model"], baseline=observed.get("baseline", ()), reward_scale=scale
        )
        due, now, late = self.due(state, memory, counters)
        keys = key_of_step(jax.random.split(key, 3)[None])
        state, metrics = gradient_steps(
            lambda state, keys: self._improve(state, memory, late, keys),
            state,
            lambda i, _: keys(i),
            due.astype(jnp.int32),
        )
        metrics["update/lr"] = updates.lr(self.config)
        if self.config.unit == "timesteps":
            now -= late.astype(jnp.uint32)
        state = state._replace(last=jnp.where(due, now, state.last))
        return state, memory, metrics

    def imitation(self, weights: dict[str, Tree], block: Rollout) -> Array:
        """Return the imitation loss on a block; see `operant.agents.parts.imitation`."""
        c, objective = self.config, self.objective
        params = {name: variables["params"] for name, variables in weights.items()}
        frozen = {name: variables["state"] for name, variables in weights.items()}
        steady = {name: self.models[name].in_use(weights[name])["state"] for name in weights}
        values = None
        if isinstance(objective, objectives.PolicyGradient) and c.baseline_model is not None:
            values = objective.values(params, (), steady, as_view(block, block.carry, bool(self.recurrent)))
            values = jax.lax.stop_gradient(values).reshape(-1, block.reward.shape[1], 1)
        target = estimate(block, values, gamma=c.gamma, lambda_=c.lam, horizon=None)
        rows = as_rows(block, target, target[..., 0], block.carry, bool(self.recurrent))
        return objective.imitation(params, frozen, rows, block.valid.reshape(-1))

    def prepared(self, state: State, late: Array | int = 0) -> BatchPreparation:
        """Return what prepares the rows of an update that is so many timesteps or episodes late."""
        return BatchPreparation(
            self.config, self.objective, self.memory, self.n_step, self.warmup, bool(self.recurrent),
            self.params(state), self.frozen(state), state.target, state.reward_scale, late
        )  # fmt: skip

    def _improve(self, state: State, memory: Tree, late: Array, keys: Key) -> tuple[State, Metrics]:
        c, objective = self.config, self.objective
        rows, counts, metrics = self.prepared(state, late).batch(memory, keys[0])
        together, separate = self._learned(state)
        optimizers, whole, held = self._optimizers(), bool(self.recurrent), separate
        natural = objective if isinstance(objective, objectives.PolicyGradient) else None
        networks = TrainingPass(self.models, self.frozen(state), objective.inputs_of)
        together, opt_state, watched = fit(
            lambda params, frozen, rows: objective.loss({**held, **params}, frozen, rows),
            together, state.optimizer, optimizers[0], rows, counts, c, keys[1], networks, whole=whole,
            natural=natural if c.gradient == "natural" else None
        )  # fmt: skip
        state = state._replace(optimizer=opt_state)
        if self.has_own_steps:
            assert isinstance(objective, objectives.PolicyGradient | objectives.DeterministicGradient)
            valued, opt_state, other = fit(
                objective.value_loss,
                separate or together,
                state.baseline_optimizer,
                optimizers[1],
                rows,
                counts,
                c.with_values(
                    {"multi_step": c.baseline_multi_step, "gradient": "exact", "linesearch_iterations": 0}
                ),
                keys[2],
                networks,
                whole=whole,
            )
            watched = {
                **watched,
                **other,
                "update/grad_norm": jnp.hypot(watched["update/grad_norm"], other["update/grad_norm"]),
                "update/skipped": watched["update/skipped"] + other["update/skipped"],
            }
            state = state._replace(baseline_optimizer=opt_state)
            together, separate = (together, valued) if self.separate else (valued, {})
        params = {**together, **separate}
        state = state._replace(variables={**state.variables, "params": params["model"]})
        if "baseline" in params:
            state = state._replace(baseline={**state.baseline, "params": params["baseline"]})
        metrics |= watched
        has_rows = jnp.any(counts)
        state = state._replace(update_count=state.update_count.after(has_rows))
        return self._follow(state, has_rows), metrics

    def _follow(self, state: State, has_rows: Array) -> State:
        """Move the targets when they are due; an update without rows does not count."""
        c, followed = self.config, self.objective.followed(self.params(state))
        if followed == ():
            return state
        every = jnp.maximum(jnp.asarray(c.target_sync_frequency).astype(jnp.uint32), 1)
        weight = jnp.asarray(c.target_update_weight, jnp.float32)
        share = jnp.where(has_rows & (state.update_count.made % every == 0), weight, 0.0)
        return state._replace(target=optimise.interpolate(state.target, followed, share))
