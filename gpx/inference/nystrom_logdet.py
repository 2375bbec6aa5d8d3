"""n log(tr(Q^{-1} K) / n): the tight price of log det K above log det Q, and its gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.noisy_kernel import NoisyKernel
from gpx.inference.nystrom_matrix import NystromMatrix


class TightGap(NamedTuple):
    """-n/2 log(tau / n), tau = tr(Q^{-1} K), and what its gradient needs.

    With C = LB^{-1} A (so that Q^{-1} = (I - C^T C / s) / s), G = C K C^T and H = Q^{-1} K Q^{-1}:
    tau = (tr K - tr G / s) / s and d tau = tr(Q^{-1} dK) - tr(H dQ).

    Attributes:
        value (): -n/2 log(tau / n), in nats.
        noise (): its derivative with respect to the noise variance.
        extra: rows -> (rows, M), its derivative with respect to these rows of A^T.
        diagonal: its derivative with respect to every k(x_n, x_n), beside that through ``factor``.
        factor (n, M), scale: its derivative with respect to K_xx is ``scale`` C^T C.
    """

    value: Tensor
    noise: Tensor
    extra: Callable[[slice], Tensor]
    diagonal: Tensor
    factor: Tensor
    scale: Tensor


def tight_gap(matrix: NoisyKernel, nystrom: NystromMatrix, diagonal: Tensor) -> TightGap:
    """The term and the parts of its gradient.

    Args:
        matrix, nystrom: K and Q.
        diagonal (n,): k(x_n, x_n).

    Exactness: log det K <= log det Q + n log(tau / n), by the inequality of the arithmetic and the
    geometric mean of the eigenvalues of Q^{-1/2} K Q^{-1/2}.
    Cost: a product of the kernel matrix with M vectors, n^2 M multiply-adds (three times that with
    the gradient); memory 2 n M.
    Source: Burt thesis, sections 4.3.1 and 4.3.3; the gradient is derived from it.
    """
    n, s, inner = nystrom.shape[0], nystrom.noise, nystrom.inner
    m = inner.factor.shape[0]
    eye = torch.eye(m, dtype=s.dtype, device=s.device)
    to_low = torch.linalg.solve_triangular(inner.factor, eye, upper=False)  # LB^{-1}
    factor = nystrom.expand(to_low.mT.to(nystrom.dtype))  # C^T
    product = matrix(factor)  # K C^T
    gram = (factor.mT @ product).double()
    total = diagonal.double().sum() + n * s
    tau = (total - gram.trace() / s) / s
    inverse_trace = (n - inner.complement.trace()) / s
    # C C^T / s = I - LB^{-1} LB^{-T}
    projector = eye - to_low @ to_low.mT
    curved = (total - 2.0 * gram.trace() / s + (gram * projector).sum() / s) / s.square()
    weight = n / tau
    mixed = (gram / s).to(nystrom.dtype)
    outward = (weight / s.square() * to_low).to(nystrom.dtype)

    def extra(rows: slice) -> Tensor:
        # rows of (n / tau) H A^T = n / (tau s^2) (K C^T - C^T G / s) LB^{-1}
        return (product[rows] - factor[rows] @ mixed) @ outward

    return TightGap(
        value=-0.5 * n * (tau / n).log(),
        noise=-0.5 * weight * (inverse_trace - curved),
        extra=extra,
        diagonal=-0.5 * weight / s,
        factor=factor,
        scale=0.5 * weight / s.square(),
    )
