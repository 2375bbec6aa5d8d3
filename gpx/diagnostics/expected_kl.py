"""Expected KL(q || posterior) over targets drawn from the model, and points that bound it."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gpx.inducing import Selection
from gpx.inference.nystrom import BlockStore, factorise
from gpx.kernels.base import Kernel
from gpx.linalg import cholesky
from gpx.linalg.pivoted_cholesky import pivoted_cholesky
from gpx.tensor_checks import check_at_least, check_inputs, check_positive


@torch.no_grad()
def expected_kl(kernel: Kernel, x: Tensor, z: Tensor, noise: Tensor) -> Tensor:
    """E KL(q || posterior) over y ~ N(0, K_xx + s I), in nats; between T / (2 s) and T / s.

    T / (2 s) + sum_n (e_n - log(1 + e_n)) / 2 with the eigenvalues e_n of
    Q^{-1/2} (K_xx - Q_xx) Q^{-1/2}, which avoids cancellation between traces and log determinants.

    Args:
        kernel, x (n, d), z (M, d), noise (): covariance, inputs, inducing inputs, s; float64. z
            must not depend on y.

    Raises: NotPositiveDefinite.
    Cost: about 6 n^3; memory 3 n^2. ``expected_kl_bracket`` is cheap for large n.
    Source: Burt thesis, section 3.1.1.
    """
    whitener, _ = factorise(kernel, z)
    store = BlockStore(whitener, x, x.shape[0] * z.shape[0] * x.element_size())
    blocks = torch.cat([block.clone() for _, block in store]).double()
    nystrom = blocks @ blocks.mT
    del blocks
    gap = kernel.evaluate(x).double() - nystrom
    trace_error = gap.diagonal().clamp(min=0.0).sum()
    nystrom.diagonal().add_(noise)
    factor, _ = cholesky(nystrom, name="Q = Q_xx + noise I", ladder=(0.0,))
    del nystrom  # three matrices at a time
    half = torch.linalg.solve_triangular(factor, gap, upper=False)
    del gap
    relative = torch.linalg.solve_triangular(factor, half.mT, upper=False)
    del half, factor
    values = torch.linalg.eigvalsh(relative).clamp(min=0.0)  # of its lower triangle
    return 0.5 * (trace_error / noise + (values - values.log1p()).sum())


def expected_kl_bracket(trace_error: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """T / (2 s) and T / s: bounds on ``expected_kl``, in nats.

    Source: Burt thesis, section 3.1.1.
    """
    return 0.5 * trace_error / noise, trace_error / noise


def sufficient_trace_error(noise: float, tolerance: float, squared_norm: float | None) -> float:
    """Largest trace error T that keeps the KL within ``tolerance`` nats.

    For the mean over targets drawn from the model it is s times the tolerance; for every y with
    y^T y <= ``squared_norm`` it is the root of T (1 + y^T y / (T + s)) = 2 s tolerance.
    """
    if squared_norm is None:
        return noise * tolerance
    linear = noise + squared_norm - 2.0 * noise * tolerance
    root = math.hypot(linear, math.sqrt(8.0 * tolerance) * noise)
    if linear > 0.0:
        return 4.0 * tolerance * noise**2 / (linear + root)
    return 0.5 * (root - linear)


@torch.no_grad()
def points_for_expected_kl(
    kernel: Kernel,
    x: Tensor,
    noise: float,
    tolerance: float,
    *,
    max_points: int = 2048,
    squared_norm: float | None = None,
) -> Selection:
    """Greedy inducing points that keep the KL within ``tolerance`` nats, chosen from the inputs.

    Args:
        kernel, x (n, d): any kernel; inputs.
        noise: s.
        tolerance: nats, for the mean over targets drawn from the model.
        max_points: most points.
        squared_norm: largest y^T y; if given, the tolerance holds for every such y.

    Returns:
        the points with their trace error T, which exceeds ``sufficient_trace_error`` if
        ``max_points`` were too few.

    Raises: ConfigError: tolerance, noise or ``max_points`` not positive. DTypeError: x in another
    precision than the kernel.
    Cost: n M^2 multiply-adds and n M kernel entries; memory n ``max_points``.
    Source: Burt thesis, section 3.1.1.
    """
    check_positive(tolerance=tolerance, noise=noise)
    check_at_least(1, max_points=max_points)
    check_inputs(kernel, x)
    done = pivoted_cholesky(
        lambda rows: kernel.evaluate(x[rows], x),
        kernel.diagonal(x),
        max_points,
        tolerance=sufficient_trace_error(noise, tolerance, squared_norm),
    )
    return Selection(
        points=x[done.pivots].clone(),
        indices=done.pivots,
        informative=len(done.pivots),
        trace_error=float(done.residual.sum()),
    )
