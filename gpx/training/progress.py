"""Progress of training, and the protocol of its monitors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpx.errors import ConfigError, class_name
from gpx.methods.base.model import Model


@dataclass(frozen=True)
class Progress:
    """Progress of a run.

    Attributes:
        step: steps (or evaluations) done.
        max_steps: limit of the run.
        evidence_per_point: nats per training point, averaged since the last entry.
        parts: terms of the evidence by name, in nats per training point.
        learning_rates: by role of parameter.
        seconds_per_step: training time since the last entry.
        seconds: training time so far, without metrics, figures and checkpoints.
    """

    step: int
    max_steps: int
    evidence_per_point: float
    parts: Mapping[str, float]
    learning_rates: Mapping[str, float]
    seconds_per_step: float
    seconds: float

    def scalars(self) -> dict[str, float]:
        """What loggers plot over the steps, by its name there."""
        found = {"evidence/per_point": self.evidence_per_point}
        found |= {f"evidence/{name}": nats for name, nats in self.parts.items()}
        found |= {f"learning_rate/{role}": rate for role, rate in self.learning_rates.items()}
        return found | {"time/seconds_per_step": self.seconds_per_step}


class StopTraining(Exception):
    """Raised by a monitor to end training after the present step, as the time budget does.

    The model is kept and evaluated. Its text is the reason, for ``train.stopped`` of metrics.json.
    """


class Monitor(Protocol):
    """Receives the progress and test metrics of a run: ``gpx.fit(..., monitors=[mine])``.

    A subclass may leave either method out. Both may raise ``StopTraining``; any other exception
    ends the run, which can be resumed from its last checkpoint.
    """

    def progress(self, progress: Progress, model: Model) -> None:
        """Called every ``log_every`` steps and after the last."""

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Called with test metrics at intervals (``trainer.eval_every``), not at the end."""


def check_monitors(monitors: object) -> None:
    """Raise ConfigError unless ``monitors`` are a list of objects with ``Monitor``'s methods."""
    if not isinstance(monitors, Sequence) or isinstance(monitors, str):
        raise ConfigError(f"monitors={class_name(monitors)}: expected a list of monitors")
    for monitor in monitors:
        for name in ("progress", "metrics"):
            if isinstance(monitor, type) or not callable(getattr(monitor, name, None)):
                raise ConfigError(
                    f"monitors=[{class_name(monitor)}]: expected objects with the methods progress "
                    "and metrics, such as those of a class derived from gpx.training.Monitor"
                )
