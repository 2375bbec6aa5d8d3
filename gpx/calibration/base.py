"""Recalibration after training: a map of predictive distributions, fitted on held-out rows."""

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
from gpx.likelihoods.base import Task
from gpx.likelihoods.bernoulli import Sign

LEAST_LOG = math.log(torch.finfo(torch.float64).tiny)
"""Of a probability: what is impossible to a model has a logarithm nevertheless."""


class Recalibration(DataSized, ABC):
    """Makes a predictive distribution of y another one; its state is in buffers.

    A subclass sets ``tasks`` and writes ``fit`` and ``forward``. The rows that it is fitted on must
    not have been trained on: on those a model is more certain than on others.

    Args:
        fraction: share of the training rows that a run holds out for it.

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
        """Raise ConfigError, in one sentence, for targets that it does not recalibrate."""
        if task not in self.tasks:
            *others, last = self.tasks
            listed = f"{', '.join(others)} and {last}" if others else last
            raise ConfigError(
                f"calibration {type(self).__name__} is for {listed} targets, "
                f"and these are {task}; choose another calibration=, or none"
            )

    def require_one_output(self, count: int) -> None:
        """Raise ConfigError, in one sentence, unless ``count`` outputs are one."""
        if count != 1:
            raise ConfigError(
                f"calibration {type(self).__name__} takes one output, and there are {count}; "
                "leave calibration= out"
            )

    def require_enough(self, count: int) -> None:
        """Raise DataError, before training, where so many held-out rows are too few. Default: any.

        Args:
            count: of the rows.
        """

    @abstractmethod
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """Fit to predictions for held-out rows.

        Args:
            predictive: of the uncalibrated model, batch shape (n,).
            y (n,): targets as in ``Dataset``.

        Raises:
            DataError: there are no rows, or too few.
        """

    @abstractmethod
    def forward(self, predictive: Distribution) -> Distribution:
        """The recalibrated distribution, of the same batch shape and dtype."""

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for metrics.json: what was fitted."""
        return {}


def held_out_rows(total: int, fraction: float, generator: torch.Generator) -> Tensor:
    """Mask (n,) of rows held out of ``total`` training rows.

    Raises:
        DataError: fewer than two would be held out, or stay.
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
    """Raise DataError unless held-out rows of classes y (n,) are of two classes or more.

    The rows to train on must also be of every class that there is.

    Args:
        y (n,): labels of all training rows.
        kept (n,): mask of those held out.
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
    """Log probabilities (n, C) of classes, or of the two signs, in float64.

    Raises:
        ConfigError: the distribution has no class probabilities.
    """
    probs = getattr(predictive, "probs", None)
    if probs is None:
        raise ConfigError(
            f"a {type(predictive).__name__} has no class probabilities to calibrate; its "
            "predictive distribution must have probs"
        )
    probs = probs.double()
    logs = probs.log() if probs.ndim == 2 else torch.stack([torch.log1p(-probs), probs.log()], 1)
    return logs.clamp_min(LEAST_LOG)


def of_probabilities(probabilities: Tensor, like: Any) -> Distribution:
    """The distribution of given class probabilities (n, C), of the kind and dtype of another."""
    given: Tensor = like.probs
    if given.ndim == 1:
        return Sign(probabilities[:, 1].to(given))
    return torch.distributions.Categorical(probs=probabilities.to(given))


def most_likely(loss: Callable[[float], float], reach: float) -> float:
    """Where a loss of one logarithm is least within ``reach`` of zero; zero where nothing is less.

    Args:
        loss: mean negative log likelihood of the held-out rows, with one minimum.
        reach: above 0.
    """
    found = minimize_scalar(loss, bounds=(-reach, reach), method="bounded", options={"xatol": 1e-7})
    return float(found.x) if found.fun < loss(0.0) else 0.0


def require_rows(y: Tensor) -> None:
    """Raise DataError where there is nothing to fit to."""
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
