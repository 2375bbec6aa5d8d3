"""Kernels in float64, whatever the dtype of the model."""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from gpx.kernels.base import Kernel


class InDouble:
    """Covariances in float64 of a kernel and of inputs of any precision, differentiable in inputs.

    The prior covariance K of latent values has no noise on its diagonal. Entries rounded to float32
    make its smallest eigenvalues negative, and for counts in the hundreds those of K + W^-1 too.

    Args:
        kernel: a copy takes its place unless ``dtype`` is float64; so this is no module, whose copy
            would be part of the state.
        dtype: of kernel and inputs.
    """

    def __init__(self, kernel: Kernel, dtype: torch.dtype) -> None:
        self.kernel = kernel if dtype == torch.float64 else copy.deepcopy(kernel).double()

    @torch.no_grad()
    def follow(self, kernel: Kernel) -> None:
        """Take over the parameters of ``kernel``, which was given and has changed since."""
        if self.kernel is not kernel:
            pairs = zip(self.kernel.parameters(), kernel.parameters(), strict=True)
            for own, changed in pairs:
                own.copy_(changed)

    def evaluate(self, x1: Tensor, x2: Tensor | None = None) -> Tensor:
        """k at all pairs, (n1, d) and (n2, d) -> (n1, n2); None: x1 twice."""
        return self.kernel.evaluate(x1.double(), None if x2 is None else x2.double()).double()

    def diagonal(self, x: Tensor) -> Tensor:
        """k(x, x) at each row: (n, d) -> (n,)."""
        return self.kernel.diagonal(x.double()).double()


def prior_matrix(kernel: Kernel, x: Tensor) -> Tensor:
    """K (n, n) at x (n, d), evaluated in float64; see ``InDouble``.

    With gradients of the kernel's parameters where these are enabled; the kernel must then take
    inputs of float64.
    """
    if torch.is_grad_enabled():
        return kernel.evaluate(x.double()).double()
    return InDouble(kernel, x.dtype).evaluate(x)
