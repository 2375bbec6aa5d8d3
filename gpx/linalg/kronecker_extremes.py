"""The largest (or smallest) entries of a Kronecker product of vectors, never listed in full."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gpx.errors import ConfigError, NotPositiveDefinite, ShapeError


@dataclass(frozen=True)
class KroneckerExtremes:
    """The p extreme products of one entry per factor.

    Attributes:
        log_values (p,): natural logarithms, the most extreme first; they do not under- or overflow.
        index (p, d): which entry of each factor, int64.
        sizes: lengths of the factors.
    """

    log_values: Tensor
    index: Tensor
    sizes: tuple[int, ...]

    @property
    def total(self) -> int:
        """How many products there are: a Python integer, of any size."""
        return math.prod(self.sizes)


def kronecker_extremes(
    factors: Sequence[Tensor], count: int, *, largest: bool = True, floor: float = 0.0
) -> KroneckerExtremes:
    """The ``count`` largest (smallest) among all prod_l m_l products of one entry per factor.

    Works prefix by prefix in the log domain and keeps the ``count`` best prefixes. Exact, because
    logarithms add: if ``count`` prefixes beat one, they beat it with every suffix.

    Args:
        factors (m_l,): positive values, for example eigenvalues of the factors of a covariance.
        count: how many; all of them when there are fewer.
        largest: the largest first, or the smallest first.
        floor: raise each factor to at least this times its largest entry first (rounded
            eigenvalues of smooth kernels are not positive; 1e-12 suits float64).

    Returns:
        Values and multi-indices. Reproducible: ties go to the earlier candidate.

    Raises:
        NotPositiveDefinite: an entry is not positive after ``floor``, or not finite.
        ShapeError, ConfigError: no factors, not vectors; ``count`` or ``floor`` out of range.

    Cost: O(sum_l m_l p) time, O(max_l m_l p) memory, whatever the number of products (10^200 is
    fine).
    Source: Evans thesis, algorithm 4.1 (Evans and Nair 2018, algorithm 4.1).
    """
    if not factors or any(f.ndim != 1 or f.shape[0] == 0 for f in factors):
        raise ShapeError(
            f"expected vectors of at least one entry, got {[tuple(f.shape) for f in factors]}"
        )
    if count < 1 or not 0.0 <= floor < 1.0:
        raise ConfigError(
            f"count is {count} and floor is {floor}; expected count >= 1 and 0 <= floor < 1"
        )
    values = torch.zeros(1, dtype=factors[0].dtype, device=factors[0].device)
    index = torch.zeros(1, 0, dtype=torch.long, device=factors[0].device)
    for position, f in enumerate(factors):
        raised = torch.maximum(f, floor * f.max()) if floor else f
        if not bool(((raised > 0) & (raised < math.inf)).all()):
            raise NotPositiveDefinite(
                f"factor {position + 1} of {len(factors)} has entries from "
                f"{float(raised.min()):.2e} to {float(raised.max()):.2e}; expected positive, "
                "finite ones. Rounded eigenvalues of a smooth kernel are not: "
                "try floor=1e-12."
            )
        candidates = (values[:, None] + raised.log()).flatten()
        chosen = _best(candidates, count, largest)
        size = f.shape[0]
        prefix = torch.div(chosen, size, rounding_mode="floor")
        values = candidates[chosen]
        index = torch.cat([index[prefix], (chosen % size)[:, None]], dim=1)
    return KroneckerExtremes(values, index, tuple(f.shape[0] for f in factors))


def _best(values: Tensor, count: int, largest: bool) -> Tensor:
    """Positions of the extremes in order; ties by position, which a bare ``topk`` leaves open."""
    detached = values.detach()
    if count < detached.shape[0]:
        last = torch.topk(detached, count, largest=largest).values[-1]
        beyond = detached > last if largest else detached < last
        kept = beyond.nonzero().squeeze(1)
        ties = (detached == last).nonzero().squeeze(1)[: count - kept.shape[0]]
        positions = torch.cat([kept, ties]).sort().values
    else:
        positions = torch.arange(detached.shape[0], device=detached.device)
    order = torch.sort(detached[positions], descending=largest, stable=True).indices
    return positions[order]
