"""Zero-mean corrections of doubly sampled products whose expectation is tracked, not recomputed."""

from __future__ import annotations

from torch import Tensor


def product_correction(projection: Tensor, left: Tensor, right: Tensor, ratio: float) -> Tensor:
    """|a|^2 - ratio^2 sum(left * right) for a = P v: mean zero over independent lists; 0-d.

    To be added to a doubly sampled quadratic form that it correlates with: P = Phi_p (support rows)
    for data-quadratic terms, P = L^-1 K_U (Nystrom) for prior-quadratic ones.

    The gradient 2 P^T a of the first term is dense in v. It is replaced by that of the two sampled
    lists, each weighted ratio / 2: given that every entry of v is listed ratio^-1 times on average,
    the expected gradient is the dense one, and a step touches sampled entries only.

    Args:
        projection (p, k): a = P v of all entries at their current values; a constant.
        left, right (p, k): P_j v_j and P_i v_i of the two sampled lists, with gradient; the lists
            are independent of one another.
        ratio: all entries / listed entries.

    Exactness: mean zero, and so is the gradient, for lists whose expected counts are 1 / ratio.
    Cost: O(p k).
    Source: QSGP paper, control variates and appendix (sparse gradients of the tracked expectation).
    Deviations: each list weighted ratio / 2 instead of m / |union| on the union: measured variances
    agree within 2 %, and no list has to be made unique (no host synchronisation).
    """
    moving = (projection * (left + right)).sum()
    expected = projection.square().sum() + ratio * (moving - moving.detach())
    return expected - ratio**2 * (left * right).sum()


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
