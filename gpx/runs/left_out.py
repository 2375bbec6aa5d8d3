"""Leave-one-out predictions of the training rows, in the data's own units."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.data import Standardiser
from gpx.errors import NotAvailable, class_name
from gpx.inference.sampled_hyperparameters.left_out import LeftOutMixture, enough_samples
from gpx.models import ExactPosterior, HyperparameterMixture, IndependentPosterior, Posterior
from gpx.warned_line import users_line


class LeftOutRows(NamedTuple):
    """Prediction of every training row from all others, in the data's own units.

    Attributes:
        target (n,): of the training rows, in order.
        mean (n,), std (n,): of the prediction, observation noise included.
        log_density (n,): of the target under it, in nats; minus their mean is the MNLP.
        effective_samples (n,): of the hyperparameters, where predictions average over samples of
            them: the samples were drawn given all rows, and count the more for a row the less they
            expected it. None: there are no samples.

    Of p targets that are modelled each by itself all of them are (n, p), NaN where one is missing.
    """

    target: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    log_density: NDArray[np.float64]
    effective_samples: NDArray[np.float64] | None = None


@torch.no_grad()
def left_out_rows(posterior: Posterior, scaler: Standardiser, normal: bool) -> LeftOutRows:
    """Leave-one-out predictions of exact Gaussian processes, without fitting again.

    Args:
        posterior, scaler: of a model.
        normal: whether predictions are normal: not recalibrated, and without a target transform.

    Raises:
        NotAvailable: the posterior is not that of an exact Gaussian process solved by Cholesky, or
            predictions are not normal.

    Warns:
        samples of the hyperparameters of which too few count for a row (``enough_samples``).

    Cost: n^3 operations and one n x n array, for every sample of hyperparameters.
    """
    if not isinstance(posterior, (ExactPosterior, IndependentPosterior, HyperparameterMixture)):
        raise NotAvailable(
            "leave-one-out predictions are of a real target, by an exact Gaussian process that is "
            f"solved by Cholesky, and the posterior is {class_name(posterior)}: train with "
            "approx=exact and solver=cholesky, with approx=fully_bayesian, or several targets with "
            "approx=independent"
        )
    if not normal:
        raise NotAvailable(
            "leave-one-out predictions are not available with recalibration or a transformed target"
        )
    left, target = posterior.leave_one_out(), posterior.training_targets().double().cpu()
    residual, variance = left.residual.double().cpu(), left.variance.double().cpu()
    effective = None
    if isinstance(left, LeftOutMixture):
        effective = left.effective_samples().double().cpu().numpy()
        _warn_of_few(effective, len(left.shares))
    own_unit = scaler.target_scale.double().cpu().log()
    return LeftOutRows(
        scaler.original_mean(target).numpy(),
        scaler.original_mean(target - residual).numpy(),
        scaler.original_std(variance.sqrt()).numpy(),
        (left.log_density().double().cpu() - own_unit).numpy(),
        effective,
    )


def _warn_of_few(effective: NDArray[np.float64], samples: int) -> None:
    """Warn of rows (n,) that few of the samples of the hyperparameters predict."""
    few = int((effective < enough_samples(samples)).sum())
    if few:
        row = int(effective.argmin())
        warnings.warn(
            f"leave-one-out predictions of {few} of {len(effective)} rows are inaccurate, since "
            f"the posterior of the hyperparameters without the row has few effective samples (row "
            f"{row}, counted from 0: {effective[row]:.1f} of {samples}); to predict such a row "
            "exactly, train without it",
            stacklevel=users_line(),
        )
