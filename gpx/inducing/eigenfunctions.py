"""Inducing features from the Mercer decomposition of the squared exponential kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inducing.base import Selector
from gpx.inducing.features import InducingFeatures
from gpx.kernels.base import Kernel
from gpx.kernels.mercer import mercer_spectrum, require_mercer, weighted_eigenfunctions
from gpx.tensor_checks import check_positive


class Eigenfunctions(InducingFeatures):
    """u_j = lambda_j^{-1/2} int f phi_j d rho, with cov(f, u_j) = lambda_j^{1/2} phi_j.

    phi_j and lambda_j are those of an ``RBF`` kernel under rho = N(location, diag(spread^2)). The
    u_j are independent standard normals: K_uu = I and no Cholesky factorisation can fail. Row j of
    z holds the Hermite orders of phi_j. Of all M functionals these leave the least variance
    unexplained on average over rho. For few inputs that are about normal: the number needed grows
    exponentially with the number of inputs.

    Args:
        spread: standard deviation of every input under rho; None: that of the training inputs.

    Attributes:
        location, spread (d,): of rho; fixed by ``choose``.

    Cost: n M d for cross; nothing for gram.
    Source: Burt thesis, sections 1.2.2 and 2.3.4.
    """

    data_sized = ("location", "spread")
    selected = False
    location: Tensor
    spread: Tensor

    def __init__(self, spread: float | None = None) -> None:
        super().__init__()
        check_positive(spread=spread)
        self.fixed_spread = spread
        self.register_buffer("location", torch.zeros(0))
        self.register_buffer("spread", torch.ones(0))

    def require(self, kernel: Kernel) -> None:
        """An ``RBF`` of all inputs."""
        require_mercer(kernel)

    @torch.no_grad()
    def choose(
        self,
        x: Tensor,
        kernel: Kernel,
        num: int,
        *,
        selector: Selector,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Orders of the ``num`` largest eigenvalues at the kernel's hyperparameters."""
        spread = x.std(0, correction=0)
        self.location = x.mean(0)
        if self.fixed_spread is not None:
            spread = torch.full_like(spread, self.fixed_spread)
        # a constant input gets a narrow density, hence order zero
        self.spread = torch.where(spread > 0.0, spread, 1e-6 * torch.ones_like(spread))
        return mercer_spectrum(kernel, self.spread, num).orders.to(x.dtype)

    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """sqrt(lambda_j) phi_j(x)."""
        return weighted_eigenfunctions(kernel, x, self.location, self.spread, z.long())

    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """The identity."""
        return torch.eye(z.shape[0], dtype=z.dtype, device=z.device)
