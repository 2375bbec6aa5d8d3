"""Derivatives of grid covariances with respect to their small factors, in closed form."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.linalg.circulant_factor import CirculantFactor, FourierVectors


@dataclass(frozen=True)
class FactorGradient:
    """Derivative of a scalar with respect to K_1 ... K_d and to the noise variance.

    Attributes:
        factors (m_l, m_l): d / d K_l, every entry of K_l its own variable; (m_l,) the first column
            of a circulant factor.
        noise (): d / d sigma^2.
    """

    factors: list[Tensor]
    noise: Tensor

    def __add__(self, other: FactorGradient) -> FactorGradient:
        """Of the sum of two scalars."""
        pairs = zip(self.factors, other.factors, strict=True)
        return FactorGradient([a + b for a, b in pairs], self.noise + other.noise)

    def __mul__(self, scale: float | Tensor) -> FactorGradient:
        """Of a multiple."""
        return FactorGradient([scale * f for f in self.factors], scale * self.noise)

    __rmul__ = __mul__


def bilinear_gradient(
    factors: Sequence[Tensor | CirculantFactor], left: Tensor, right: Tensor
) -> FactorGradient:
    """Gradient of sum_j left_j^T (K_1 x ... x K_d + sigma^2 I) right_j.

    With factors before l applied to the left vector and those after l to the right one,
    d / d K_l is the product of the two unfoldings along axis l: no product is taken twice.

    Args:
        factors (m_l, m_l): symmetric, or circulant.
        left, right (M,) or (M, c).

    Returns:
        gradient; not symmetrised.

    Cost: (3 d - 2) / d Kronecker products per column; memory d vectors over the grid.
    Source: derived; Evans thesis, section 3.4, for the product rule over factors.
    """
    sizes = [f.shape[0] for f in factors]
    found = [torch.zeros_like(f if isinstance(f, Tensor) else f.column) for f in factors]
    lefts = left.unsqueeze(1) if left.ndim == 1 else left
    rights = right.unsqueeze(1) if right.ndim == 1 else right
    for j in range(lefts.shape[1]):
        suffixes = [rights[:, j]]
        for axis in range(len(factors) - 1, 0, -1):
            suffixes.append(_along(factors[axis], suffixes[-1], sizes, axis))
        prefix = lefts[:, j]
        for axis, f in enumerate(factors):
            a, b = _unfolding(prefix, sizes, axis), _unfolding(suffixes.pop(), sizes, axis)
            found[axis] += a @ b.mT if isinstance(f, Tensor) else f.gradient(a, b)
            if axis + 1 < len(factors):
                prefix = _along(f, prefix, sizes, axis)
    return FactorGradient(found, (lefts * rights).sum())


def spectral_sum(
    values: Sequence[Tensor],
    vectors: Sequence[Tensor | FourierVectors],
    noise: Tensor,
    count: int,
    function: Callable[[Tensor], Tensor],
    slope: Callable[[Tensor], Tensor],
) -> tuple[Tensor, FactorGradient]:
    """sum over the ``count`` largest lambda_i of f(count / M lambda_i + sigma^2), with gradient.

    For f = log and count = N this estimates log|K_XX + sigma^2 I| from the whole grid's spectrum
    (Nystrom; exact at N = M); for f(t) = 1 / t the trace of its inverse. Eigenvalues that tie at
    the threshold share the places that are left.

    Args:
        values (m_l,), vectors (m_l, m_l): eigenpairs of the factors; for vectors also what knows
            the derivative of the eigenvalues.
        noise (): sigma^2.
        count: N, at most M.
        function, slope: f and its derivative, elementwise.

    Returns:
        (), gradient with respect to the factors: d lambda_j = q_j^T dK_l q_j, so repeated
        eigenvalues do no harm.

    Cost: a selection among M numbers and a few passes over them; sum_l m_l^3. Memory 4 M.
    Source: Evans thesis, section 3.4.
    """
    from gpx.linalg import kronecker_vector

    sizes = [v.shape[0] for v in values]
    size = math.prod(sizes)
    spectrum = kronecker_vector(list(values))
    share = count / size
    shifted = spectrum * share + noise
    terms, slopes = function(shifted), slope(shifted)
    if count < size:
        threshold = torch.kthvalue(spectrum, size - count + 1).values
        above, ties = spectrum > threshold, spectrum == threshold
        left = (count - above.sum()) / ties.sum()
        chosen = above.to(spectrum.dtype).add_(ties.to(spectrum.dtype) * left)
        terms, slopes = terms.mul_(chosen), slopes.mul_(chosen)
    weights = _marginal_weights(slopes, values, share)
    return terms.double().sum(), FactorGradient(of_values(vectors, weights), slopes.sum())


def of_values(
    vectors: Sequence[Tensor | FourierVectors], weights: Sequence[Tensor]
) -> list[Tensor]:
    """d / d K_l of sum_j weights_lj lambda_lj, or d / d column of a circulant factor."""
    return [
        (q * w) @ q.mT if isinstance(q, Tensor) else q.value_gradient(w)
        for q, w in zip(vectors, weights, strict=True)
    ]


def _marginal_weights(slopes: Tensor, values: Sequence[Tensor], share: float) -> list[Tensor]:
    """d / d lambda_j of factor l: slopes times the other factors' eigenvalues, summed over them."""
    prefix = [slopes * share]  # axes after l contracted, for l = d ... 1
    for v in reversed(values[1:]):
        prefix.append(prefix[-1].reshape(-1, v.shape[0]) @ v)
    found = []
    for axis, v in enumerate(values):
        rest = prefix.pop().reshape(-1, v.shape[0])
        if axis:
            before = values[0]
            for other in values[1:axis]:
                before = torch.outer(before, other).reshape(-1)
            found.append(before @ rest)
        else:
            found.append(rest.sum(0))
    return found


def _along(
    factor: Tensor | CirculantFactor, vector: Tensor, sizes: Sequence[int], axis: int
) -> Tensor:
    """A factor applied along one axis of a vector over the grid."""
    before, m, after = _split(sizes, axis)
    if not isinstance(factor, Tensor):
        rows = vector.reshape(before, m, after).mT.contiguous()
        return factor.along(rows).mT.reshape(-1)
    if after == 1:
        return (vector.reshape(before, m) @ factor.mT).reshape(-1)
    return torch.matmul(factor, vector.reshape(before, m, after)).reshape(-1)


def _unfolding(vector: Tensor, sizes: Sequence[int], axis: int) -> Tensor:
    """The matrix (m_l, M / m_l) of a vector over the grid."""
    before, m, after = _split(sizes, axis)
    if after == 1:
        return vector.reshape(before, m).mT
    return vector.reshape(before, m, after).transpose(0, 1).reshape(m, -1)


def _split(sizes: Sequence[int], axis: int) -> tuple[int, int, int]:
    return math.prod(sizes[:axis]), sizes[axis], math.prod(sizes[axis + 1 :])
