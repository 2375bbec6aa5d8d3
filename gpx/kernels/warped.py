"""A kernel of transformed inputs."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpx.kernels.base import Kernel


class Warped(Kernel):
    """k(x, x') = k_1(g(x), g(x')) for any map g; a covariance function whatever g is.

    Args:
        kernel: k_1, of the q outputs of g.
        warp: g, (n, d) -> (n, q); its parameters are learned with the kernel's.
        active_dims: columns of x that g looks at; None for all.

    Source: Evans thesis, section 2.2 (table of kernels).
    """

    def __init__(
        self, kernel: Kernel, warp: nn.Module, active_dims: Sequence[int] | None = None
    ) -> None:
        super().__init__(active_dims)
        self.kernel, self.warp = kernel, warp

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        first = self.warp(x1)
        return self.kernel.evaluate(first, first if x2 is x1 else self.warp(x2))

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``."""
        return self.kernel.diagonal(self.warp(x))


class LinearWarp(nn.Module):
    """g(x) = R^T x with R lower triangular: distances under the dense metric R R^T.

    An isotropic kernel of it is a kernel with r^2 = (x - x')^T Lambda^{-1} (x - x'), Lambda^{-1} =
    R R^T any positive definite matrix; fix the lengthscale of the kernel at one.

    Args:
        num_inputs: d.
    """

    def __init__(self, num_inputs: int) -> None:
        super().__init__()
        self.root = nn.Parameter(torch.eye(num_inputs))

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, d)."""
        return x @ self.root.tril()
