"""Symmetry checks, for algorithms that read only one triangle of a matrix."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from linear_operator import LinearOperator
from torch import Tensor

from gpx.errors import NotPositiveDefinite


def require_symmetric(operator: LinearOperator, what: str) -> None:
    """Refuse a square operator that is not symmetric, before ``what`` reads one triangle of it.

    A and A^T are multiplied by one vector of fixed random signs; the results may differ by the root
    of the machine precision, relative. An operator that returns itself as its transpose is not
    checked. Cost: two products; one host synchronisation.

    Raises:
        NotPositiveDefinite: the products differ.
    """
    with torch.no_grad():
        transposed = operator._transpose_nonbatch()
        if transposed is operator or operator.shape.numel() == 0:
            return
        generator = torch.Generator().manual_seed(0)
        signs = torch.randint(0, 2, (operator.shape[-1], 1), generator=generator) * 2 - 1
        vector = signs.to(dtype=operator.dtype, device=operator.device)
        one, other = operator._matmul(vector), transposed._matmul(vector)
        scale = torch.maximum(one.abs(), other.abs()).amax((-2, -1), keepdim=True)
        bound = torch.finfo(operator.dtype).eps ** 0.5 * scale
        # written so that a matrix with NaN passes on to the factorisation, which names it
        if bool(((one - other).abs() > bound).any()):
            raise _refusal(what, f"{type(operator).__name__} of shape {tuple(operator.shape)}")


def require_symmetric_factors(factors: Sequence[Tensor], what: str) -> None:
    """Refuse tensors (..., m, m) that are not all symmetric, entry by entry: O(m^2) each.

    Each factor must be symmetric, even though a product of unsymmetric factors may be symmetric.
    One host synchronisation.

    Raises:
        NotPositiveDefinite: one differs from its transpose by more than the root of the machine
            precision relative to its largest entry.
    """
    with torch.no_grad():
        for at, factor in enumerate(factors):
            if torch.equal(factor, factor.mT):  # as most are: cheaper
                continue
            bound = torch.finfo(factor.dtype).eps ** 0.5 * factor.abs().amax((-2, -1), keepdim=True)
            if bool(((factor - factor.mT).abs() > bound).any()):
                raise _refusal(what, f"factor {at + 1} of {len(factors)}")


def _refusal(what: str, which: str) -> NotPositiveDefinite:
    return NotPositiveDefinite(
        f"{what} needs a symmetric matrix, and {which} differs from its transpose; take the "
        "symmetric part (A + A.mT) / 2 if that is what you mean, or a dense factorisation of "
        "to_dense()"
    )
