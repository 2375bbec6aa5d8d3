"""Coordinates of latents in which their posterior is nearly standard normal."""

from __future__ import annotations

import contextlib
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from gpx.errors import DidNotConverge, GPXError, NotAvailable, NotPositiveDefinite
from gpx.likelihoods.base import Likelihood
from gpx.linalg import cholesky
from gpx.methods.classification.mode import find_mode
from gpx.methods.classification.propagation import propagate_many

Around = Literal["posterior", "prior"]

MODE_TOLERANCE = 1e-2
"""Newton decrement of the mode, in posterior standard deviations. It can be loose, since chains
are exact for any centre."""

MOMENT_TOLERANCE = 0.05
"""Mismatch of the moments of expectation propagation, posterior standard deviations; as loose."""

MAX_SWEEPS = 40
"""Sweeps before Laplace's approximation takes its place; five are usual."""


class Frame(NamedTuple):
    """f = m + L (c + J^-T z): the white latents v = c + J^-T z are N(c, (J J^T)^-1) for normal z.

    Leading dimensions are chains; p latents share m and L. For several classes, v and f - m are
    expressed in contrasts between classes, the rows of an orthogonal matrix. A likelihood does not
    depend on the sum over classes, which therefore keeps its wide prior.

    Attributes:
        offset (..., n): m.
        factor (..., n, n): L with L L^T = K, lower.
        centre (..., p, n): c.
        root (..., p, n, n): J, lower.
        log_volume (...): log|J|, summed over the latents.
        contrasts (..., p, p): orthogonal matrix; one contrast per row, one class per column.
    """

    offset: Tensor
    factor: Tensor
    centre: Tensor
    root: Tensor
    log_volume: Tensor
    contrasts: Tensor

    @classmethod
    def joined(cls, frames: list[Frame]) -> Frame:
        """The frames of several groups of chains as one."""
        return cls(*(torch.cat(parts) for parts in zip(*frames, strict=True)))

    def of_chains(self, chains: int | slice) -> Frame:
        """The frame of one chain, or of several, as views of this one."""
        return Frame(*(part[chains] for part in self))

    def set_chain(self, chain: int, frame: Frame) -> None:
        """Overwrite the frame of one chain."""
        for whole, part in zip(self, frame, strict=True):
            whole[chain] = part

    def white(self, z: Tensor) -> Tensor:
        """J^-T z, (..., p, n)."""
        return torch.linalg.solve_triangular(self.root.mT, z.unsqueeze(-1), upper=True).squeeze(-1)

    def colour(self, white: Tensor) -> Tensor:
        """L v, (..., p, n)."""
        return white @ self.factor.mT

    def by_class(self, values: Tensor) -> Tensor:
        """Convert contrasts (..., p, n) to values of the classes, (..., n) or (..., n, p)."""
        found = self.contrasts.mT @ values
        return found.squeeze(-2) if found.shape[-2] == 1 else found.mT

    def latent(self, coloured: Tensor) -> Tensor:
        """f = m + L c + L J^-T z in the shape of likelihoods: (..., n), or (..., n, p).

        Args:
            coloured (..., p, n): L J^-T z.
        """
        one = coloured.shape[-2] == 1
        offset = self.offset if one else self.offset.unsqueeze(-1)
        return offset + self.by_class(self.colour(self.centre) + coloured)

    def log_ratio(self, likelihood: Likelihood, y: Tensor, state: tuple[Tensor, ...]) -> Tensor:
        """log of p(y | f) N(v; 0, I) / N(v; c, (J J^T)^-1), (...).

        Args:
            state: z, J^-T z and L J^-T z, (..., p, n) each.
        """
        z, white, coloured = state
        fit = likelihood.log_prob_of_rows(y, self.latent(coloured), None).sum(-1)
        quadratic = (self.centre + white).square() - z.square()
        return fit - 0.5 * quadratic.sum((-2, -1)) - self.log_volume


@torch.no_grad()
def frames_of(
    likelihood: Likelihood,
    y: Tensor,
    offset: Tensor,
    kernel: Tensor,
    factor: Tensor,
    around: Around,
    start: Tensor | None = None,
) -> tuple[Frame, dict[int, GPXError]]:
    """The frames of C chains, each from an approximate posterior or from the prior.

    The approximation is expectation propagation's for likelihoods with closed forms of its moments
    (``tilted``), whose mean and variances are nearly those of the posterior, and Laplace's for
    others and where the former does not converge. On labels that the inputs separate the mode is
    far from the mean: chains around it had a tenth of the effective samples. Expectation
    propagation of the chains goes in lockstep.

    For several classes the curvature between contrasts is neglected; chains have the same target
    distribution in any frame.

    Args:
        y (n,): targets.
        offset (C, n), kernel (C, n, n), factor (C, n, n): m, K and L of every chain, float64.
        around: ``posterior`` or ``prior`` (c = 0 and J = I).
        start (n,) or (n, p): start of Newton's method. It must be the same in every call for a
            chain, so that the frame is a function of the hyperparameters only.

    Returns:
        the frames, and the errors of the chains that have none, whose rows here are meaningless.

    Cost: for the posterior of a chain some five sweeps of n^3 multiply-adds, or a few Newton steps
    of n^3 / 3, and p n^3.
    """
    chains, n, p = len(offset), len(y), likelihood.num_latents
    contrasts = _contrasts(p).to(factor).expand(chains, p, p)
    weights, information = factor.new_zeros(2, chains, p, n)
    if around == "prior":
        root = torch.eye(n, dtype=factor.dtype, device=factor.device).expand(chains, p, n, n)
        return Frame(offset, factor, weights, root, factor.new_zeros(chains), contrasts), {}
    converged = [False] * chains
    # by quadrature, as of counts, moments cost more than they gain
    if p == 1 and likelihood.closed_moments:
        with contextlib.suppress(NotAvailable):
            found, at, converged = propagate_many(
                kernel, offset, likelihood, y, tolerance=MOMENT_TOLERANCE, max_sweeps=MAX_SWEEPS
            )
            information, weights = found.unsqueeze(1), at.unsqueeze(1)
    missing: dict[int, GPXError] = {}
    for chain in (chain for chain, known in enumerate(converged) if not known):
        try:
            mode = find_mode(
                kernel[chain], offset[chain], likelihood, y, start, tolerance=MODE_TOLERANCE
            )
        except (DidNotConverge, NotPositiveDefinite) as error:
            missing[chain] = error
        else:
            weights[chain] = mode.weights.reshape(n, p).mT
            information[chain] = mode.sites.information.reshape(n, p).mT
    if p > 1:  # the diagonal of C (diag(w) - w w^T) C^T for the contrasts C
        information = contrasts.square() @ information - (contrasts @ information).square()
    each = factor.unsqueeze(1)
    precision = each.mT @ (information.clamp_min(0.0).unsqueeze(3) * each)
    precision.diagonal(dim1=2, dim2=3).add_(1.0)
    root, _ = cholesky(precision, name="I + L^T W L", ladder=(0.0,))
    volume = root.diagonal(dim1=2, dim2=3).log().sum((1, 2))
    centre = contrasts @ weights @ factor
    return Frame(offset, factor, centre, root, volume, contrasts), missing


def _contrasts(p: int) -> Tensor:
    """Orthogonal contrasts (p, p): the mean over classes, then each class against earlier ones."""
    below = torch.ones(p, p, dtype=torch.float64).tril(-1)
    rows = below - torch.arange(p, dtype=torch.float64).diag()
    rows[0] = 1.0
    return rows / rows.norm(dim=1, keepdim=True)
