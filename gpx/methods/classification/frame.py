"""Coordinates of latents in which their posterior is nearly standard normal."""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.likelihoods.base import Likelihood
from gpx.linalg import cholesky
from gpx.methods.classification.mode import find_mode

Around = Literal["posterior", "prior"]

NEAR = 1e-2
"""Newton decrement of the mode, posterior standard deviations: any centre gives the right law."""


class Frame(NamedTuple):
    """f = m + L (c + J^-T z): the white latents v = c + J^-T z are N(c, (J J^T)^-1) for normal z.

    Leading dimensions are chains; p latents share m and L. Of several classes v and f - m here are
    contrasts between them, the rows of an orthogonal matrix: a likelihood says nothing of the sum
    over classes, which keeps its prior and must not be taken for as narrow as the rest.

    Attributes:
        offset (..., n): m.
        factor (..., n, n): L with L L^T = K, lower.
        centre (..., p, n): c.
        root (..., p, n, n): J, lower.
        log_volume (...): log|J|, summed over the latents.
        contrasts (..., p, p): orthogonal, class by column.
    """

    offset: Tensor
    factor: Tensor
    centre: Tensor
    root: Tensor
    log_volume: Tensor
    contrasts: Tensor

    @classmethod
    def stacked(cls, frames: list[Frame]) -> Frame:
        """Frames of chains as one."""
        return cls(*(torch.stack(parts) for parts in zip(*frames, strict=True)))

    def of_chain(self, chain: int) -> Frame:
        """That of one chain, in the memory of all."""
        return Frame(*(part[chain] for part in self))

    def white(self, z: Tensor) -> Tensor:
        """J^-T z, (..., p, n)."""
        return torch.linalg.solve_triangular(self.root.mT, z.unsqueeze(-1), upper=True).squeeze(-1)

    def risen(self, white: Tensor) -> Tensor:
        """L v, (..., p, n)."""
        return white @ self.factor.mT

    def by_class(self, values: Tensor) -> Tensor:
        """Contrasts (..., p, n) as values of the classes, shaped as latents: (..., n[, p])."""
        found = self.contrasts.mT @ values
        return found.squeeze(-2) if found.shape[-2] == 1 else found.mT

    def latent(self, risen: Tensor) -> Tensor:
        """m + L c + L J^-T z in the shape of likelihoods: (..., n), or (..., n, p).

        Args:
            risen (..., p, n): L J^-T z.
        """
        one = risen.shape[-2] == 1
        offset = self.offset if one else self.offset.unsqueeze(-1)
        return offset + self.by_class(self.risen(self.centre) + risen)

    def log_ratio(self, likelihood: Likelihood, y: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """log of p(y | f) N(v; 0, I) over N(v; c, (J J^T)^-1), (...).

        Args:
            state: z, J^-T z and L J^-T z, (..., p, n) each.
        """
        z, white, risen = state
        fit = likelihood.log_prob(y, self.latent(risen)).sum(-1)
        away = (self.centre + white).square() - z.square()
        return fit - 0.5 * away.sum((-2, -1)) - self.log_volume


@torch.no_grad()
def frame_of(
    likelihood: Likelihood,
    y: Tensor,
    offset: Tensor,
    factor: Tensor,
    around: Around,
    start: Tensor | None = None,
) -> Frame:
    """The frame at one setting of the hyperparameters: that of Laplace's approximation, or prior.

    Of the curvature in p contrasts of classes the diagonal alone is taken, each contrast by itself:
    chains in any frame have the same law.

    Args:
        y (n,), offset (n,), factor (n, n): targets, m and L, float64.
        around: ``posterior`` or ``prior`` (c = 0 and J = I).
        start (n,) or (n, p): where Newton's method begins, the same in every call of a chain: the
            frame is a function of the hyperparameters alone.

    Raises:
        DidNotConverge: there is no mode to be found.

    Cost: for the posterior some Newton steps of n^3 / 3 multiply-adds, and p n^3.
    """
    n, p = len(y), likelihood.num_latents
    contrasts = _contrasts(p).to(factor)
    if around == "prior":
        identity = torch.eye(n, dtype=factor.dtype, device=factor.device).expand(p, n, n)
        nothing = factor.new_zeros(p, n)
        return Frame(offset, factor, nothing, identity, factor.new_zeros(()), contrasts)
    kernel = factor @ factor.mT
    mode = find_mode(kernel, offset, likelihood, y, start, tolerance=NEAR)
    information = mode.sites.information.reshape(n, p).mT  # (p, n)
    if p > 1:  # of diag(w) - w w^T, in every contrast
        information = contrasts.square() @ information - (contrasts @ information).square()
        information = information.clamp_min(0.0)
    precision = factor.mT @ (information.unsqueeze(2) * factor)
    precision.diagonal(dim1=1, dim2=2).add_(1.0)
    root, _ = cholesky(precision, name="I + L^T W L", ladder=(0.0,))
    centre = contrasts @ (factor.mT @ mode.weights.reshape(n, p)).mT
    volume = root.diagonal(dim1=1, dim2=2).log().sum()
    return Frame(offset, factor, centre, root, volume, contrasts)


def _contrasts(p: int) -> Tensor:
    """The mean over p classes and, one after the other, each class against those before it."""
    below = torch.ones(p, p, dtype=torch.float64).tril(-1)
    rows = below - torch.arange(p, dtype=torch.float64).diag()
    rows[0] = 1.0
    return rows / rows.norm(dim=1, keepdim=True)
