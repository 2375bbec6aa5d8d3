"""Rows that a trained model is given: whether it takes them, their targets and known noise."""

from __future__ import annotations

import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gpx.calibration import Recalibration
from gpx.data import Standardiser
from gpx.data.target_transform import TargetTransform
from gpx.errors import ConfigError, DataError, NotAvailable, ShapeError, class_name
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.gaussian import NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.runs.arrays import columns_by_name, real_array


def conditionable(
    likelihood: Likelihood, calibration: Recalibration | None
) -> Gaussian | NoisyOutputs:
    """The likelihood of a model that further rows can be added to.

    Args:
        likelihood: p(y | f).
        calibration: of predictions; None: they are as the model gives them.

    Raises:
        NotAvailable: further rows have no Gaussian noise, or predictions would no longer be those
            that were recalibrated.
    """
    if not isinstance(likelihood, (Gaussian, NoisyOutputs)):
        why = f"a {class_name(likelihood)} likelihood"
    elif calibration is not None:
        why = "recalibration, which was fitted to predictions without them"
    else:
        return likelihood
    raise NotAvailable(
        f"rows can be added where the noise is Gaussian, and this model has {why}: "
        "train again with them"
    )


def standardised_targets(
    targets: ArrayLike,
    num_rows: int,
    scaler: Standardiser,
    transform: TargetTransform | None,
    names: tuple[str, ...] = (),
) -> Tensor:
    """Targets (m,), or (m, p) for p > 1 outputs, as the posterior sees them.

    Args:
        targets (m,) or (m, 1), or (m, p): in the data's own unit; NaN where one of several is
            missing. Those of a data frame are taken by name.
        num_rows: m, as many as there are rows of inputs.
        scaler: of the training rows.
        transform: what the posterior sees the target through; None: nothing.
        names: of several targets; otherwise empty.

    Raises:
        ShapeError: of another number of rows or targets.
        DTypeError, DataError: none, not real numbers, not finite, or outside what the transform
            takes.
    """
    if names:
        targets = columns_by_name(targets, names, "targets")
    y = torch.from_numpy(real_array(targets, "targets"))
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    wanted = (num_rows, len(names)) if names else (num_rows,)
    if y.shape != wanted:
        raise ShapeError(
            f"targets have shape {tuple(y.shape)}, expected {wanted} for as many rows of inputs"
        )
    bad = y.isinf() if names else ~y.isfinite()
    if not len(y) or bool(bad.any()):
        found = "none" if not len(y) else float(y[bad][0])
        raise DataError(f"targets: found {found}, expected finite numbers")
    if transform is None:
        return scaler.transform_targets(y)
    y = transform(y)
    if not bool(y.isfinite().all()):
        raise DataError(f"targets lie outside what {transform.kind} takes")
    return y


def row_noise(
    noise: ArrayLike, x: Tensor, scaler: Standardiser, transform: TargetTransform | None
) -> RowNoise:
    """Known variances, standardised and like x.

    Args:
        noise (n,): in the target's own unit, squared.
        x (n, d): inputs of the rows.
        scaler, transform: as for ``standardised_targets``.

    Raises:
        ConfigError: the target is transformed, or there are several.
        ShapeError: of another number of rows, or a negative variance.
        DTypeError: not real numbers.
    """
    if transform is not None:
        raise ConfigError("noise is that of the target, not of its transform: leave it out")
    if scaler.target_scale.ndim:
        raise ConfigError(
            "noise= is that of one target, and this model is of several: leave it out"
        )
    known = torch.from_numpy(real_array(noise, "noise variances"))
    if known.shape != x.shape[:1] or not bool((known >= 0.0).all()):
        raise ShapeError(
            f"noise must be {len(x)} variances, none of them negative, got an array of "
            f"shape {tuple(known.shape)}"
        )
    known = known / scaler.target_scale.square()
    return RowNoise(known, torch.ones_like(known)).like(x)
