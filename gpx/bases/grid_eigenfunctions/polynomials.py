"""One-dimensional eigenfunctions as Chebyshev series: no exponential at any point of the data."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.factors import ProductFactors

TRUNCATION = 1e-17
"""Truncation error of the kernel's values: below rounding in float64."""

MAX_TERMS = 400
"""Largest number of terms of a series; beyond it the kernel's exponentials are cheaper."""

MAX_LOG_RADIUS = 6.0
"""Logarithm of the radius of the largest Bernstein ellipse in ``number_of_terms``."""


class ColumnPolynomials(NamedTuple):
    """The leading functions of every axis on the range of the data.

    Attributes:
        series (d, c, terms): Chebyshev coefficients, float64, zero from ``degrees`` on; they carry
            the gradient of transforms and kernel.
        degrees (d,): number of terms of each axis, int64 on the CPU.
        middle (d,), inverse (d,): an input is scaled to (x - middle) inverse in [-1, 1].
    """

    series: Tensor
    degrees: Tensor
    middle: Tensor
    inverse: Tensor

    def in_dtype(self, dtype: torch.dtype) -> ColumnPolynomials:
        """The same without a graph, in the dtype of the data, contiguous."""
        series, middle, inverse = (
            value.detach().to(dtype).contiguous()
            for value in (self.series, self.middle, self.inverse)
        )
        return ColumnPolynomials(series, self.degrees, middle, inverse)

    def evaluate(self, x: Tensor) -> Tensor:
        """Values at x (n, d) in the range: (d, c, n). Cost: O(n d terms c), two products a term."""
        t = ((x - self.middle.to(x.dtype)) * self.inverse.to(x.dtype)).mT
        found = [torch.ones_like(t), t]
        for _ in range(2, self.series.shape[2]):
            found.append(2.0 * t * found[-1] - found[-2])
        return self.series.to(x.dtype) @ torch.stack(found, 1)


def number_of_terms(ratio: Tensor, error: float) -> Tensor:
    """Number of Chebyshev terms for exp(-(t - u)^2 ratio^2 / 2), any u, on [-1, 1]: int64.

    A function that is analytic and below M on the Bernstein ellipse of radius rho is interpolated
    in N Chebyshev points with error 4 M rho^(1 - N) / (rho - 1); here
    M = exp(ratio^2 (rho - 1 / rho)^2 / 8), and the best rho of a list is taken.

    Args:
        ratio (...): half the range over the lengthscale.
        error: of a kernel of height one.

    Source: Trefethen, Approximation Theory and Approximation Practice, theorem 8.2.
    """
    log_rho = torch.linspace(0.02, MAX_LOG_RADIUS, 300, dtype=torch.float64, device=ratio.device)
    rho = log_rho.exp()
    height = (ratio.double().unsqueeze(-1) * (rho - 1.0 / rho)).square() / 8.0
    needed = 1.0 + (height - (rho - 1.0).log() + math.log(4.0 / error)) / log_rho
    return needed.amin(-1).ceil().clamp(min=2.0).long()


def column_polynomials(
    factors: ProductFactors, nodes: Tensor, single: Tensor, transforms: Tensor, x: Tensor
) -> ColumnPolynomials | None:
    """Series of transforms^T k_i(nodes, x) on the range of x, or None where they do not apply.

    On the range of the data a smooth kernel has a series of a few dozen terms, whatever the number
    of nodes, with an error below rounding. Only its coefficients depend on the kernel's parameters
    and on the nodes.

    Args:
        factors: of the kernel; the result is None unless all are squared exponentials.
        nodes (d, m): of the grid.
        single (d,): axes with one node, which are ignored.
        transforms (d, m, c): see ``GridModes``.
        x (n, d): all inputs at which the series will be evaluated.

    Cost: O(n d) for the range, O(d m terms c) for the coefficients.
    Source: ours.
    """
    precision = factors.squared_exponential_precision()
    if precision is None or not x.shape[0]:
        return None
    low, high = x.detach().amin(0).double(), x.detach().amax(0).double()
    middle = (0.5 * (low + high)).to(x.dtype).double()  # exactly representable in the data's dtype
    half = torch.maximum(high - middle, middle - low)
    ratio = torch.where(single, 0.0, half * precision.detach().double().sqrt())
    if not bool((ratio < MAX_TERMS).all()):  # far too many terms, or NaN
        return None
    degrees = number_of_terms(ratio, TRUNCATION).cpu()
    terms = int(degrees.max())
    if terms > MAX_TERMS:
        return None
    place = torch.arange(terms, dtype=torch.float64, device=x.device)
    angle = (place + 0.5) * (math.pi / terms)
    cross = factors.evaluate(nodes, middle + half * angle.cos().unsqueeze(1))
    values = transforms.mT @ torch.where(single[:, None, None], 1.0, cross)
    cosines = (angle.unsqueeze(1) * place).cos() * (2.0 / terms)
    cosines[:, 0] *= 0.5
    series = (values @ cosines) * (place < degrees.to(x.device).unsqueeze(1)).unsqueeze(1)
    inverse = torch.where(half > 0.0, half.reciprocal(), 0.0)
    return ColumnPolynomials(series, degrees, middle, inverse)
