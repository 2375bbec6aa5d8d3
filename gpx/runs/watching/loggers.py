"""Loggers for MLflow and Weights & Biases, beside TensorBoard."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Protocol

from gpx.errors import ConfigError
from gpx.methods.base.model import Model
from gpx.training.progress import Progress

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Settings = Mapping[str, str | bool | float]


class Logger(Protocol):
    """A monitor that also takes the config and the results of a run, such as TensorBoard."""

    def progress(self, progress: Progress, model: Model) -> None:
        """Called every ``log_every`` steps and after the last."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called with test metrics at intervals."""

    def text(self, name: str, text: str) -> None:
        """Called with the resolved config when the run begins."""

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Called with every figure at the end."""

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Called at the end with the options of the run and the final metrics."""

    def close(self) -> None:
        """Called last, also after an interruption."""


def _numbers(progress: Progress) -> dict[str, float]:
    found = {"evidence/per_point": progress.evidence_per_point}
    found |= {f"evidence/{name}": nats for name, nats in progress.parts.items()}
    found |= {f"learning_rate/{role}": rate for role, rate in progress.learning_rates.items()}
    return found | {"time/seconds_per_step": progress.seconds_per_step}


class MLflow:
    """Reports to the MLflow server of the environment (``MLFLOW_TRACKING_URI``).

    Args:
        folder: run folder; names the run, so that a resumed run continues it.
    """

    def __init__(self, folder: Path) -> None:
        self._mlflow = _package("mlflow")
        found = self._mlflow.search_runs(
            filter_string=f"attributes.run_name = '{folder.name}'", output_format="list"
        )
        known = found[0].info.run_id if found else None
        self._mlflow.start_run(run_id=known, run_name=None if known else folder.name)

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        self._mlflow.log_metrics(_numbers(progress), step=progress.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        self._mlflow.log_metrics({f"test/{k}": v for k, v in metrics.items()}, step=step)

    def text(self, name: str, text: str) -> None:
        """Store ``text`` as an artifact."""
        self._mlflow.log_text(text, f"{name}.yaml")

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Store a figure as an artifact."""
        self._mlflow.log_figure(figure, f"figures/{name}.png")

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Parameters and final metrics."""
        self._mlflow.log_params(dict(settings))
        self._mlflow.log_metrics(dict(metrics))

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class WeightsAndBiases:
    """Reports to Weights & Biases (``WANDB_PROJECT``, ``WANDB_MODE=offline`` and so on).

    Args:
        folder: run folder; names the run, so that a resumed run continues it.
    """

    def __init__(self, folder: Path) -> None:
        self._wandb = _package("wandb")
        self._run = self._wandb.init(
            id=folder.name, name=folder.name, dir=str(folder), resume="allow"
        )

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        self._run.log(_numbers(progress), step=progress.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        self._run.log({f"test/{k}": v for k, v in metrics.items()}, step=step)

    def text(self, name: str, text: str) -> None:
        """Store ``text`` in the config of the run."""
        self._run.config.update({name: text}, allow_val_change=True)

    def figure(self, name: str, figure: Figure, step: int) -> None:
        """Add a figure, as a picture: the package takes figures of pyplot only."""
        from PIL import Image

        drawn = BytesIO()
        figure.savefig(drawn, format="png")
        self._run.log({f"figures/{name}": self._wandb.Image(Image.open(drawn))}, step=step)

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Settings and final metrics."""
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update(dict(metrics))

    def close(self) -> None:
        """End the run."""
        self._run.finish()


LOGGERS: Mapping[str, Callable[[Path], Logger]] = {"mlflow": MLflow, "wandb": WeightsAndBiases}
"""Loggers by their name in ``trainer.loggers``."""


def require_loggers(names: list[str]) -> None:
    """Raise ConfigError for an unknown logger, or one whose package is not installed."""
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(f"trainer.loggers={name}: expected some of {', '.join(LOGGERS)}")
        _package(name)


def open_logger(name: str, folder: Path) -> Logger:
    """The logger of that name for the run in ``folder``; raises ConfigError if it fails."""
    try:
        return LOGGERS[name](folder)
    except ConfigError:
        raise
    except Exception as error:  # the package, or the network, may raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ConfigError(f"trainer.loggers={name} cannot report this run: {reason}") from error


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"trainer.loggers={name} needs the package {name}, which is not installed: "
            f"pip install 'gpx-torch[{name}]'"
        ) from error
