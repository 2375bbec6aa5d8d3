"""Baselines without Gaussian processes: mean, linear model, nearest neighbours, boosted trees.

On some benchmark sets these beat published sparse Gaussian processes, so every run reports them.
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.distributions import Categorical, Distribution, Normal
from torch.special import log_ndtr

from gpx.data.dataset import Dataset
from gpx.likelihoods.base import class_law, class_numbers
from gpx.linalg.nearest import nearest_neighbours
from gpx.metrics.boosting import boosted_trees
from gpx.metrics.evaluate import evaluate
from gpx.metrics.regression import SMALLEST_STD, trivial_law

logger = logging.getLogger(__name__)

RIDGE = 1e-6
"""Ridge of logistic regression per point; keeps weights finite for separable classes."""

CALIBRATION_ROWS = 2_000
"""Training rows whose leave-one-out errors give the neighbours' predictive variance."""

MAX_QUERIES = 10_000
"""Most test rows, evenly spaced, that are predicted by nearest neighbours."""

MIN_ROWS = 2
"""Fewest rows that have a target for a baseline to be fitted to them."""


class RoundedNormal(Normal):
    """A normal variable rounded to the nearest whole number from zero, for counts.

    ``log_prob`` is that of the rounded variable, so that it can be compared with the probability
    that a likelihood of counts gives; moments and quantiles are those before rounding.
    """

    def log_prob(self, value: Tensor) -> Tensor:
        """log P(value), for whole numbers from 0."""
        below = (value - 0.5 - self.loc) / self.scale
        above = (value + 0.5 - self.loc) / self.scale
        # in the tail where Phi is small, so that the difference keeps its digits
        turned = below + above > 0.0
        near, far = torch.where(turned, -below, above), torch.where(turned, -above, below)
        least = log_ndtr(near)
        inside = least + torch.log(-torch.expm1(log_ndtr(far) - least))
        return torch.where(value > 0, inside, log_ndtr(above))


@dataclass(frozen=True)
class _Prediction:
    """Predictive distribution, and the test rows it is for."""

    law: Distribution
    rows: Tensor | None = None
    facts: Mapping[str, float] = field(default_factory=dict)


def baselines(
    dataset: Dataset, neighbours: int = 5, max_queries: int = MAX_QUERIES
) -> dict[str, dict[str, float]]:
    """Test metrics of the baselines: ``mean``, ``linear``, ``<k>-nn`` and ``boosting``.

    Regression and counts: the training mean; least squares with intercept (minimum norm); the mean
    of the k nearest neighbours on scaled inputs; boosted trees (``gpx.metrics.boosting``). Each
    predicts a normal distribution with the variance of its training residuals (neighbours:
    leave-one-out residuals; trees: held-out ones), which gives an MNLP to compare with; for counts
    rounded to whole numbers from zero (``RoundedNormal``). Classes: the training frequencies;
    logistic regression; the neighbours' frequencies with a pseudo-count of one spread over the
    classes; boosted trees.

    Args:
        dataset: standardised; float64 or float32, on any device (baselines run in float64 on the
            CPU).
        neighbours: k.
        max_queries: see ``MAX_QUERIES``; a restriction is logged.

    Returns:
        for each baseline the metrics of ``gpx.metrics.evaluate``, with every output predicted on
        its own from the rows that have it; ``seconds`` for fitting and predicting; and ``rows`` if
        not all training rows were used.

    Cost: O(n d^2) for the linear model; for neighbours a tree search up to d = 32, above that
    O(n_test n d); O(n d) per tree.
    """
    data = dataset.to("cpu", torch.float64)
    queries = _queries(data, max_queries)
    trivial = None if data.num_classes else trivial_law(data.train_y)
    makers: dict[str, Callable[[Dataset], _Prediction]] = {
        "mean": _training_mean,
        "linear": lambda seen: _Prediction(
            _logistic_regression(seen) if seen.num_classes else _least_squares(seen)
        ),
        f"{neighbours}-nn": lambda seen: _Prediction(
            _neighbour_classes(seen, neighbours, queries)
            if seen.num_classes
            else _neighbour_mean(seen, neighbours, queries),
            queries,
        ),
        "boosting": _boosting,
    }
    found = {}
    for name, make in makers.items():
        started = time.perf_counter()
        made = _by_target(make, data) if data.missing_targets else make(data)
        seconds = time.perf_counter() - started
        found[name] = _scored(data, made, trivial) | dict(made.facts) | {"seconds": seconds}
    return found


def _by_target(make: Callable[[Dataset], _Prediction], data: Dataset) -> _Prediction:
    """Predict each output from the rows that have its target; from less than two as the mean is."""
    laws: list[Normal | None] = []
    facts: dict[str, float] = {}
    for place, name in enumerate(data.target_names):
        rows = ~data.train_y[:, place].isnan()
        if int(rows.sum()) < MIN_ROWS:
            laws.append(None)
            continue
        alone = dataclasses.replace(
            data,
            train_x=data.train_x[rows],
            train_y=data.train_y[rows, place],
            test_y=data.test_y[:, place],
            target_name=name,
            target_names=(),
        )
        made = make(alone)
        assert isinstance(made.law, Normal)
        laws.append(made.law)
        facts |= made.facts
    trivial = trivial_law(data.train_y)
    shape = next((law.loc.shape for law in laws if law is not None), None)
    if shape is None:
        return _Prediction(trivial.expand(data.test_y.shape))
    pairs = [
        (law.loc, law.scale)
        if law is not None
        else (trivial.loc[place].expand(shape), trivial.scale[place].expand(shape))
        for place, law in enumerate(laws)
    ]
    mean, std = (torch.stack(part, 1) for part in zip(*pairs, strict=True))
    return _Prediction(Normal(mean, std), made.rows, facts)


def _scored(data: Dataset, made: _Prediction, trivial: Distribution | None) -> dict[str, float]:
    asked = data.test_y if made.rows is None else data.test_y[made.rows]
    law = made.law
    if data.task == "count":
        assert isinstance(law, Normal)
        law = RoundedNormal(law.loc, law.scale)
    names = data.target_names
    return evaluate(data.task, law, asked, data.scaler, names, trivial=trivial)


def _training_mean(data: Dataset) -> _Prediction:
    if data.num_classes:
        return _Prediction(_class_frequencies(data))
    return _Prediction(trivial_law(data.train_y).expand(data.test_y.shape))


def _boosting(data: Dataset) -> _Prediction:
    found, rows = boosted_trees(data)
    law = Categorical(logits=found, validate_args=False) if isinstance(found, Tensor) else found
    return _Prediction(law, facts={"rows": rows} if rows < data.num_train else {})


def _queries(data: Dataset, limit: int) -> Tensor | None:
    if data.num_test <= limit:
        return None
    logger.info(
        "%s: the nearest-neighbour baseline takes %d of %d test rows, evenly spaced",
        data.name,
        limit,
        data.num_test,
    )
    return torch.linspace(0, data.num_test - 1, limit, dtype=torch.float64).round().long()


def _least_squares(data: Dataset) -> Normal:
    train, test = _with_intercept(data.train_x), _with_intercept(data.test_x)
    targets, width = data.train_y.reshape(data.num_train, -1), train.shape[1]
    # the triangular factor of (inputs, targets) poses the same least squares problem in few rows;
    # normal equations would square the condition number, and some sets have near-dependent columns
    factor = torch.linalg.qr(torch.cat([train, targets], dim=1), mode="r").R
    solution = np.linalg.lstsq(factor[:, :width].numpy(), factor[:, width:].numpy(), rcond=None)[0]
    weights = torch.from_numpy(solution)
    residual = targets - train @ weights
    freedom = max(data.num_train - width, 1)
    std = (residual.square().sum(0) / freedom).sqrt().clamp_min(SMALLEST_STD)
    mean = test @ weights
    shape = data.test_y.shape
    return Normal(mean.view(shape), std.expand_as(mean).reshape(shape))


def _neighbour_mean(data: Dataset, k: int, queries: Tensor | None) -> Normal:
    asked = data.test_x if queries is None else data.test_x[queries]
    mean = data.train_y[nearest_neighbours(data.train_x, asked, k)].mean(1)
    # leave-one-out errors: a training row is not its own neighbour
    count = min(CALIBRATION_ROWS, data.num_train)
    held = torch.linspace(0, data.num_train - 1, count, dtype=torch.float64).round().long()
    others = nearest_neighbours(data.train_x, data.train_x[held], k, exclude=held)
    residual = data.train_y[held] - data.train_y[others].mean(1)
    std = residual.square().mean(0).sqrt().clamp_min(SMALLEST_STD)
    return Normal(mean, std.expand_as(mean))


def _class_frequencies(data: Dataset) -> Categorical:
    classes, c = class_numbers(data.train_y, data.task), data.num_classes
    counts = torch.bincount(classes, minlength=c).to(torch.float64) + 1.0 / c
    return class_law((counts / counts.sum()).expand(data.num_test, c))


def _neighbour_classes(data: Dataset, k: int, queries: Tensor | None) -> Categorical:
    asked = data.test_x if queries is None else data.test_x[queries]
    near = nearest_neighbours(data.train_x, asked, k)
    votes = torch.nn.functional.one_hot(
        class_numbers(data.train_y, data.task)[near], data.num_classes
    )
    counts = votes.sum(1).to(torch.float64) + 1.0 / data.num_classes
    return class_law(counts / counts.sum(1, keepdim=True))


def _logistic_regression(data: Dataset) -> Categorical:
    """Multinomial logistic regression, ridge ``RIDGE``."""
    train, test = _with_intercept(data.train_x), _with_intercept(data.test_x)
    classes, shape = class_numbers(data.train_y, data.task), (train.shape[1], data.num_classes)

    def loss(flat: np.ndarray) -> tuple[float, np.ndarray]:
        weights = torch.from_numpy(flat.copy()).reshape(shape).requires_grad_()
        fit = Categorical(logits=train @ weights, validate_args=False).log_prob(classes).mean()
        value = 0.5 * RIDGE * weights.square().sum() - fit
        (gradient,) = torch.autograd.grad(value, weights)
        return float(value.detach()), gradient.numpy().ravel()

    start = np.zeros(shape[0] * shape[1])
    best = minimize(loss, start, jac=True, method="L-BFGS-B", options={"maxiter": 200})
    weights = torch.from_numpy(best.x).reshape(shape)
    return Categorical(logits=test @ weights, validate_args=False)


def _with_intercept(x: Tensor) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], dim=1)
