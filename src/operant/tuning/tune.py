"""What `operant tune` runs: many short runs, in processes of their own, chosen by Optuna."""

from __future__ import annotations

import contextlib
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from operant.envs.catalog import is_own
from operant.errors import quoted
from operant.tracking import study_plots
from operant.tracking.plot_style import save
from operant.training import signals
from operant.tuning import study as studies
from operant.tuning.plan import StudyPlan, TuneConfig, plan
from operant.tuning.search import StudySearch, shown
from operant.tuning.study import BestTrial, from_study

if TYPE_CHECKING:
    import optuna
    from matplotlib.figure import Figure

__all__ = [
    "BestTrial",
    "StudyPlan",
    "TuneConfig",
    "TuningResult",
    "draw",
    "from_study",
    "pictures",
    "plan",
    "tune",
]


class TuningResult(NamedTuple):
    """What one call of `tune` did."""

    study: optuna.Study
    storage: str
    complete: int
    """Trials of this call that were finished."""
    pruned: int
    failed: int
    given_up: int
    """Trials that an interruption ended: they are marked as failed, and their settings wait to be tried
    again."""
    interrupted: bool
    best: BestTrial | None
    """Best trial of the whole study."""
    files: tuple[Path, ...]
    """Plots."""


def tune(plan: StudyPlan) -> TuningResult:
    """Run the trials of a plan, and then draw the study.

    A plan is tried before anything is written: environments and networks are built, in the process of the
    first trial. A trial that crashes is marked as failed, with the reason, and the study goes on. Ctrl-C (or
    a request to terminate) ends the study in order: trials that were running are marked as failed, and their
    settings wait to be tried first when the study goes on.

    Raises:
        OperantError: the plan cannot be carried out, or the storage cannot be used.
    """
    studies.need_optuna()
    import optuna

    config = plan.config
    name = config.study or studies.fresh(plan.agent, plan.run["env"])
    storage = studies.place(name, config.storage)
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.INFO if config.non_silent else optuna.logging.ERROR)
    search = StudySearch(plan, name, storage)
    try:
        with signals.orderly(search.stop):
            study = search.run()
        best = studies.best(study)
        files, trouble = [], ""
        try:
            files = draw(study, Path(config.plots or studies.folder(name)))
        except OSError as error:  # the trials are safe in the storage
            trouble = str(error)
        tuned = TuningResult(
            study, storage, **search.counts, interrupted=search.stopped, best=best, files=tuple(files)
        )
        search.say(_summary(tuned, config, trouble))
        return tuned
    finally:
        search.close()
        optuna.logging.set_verbosity(before)


def _summary(tuned: TuningResult, config: TuneConfig, trouble: str) -> str:
    name, best = tuned.study.study_name, tuned.best
    where = "" if config.storage is None else f" --storage {quoted(studies.shown(config.storage))}"
    study = quoted(name)
    states = [trial.state.name for trial in tuned.study.get_trials(deepcopy=False)]
    waiting = states.count("WAITING")
    lines = [
        f"{'Interrupted' if tuned.interrupted else 'Finished'}: {tuned.complete} "
        f"trial{'' if tuned.complete == 1 else 's'} complete, {tuned.pruned} pruned, "
        f"{tuned.failed} failed{f', {tuned.given_up} interrupted' if tuned.given_up else ''}; {len(states)} "
        f"in the study {name}" + (f", {waiting} of them waiting to be tried first" if waiting else "")
    ]
    if best is not None:
        lines.append(f"Best: trial {best.number}, mean return {best.value:.2f}{shown(best.params)}")
        agent = f"{best.agent} " if is_own(best.agent) else ""
        env = f" --env {quoted(best.run['env'])}" if is_own(best.run["env"]) else ""
        lines.append(f"Train with its settings: operant train {agent}--from-study {study}{where}{env}")
    lines.append(f"Continue: the same command with --study {study}{where}")
    if tuned.files:
        lines.append(f"Plots: {', '.join(map(str, tuned.files))}")
    if trouble:
        lines.append(f"The plots could not be written: {trouble}")
    return "\n".join(lines)


def draw(study: optuna.Study, folder: Path) -> list[Path]:
    """Write the pictures of a study (see `pictures`) to a folder; return the files."""
    return [
        save(figure, folder / f"{name}.png") for name, figure in pictures(study, study.study_name).items()
    ]


def pictures(study: optuna.Study, title: str = "") -> dict[str, Figure]:
    """Draw a study: its history, importances of the parameters, trials as lines over all (parallel).

    Returns:
        Figures by name, without those for which there are too few trials, or none with all parameters.
    """
    import optuna
    from optuna.distributions import FloatDistribution
    from optuna.trial import TrialState

    trials = [t for t in study.get_trials(deepcopy=False) if t.state.is_finished()]
    complete = [t for t in trials if t.state is TrialState.COMPLETE]
    figures: dict[str, Figure] = {}
    if complete:
        figures["history"] = study_plots.history(trials, title)
    varied = {name for p in complete for name in p.params}
    varied = {name for name in varied if len({repr(p.params.get(name)) for p in complete}) > 1}
    if len(complete) >= 2 and varied:
        shares = None
        with warnings.catch_warnings(), contextlib.suppress(UserWarning):
            # Optuna's warning that the trials are too alike to tell
            warnings.filterwarnings("error", "Target and region quantiles", UserWarning)
            shares = optuna.importance.get_param_importances(study)
        if shares is not None:
            figures["importances"] = study_plots.importances(shares, len(complete), title)
        scales = {
            name
            for t in trials
            for name, distribution in t.distributions.items()
            if isinstance(distribution, FloatDistribution) and distribution.log
        }
        every = {name for p in complete for name in p.params}
        if any(every <= p.params.keys() for p in complete):
            figures["parallel"] = study_plots.parallel(complete, scales, title)
    return figures
