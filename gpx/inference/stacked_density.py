"""Log densities of many Gaussian vectors at once, with gradients in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inference.padded_rows import noisy_system
from gpx.linalg import inverse_from_factor


class StackedDensity(NamedTuple):
    """Terms of log N(r_j; 0, K_j + noise_j) of b vectors, in nats without their constants.

    Attributes:
        fit, complexity (b,): as ``LogDensityTerms``, float64.
        info (b,): not zero where a matrix has no Cholesky factor; all else of it means nothing.
        alpha (b, m): C^{-1} r, zero at padding; minus the gradient with respect to r.
        weight (b, m, m): (alpha alpha^T - C^{-1}) / 2, the gradient with respect to K; None: not
            asked for. Its diagonal is the gradient with respect to noise variances.
    """

    fit: Tensor
    complexity: Tensor
    info: Tensor
    alpha: Tensor
    weight: Tensor | None

    def gradient(self, of: Tensor, covariances: Tensor, mean: Tensor, noise: Tensor) -> Tensor:
        """Gradient of the sum of the densities with respect to ``of``.

        Args:
            covariances (b, m, m), mean (b, m), noise (b, 1) or (b, m): computed from ``of``, at
                least one of them; residuals are targets minus mean.
        """
        assert self.weight is not None
        by_noise = self.weight.diagonal(dim1=1, dim2=2).sum_to_size(noise.shape)
        each = [(covariances, self.weight), (mean, self.alpha), (noise, by_noise)]
        learned = [(part, by) for part, by in each if part.requires_grad]
        (found,) = torch.autograd.grad([part for part, _ in learned], of, [by for _, by in learned])
        return found


@torch.no_grad()
def stacked_density(
    covariances: Tensor,
    residual: Tensor,
    noise: Tensor,
    mask: Tensor | None = None,
    *,
    gradient: bool,
) -> StackedDensity:
    """log N(r_j; 0, K_j + noise_j) of b vectors of m entries or, padded, fewer.

    Args:
        covariances (b, m, m): K.
        residual (b, m): r; anything at padding.
        noise (b, 1) or (b, m): variances.
        mask (b, m): false at padding; None: there is none.
        gradient: whether ``weight`` is computed, at twice the cost of the rest.

    No jitter is added. Cost: m^3/3 multiply-adds each, m^3 with the gradient; one array (b, m, m),
    two with it.
    """
    present = None if mask is None else mask.to(residual)
    residual = residual if present is None else residual * present
    buffer = torch.empty_like(covariances, memory_format=torch.contiguous_format)
    noisy_system(covariances, noise, mask, buffer)
    info = torch.empty(len(buffer), dtype=torch.int32, device=buffer.device)
    upper = buffer.mT
    torch.linalg.cholesky_ex(upper, upper=True, out=(upper, info))
    half = torch.linalg.solve_triangular(buffer, residual.unsqueeze(2), upper=False)
    alpha = torch.linalg.solve_triangular(upper, half, upper=True)
    fit = -0.5 * half.double().square().sum((1, 2))
    complexity = -upper.diagonal(dim1=1, dim2=2).double().log().sum(1)
    weight = None
    if gradient:
        if buffer.is_cpu and bool(info.any()):  # where LAPACK would raise
            buffer[info != 0] = torch.eye(buffer.shape[1], dtype=buffer.dtype)
        weight = inverse_from_factor(upper).baddbmm_(alpha, alpha.mT, beta=-0.5, alpha=0.5)
        if present is not None:
            weight.mul_(present.unsqueeze(2)).mul_(present.unsqueeze(1))
    return StackedDensity(fit, complexity, info, alpha.squeeze(2), weight)
