"""Log-determinants by Chebyshev polynomials and random probes."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.linalg.trace import Estimate, mean_and_error

POWER_STEPS = 10
"""Steps of the power method for the largest eigenvalue."""
SAFETY_FACTOR = 1.1
"""The estimate of the power method, which is from below, is multiplied by this."""


def largest_eigenvalue(matmul: Callable[[Tensor], Tensor], start: Tensor) -> float:
    """An upper end for the spectrum: the power method's value times ``SAFETY_FACTOR``.

    Not certain: a start with little weight on the leading eigenvector gives too small a number.

    Args:
        matmul: (n, c) -> K times it.
        start (n, c): random vectors.
    """
    vector, norm = start, 0.0
    for _ in range(POWER_STEPS):
        vector = vector / vector.norm(dim=0)
        vector = matmul(vector)
        norm = float(vector.norm(dim=0).max())
    return SAFETY_FACTOR * norm


def log_coefficients(low: float, high: float, degree: int) -> Tensor:
    """Chebyshev coefficients (degree + 1,) of the logarithm on [low, high]."""
    angle = (torch.arange(degree + 1, dtype=torch.float64) + 0.5) * math.pi / (degree + 1)
    values = (0.5 * (high - low) * angle.cos() + 0.5 * (high + low)).log()
    orders = torch.arange(degree + 1, dtype=torch.float64)
    found = 2.0 / (degree + 1) * ((orders.unsqueeze(1) * angle).cos() @ values)
    found[0] *= 0.5
    return found


def enough_degree(low: float, high: float, *, most: int = 2000) -> int:
    """Degree (at least 100) at which the error of the logarithm on [low, high] is about 1e-5."""
    return min(most, max(100, math.ceil(4.5 * math.sqrt(high / low))))


def log_error(low: float, high: float, degree: int) -> float:
    """Largest error of the polynomial of ``log_coefficients``, sampled at four points per order.

    n times this bounds the bias of a log-determinant of n rows.
    """
    angle = torch.linspace(0.0, math.pi, 4 * degree + 1, dtype=torch.float64)
    orders = torch.arange(degree + 1, dtype=torch.float64)
    at = (0.5 * (high - low) * angle.cos() + 0.5 * (high + low)).log()
    found = (angle.unsqueeze(1) * orders).cos() @ log_coefficients(low, high, degree)
    return float((found - at).abs().max())


def chebyshev_logdet(
    matmul: Callable[[Tensor], Tensor],
    probes: Tensor,
    *,
    low: float,
    high: float,
    degree: int = 100,
) -> Estimate:
    """log det K as the mean of w^T p(K) w over the probes, p near the logarithm on [low, high].

    Args:
        matmul: (n, L) -> K times it, K symmetric with its spectrum in [low, high].
        probes (n, L): of ``probe_vectors``.
        degree: of p; see ``enough_degree`` and ``log_error``.

    Raises:
        ConfigError: not 0 < low < high, or a degree below one.

    Cost: ``degree`` products with L columns, memory three blocks. The standard error does not
    include the polynomial's error. Lanczos quadrature needs a fraction of the products.
    Source: Hultin 2017, section 5.3; Han, Malioutov and Shin 2015.
    """
    if not 0.0 < low < high or degree < 1:
        raise ConfigError(
            f"Chebyshev polynomials of degree {degree} on [{low:g}, {high:g}]: a degree of at "
            "least 1 and 0 < low < high are needed"
        )
    coefficients = log_coefficients(low, high, degree).tolist()

    def mapped(vectors: Tensor) -> Tensor:
        return (2.0 * matmul(vectors) - (low + high) * vectors) / (high - low)

    before, now = probes, mapped(probes)
    total = coefficients[0] * (probes * before).sum(0) + coefficients[1] * (probes * now).sum(0)
    for coefficient in coefficients[2:]:
        before, now = now, 2.0 * mapped(now) - before
        total = total + coefficient * (probes * now).sum(0)
    value, error = mean_and_error(total)
    return Estimate(value, error, total)
