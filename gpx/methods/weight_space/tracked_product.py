"""Zero-mean correction of a doubly sampled product whose expectation is tracked, not recomputed."""

from __future__ import annotations

import torch
from torch import Tensor


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
