"""Below these KL(q || posterior) cannot be, wherever M inducing points are put."""

from __future__ import annotations

from torch import Tensor


def kl_lower_bound(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """(1/2) sum_{m > M} [r_m - log(1 + r_m)], r = lambda / s: for every y and any M points.

    Args:
        eigenvalues (n,): of K_xx, falling; the largest alone give a bound too, a smaller one.
        noise (): s.
        num_inducing: M.

    Returns: () nats.
    Source: Burt thesis, section 3.3.
    """
    ratios = _beyond(eigenvalues, noise, num_inducing)
    return 0.5 * (ratios - ratios.log1p()).sum()


def expected_kl_lower_bound(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """(1/2) sum_{m > M} r_m: on average over y drawn from the model, the points blind to y.

    Args: as for ``kl_lower_bound``.
    Source: Burt thesis, section 3.3.
    """
    return 0.5 * _beyond(eigenvalues, noise, num_inducing).sum()


def worst_kl_lower_bound(
    eigenvalues: Tensor, noise: Tensor, num_inducing: int, squared_norm: Tensor
) -> Tensor:
    """What some y of the given length reaches whatever the points, chosen before it.

    y^T y / (2 s) lambda_{M+1} / (lambda_{M+1} + s) beside ``kl_lower_bound``.

    Args:
        eigenvalues, noise, num_inducing: as for ``kl_lower_bound``; M < n.
        squared_norm (): y^T y.

    Source: Burt thesis, section 3.3.
    """
    ratios = _beyond(eigenvalues, noise, num_inducing)
    if not len(ratios):
        return ratios.sum()
    missed = 0.5 * squared_norm / noise * ratios[0] / (1.0 + ratios[0])
    return missed + kl_lower_bound(eigenvalues, noise, num_inducing)


def _beyond(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """Eigenvalues after the first M over the noise; rounding below zero counts as zero."""
    return eigenvalues.double()[num_inducing:].clamp(min=0.0) / noise
