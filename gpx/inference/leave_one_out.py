"""Every value predicted from all others, at the cost of one factorisation."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def leave_one_out_log_density(factor: Tensor, residual: Tensor) -> Tensor:
    """log p(y_i | all other values) of a Gaussian process, in nats.

    With C = K + noise, alpha = C^{-1} (y - m) and c_i = (C^{-1})_ii, the prediction of y_i is
    normal with variance 1 / c_i, noise included, and misses it by alpha_i / c_i.

    Args:
        factor (n, n): lower Cholesky factor of C.
        residual (n,): y - m.

    Returns:
        (n,): one for each value.

    Cost: 2 n^3 / 3 multiply-adds.
    Source: Rasmussen and Williams 2006, section 5.4.2.
    """
    alpha = torch.cholesky_solve(residual[:, None], factor)[:, 0]
    precision = torch.cholesky_inverse(factor).diagonal()
    misfit = alpha.square() / precision
    return 0.5 * (precision.log() - misfit - math.log(2.0 * math.pi))
