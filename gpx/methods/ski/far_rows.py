"""Rows far from all others, which make an equidistant grid coarse where the others are."""

from __future__ import annotations

import torch
from torch import Tensor

SMALLEST_SHARE = 0.05
"""Share of an axis that most rows must use; of a normal column of 1,000 rows it is 0.7, of a
log-normal one of 10^5 rows 0.14."""

CUT = 0.01
"""Share of the rows that is left out on each side, at least one."""

FEWEST_ROWS = 20
"""With fewer rows nothing is said."""

MOST_ROWS = 100_000
"""Rows, at even steps, of which quantiles are taken."""


def first_narrow_axis(x: Tensor, corners: Tensor) -> tuple[int, float, int] | None:
    """The first axis that most rows use less than ``SMALLEST_SHARE`` of; None: there is none.

    Args:
        x (n, d): rows.
        corners (k, d): points between which the grid reaches.

    Returns:
        axis, share of it between the quantiles ``CUT`` and 1 - ``CUT`` of the rows, and the number
        of the row that is farthest from their median.

    Cost: O(n d), and one sort of at most ``MOST_ROWS`` rows; one wait for a device.
    """
    if len(x) < FEWEST_ROWS:
        return None
    some = x[:: -(-len(x) // MOST_ROWS)].detach().double()
    cut = max(1, int(CUT * len(some)))
    ordered = some.sort(0).values
    used = ordered[-1 - cut] - ordered[cut]
    low, high = corners.detach().double().aminmax(dim=0)
    share = torch.where(high > low, used / (high - low), 1.0)
    # columns of few values have all their rows on some of them
    narrow = ((share < SMALLEST_SHARE) & (used > 0.0)).tolist()
    if not any(narrow):
        return None
    axis = narrow.index(True)
    far = (x[:, axis].double() - ordered[len(some) // 2, axis]).abs()
    return axis, float(share[axis]), int(far.argmax())
