"""Leave-one-out predictions of the training rows, in the data's own units."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from gpx.data import Standardiser
from gpx.errors import NotAvailable, class_name
from gpx.models import ExactPosterior, IndependentPosterior, Posterior


class LeftOutRows(NamedTuple):
    """Prediction of every training row from all others, in the data's own units.

    Attributes:
        target (n,): of the training rows, in order.
        mean (n,), std (n,): of the prediction, observation noise included.
        log_density (n,): of the target under it, in nats; minus their mean is the MNLP.

    Of p targets that are modelled each by itself all of them are (n, p), NaN where one is missing.
    """

    target: NDArray[np.float64]
    mean: NDArray[np.float64]
    std: NDArray[np.float64]
    log_density: NDArray[np.float64]


@torch.no_grad()
def left_out_rows(posterior: Posterior, scaler: Standardiser, normal: bool) -> LeftOutRows:
    """Leave-one-out predictions of an exact Gaussian process, without fitting again.

    Args:
        posterior, scaler: of a model.
        normal: whether predictions are normal: not recalibrated, and without a target transform.

    Raises:
        NotAvailable: the posterior is not that of an exact Gaussian process solved by Cholesky, or
            predictions are not normal.

    Cost: n^3 operations and one n x n array.
    """
    if not isinstance(posterior, (ExactPosterior, IndependentPosterior)):
        raise NotAvailable(
            "leave-one-out predictions need an exact Gaussian process that is solved by Cholesky, "
            f"and the posterior is {class_name(posterior)}: train with model=ExactGP() and "
            "solver=cholesky, or several targets with model=IndependentGP()"
        )
    if not normal:
        raise NotAvailable(
            "leave-one-out predictions are not available with recalibration or a transformed target"
        )
    left, target = posterior.leave_one_out(), posterior.training_targets().double().cpu()
    residual, variance = left.residual.double().cpu(), left.variance.double().cpu()
    own_unit = scaler.target_scale.double().cpu().log()
    return LeftOutRows(
        scaler.original_mean(target).numpy(),
        scaler.original_mean(target - residual).numpy(),
        scaler.original_std(variance.sqrt()).numpy(),
        (left.log_density().double().cpu() - own_unit).numpy(),
    )
