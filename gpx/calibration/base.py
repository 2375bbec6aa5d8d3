"""Recalibration after training: maps predictive distributions, fitted on held-out rows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.distributions import Distribution

from gpx.data_sized import DataSized
from gpx.errors import ConfigError, DataError
from gpx.likelihoods.base import Task, class_law, log_class_probabilities
from gpx.likelihoods.bernoulli import Sign

MIN_LOG_PROBABILITY = math.log(torch.finfo(torch.float64).tiny)
"""Lower limit of log probabilities, so that a probability of zero has a finite logarithm."""


class Recalibration(DataSized, ABC):
    """A map from predictive distributions to recalibrated ones; its state is in buffers.

    A subclass sets ``tasks`` and defines ``fit`` and ``forward``. It must be fitted on rows that
    the model was not trained on, since a model is more certain on training rows.

    Args:
        fraction: share of the training rows that a run holds out for recalibration.

    Raises:
        ConfigError: ``fraction`` is not in (0, 0.5].
    """

    tasks: ClassVar[tuple[Task, ...]]

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__()
        if not 0.0 < fraction <= 0.5:
            raise ConfigError(
                f"fraction={fraction} of the training rows cannot be held out; expected more than "
                "0 and at most 0.5"
            )
        self.fraction = fraction

    def require_task(self, task: Task) -> None:
        """Raise ConfigError unless targets of this task can be recalibrated."""
        if task not in self.tasks:
            *others, last = self.tasks
            listed = f"{', '.join(others)} and {last}" if others else last
            raise ConfigError(
                f"calibration {type(self).__name__} is for {listed} targets, "
                f"and these are {task}; choose another calibration=, or none"
            )

    def require_one_output(self, count: int) -> None:
        """Raise ConfigError unless there is one output."""
        if count != 1:
            raise ConfigError(
                f"calibration {type(self).__name__} takes one output, and there are {count}; "
                "leave calibration= out"
            )

    def require_enough(self, count: int) -> None:
        """Raise DataError if ``count`` held-out rows are too few; by default any number will do."""

    @abstractmethod
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """Fit to predictions for held-out rows.

        Args:
            predictive: distributions of the uncalibrated model, batch shape (n,).
            y (n,): targets as in ``Dataset``.

        Raises:
            DataError: no rows, or too few.
        """

    @abstractmethod
    def forward(self, predictive: Distribution) -> Distribution:
        """The recalibrated distribution, of the same batch shape and dtype."""

    def facts(self) -> dict[str, bool | int | float | str]:
        """The fitted parameters, as plain values for metrics.json."""
        return {}


def held_out_rows(total: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Mask (n,) of randomly chosen rows to hold out of ``total`` training rows.

    Raises:
        DataError: fewer than two rows would be held out, or left to train on.
    """
    count = round(fraction * total)
    if count < 2 or total - count < 2:
        raise DataError(
            f"fraction={fraction:g} of {total} training rows are {count} rows to calibrate on; "
            "expected 2 or more, and as many to train on: raise it, or leave calibration= out"
        )
    mask = torch.zeros(total, dtype=torch.bool)
    mask[torch.randperm(total, generator=generator)[:count]] = True
    return mask


def require_classes(y: Tensor, kept: Tensor) -> None:
    """Raise DataError unless held-out rows have two classes, and the others all classes.

    Args:
        y (n,): labels of all training rows.
        kept (n,): mask of the held-out rows.
    """
    held, left = y[kept].unique(), y[~kept].unique()
    if len(held) == 1:
        raise DataError(
            f"all {int(kept.sum())} held-out rows are of one class, which says nothing of how "
            "others are predicted; raise the fraction that calibration= holds out, or leave it out"
        )
    missing = [int(label) for label in y.unique() if not bool((left == label).any())]
    if missing:
        raise DataError(
            f"all rows of class {missing[0]} are held out, so that there are none to train on; "
            "lower fraction, or leave calibration= out"
        )


def class_logits(predictive: Any) -> Tensor:
    """Log probabilities (n, C) of the classes, or (n, 2) of the labels -1 and 1, in float64.

    Raises:
        ConfigError: the distribution has no class probabilities.
    """
    return log_class_probabilities(predictive).double().clamp_min(MIN_LOG_PROBABILITY)


def class_parameter(law: Any) -> Tensor:
    """``probs`` or ``logits`` (n,) or (n, C) of a distribution of classes."""
    found: Tensor = law.probs if hasattr(law, "probs") else law.logits
    return found


def class_distribution(probabilities: Tensor, like: Any) -> Distribution:
    """A distribution with class probabilities (n, C), of the type and dtype of ``like``."""
    given = class_parameter(like)
    if given.ndim == 1:
        return Sign(probabilities[:, 1].to(given), probabilities[:, 0].to(given))
    return class_law(probabilities.to(given))


def minimise_log_parameter(loss: Callable[[float], float], limit: float) -> float:
    """Minimise a loss of one parameter's logarithm in [-limit, limit]; zero if nothing is better.

    Args:
        loss: of the held-out rows, with one minimum.
        limit: above 0.
    """
    found = minimize_scalar(loss, bounds=(-limit, limit), method="bounded", options={"xatol": 1e-7})
    return float(found.x) if found.fun < loss(0.0) else 0.0


def require_rows(y: Tensor) -> None:
    """Raise DataError if there are no held-out rows."""
    if not len(y):
        raise DataError("there are no held-out rows to calibrate on; expected 2 or more")


def in_words(facts: Mapping[str, bool | int | float | str]) -> str:
    """Facts of a recalibration in a line; of a number for each class the least and the largest."""
    groups: dict[str, list[bool | int | float | str]] = {}
    for name, value in facts.items():
        groups.setdefault(name.partition(".")[0], []).append(value)

    def one(value: bool | int | float | str) -> str:
        return f"{value:.4g}" if isinstance(value, (int, float)) else value

    def group(values: list[Any]) -> str:
        if len(values) == 1:
            return one(values[0])
        return f"{one(min(values))} to {one(max(values))}"

    return ", ".join(f"{name} {group(values)}" for name, values in groups.items())
