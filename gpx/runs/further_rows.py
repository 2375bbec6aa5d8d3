"""Checks and conversion of rows that are added to a trained model: targets and known noise."""

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


def conditionable_likelihood(
    likelihood: Likelihood, calibration: Recalibration | None
) -> Gaussian | NoisyOutputs:
    """The likelihood, if rows can be added to the model without training.

    Args:
        likelihood: of the model.
        calibration: of its predictions, or None.

    Raises:
        NotAvailable: the noise is not Gaussian, or predictions are recalibrated, which would no
            longer fit.
    """
    if not isinstance(likelihood, (Gaussian, NoisyOutputs)):
        why = f"a {class_name(likelihood)} likelihood"
    elif calibration is not None:
        why = "recalibration, which was fitted to predictions without them"
    else:
        return likelihood
    raise NotAvailable(
        f"rows can only be added with Gaussian noise and without recalibration, and this model has "
        f"{why}: train again with them"
    )


def standardised_targets(
    targets: ArrayLike,
    num_rows: int,
    scaler: Standardiser,
    transform: TargetTransform | None,
    names: tuple[str, ...] = (),
) -> Tensor:
    """Targets (m,), or (m, p) for p > 1 outputs, in the units of the posterior.

    Args:
        targets (m,) or (m, 1), or (m, p): in the data's own unit; NaN where one of several is
            missing. Columns of a data frame are taken by name. The row of a single one may be
            left out: a number, or (p,).
        num_rows: m, the number of rows of the inputs.
        scaler: of the training rows.
        transform: of the target; None: none.
        names: of the targets if there are several; otherwise empty.

    Raises:
        ShapeError: another number of rows or targets.
        DTypeError, DataError: no targets, not real numbers, not finite, or outside the domain of
            the transform.
    """
    if names:
        targets = columns_by_name(targets, names, "targets")
    y = torch.from_numpy(real_array(targets, "targets"))
    y = y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y
    if num_rows == 1 and y.shape == ((len(names),) if names else ()):
        y = y[None]
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
        raise DataError(f"targets lie outside the domain of the {transform.kind} transform")
    return y


def row_noise(
    noise: ArrayLike, x: Tensor, scaler: Standardiser, transform: TargetTransform | None
) -> RowNoise:
    """Known noise variances of rows, standardised, in the dtype and on the device of x.

    Args:
        noise (n,), or (n, p) for p targets: in the squared units of the targets.
        x (n, d): inputs of the rows.
        scaler, transform: as for ``standardised_targets``.

    Raises:
        ConfigError: the target is transformed.
        ShapeError: another number of rows, or a negative variance.
        DTypeError: not real numbers.
    """
    if transform is not None:
        raise ConfigError("noise= cannot be used with a transformed target: leave it out")
    known, scale = torch.from_numpy(real_array(noise, "noise variances")), scaler.target_scale
    cells = (len(x), *scale.shape)
    if known.shape not in (x.shape[:1], cells) or not bool((known >= 0.0).all()):
        by_cell = f", or {len(x)} x {len(scale)} of them" if scale.ndim else ""
        raise ShapeError(
            f"noise must be {len(x)} variances{by_cell}, none of them negative, got an array of "
            f"shape {tuple(known.shape)}"
        )
    if scale.ndim and known.ndim == 1:
        known = known.unsqueeze(1)
    return RowNoise.of_variances(known / scale / scale).like(x)
