"""A report to look at: what runs or a study did, in one page of HTML."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from operant import __version__
from operant.agents.table import AGENTS, config_class
from operant.errors import OperantError, SpecError, UsageError, as_folder, quoted, reading, value_error
from operant.execution.play import PlayConfig, play
from operant.spec import Config, default, option, options, plain
from operant.spec.run import RunConfig
from operant.tracking.bootstrap import interval
from operant.tracking.figures import line_styles
from operant.tracking.history import read_history
from operant.tracking.learning_curves import draw_lines, settled
from operant.tracking.metric_table import METRICS
from operant.tracking.metrics import read_metrics
from operant.tracking.plot_style import figure, label_axes
from operant.tracking.report_page import Page
from operant.tracking.runs import EVALUATIONS, Run, grouped, read, read_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from operant.tracking.learning_curves import Line
    from operant.training.run_dir import RunEntry

SIZE = (4.8, 3.1)
"""Inches of a figure: its text is as large as the page's on a telephone."""
FIRST = ("loss/", "policy/entropy", "policy/std", "episode/length_mean")
"""How the names of the metrics begin that a reader sees before asking for more."""
DRAWN_BETTER = (
    "episode/reward_mean",
    "episode/reward_best",
    "evaluation/reward_mean",
    "evaluation/reward_best",
)
"""Metrics that curves of the history show already."""
OF_THE_PLACE = {"env", "run_dir", "resume", "quiet", "seed"}
"""Options of a run that say nothing of its experiment, or stand elsewhere on the page."""
TRIALS = 500
"""Most trials of a study in its table, the best."""
Value = tuple[str, Any]


class ReportConfig(Config):
    """Options of `operant report`."""

    out: str = option("report.html", "File to write (.html)")
    study: str | None = option(None, "Name of a study of `operant tune` to report, instead of runs")
    storage: str | None = option(
        None, "With --study: database URL of the study (default: studies/STUDY/study.db)"
    )
    video: bool = option(
        True, "Show a video of the final policy, of the seed whose mean return is best (extra video)"
    )
    video_steps: int = option(1000, "Environment steps after which a video stops", low=1)
    env: str = option("", "The runs' environment, given again if it is of a module in the current folder")
    level: float = option(0.95, "Confidence level of the bootstrap intervals", low=0.01, high=0.999)

    def check(self) -> Iterator[str]:
        """Refuse a file that is no page."""
        if Path(self.out).suffix.lower() not in (".html", ".htm"):
            yield str(value_error("out", "a file that ends with .html", self.out))
        if self.storage is not None and self.study is None:
            yield "storage is for --study NAME, which was not given."


def report(paths: Sequence[str | Path], config: ReportConfig | None = None) -> Path:
    """Write a page about runs, or about a study; return the file.

    The page is one file, which loads nothing and runs nothing. Runs are folders of runs, or folders of such
    folders; those of one agent with the same settings are seeds of one curve.

    Raises:
        OperantError: a run or the study cannot be read, or an option does not fit; nothing is written then.
    """
    config = ReportConfig.from_dict({}) if config is None else config
    out = Path(config.out)
    as_folder("out", out.parent, config.out)
    if bool(paths) == (config.study is not None):
        raise UsageError(
            "report needs runs, operant report RUN ..., or a study, operant report --study NAME."
        )
    page = _of_runs(paths, config) if config.study is None else _of_study(config.study, config)
    page.text(f"Written by operant {__version__}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(str(page), encoding="utf-8", errors="replace")  # names of folders may be no text
    return out


class _Member:
    """All that the page needs of one run."""

    def __init__(self, run: Run) -> None:
        from operant.training.run_dir import run_entry

        file = run.path / "run.json"
        if run.path.suffix == ".parquet":
            raise SpecError(
                f"report needs folders of runs, which say what they are. Received: {str(run.path)!r}."
            )
        self.run = run
        self.data = read_run(file)
        with reading(repr(str(file)), SpecError):
            self.entry: RunEntry = run_entry(run.path, self.data)
            self.commands = [part["command"] for part in (self.data, *self.data.get("resumed", ()))]
            facts = {**self.data["versions"], **self.data["machine"], **(self.data.get("git") or {})}
            self.facts = {name: str(value) for name, value in facts.items() if value is not None}
            self.settings = unusual(self.data)
        self.metrics = read_metrics(run.path / "metrics.jsonl")
        self.returns = _means(run.columns)
        evaluated = (run.path / EVALUATIONS).exists()
        self.evaluations = _means(read_history(run.path / EVALUATIONS)) if evaluated else _NONE
        self.final = _last(self.returns)


_NONE = (np.empty(0), np.empty(0))


def _means(history: Mapping[str, np.ndarray]) -> Line:
    return settled(history, "mean_reward", history["step"])


def _last(line: Line) -> float:
    """Return the last value of a line; NaN if it has none."""
    return float(line[1][-1]) if line[1].size else np.nan


def unusual(data: Mapping[str, Any]) -> dict[str, Value]:
    """Return the options of a run that differ from their defaults, with those, by name."""
    kind = data["agent"]["type"]
    known: dict[str, Any] = {}
    if kind in AGENTS:  # another's class is not imported for a page
        cls = config_class(kind)
        known = {**{name: default(cls, name) for name in options(cls)}, **AGENTS[kind].options}
    known = {name: plain(value) for name, value in known.items()}
    known |= {name: plain(default(RunConfig, name)) for name in options(RunConfig)}
    given = {**{n: v for n, v in data["run"].items() if n not in OF_THE_PLACE}, **data["agent"]}
    return {
        name: (shown_value(known.get(name)), value)
        for name, value in given.items()
        if name != "type" and value != known.get(name, ...)
    }


def shown_value(value: Any) -> str:
    """Return the value of an option for readers."""
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value in (None, [], "") else value if isinstance(value, str) else json.dumps(value)


def _of_runs(paths: Sequence[str | Path], config: ReportConfig) -> Page:
    groups = {
        env: {label: [_Member(run) for run in runs] for label, runs in labels.items()}
        for env, labels in grouped(read(paths)).items()
    }
    styles = line_styles(groups)
    every = [seed for labels in groups.values() for seeds in labels.values() for seed in seeds]
    page = Page(f"{' and '.join(styles)} on {' and '.join(groups)}")
    page.text(f"{len(every)} run{'s' if len(every) > 1 else ''}")
    for env, labels in groups.items():
        page.heading(env)
        _results(page, labels, config)
        page.legend({f"{label} ({len(seeds)})": styles[label] for label, seeds in labels.items()})
        _curves(page, labels, styles, config)
        if config.video:
            page.heading("Final policy", 3)
            _video(
                page,
                max(
                    (s for seeds in labels.values() for s in seeds),
                    key=lambda s: np.nan_to_num(s.final, nan=-np.inf),
                ),
                config,
            )
    page.heading("Settings")
    _settings(
        page, {f"{label}, {env}": seeds[0] for env, group in groups.items() for label, seeds in group.items()}
    )
    page.heading("Runs")
    page.table(
        ("run", "agent", "environment", "seed", "steps", "episodes", "mean return", "best evaluation",
         "begun (UTC)", "ended"),
        [
            (s.run.path, e.agent, e.env, e.seed, f"{e.step:,}", f"{e.episodes:,}", _number(s.final),
             _number(e.best_evaluation), e.begun[:16].replace("T", " "), e.ended or "no")
            for s, e in ((s, s.entry) for s in every)
        ],
    )  # fmt: skip
    page.heading("Repeat")
    page.text("As the runs were begun:")
    for command in dict.fromkeys(command for seed in every for command in seed.commands):
        page.code(str(command))
    page.text("Again from the recorded options and seed, with a comparison of the outcome:")
    page.code("\n".join(f"operant reproduce {quoted(str(seed.run.path))}" for seed in every))
    page.heading("Versions and machine")
    names = dict.fromkeys(name for seed in every for name in seed.facts)
    page.table(
        ("", "value"),
        [(n, ", ".join(dict.fromkeys(s.facts[n] for s in every if n in s.facts))) for n in names],
    )
    return page


def _number(value: float | None) -> str:
    return "-" if value is None or np.isnan(value) else f"{value:,.2f}"


def _results(page: Page, labels: Mapping[str, Sequence[_Member]], config: ReportConfig) -> None:
    rows = []
    for label, seeds in labels.items():
        ends, finals = [_last(seed.evaluations) for seed in seeds], [seed.final for seed in seeds]
        steps = sorted({seed.entry.step for seed in seeds})
        reached = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        rows.append((label, len(seeds), reached, _estimate(finals, config), _estimate(ends, config)))
    page.table(("", "seeds", "environment steps", "mean return at the end", "last evaluation"), rows)


def _estimate(values: Sequence[float], config: ReportConfig) -> str:
    values = [value for value in values if not np.isnan(value)]
    if len(values) < 2:
        return _number(values[0] if values else None)
    center, low, high = interval(values, level=config.level)
    return f"{_number(center)} [{_number(low)}, {_number(high)}]"


def _curves(
    page: Page, labels: Mapping[str, Sequence[_Member]], styles: Mapping[str, Any], config: ReportConfig
) -> None:
    several = any(len(seeds) > 1 for seeds in labels.values())
    note = f"; mean over seeds with {100 * config.level:g}% bootstrap interval" if several else ""
    first: list[tuple[str, str, Figure]] = []
    for title, about, column in (
        ("Mean return", "of the last episodes in training", "returns"),
        ("Evaluations", "mean return without exploration", "evaluations"),
    ):
        lines = {label: [getattr(seed, column) for seed in seeds] for label, seeds in labels.items()}
        first += _drawn(title, about + note, "mean return", lines, styles, config)
    names = dict.fromkeys(name for seeds in labels.values() for s in seeds for name in s.metrics)
    more: list[tuple[str, str, Figure]] = []
    for name in sorted(names.keys() - set(DRAWN_BETTER)):
        lines = {
            label: [s.metrics[name] for s in seeds if name in s.metrics] for label, seeds in labels.items()
        }
        known = METRICS.get(name)
        about, unit = ("", "") if known is None else (known.meaning.replace("`", ""), known.unit)
        (first if name.startswith(FIRST) else more).extend(_drawn(name, about, unit, lines, styles, config))
    if not first:
        page.text("No episode has ended yet.")
    page.figures(first)
    if more:
        page.figures(more, fold=f"{len(more)} more curves")


def _drawn(
    title: str,
    about: str,
    unit: str,
    lines: Mapping[str, Sequence[Line]],
    styles: Mapping[str, Any],
    config: ReportConfig,
) -> list[tuple[str, str, Figure]]:
    """Draw a curve for each label that has one; none if no label has."""
    lines = {label: [(x, y) for x, y in seeds if len(x)] for label, seeds in lines.items()}
    drawing = figure(*SIZE)
    ax = drawing.add_subplot()
    for label, seeds in lines.items():
        with contextlib.suppress(SpecError):  # seeds that do not overlap, as of a run that has only begun
            draw_lines(ax, {label: seeds}, styles, level=config.level, points=150)
    if not ax.lines:
        return []
    label_axes(ax, "", "environment steps", unit, legend="", ticks=5)
    return [(title, about, drawing)]


def _video(page: Page, seed: _Member, config: ReportConfig) -> None:
    with tempfile.TemporaryDirectory() as folder:
        how = {"run_dir": str(seed.run.path), "video_dir": folder, "max_steps": config.video_steps}
        try:
            played = play(PlayConfig.from_dict({**how, "env": config.env}))
        except OperantError as error:
            page.text(f"There is no video: {error}")
            return
        ends = (
            f"return {played.rewards[0]:g}" if played.rewards else f"the first {config.video_steps:,} steps"
        )
        page.text(f"An episode of {seed.run.path}, without exploration: {ends}.")
        page.video(played.files[0])


def _settings(page: Page, columns: Mapping[str, _Member]) -> None:
    names = dict.fromkeys(name for seed in columns.values() for name in seed.settings)
    if not names:
        page.text("All options have their defaults.")
        return
    page.text("Options that differ from their defaults:")
    rows = []
    for name in names:
        usual = next(seed.settings[name][0] for seed in columns.values() if name in seed.settings)
        cells = [shown_value(s.settings[name][1]) if name in s.settings else usual for s in columns.values()]
        rows.append((name, usual, *cells))
    page.table(("option", "default", *columns), rows)


def _of_study(name: str, config: ReportConfig) -> Page:
    from operant.tuning import study as studies
    from operant.tuning.tune import pictures

    study = studies.load(name, config.storage)
    with reading(f"The study {name!r}", SpecError):
        trials = study.get_trials(deepcopy=False)
        best = studies.best(study)
        drawn = pictures(study)
        about = study.user_attrs
        page = Page(f"Study {name}: {about['agent']} on {about['env']}")
    states = [trial.state.name.lower() for trial in trials]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    page.text(f"{len(trials)} trials of {about.get('trial_steps', '?')} environment steps: {counts}.")
    if best is None:
        page.text("No trial was finished yet.")
    else:
        page.heading("Best settings")
        page.text(f"Trial {best.number}, mean return {best.value:,.2f}.")
        page.table(("parameter", "value"), [(n, shown_value(value)) for n, value in best.params.items()])
        page.text("Train with its settings:")
        storage = () if config.storage is None else ("--storage", studies.shown(config.storage))
        page.code(quoted("operant", "train", "--from-study", name, *storage))
        page.heading("Fixed settings", 3)
        fixed = {**best.run, **{n: v for n, v in best.options.items() if n not in best.params}}
        page.table(("option", "value"), [(n, shown_value(value)) for n, value in fixed.items()])
    titles = {
        "history": ("History", "mean return of each trial, and the best so far"),
        "importances": ("Importances", "how well a parameter tells the best trials from all"),
        "parallel": ("Parameters", "a line for each complete trial, coloured by its mean return"),
    }
    page.heading("Trials")
    small = [(*titles[n], drawing) for n, drawing in drawn.items() if n != "parallel"]
    for _, _, drawing in small:
        drawing.set_figwidth(SIZE[0])
    page.figures(small)
    page.figures(
        [(*titles["parallel"], drawn["parallel"])] if "parallel" in drawn else [], classes="plate wide"
    )
    names = dict.fromkeys(n for trial in trials for n in trial.params)
    ranked = sorted(trials, key=lambda t: (-np.inf if t.value is None else t.value, -t.number), reverse=True)
    page.table(
        ("trial", "state", "mean return", *names),
        [
            (t.number, t.state.name.lower(), _number(t.value), *(shown_value(t.params.get(n)) for n in names))
            for t in ranked[:TRIALS]
        ],
    )
    if len(trials) > TRIALS:
        page.text(f"The best {TRIALS} of {len(trials)} trials.")
    return page
