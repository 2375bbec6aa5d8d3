"""Checks of a model, its parts and its data, called before it is started or conditioned."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gpx.errors import ConfigError, DataError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg.cholesky import noted_checks
from gpx.means.base import Mean
from gpx.tensor_checks import check_finite_targets, check_inputs, check_targets

if TYPE_CHECKING:
    from gpx.methods.base.model import Model

EXAMPLE_PARTS = {
    "kernel": "kernels.RBF()",
    "mean": "means.Zero()",
    "likelihood": "likelihoods.Gaussian()",
}
"""An example of each part of a model, for error messages."""

PART_FAMILIES = {"kernel": Kernel, "mean": Mean, "likelihood": Likelihood}


def why_rows_are_refused(noise: RowNoise) -> str:
    """Why a model takes no known noise or weights of rows, as the middle of an error message."""
    if bool((noise.known > 0.0).any()):
        return (
            "has one noise variance for all rows, and noise= or weights= give each row its own: "
            "leave them out"
        )
    return "counts every row once, and weights= say how many each one stands for: leave them out"


def check_parts(model: Model) -> None:
    """Raise ConfigError if the kernel, mean or likelihood of the model is not a module, or is
    another of the three: ``Constant`` is the name of a kernel and of a mean function."""
    for name, example in EXAMPLE_PARTS.items():
        part = getattr(model, name, None)
        for other, family in PART_FAMILIES.items():
            if isinstance(part, family) and not isinstance(part, PART_FAMILIES[name]):
                raise ConfigError(
                    f"{class_name(model)}: {name}= is {class_name(part)}, a {other}; it takes a "
                    f"{name}, such as gpx.{example}"
                )
        if not isinstance(part, nn.Module) and (part is not None or name == "likelihood"):
            raise ConfigError(
                f"{class_name(model)}: {name}={part!r} is no {name} of gpx, such as gpx.{example}"
            )


def check_placed(model: Model, x: Tensor) -> None:
    """Raise ConfigError if several inducing points are all where they were made, at zero.

    They would move together for ever, and count as one. Where all rows of x (n, d) are zero, as
    standardised inputs without variation are, that is their place. Reads the points only if nothing
    was written into them since they were made or moved, and not while a step is recorded, so that a
    GPU waits at most once for it.
    """
    if noted_checks() is not None:
        return
    for name in ("inducing", "inducing_points"):
        points = model._parameters.get(name)
        if points is None or are_placed(points) or (isinstance(x, Tensor) and not bool(x.any())):
            continue
        raise ConfigError(
            f"{class_name(model)}: its {len(points)} inducing points have not been placed; call "
            "model.initialise(x, y, generator=torch.Generator().manual_seed(0)) before training"
        )


def are_placed(points: Tensor) -> bool:
    """Whether inducing points (M, d) are not several at zero, into which nothing was written."""
    if len(points) < 2:
        return True
    counted = not points.is_inference()  # tensors of inference mode do not count writes
    return (counted and points._version > 0) or bool(points.any())


def check_variance(kernel: Kernel, x: Tensor) -> None:
    """Raise ConfigError unless ``variance`` of the kernel is the diagonal of its ``covariance``.

    Predictions subtract one from the other, so that error bars would be wrong, or zero.

    Args:
        x (n, d): few inputs; a GPU is waited for.
    """
    matrix = kernel.evaluate(x, x).diagonal()
    stated = kernel.diagonal(x)
    # not of a kernel that is not finite there, which training will tell; where k(x, x) is 0, both
    # may be rounding errors
    rounding = 100.0 * torch.finfo(matrix.dtype).eps
    apart = ~torch.isclose(stated, matrix, rtol=1e-3, atol=rounding) & matrix.isfinite()
    if bool(apart.any()):
        if x.dtype != torch.float64:  # distances of float32 are off by the root of its precision
            with suppress(RuntimeError):  # torch's, of a kernel that takes no float64
                check_variance(kernel, x.double())
            return
        row = int(apart.nonzero()[0, 0])
        raise ConfigError(
            f"{class_name(kernel)}: variance gives {float(stated[row]):.6g} in row {row}, and the "
            f"diagonal of covariance is {float(matrix[row]):.6g} there; both must be k(x, x)"
        )


def check_known_rows(model: Model, x: Tensor) -> None:
    """Raise ConfigError if the model knows the noise of other rows than the n of x (n, d)."""
    known = model.row_noise
    if known is not None and len(known.known) != len(x):
        raise ConfigError(
            f"{class_name(model)} knows the noise or the weight of each of {len(known.known)} "
            f"rows, but was given {len(x)} rows: call model.know_noise with that of these rows"
        )


def _check_data(model: Model, x: Tensor, y: Tensor) -> None:
    """Raise unless x and y fit the model, whatever their values."""
    check_parts(model)
    check_inputs(model, x, model.num_inputs)
    check_targets(model, x, y, model.num_outputs)
    check_known_rows(model, x)


def _check_values(model: Model, y: Tensor) -> None:
    """Raise DataError for a target that is not finite, or is missing and must not be."""
    if not isinstance(y, Tensor) or model.takes_missing_targets:
        return
    if y.ndim == 1:
        check_finite_targets(model, y)
    else:
        missing = y.isnan()
        if bool(missing.any()):
            raise DataError(
                f"{class_name(model)}: {int(missing.sum())} of {y.numel()} targets are missing "
                "(NaN); leave these rows out, or take model=CoregionalGP() or IndependentGP(), or "
                "model=SVGP() with GaussianOutputs() or MixedOutputs(), which skip only the "
                "missing cells"
            )


def check_start(model: Model, x: Tensor, y: Tensor, **_: Any) -> None:
    """Raise unless the model can be initialised from x (n, d) and y (n,) or (n, p)."""
    _check_data(model, x, y)
    _check_values(model, y)


def check_condition(model: Model, x: Tensor, y: Tensor, **_: Any) -> None:
    """Raise unless the model can be conditioned on x (n, d) and y (n,) or (n, p)."""
    _check_data(model, x, y)
    if model.condition_uses_data:
        _check_values(model, y)
    check_placed(model, x)
    # on a GPU, and of rows that are read from files, runs alone check it
    near = isinstance(x, Tensor) and x.is_cpu and model.kernel_of_inputs
    parts = model.hyperparameters() if near else None
    if (
        parts is not None
        and isinstance(parts.kernel, Kernel)
        and not _keeps_statistics(parts.kernel)
    ):
        with torch.no_grad():
            check_variance(parts.kernel, x[:3])


def _keeps_statistics(kernel: Kernel) -> bool:
    """Whether evaluating it changes it, as batch normalisation in a network does in training."""
    return any(part.training and hasattr(part, "running_mean") for part in kernel.modules())
