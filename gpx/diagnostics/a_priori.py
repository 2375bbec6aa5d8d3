"""Number of inducing points that a kernel and an input density require, without targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.kernels.base import Kernel
from gpx.kernels.mercer import MercerSpectrum, mercer_spectrum
from gpx.tensor_checks import check_positive

FIRST_NUM_EIGENVALUES = 64
"""Eigenvalues computed at first; doubled until they suffice."""


class Suggestion(NamedTuple):
    """The fewest inducing points whose expected KL(q || posterior) has the required bound.

    Attributes:
        num_inducing: M.
        kl_bound: nats.
        tail: sum of the Mercer eigenvalues after the first M.
    """

    num_inducing: int
    kl_bound: float
    tail: float


def determinantal_kl_bound(
    tail: Tensor | float,
    num_inducing: Tensor | int,
    num_data: int,
    noise: float,
    *,
    mean_square: float | None = None,
    density_ratio: float = 1.0,
    prior_variance: float = 0.0,
    accuracy: float = 0.0,
) -> Tensor:
    """Bound on E KL(q || posterior), in nats, with a determinantal process of M training inputs.

    n / s ((M + 1) C tail + v e) for targets drawn from the model, and (1 + c n / s) / 2 times that
    for any targets with E y^T y <= c n. Divided by p, it bounds the KL with probability 1 - p.

    Args:
        tail, num_inducing: sum of the eigenvalues after the first M, and M; tensors give one bound
            per entry.
        num_data: n, independent inputs.
        noise: s.
        mean_square: c; None: the targets are drawn from the model.
        density_ratio: C, largest ratio of the inputs' density to that of the eigenvalues.
        prior_variance, accuracy: v, mean of k(x, x), and e, total variation distance of the draw
            from the process (``gpx.inducing.Determinantal``).

    Source: Burt thesis, section 3.1.4.
    """
    tail = torch.as_tensor(tail, dtype=torch.float64)
    size = torch.as_tensor(num_inducing, dtype=torch.float64)
    trace = num_data * ((size + 1.0) * density_ratio * tail + prior_variance * accuracy)
    if mean_square is None:
        return trace / noise
    return 0.5 * trace / noise * (1.0 + mean_square * num_data / noise)


def leverage_kl_bound(
    tail: Tensor | float,
    num_scores: Tensor | int,
    num_data: int,
    noise: float,
    failure: float,
    *,
    mean_square: float | None = None,
    density_ratio: float = 1.0,
) -> Tensor:
    """Bound on KL(q || posterior), in nats, with ridge leverage sampling at S = ``num_scores``.

    n^2 C tail / (S p^2 s) for targets drawn from the model, n^2 C tail (1 + c / (p s)) / (2 S p s)
    for any targets with E y^T y <= c n; both hold with probability 1 - 5 p. The sampler takes about
    S log(S / p) points.

    Args:
        tail: sum of the eigenvalues after the first S.
        failure: p, below 1/32.
        num_data, noise, mean_square, density_ratio: as in ``determinantal_kl_bound``.

    Source: Burt thesis, section 3.1.4.
    """
    if not 0.0 < failure < 1.0 / 32.0:
        raise ConfigError(f"failure must lie between 0 and 1/32, got {failure}")
    tail = torch.as_tensor(tail, dtype=torch.float64)
    size = torch.as_tensor(num_scores, dtype=torch.float64)
    error = num_data**2 * density_ratio * tail / (size * failure * noise)
    if mean_square is None:
        return error / failure
    return 0.5 * error * (1.0 + mean_square / (failure * noise))


def suggest_num_inducing(
    kernel: Kernel,
    spread: Tensor,
    num_data: int,
    noise: float,
    tolerance: float,
    *,
    mean_square: float | None = None,
    density_ratio: float = 1.0,
    most: int = 20_000,
) -> Suggestion:
    """Smallest M with ``determinantal_kl_bound`` <= ``tolerance`` for normal inputs.

    It suffices in expectation for the determinantal process, and in practice for greedy points too.
    It grows like log(n)^d. A certificate after training is sharper and needs no assumptions.

    Args:
        kernel: an ``RBF`` of all inputs.
        spread (d,): standard deviation of each input; zero for a constant one.
        num_data, noise, mean_square, density_ratio: as in ``determinantal_kl_bound``.
        tolerance: nats.
        most: largest M tried.

    Raises:
        ConfigError: another kernel, a tolerance or noise that is not positive, or ``most`` points
            are not enough.

    Cost: M d log(M d).
    Source: Burt thesis, section 3.2; the tails are exact.
    """
    check_positive(tolerance=tolerance, noise=noise)
    size = min(FIRST_NUM_EIGENVALUES, most)
    while True:
        spectrum = mercer_spectrum(kernel, spread, size)
        bounds = determinantal_kl_bound(
            spectrum.tails[1:],
            torch.arange(1, size + 1),
            num_data,
            noise,
            mean_square=mean_square,
            density_ratio=density_ratio,
        )
        enough = (bounds <= tolerance).nonzero()
        if len(enough):
            at = int(enough[0])
            return Suggestion(at + 1, float(bounds[at]), float(spectrum.tails[at + 1]))
        if size == most:
            raise ConfigError(
                f"{most} inducing points only bound the expected KL by {float(bounds[-1]):.3g} "
                f"nats, above the tolerance {tolerance:g}; fewer inputs, longer lengthscales or "
                "more noise need fewer points"
            )
        size = min(2 * size, most)


def expected_effective_dimension(spectrum: MercerSpectrum, num_data: int, noise: float) -> float:
    """Upper bound on E tr(K_xx (K_xx + s I)^{-1}) for n independent inputs of the density.

    sum_m n lambda_m / (n lambda_m + s), plus n tail / s for the eigenvalues not listed. It follows
    from Jensen's inequality for the empirical covariance operator, whose mean has the eigenvalues
    lambda_m.

    Source: Burt thesis, section 3.1.4.
    """
    scaled = num_data * spectrum.eigenvalues / noise
    return float((scaled / (1.0 + scaled)).sum() + num_data * spectrum.tails[-1] / noise)
