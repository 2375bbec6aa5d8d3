"""The prior covariance of latent values, in float64 whatever the dtype of the model.

It has no noise on its diagonal. Entries rounded to float32 make its smallest eigenvalues negative,
and for counts in the hundreds those of K + W^-1 too.
"""

from __future__ import annotations

from torch import Tensor

from gpx.backends.entries import in_double
from gpx.kernels.base import Kernel


def prior_matrix(kernel: Kernel, x1: Tensor, x2: Tensor | None = None) -> Tensor:
    """k at all pairs, (n1, d) and (n2, d) -> (n1, n2), differentiable; None: x1 twice."""
    rows, columns = x1.double(), None if x2 is None else x2.double()
    return in_double(kernel, lambda k: k.evaluate(rows, columns)).double()


def prior_variances(kernel: Kernel, x: Tensor) -> Tensor:
    """k(x, x) at each row, (n, d) -> (n,), differentiable."""
    rows = x.double()
    return in_double(kernel, lambda k: k.diagonal(rows)).double()
