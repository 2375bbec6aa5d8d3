"""How many directions of the data the model uses: tr(K_xx (K_xx + s I)^{-1})."""

from __future__ import annotations

from torch import Tensor

from gpx.inference.nystrom_matrix import NystromMatrix


def effective_dimension(eigenvalues: Tensor, noise: Tensor) -> Tensor:
    """sum_n lambda_n / (lambda_n + s) of the eigenvalues of K_xx (n,), s the noise variance ().

    For any M at most M plus the sum of the other eigenvalues over s. Source: Burt thesis, section
    3.1.4.
    """
    values = eigenvalues.double().clamp(min=0.0)
    return (values / (values + noise)).sum()


def effective_dimension_bounds(nystrom: NystromMatrix) -> tuple[Tensor, Tensor]:
    """Lower and upper bound on the effective dimension, from the Nystrom matrix alone.

    That of Q_xx, M - tr(B^{-1}), and T / s more: K_xx -> tr(K_xx (K_xx + s I)^{-1}) is monotone and
    tr(Q^{-1} - K^{-1}) <= T / s^2. The upper one is at most M + T / s.

    Cost: M^3.
    Source: Burt thesis, section 3.1.4; the sharper ends are derived.
    """
    least = nystrom.inner.complement.trace()
    return least, least + nystrom.sums.trace_error / nystrom.noise
