"""Inducing features that are weighted sums of function values at the training inputs."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.inducing.base import Selector
from gpx.inducing.features import InducingFeatures
from gpx.kernels.base import Kernel


class Eigenvectors(InducingFeatures):
    """u = z f(anchors), z (M, n): any combinations; ``choose`` takes the leading eigenvectors.

    At the hyperparameters of ``choose``, eigenvectors make Q_xx the best rank-M approximation of
    K_xx, with the least trace error and the least operator norm of K_xx - Q_xx. They serve as a
    reference for what inducing points can reach; for other uses they are too expensive.

    Attributes:
        anchors (n, d): set by ``choose`` to the training inputs.

    Cost: n^2 M per evaluation, n^3 for ``choose``; memory n^2.
    Source: Burt thesis, sections 2.3.4 and 3.1.2.
    """

    data_sized = ("anchors",)
    selected = False
    anchors: Tensor

    def __init__(self, anchors: Tensor | None = None) -> None:
        super().__init__()
        self.register_buffer("anchors", torch.zeros(0, 0) if anchors is None else anchors)

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
        """lambda_m^{-1/2} times the ``num`` leading eigenvectors of K_xx, in rows."""
        self.anchors = x.detach().clone()
        values, vectors = torch.linalg.eigh(kernel.evaluate(x, x).double())
        keep = values.flip(0)[:num] > torch.finfo(x.dtype).eps * len(x) * values[-1]
        values, vectors = values.flip(0)[:num][keep], vectors.flip(1)[:, :num][:, keep]
        return (vectors / values.sqrt()).mT.to(x.dtype)

    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """k(x, anchors) z^T."""
        return kernel.evaluate(x, self.anchors) @ z.mT.to(x.dtype)

    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """z k(anchors, anchors) z^T."""
        anchors = self.anchors.to(z.dtype)
        found = z @ kernel.evaluate(anchors, anchors) @ z.mT
        return 0.5 * (found + found.mT)
