"""Does tuning help? A study of PPO on CartPole, then its best settings against the defaults over fresh seeds,
by the study's own metric.

    python benchmarks/tune.py                  # writes benchmarks/results/tune.md

Both sides train as long as a trial does, with seeds that no trial used; the score of a seed is defined like a
trial's value: the mean return of the last 100 training episodes.
"""

import argparse
import platform
import tempfile
from importlib.metadata import version
from pathlib import Path

import numpy as np

from operant.spec.run import RunConfig
from operant.tracking import interval
from operant.training.train import ExperimentConfig, train
from operant.tuning.tune import TuneConfig, plan, tune

ROOT = Path(__file__).parents[1]
ENV = "jax:CartPole-v1"
FIXED = {"n_envs": 8}
RANGES = {
    "lr": [1e-4, 1e-2],
    "n_steps": [16, 32, 64, 128],
    "ppo_epochs": [2, 4, 8],
    "gamma": [0.95, 0.999],
    "lam": [0.8, 0.99],
    "entropy_coef": [1e-4, 0.05],
    "clip_norm": [0.05, 0.4],
}
FIRST_SEED = 1000


def scores(options, steps, seeds, folder):
    """Train with some settings; return the score of each seed."""
    found = []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        run = RunConfig.from_dict(
            {
                "env": ENV,
                **FIXED,
                "max_steps": steps,
                "seed": seed,
                "quiet": True,
                "run_dir": str(folder / str(seed)),
            }
        )
        found.append(train(ExperimentConfig("ppo", options, run)).outcome.mean_reward)
    return np.array(found)


def shown(values, statistic="mean"):
    """Return a mean with its interval."""
    center, low, high = interval(values, statistic)
    return f"{center:.1f} [{low:.1f}, {high:.1f}]"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n-trials", type=int, default=30)
    parser.add_argument("--trial-steps", type=int, default=30_000)
    parser.add_argument("--n-jobs", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        config = TuneConfig.from_dict(
            {
                "study": "ppo-cartpole",
                "storage": f"sqlite:///{folder}/study.db",
                "n_trials": arguments.n_trials,
                "trial_steps": arguments.trial_steps,
                "n_jobs": arguments.n_jobs,
                "plots": str(folder / "plots"),
            }
        )
        tuned = tune(plan("ppo", config, env=ENV, seed=0, **FIXED, **RANGES))
        best = tuned.best
        steps = arguments.trial_steps
        tuned_scores = scores(best.options, steps, arguments.seeds, folder / "tuned")
        default_scores = scores({}, steps, arguments.seeds, folder / "default")
    rows = [
        ("defaults", default_scores),
        (f"best of the study (trial {best.number})", tuned_scores),
        ("difference, seed by seed", tuned_scores - default_scores),
    ]
    versions = ", ".join(f"{p} {version(p)}" for p in ("operant", "jax", "optuna", "numpy"))
    lines = [
        "# A tuning study",
        "",
        f"PPO on `{ENV}`, 8 environments: a study of {arguments.n_trials} trials of {steps:,} environment "
        "steps, then its best settings against",
        f"the defaults with {arguments.seeds} seeds that no trial used, trained as long. Score of a seed: "
        "mean return of the last 100 training episodes,",
        "which is what the study maximises. 95% bootstrap intervals over seeds.",
        "",
        "| settings | mean [95%] | IQM [95%] | worst seed | best seed |",
        "|---|---|---|---|---|",
        *(
            f"| {label} | {shown(values)} | {shown(values, 'iqm')} | {values.min():.1f} | "
            f"{values.max():.1f} |"
            for label, values in rows
        ),
        "",
        f"The study: {tuned.complete} trials complete, {tuned.pruned} pruned, {tuned.failed} failed. "
        f"The best trial's own value was {best.value:.1f}.",
        "",
        "| hyperparameter | searched | best | default |",
        "|---|---|---|---|",
    ]
    from operant.agents.table import config_class
    from operant.spec import default

    for option, values in RANGES.items():
        value = best.params[option]
        text = f"{value:.4g}" if isinstance(value, float) else str(value)
        lines.append(
            f"| `{option}` | {', '.join(map(str, values))} | {text} | "
            f"{default(config_class('ppo'), option)} |"
        )
    lines += [
        "",
        f"Command: `python benchmarks/tune.py --n-trials {arguments.n_trials} --trial-steps {steps} "
        f"--n-jobs {arguments.n_jobs} "
        f"--seeds {arguments.seeds}`. Versions: python {platform.python_version()}, {versions}.",
    ]
    (ROOT / "benchmarks" / "results" / "tune.md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
