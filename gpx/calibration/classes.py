"""Recalibration of class probabilities: temperature, Platt's sigmoid, isotonic regression."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from scipy.optimize import isotonic_regression, minimize
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import logsigmoid, nll_loss, one_hot

from gpx.calibration.base import (
    Recalibration,
    class_distribution,
    class_logits,
    class_parameter,
    minimise_log_parameter,
    require_rows,
)
from gpx.errors import DataError
from gpx.likelihoods.base import Task, class_numbers
from gpx.warned_line import users_line

FEW = 500
"""Isotonic regression with fewer held-out rows than this gives a warning."""
MAX_ABS_LOG = 6.0
"""Largest absolute logarithm of the temperature, and of a slope."""


TEMPERATURE_DEVIATION = math.log(2.0)
"""Standard deviation of the logarithm of a temperature below one under its prior."""


class Temperature(Recalibration):
    """Temperature scaling, softmax(log p / T); keeps the most probable class.

    T > 1 makes an overconfident model less certain. Fitted by maximum likelihood of the held-out
    rows, which never decreases, and below T = 1 with a log-normal prior, one within a factor of
    two: without it T would go to zero where all rows are predicted rightly.

    Source: Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", 2017.
    """

    tasks = ("binary", "multiclass", "ordinal")
    log_temperature: Tensor

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        self.register_buffer("log_temperature", torch.zeros((), dtype=torch.float64))

    @torch.no_grad()
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """As in ``Recalibration``."""
        require_rows(y)
        logits = class_logits(predictive)
        classes = class_numbers(y, _task(predictive))

        def loss(log_temperature: float) -> float:
            scaled = logits * float(np.exp(-log_temperature))
            prior = 0.5 * (min(log_temperature, 0.0) / TEMPERATURE_DEVIATION) ** 2
            return float(nll_loss(torch.log_softmax(scaled, 1), classes)) + prior / len(y)

        self.log_temperature.fill_(minimise_log_parameter(loss, MAX_ABS_LOG))

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        scaled = class_logits(predictive) * torch.exp(-self.log_temperature)
        return class_distribution(torch.softmax(scaled, 1), predictive)

    def facts(self) -> dict[str, bool | int | float | str]:
        """``temperature``."""
        return {"temperature": float(self.log_temperature.exp())}


class Platt(Recalibration):
    """Platt scaling: sigmoid(a z + b) of the log odds z of two classes, with a > 0.

    For several classes vector scaling, softmax(a_c log p_c + b_c) with a slope a_c > 0 and an
    offset per class, which may change the most probable class. Targets are smoothed by two
    pseudo-observations: of two classes one of each for the rows of either, as published; of more,
    two in all, spread over the classes. This keeps slopes and offsets finite for separable classes
    and for classes without held-out rows. If the fit lowers the likelihood of the held-out rows,
    probabilities are left unchanged.

    Attributes:
        coefficients (2,) or (2, C): slope and offset, for several classes one column each.

    Sources: Platt, "Probabilistic outputs for support vector machines", 1999; Guo et al. 2017,
    section 4.2 (vector scaling).
    """

    tasks = ("binary", "multiclass", "ordinal")
    data_sized = ("coefficients",)
    coefficients: Tensor

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        self.register_buffer("coefficients", torch.tensor([1.0, 0.0], dtype=torch.float64))

    @torch.no_grad()
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """As in ``Recalibration``.

        Raises:
            DataError: no rows, or rows of one class.
        """
        require_rows(y)
        logits, task = class_logits(predictive), _task(predictive)
        classes, total = class_numbers(y, task), logits.shape[1]
        counts = torch.bincount(classes, minlength=total).to(logits)
        if int((counts > 0.0).sum()) < 2:
            raise DataError(
                f"all {len(y)} held-out rows are of one class, so that no sigmoid can be fitted; "
                "hold out more of them"
            )
        # a row counts (n + 2 / C) / (n + 2) for its class, 2 / C / (n + 2) for others; n are its
        # class's rows where there are two, and all rows where there are more: a class of ten in a
        # hundred rows would otherwise be at most as certain as ten rows can say
        truth = one_hot(classes, total).to(logits)
        alike = counts[classes].unsqueeze(1) if total == 2 else float(len(y))
        smoothed = (truth * alike + 2.0 / total) / (alike + 2.0)
        width = 1 if task == "binary" else total
        start = torch.stack([logits.new_ones(width), logits.new_zeros(width)])

        def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
            at = torch.from_numpy(flat.copy()).to(logits).view(2, width).requires_grad_()
            with torch.enable_grad():
                value = -(smoothed * _scale_logits(logits, at)).sum(1).mean()
                (gradient,) = torch.autograd.grad(value, at)
            return float(value.detach()), gradient.flatten().cpu().numpy()

        slope_limits = np.exp(-MAX_ABS_LOG), np.exp(MAX_ABS_LOG)
        limits = [slope_limits] * width + [(None, None)] * width
        found = minimize(
            loss, start.flatten().cpu().numpy(), jac=True, method="L-BFGS-B", bounds=limits
        )
        best = torch.from_numpy(found.x).to(logits).view(2, width)
        if nll_loss(_scale_logits(logits, best), classes) > nll_loss(logits, classes):
            best = start
        self.keep(logits, coefficients=best.squeeze(1) if width == 1 else best)

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        scaled = _scale_logits(class_logits(predictive), self.coefficients.view(2, -1))
        return class_distribution(scaled.exp(), predictive)

    def facts(self) -> dict[str, bool | int | float | str]:
        """``slope`` and ``intercept``; for several classes one pair per class, by its number."""
        slopes, offsets = self.coefficients.view(2, -1).tolist()
        if len(slopes) == 1:
            return {"slope": slopes[0], "intercept": offsets[0]}
        named = {f"slope.{number}": value for number, value in enumerate(slopes)}
        return named | {f"intercept.{number}": value for number, value in enumerate(offsets)}


def _scale_logits(log_probabilities: Tensor, coefficients: Tensor) -> Tensor:
    """Recalibrated log probabilities (n, C) of ``Platt``, for coefficients (2, 1) or (2, C)."""
    slopes, offsets = coefficients
    if len(slopes) == log_probabilities.shape[1]:
        return torch.log_softmax(slopes * log_probabilities + offsets, 1)
    z = slopes * (log_probabilities[:, 1] - log_probabilities[:, 0]) + offsets
    return logsigmoid(torch.stack([-z, z], 1))


class Isotonic(Recalibration):
    """Isotonic regression of each class's probability, by pool-adjacent-violators.

    Several classes are fitted one against the rest and normalised, which may change the most
    probable class. With n held-out rows probabilities stay 1 / (n + 2) away from 0 and 1; between
    the fitted points they are interpolated. If the fit lowers the likelihood of the held-out rows,
    as the normalisation may, probabilities are left unchanged.

    Attributes:
        places, values (C', r): scores and fitted probabilities; C' = 1 for two classes, else C.

    Source: Zadrozny and Elkan, "Transforming classifier scores into accurate multiclass probability
    estimates", 2002.
    """

    tasks = ("binary", "multiclass", "ordinal")
    data_sized = ("places", "values")
    places: Tensor
    values: Tensor

    def __init__(self, fraction: float = 0.1) -> None:
        super().__init__(fraction)
        self.register_data_sized()

    def require_enough(self, count: int) -> None:
        """As in ``Recalibration``; warns of rows that are few for a step function."""
        if count < FEW:
            warnings.warn(
                f"isotonic regression on {count} held-out rows may make predictions worse, as it "
                "needs about a thousand; calibration=Temperature() needs fewer",
                stacklevel=users_line(),
            )

    @torch.no_grad()
    def fit(self, predictive: Distribution, y: Tensor) -> None:
        """As in ``Recalibration``."""
        require_rows(y)
        logits = class_logits(predictive)
        task = _task(predictive)
        classes, scores = class_numbers(y, task), logits.exp()
        margin = 1.0 / (len(y) + 2.0)
        places, values = [], []
        for number in [1] if task == "binary" else range(logits.shape[1]):
            score, order = scores[:, number].sort()
            hits = (classes == number)[order].double()
            # rows with equal scores get one fitted value
            distinct, where, counts = score.unique(return_inverse=True, return_counts=True)
            means = torch.zeros_like(distinct).index_add_(0, where, hits) / counts
            fitted = isotonic_regression(means.cpu().numpy(), weights=counts.cpu().numpy()).x
            steps = torch.from_numpy(np.asarray(fitted)).to(score)[where]
            places.append(score)
            values.append(steps.clamp(margin, 1.0 - margin))
        self.keep(scores, places=torch.stack(places), values=torch.stack(values))
        if nll_loss(class_logits(self(predictive)), classes) > nll_loss(logits, classes):
            self.keep(scores, places=scores[:0], values=scores[:0])

    @torch.no_grad()
    def forward(self, predictive: Distribution) -> Distribution:
        """As in ``Recalibration``."""
        if not self.places.numel():
            return predictive
        scores = class_logits(predictive).exp()
        if _task(predictive) == "binary":
            p = _interpolate(scores[:, 1], self.places[0], self.values[0])
            return class_distribution(torch.stack([1.0 - p, p], 1), predictive)
        columns = zip(scores.mT, self.places, self.values, strict=True)
        fitted = torch.stack([_interpolate(*column) for column in columns], 1)
        return class_distribution(fitted / fitted.sum(1, keepdim=True), predictive)

    def facts(self) -> dict[str, bool | int | float | str]:
        """``steps``: number of distinct fitted values of all classes; 0 if unchanged."""
        return {"steps": sum(len(row.unique()) for row in self.values)}


def _interpolate(score: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Piecewise linear in ascending ``places``, which may repeat; constant beyond the ends."""
    above = torch.searchsorted(places, score.contiguous()).clamp(1, len(places) - 1)
    left, right = places[above - 1], places[above]
    share = ((score - left) / (right - left).clamp_min(1e-300)).clamp(0.0, 1.0)
    return values[above - 1] + share * (values[above] - values[above - 1])


def _task(predictive: Distribution) -> Task:
    """``binary`` if the distribution has one probability per row, otherwise ``multiclass``."""
    return "binary" if class_parameter(predictive).ndim == 1 else "multiclass"
