"""Lower bounds on KL(q || posterior) for any choice of M inducing points."""

from __future__ import annotations

from torch import Tensor


def kl_lower_bound(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """(1/2) sum_{m > M} [r_m - log(1 + r_m)] with r = lambda / s; holds for every y.

    Args:
        eigenvalues (n,): of K_xx, descending; with only the largest ones the bound is looser.
        noise (): s.
        num_inducing: M.

    Returns: () nats.
    Source: Burt thesis, section 3.3.
    """
    ratios = _ratios_after(eigenvalues, noise, num_inducing)
    return 0.5 * (ratios - ratios.log1p()).sum()


def expected_kl_lower_bound(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """(1/2) sum_{m > M} r_m: for the mean over y drawn from the model, and points chosen before y.

    Args: as for ``kl_lower_bound``.
    Source: Burt thesis, section 3.3.
    """
    return 0.5 * _ratios_after(eigenvalues, noise, num_inducing).sum()


def worst_kl_lower_bound(
    eigenvalues: Tensor, noise: Tensor, num_inducing: int, squared_norm: Tensor
) -> Tensor:
    """Lower bound on the largest divergence over all y of a given norm, for points chosen before y.

    y^T y / (2 s) lambda_{M+1} / (lambda_{M+1} + s) plus ``kl_lower_bound``.

    Args:
        eigenvalues, noise, num_inducing: as for ``kl_lower_bound``; M < n.
        squared_norm (): y^T y.

    Source: Burt thesis, section 3.3.
    """
    ratios = _ratios_after(eigenvalues, noise, num_inducing)
    if not len(ratios):
        return ratios.sum()
    missed = 0.5 * squared_norm / noise * ratios[0] / (1.0 + ratios[0])
    return missed + kl_lower_bound(eigenvalues, noise, num_inducing)


def _ratios_after(eigenvalues: Tensor, noise: Tensor, num_inducing: int) -> Tensor:
    """Eigenvalues after the first M, divided by the noise; negative ones (rounding) become zero."""
    return eigenvalues.double()[num_inducing:].clamp(min=0.0) / noise
