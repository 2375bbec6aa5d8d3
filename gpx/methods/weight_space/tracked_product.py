"""Zero-mean corrections of doubly sampled products, given a tracked projection."""

from __future__ import annotations

from torch import Tensor


def product_correction(projection: Tensor, left: Tensor, right: Tensor, ratio: float) -> Tensor:
    """|a|^2 - ratio^2 sum(left * right) for a = P v: mean zero over independent lists; 0-d.

    A control variate to be added to a doubly sampled quadratic form: P = Phi_p (support rows) for
    data-quadratic terms, P = L^-1 K_U (Nystrom) for prior-quadratic ones.

    The gradient 2 P^T a of the first term is dense in v. It is replaced by its entries at the two
    sampled lists, each weighted ratio / 2. Since every entry of v is listed 1 / ratio times on
    average, this is unbiased for the dense gradient, and a step changes sampled entries only.

    Args:
        projection (p, k): a = P v of all entries at their current values, without gradient.
        left, right (p, k): P_j v_j and P_i v_i of the two sampled lists, with gradient; the lists
            are independent of one another.
        ratio: all entries / listed entries.

    Exactness: mean zero, and so is the gradient, for lists whose expected counts are 1 / ratio.
    Cost: O(p k).
    Source: QSGP paper, control variates and appendix (sparse gradients of the tracked expectation).
    Deviation: each list is weighted ratio / 2 instead of m / |union| on the union. The variances
    are practically the same, and no list has to be made unique (no host synchronisation).
    """
    sampled = (projection * (left + right)).sum()
    expected = projection.square().sum() + ratio * (sampled - sampled.detach())
    return expected - ratio**2 * (left * right).sum()


def correction_direction(projection: Tensor, right: Tensor, ratio: float) -> Tensor:
    """u (p, k) = ratio a - ratio^2 P_i v_i: gradient of ``product_correction`` in P_j v_j.

    With it one pass over the other list gives both product and gradient (``corrected_form``).
    """
    return ratio * projection - ratio**2 * right


def corrected_form(
    form: Tensor, projection: Tensor, left: Tensor, right: Tensor, ratio: float
) -> Tensor:
    """``product_correction`` and its gradient, from one pass over the second list; 0-d.

    Args:
        form: sum(u * left) with u from ``correction_direction``, with gradient.
        projection, right, ratio: as for ``product_correction``.
        left (p, k): P_j v_j, without gradient.
    """
    with_gradient = form + ratio * (projection * right).sum()
    offset = ratio * (projection * (left + right.detach())).sum()
    return projection.square().sum() - offset + with_gradient
