"""What is kept of a run: records and the loggers that write them, histories, plots, statistics over seeds."""

from operant.tracking.bootstrap import interval
from operant.tracking.console import Console
from operant.tracking.history import History, read_history
from operant.tracking.learning_curves import learning_curve, plot_history
from operant.tracking.logger_group import LoggerGroup
from operant.tracking.metric_table import METRICS, Metric
from operant.tracking.metrics import MetricsFile
from operant.tracking.record import EpisodeRecord, Logger, Record
from operant.tracking.tensorboard import TensorBoard
from operant.tracking.wandb import WandB

__all__ = [
    "METRICS",
    "Console",
    "EpisodeRecord",
    "History",
    "Logger",
    "LoggerGroup",
    "Metric",
    "MetricsFile",
    "Record",
    "TensorBoard",
    "WandB",
    "interval",
    "learning_curve",
    "plot_history",
    "read_history",
]
