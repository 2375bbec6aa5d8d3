"""Loggers for MLflow and Weights & Biases, beside TensorBoard."""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
import uuid
from collections.abc import Callable, Mapping
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol

from gpx.atomic_file import write_atomically
from gpx.errors import ConfigError
from gpx.methods.base.model import Model
from gpx.training.progress import Monitor, Progress

logger = logging.getLogger(__name__)

Settings = Mapping[str, str | bool | float]

IDENTITIES = "loggers.json"
"""File of a run folder with the identity of the run at each service."""


class Logger(Monitor, Protocol):
    """A monitor that also takes the config and the results of a run, such as TensorBoard."""

    def text(self, name: str, text: str) -> None:
        """Called with the resolved config when the run begins."""

    def figure(self, name: str, picture: bytes, step: int) -> None:
        """Called with every figure at the end, as a PNG file."""

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Called at the end with the options of the run and the final metrics."""

    def close(self) -> None:
        """Called last, also after an interruption."""


class MLflow:
    """Reports to the MLflow server of the environment (``MLFLOW_TRACKING_URI``).

    Args:
        folder: run folder; names the run.
        identity: of the run at the server, which a resumed run continues; None: a new run.

    Attributes:
        identity: of the run at the server.
    """

    def __init__(self, folder: Path, identity: str | None = None) -> None:
        self._mlflow = _package("mlflow")
        name = None if identity else folder.name
        self._run = self._mlflow.start_run(run_id=identity, run_name=name)
        self.identity = str(self._run.info.run_id)

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        self._mlflow.log_metrics(progress.scalars(), step=progress.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        self._mlflow.log_metrics({f"test/{k}": v for k, v in metrics.items()}, step=step)

    def text(self, name: str, text: str) -> None:
        """Store ``text`` as an artifact."""
        self._mlflow.log_text(text, f"{name}.yaml")

    def figure(self, name: str, picture: bytes, step: int) -> None:
        """Store a figure as an artifact."""
        from PIL import Image

        self._mlflow.log_image(Image.open(BytesIO(picture)), f"figures/{name}.png")

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Parameters and final metrics; options that a resumed run has changed become tags."""
        # a parameter of MLflow never changes
        before = self._mlflow.get_run(self.identity).data.params
        changed = {k: v for k, v in settings.items() if before.get(k, str(v)) != str(v)}
        self._mlflow.log_params({k: v for k, v in settings.items() if k not in changed})
        self._mlflow.set_tags(changed)
        self._mlflow.log_metrics(dict(metrics))

    def close(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class WeightsAndBiases:
    """Reports to Weights & Biases (``WANDB_PROJECT``, ``WANDB_MODE=offline`` and so on).

    Args:
        folder: run folder; names the run.
        identity: of the run at the server, which a resumed run continues; None: a new run.

    Attributes:
        identity: of the run at the server.
    """

    def __init__(self, folder: Path, identity: str | None = None) -> None:
        self._wandb = _package("wandb")
        self.identity = uuid.uuid4().hex if identity is None else identity
        self._run = self._wandb.init(
            id=self.identity, name=folder.name, dir=str(folder), resume="allow"
        )

    def progress(self, progress: Progress, model: Model) -> None:
        """Monitor interface."""
        self._run.log(progress.scalars(), step=progress.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Monitor interface."""
        self._run.log({f"test/{k}": v for k, v in metrics.items()}, step=step)

    def text(self, name: str, text: str) -> None:
        """Store ``text`` in the config of the run."""
        self._run.config.update({name: text}, allow_val_change=True)

    def figure(self, name: str, picture: bytes, step: int) -> None:
        """Add a figure."""
        from PIL import Image

        shown = self._wandb.Image(Image.open(BytesIO(picture)))
        self._run.log({f"figures/{name}": shown}, step=step)

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """Settings and final metrics."""
        self._run.config.update(dict(settings), allow_val_change=True)
        self._run.summary.update(dict(metrics))

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class UntilItFails:
    """A logger of a service that may fail in the middle of a run: then it is told no more.

    Args:
        name: of the service.
        service: its logger.
    """

    def __init__(self, name: str, service: Logger) -> None:
        self._name = name
        self._service: Logger | None = service

    def progress(self, progress: Progress, model: Model) -> None:
        """As in ``Logger``."""
        self._tell("progress", progress, model)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """As in ``Logger``."""
        self._tell("metrics", step, metrics)

    def text(self, name: str, text: str) -> None:
        """As in ``Logger``."""
        self._tell("text", name, text)

    def figure(self, name: str, picture: bytes, step: int) -> None:
        """As in ``Logger``."""
        self._tell("figure", name, picture, step)

    def outcome(self, settings: Settings, metrics: Mapping[str, float]) -> None:
        """As in ``Logger``."""
        self._tell("outcome", settings, metrics)

    def close(self) -> None:
        """As in ``Logger``."""
        self._tell("close")

    def _tell(self, method: str, *arguments: Any) -> None:
        if self._service is None:
            return
        try:
            getattr(self._service, method)(*arguments)
        except Exception as error:  # the package, or the network, may raise anything
            if method != "close":  # or its run would be the current one of the next run, too
                with contextlib.suppress(Exception):
                    self._service.close()
            self._service = None
            logger.warning("%s is told no more of this run: %s", self._name, _reason(error))


LOGGERS: Mapping[str, Callable[[Path, str | None], MLflow | WeightsAndBiases]] = {
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}
"""Loggers by their name in ``trainer.loggers``."""


def require_loggers(names: list[str]) -> None:
    """Raise ConfigError for an unknown logger, or one whose package is not installed."""
    for name in names:
        if name not in LOGGERS:
            raise ConfigError(f"trainer.loggers={name}: expected some of {', '.join(LOGGERS)}")
        _package(name)


def open_logger(name: str, folder: Path) -> Logger:
    """The logger of that name for the run in ``folder``, whose identity is kept there.

    Raises:
        ConfigError: the service refuses the run. Later failures end its reports, not the run.
    """
    file = folder / IDENTITIES
    try:
        kept: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none yet, or written by someone else
        kept = {}
    identity = kept.get(name)
    try:
        service = LOGGERS[name](folder, identity)
    except ConfigError:
        raise
    except Exception as error:  # the package, or the network, may raise anything
        raise ConfigError(
            f"trainer.loggers={name} cannot report this run: {_reason(error)}"
        ) from error
    if service.identity != identity:
        write_atomically(file, json.dumps(kept | {name: service.identity}))
    return UntilItFails(name, service)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _package(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"trainer.loggers={name} needs the package {name}, which is not installed: "
            f"pip install 'gpx-torch[{name}]'"
        ) from error
