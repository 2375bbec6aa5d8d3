"""The effective dimension tr(K_xx (K_xx + s I)^{-1}): number of directions that the data inform."""

from __future__ import annotations

from torch import Tensor

from gpx.inference.nystrom_matrix import NystromMatrix


def effective_dimension(eigenvalues: Tensor, noise: Tensor) -> Tensor:
    """sum_n lambda_n / (lambda_n + s) for the eigenvalues (n,) of K_xx and the noise variance s ().

    For any M it is at most M plus the sum of the eigenvalues after the first M, divided by s.
    Source: Burt thesis, section 3.1.4.
    """
    values = eigenvalues.double().clamp(min=0.0)
    return (values / (values + noise)).sum()


def effective_dimension_bounds(nystrom: NystromMatrix) -> tuple[Tensor, Tensor]:
    """Lower and upper bound on the effective dimension, from the Nystrom matrix.

    The lower bound is that of Q_xx, M - tr(B^{-1}); the upper bound is T / s larger. The effective
    dimension is monotone in K_xx, and tr(Q^{-1} - K^{-1}) <= T / s^2.

    Cost: M^3.
    Source: Burt thesis, section 3.1.4; these sharper bounds are derived.
    """
    lower = nystrom.inner.complement.trace()
    return lower, lower + nystrom.sums.trace_error / nystrom.noise
