"""Control variate of the prior-quadratic term v^T S v for inducing-point bases with S = K."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.report import CholeskyReport
from gpx.methods.weight_space.tracked_product import carry_projection, product_correction


@dataclass(frozen=True)
class NystromSupport:
    """Cholesky factor of the support: S ~= K_XU K_UU^-1 K_UX = (L^-1 K_UX)^T (L^-1 K_UX).

    Attributes:
        factor (p, p): L, lower triangular, of K_UU plus the reported jitter.
        report: of the factorisation.
    """

    factor: Tensor
    report: CholeskyReport

    def features(self, cross: Tensor) -> Tensor:
        """P at some columns: L^-1 K_{U, columns}, (p, c) from ``cross`` (p, c); O(p^2 c)."""
        return torch.linalg.solve_triangular(self.factor, cross, upper=False)


def nystrom_support(gram: Tensor) -> NystromSupport:
    """Factorise K_UU (p, p) once, before training; O(p^3).

    Any jitter changes the control variate and its expectation alike, so it costs correlation and
    never bias.

    Raises:
        ShapeError: ``gram`` is not square.
        NotPositiveDefinite: no jitter of the ladder was enough.
    """
    if gram.ndim != 2 or gram.shape[0] != gram.shape[1]:
        raise ShapeError(
            f"kernel matrix of the support must be square (p, p), got {tuple(gram.shape)}"
        )
    factor, report = cholesky(gram, name=f"kernel matrix of {gram.shape[0]} support points")
    return NystromSupport(factor, report)


def precision_correction(
    projection: Tensor,
    features_left: Tensor,
    features_right: Tensor,
    left: Tensor,
    right: Tensor,
    ratio: float,
) -> Tensor:
    """Zero-mean term to add to ratio^2 sum_k v_jk^T S_ji v_ik; 0-d, differentiable in v.

    Math: |P v|^2 - ratio^2 (P_j v_j)^T (P_i v_i), P = L^-1 K_UX, summed over the k columns of v
    (the weight mean and the dense columns of the covariance factor).

    Args:
        projection (p, k): tracked P v; start with ``features(K_UX) @ v`` (zero for v = 0), then
            ``carry`` after every step.
        features_left, features_right (p, l): ``NystromSupport.features`` at lists j and i.
        left, right (l, k): rows of v at lists j and i, with gradient; independent lists.
        ratio: m / l.

    Exactness: mean zero, and so is its gradient (enumerated in the tests).
    Cost: O(p l k), beside O(p^2 l) for the features.
    Source: QSGP paper appendix, additional control variates; thesis D.1.2.
    """
    return product_correction(projection, features_left @ left, features_right @ right, ratio)


carry = carry_projection
"""a += P_U (v_new - v_old) after a step that moved the entries U only."""
