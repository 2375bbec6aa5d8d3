"""Zero-mean corrections of doubly sampled products whose expectation is tracked, not recomputed.

Of any such product, and of the prior-quadratic term v^T S v of inducing-point bases with S = K.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ShapeError
from gpx.linalg.cholesky import cholesky
from gpx.linalg.report import CholeskyReport


def tracked_square(projection: Tensor, left: Tensor, right: Tensor, ratio: float) -> Tensor:
    """sum(a^2) for a = P v, with a sparse unbiased gradient with respect to v; 0-d.

    The gradient 2 P^T a is dense in v. It is replaced by that of the two sampled lists, each
    weighted ratio / 2: given that every entry of v is listed ratio^-1 times on average, the
    expected gradient is the dense one, and a step touches sampled entries only.

    Args:
        projection (p, k): a = P v of all entries at their current values; a constant.
        left, right (p, k): P_j v_j and P_i v_i of the two sampled lists, with gradient.
        ratio: all entries / listed entries.

    Exactness: value exact, gradient unbiased for lists whose expected counts are 1 / ratio.
    Source: QSGP paper appendix (sparse gradients of the tracked expectation).
    Deviations: each list weighted ratio / 2 instead of m / |union| on the union: measured variances
    agree within 2 %, and no list has to be made unique (no host synchronisation).
    """
    moving = (projection * (left + right)).sum()
    return projection.square().sum() + ratio * (moving - moving.detach())


def product_correction(projection: Tensor, left: Tensor, right: Tensor, ratio: float) -> Tensor:
    """sum(a^2) - ratio^2 sum(left * right): mean zero over independent lists; 0-d.

    To be added to a doubly sampled quadratic form that it correlates with: P = Phi_p (support rows)
    for data-quadratic terms, P = L^-1 K_U (Nystrom) for prior-quadratic ones.

    Args: as for ``tracked_square``. The two lists must be independent of one another.
    Cost: O(p k).
    Source: QSGP paper, control variates.
    """
    return tracked_square(projection, left, right, ratio) - ratio**2 * (left * right).sum()


def correction_direction(projection: Tensor, right: Tensor, ratio: float) -> Tensor:
    """u (p, k) = ratio a - ratio^2 P_i v_i: gradient of ``product_correction`` in P_j v_j.

    With it one pass over the other list gives product and gradient (``corrected_form``).
    """
    return ratio * projection - ratio**2 * right


def corrected_form(
    form: Tensor, projection: Tensor, left: Tensor, right: Tensor, ratio: float
) -> Tensor:
    """``product_correction`` of value and gradient; 0-d.

    Args:
        form: sum(u * left) with u from ``correction_direction``, with gradient.
        projection, right, ratio: as for ``product_correction``.
        left (p, k): P_j v_j, without gradient.
    """
    moving = form + ratio * (projection * right).sum()
    fixed = ratio * (projection * (left + right.detach())).sum()
    return projection.square().sum() - fixed + moving


@torch.no_grad()
def carry_projection(projection: Tensor, features: Tensor, change: Tensor) -> None:
    """a += P_U (v_new - v_old), in place: O(p |U| k), free of the number of entries.

    Args:
        projection (p, k): a.
        features (p, |U|): columns of P at the entries U that moved, each listed once (or ``change``
            divided by how often it is listed).
        change (|U|, k): v_new - v_old there.

    Source: QSGP paper proposition 3.
    """
    projection += features @ change.to(projection.dtype)  # summed first, as SelectedBlocks.carry


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
            ``carry_projection`` after every step.
        features_left, features_right (p, l): ``NystromSupport.features`` at lists j and i.
        left, right (l, k): rows of v at lists j and i, with gradient; independent lists.
        ratio: m / l.

    Exactness: mean zero, and so is its gradient (enumerated in the tests).
    Cost: O(p l k), beside O(p^2 l) for the features.
    Source: QSGP paper appendix, additional control variates; thesis D.1.2.
    """
    return product_correction(projection, features_left @ left, features_right @ right, ratio)
