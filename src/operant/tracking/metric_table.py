"""The table of everything that training may report, from which docs/metrics.md is made."""

from __future__ import annotations

from typing import NamedTuple


class Metric(NamedTuple):
    """What a reported number means."""

    meaning: str
    unit: str = ""


METRICS: dict[str, Metric] = {
    "episode/reward_mean": Metric(
        "Mean return of the last episodes (the window is `reward_buffer_size`).", "reward"
    ),
    "episode/reward_best": Metric("The largest `episode/reward_mean` so far.", "reward"),
    "episode/reward_min": Metric("Smallest return among the last episodes.", "reward"),
    "episode/reward_max": Metric("Largest return among the last episodes.", "reward"),
    "episode/length_mean": Metric("Mean length of the last episodes.", "steps"),
    "episode/count": Metric("Episodes finished since the start of training.", "episodes"),
    "evaluation/reward_mean": Metric(
        "Mean return of evaluation episodes, without exploration (`--eval-frequency`, `operant run`).",
        "reward",
    ),
    "evaluation/reward_best": Metric(
        "The largest `evaluation/reward_mean` so far (`--eval-frequency`).", "reward"
    ),
    "evaluation/reward_std": Metric("Standard deviation of the return over evaluation episodes.", "reward"),
    "evaluation/length_mean": Metric("Mean length of evaluation episodes.", "steps"),
    "time/elapsed": Metric(
        "Time since the start of training; a resumed run continues the count (Weights & Biases).", "s"
    ),
    "time/steps_per_second": Metric(
        "Environment steps of all actors per second since the last record.", "steps/s"
    ),
    "loss/policy": Metric(
        "Policy loss: its gradient raises the probability of better actions. Its size means little."
    ),
    "loss/value": Metric(
        "Squared error (or Huber loss) of the state value against its target; half of it where the "
        "algorithm's loss has that factor.",
        "reward²",
    ),
    "loss/td": Metric(
        "Loss of the action value's temporal-difference error (`c51`: cross-entropy, in nats).", "reward²"
    ),
    "loss/critic": Metric("Loss of the critics of an actor-critic with action values.", "reward²"),
    "loss/actor": Metric(
        "Loss of the actor: the negative action value of its actions, with a temperature less the weighted "
        "entropy."
    ),
    "loss/temperature": Metric("Loss of the entropy temperature, where it is learnt."),
    "policy/entropy": Metric(
        "Entropy of the action distribution. Near zero: the policy no longer explores.", "nats"
    ),
    "policy/temperature": Metric("Weight of the entropy in the objective."),
    "policy/std": Metric(
        "Mean standard deviation of continuous actions, where a policy is learnt by their probabilities.",
        "action",
    ),
    "explore/epsilon": Metric("Probability of a random action."),
    "explore/noise": Metric("Standard deviation of the noise added to actions.", "action"),
    "value/mean": Metric("Mean predicted value. Far above any possible return: it diverges.", "reward"),
    "value/target": Metric("Mean of the targets that values are fitted to.", "reward"),
    "value/advantage_std": Metric(
        "Standard deviation of the advantages before they are normalised.", "reward"
    ),
    "memory/replays": Metric("Gradient steps on replayed experience per update.", "steps"),
    "memory/importance_weight": Metric("Mean importance weight of replayed experience."),
    "update/lr": Metric("Learning rate. An optax transformation keeps its own to itself."),
    "update/kl": Metric(
        "KL divergence between the policy that collected the data (where no densities are stored: that "
        "began the update) and the current one. Mean over the gradient steps, measured before each. With "
        "`max_kl`: measured after the step.",
        "nats",
    ),
    "update/clip_fraction": Metric("Share of samples whose probability ratio left the trusted interval."),
    "update/explained_variance": Metric(
        "How well values predict: 1 - Var(target - value) / Var(target), 1 at best."
    ),
    "update/grad_norm": Metric("Norm of the gradient over all parameters, before clipping."),
    "update/skipped": Metric(
        "Gradient steps since the last record that were left out because a gradient or a step was not "
        "finite.",
        "steps",
    ),
    "update/steps": Metric(
        "Gradient steps per update, where a limit of the divergence may end them (`target_kl`).", "steps"
    ),
    "update/line_search_steps": Metric("Backtracking steps until the update was accepted.", "steps"),
    "update/accepted": Metric("Share of steps that the line search accepted."),
    "update/count": Metric("Updates since the start of training (`operant run`).", "updates"),
}
"""Every metric that operant reports: ``group/name``, what it means, its unit (none: a pure number)."""
