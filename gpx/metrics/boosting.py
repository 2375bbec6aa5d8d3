"""Gradient-boosted trees of scikit-learn as a baseline.

Trees assume neither smoothness nor a metric, and on many tables they beat Gaussian processes.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Normal

from gpx.data.dataset import Dataset
from gpx.likelihoods.base import class_numbers
from gpx.metrics.regression import SMALLEST_STD

logger = logging.getLogger(__name__)

MAX_TREES = 300
"""Most trees per output or class; held-out rows choose the number."""

HELD_OUT = 0.2
"""Share of the training rows that choose the number of trees and give the predictive variance."""

MAX_ENTRIES = 10_000_000
"""Most rows x inputs x outputs (or classes) to fit; with more a random subset of rows is used."""


def boosted_trees(data: Dataset, seed: int = 0) -> tuple[Normal | Tensor, int]:
    """Predictions at the test inputs, and the number of training rows used.

    Trees are grown on four fifths of the rows, the number of trees that predicts the other rows
    best is chosen, and that many are fitted to all rows. Counts use the Poisson deviance.

    Args:
        data: float64 on the CPU.
        seed: of the held-out rows and the random subset.

    Returns:
        for regression and counts a normal distribution with the error on the held-out rows, (t,) or
        (t, p); for classes log probabilities (t, C), with a pseudo-count of one spread over the
        classes. And the number of rows.

    Cost: twice O(trees n d) operations for each output or class.
    """
    from threadpoolctl import threadpool_limits

    draws = np.random.default_rng(seed)
    width = data.num_inputs * max(data.num_outputs, data.num_classes)
    limit = max(2, MAX_ENTRIES // max(width, 1))
    rows = draws.permutation(data.num_train)[:limit]
    if len(rows) < data.num_train:
        logger.info("%s: boosting is fitted to %d random training rows", data.name, len(rows))
    held = rows[: max(1, round(HELD_OUT * len(rows)))]
    parts = held, rows[len(held) :], np.sort(rows)
    x, test_x = data.train_x.numpy(), data.test_x.numpy()
    with threadpool_limits(torch.get_num_threads(), user_api="openmp"):
        if data.num_classes:
            return _class_log_probabilities(data, x, test_x, parts), len(rows)
        targets = data.train_y.reshape(data.num_train, -1).numpy()
        laws = [_fit_output(x, target, test_x, parts, data.task) for target in targets.T]
    mean = torch.from_numpy(np.stack([law[0] for law in laws], 1))
    std = torch.tensor([max(law[1], SMALLEST_STD) for law in laws]).to(mean)
    shape = data.test_y.shape
    return Normal(mean.view(shape), std.expand_as(mean).reshape(shape)), len(rows)


Parts = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
"""Held-out rows, the other rows, and all rows."""


def _fit_output(
    x: NDArray[Any], y: NDArray[Any], test_x: NDArray[Any], parts: Parts, task: str
) -> tuple[NDArray[Any], float]:
    """Mean at the test inputs, and the root mean squared error on the held-out rows."""
    from sklearn.ensemble import HistGradientBoostingRegressor

    held, others, rows = parts
    positive = task == "count" and y[others].sum() > 0 and y[rows].sum() > 0
    options = _options("poisson" if positive else "squared_error")
    first = HistGradientBoostingRegressor(max_iter=MAX_TREES, **options).fit(x[others], y[others])
    errors = [float(((p - y[held]) ** 2).mean()) for p in first.staged_predict(x[held])]
    best = int(np.argmin(errors))
    model = HistGradientBoostingRegressor(max_iter=best + 1, **options).fit(x[rows], y[rows])
    return model.predict(test_x), errors[best] ** 0.5


def _class_log_probabilities(
    data: Dataset, x: NDArray[Any], test_x: NDArray[Any], parts: Parts
) -> Tensor:
    from sklearn.ensemble import HistGradientBoostingClassifier

    held, others, rows = parts
    classes = class_numbers(data.train_y, data.task).numpy()
    count, options = data.num_classes, _options("log_loss")

    def probabilities(found: NDArray[Any], seen: NDArray[Any], fitted: int) -> NDArray[Any]:
        full = np.zeros((len(found), count))
        full[:, seen] = found
        return (fitted * full + 1.0 / count) / (fitted + 1.0)

    best = MAX_TREES
    if len(np.unique(classes[others])) > 1:
        first = HistGradientBoostingClassifier(max_iter=MAX_TREES, **options)
        first.fit(x[others], classes[others])
        truth = np.arange(len(held)), classes[held]
        losses = [
            -np.log(probabilities(p, first.classes_, len(others))[truth]).mean()
            for p in first.staged_predict_proba(x[held])
        ]
        best = int(np.argmin(losses)) + 1
    if len(np.unique(classes[rows])) < 2:
        alone = np.ones((len(test_x), 1))
        return torch.from_numpy(np.log(probabilities(alone, classes[rows][:1], len(rows))))
    model = HistGradientBoostingClassifier(max_iter=best, **options).fit(x[rows], classes[rows])
    found = probabilities(model.predict_proba(test_x), model.classes_, len(rows))
    return torch.from_numpy(np.log(found))


def _options(loss: str) -> dict[str, Any]:
    return {"loss": loss, "early_stopping": False, "random_state": 0}
