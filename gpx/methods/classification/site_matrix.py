"""Determinant, solves and variances with kernel matrix K and site precisions W.

Laplace's approximation, expectation propagation and the variational Gaussian approximation replace
every likelihood term by a Gaussian, its site. With W the precision of the sites, everything is a
product with

    R = (K + W^-1)^-1,    where    (K^-1 + W)^-1 = K - K R K.

R is computed without inverting W or K from B = I + W^1/2 K W^1/2, whose eigenvalues are at least
one, so that its Cholesky factor always exists.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.linalg import cholesky, inverse_of_factor

PRECISE = 1e4
"""Precision of a site, in those of the prior there, beyond which differences of variances from the
prior's lose digits."""


class SiteMatrix(ABC):
    """K (n, n), shared by all latent functions, and W in the form of ``gpx.likelihoods.Curvature``.

    Vectors are (n,) for one latent function and (n, p) for p of them.

    Attributes:
        information (n,) or (n, p): w, which defines W.
    """

    information: Tensor

    @property
    @abstractmethod
    def log_determinant(self) -> Tensor:
        """log |I + K W|, ()."""

    @abstractmethod
    def root(self, vector: Tensor) -> Tensor:
        """Q v, with Q Q^T = W."""

    @abstractmethod
    def solve(self, vector: Tensor) -> Tensor:
        """R v."""

    @abstractmethod
    def precision(self) -> Tensor:
        """R (n, n); for p latents the sum of its p diagonal blocks."""

    @abstractmethod
    def variance_reduction(self, cross: Tensor) -> Tensor:
        """Prior minus posterior variance at t points: k R k^T.

        Args:
            cross (t, n): k, between these points and the data; K for the data themselves.

        Returns:
            (t,) for one latent; (t, p, p) for p.
        """

    def posterior_variance(self, kernel: Tensor) -> Tensor:
        """Covariance of the latents of each row at the data, given K: (n,) for one, (n, p, p)."""
        prior, reduction = kernel.diagonal(), self.variance_reduction(kernel)
        return torch.diag_embed(prior.unsqueeze(1).expand(reduction.shape[:2])) - reduction


class ScalarSites(SiteMatrix):
    """One latent function: W = diag(w).

    Args:
        kernel (..., n, n): K, float64; leading dimensions are separate problems.
        information (..., n): w, not negative.

    Cost: n^3 / 3 multiply-adds, and n^2 t for variances at t points.
    Source: Rasmussen and Williams 2006, equations 3.26 and 3.27.
    """

    def __init__(self, kernel: Tensor, information: Tensor) -> None:
        self.information = information
        self.scale = information.sqrt()
        inner = self.scale.unsqueeze(-1) * kernel * self.scale.unsqueeze(-2)
        inner.diagonal(dim1=-2, dim2=-1).add_(1.0)
        self.factor, _ = cholesky(inner, name="I + W^1/2 K W^1/2", ladder=(0.0,))

    @property
    def log_determinant(self) -> Tensor:
        """As in ``SiteMatrix``."""
        return 2.0 * self.factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)

    def root(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.scale * vector

    def solve(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        right = (self.scale * vector).unsqueeze(-1)
        return self.scale * torch.cholesky_solve(right, self.factor).squeeze(-1)

    def precision(self) -> Tensor:
        """As in ``SiteMatrix``. Cost: 2 n^3 / 3 multiply-adds."""
        inverse = inverse_of_factor(self.factor)
        return inverse.mul_(self.scale.unsqueeze(-2)).mul_(self.scale.unsqueeze(-1))

    def posterior_variance(self, kernel: Tensor) -> Tensor:
        """As in ``SiteMatrix``, (..., n).

        Of precise sites k - k R k^T would be a small difference of large numbers, and the same
        variance is (1 - (B^-1)_ii) / w.

        Args:
            kernel (..., n, n): K.
        """
        prior = kernel.diagonal(dim1=-2, dim2=-1)
        variance = prior - self.variance_reduction(kernel)
        precise = self.information * prior > PRECISE
        if kernel.is_cpu and not bool(precise.any()):  # for a GPU the wait is longer than the solve
            return variance
        unit = torch.eye(kernel.shape[-1], dtype=kernel.dtype, device=kernel.device)
        left = torch.linalg.solve_triangular(self.factor, unit, upper=False).square().sum(-2)
        return torch.where(precise, (1.0 - left) / self.information, variance)

    def variance_reduction(self, cross: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.explained(cross).square().sum(-2)

    def explained(self, cross: Tensor) -> Tensor:
        """Columns e (..., n, t) for k (t, n), whose products reduce covariances: k R k'^T = e e'.

        Cost: n^2 / 2 multiply-adds for each.
        """
        scaled = (cross * self.scale.unsqueeze(-2)).mT
        return torch.linalg.solve_triangular(self.factor, scaled, upper=False)


class ClassSites(SiteMatrix):
    """p latent functions with the same kernel: W_i = diag(w_i) - w_i w_i^T in every row i.

    With E_c = (K + diag(w_c)^-1)^-1 and M = sum_c E_c

        R = blockdiag(E_c) - [E_c M^-1 E_d]_cd,    |I + K W| = |M| prod_c |B_c|.

    Args:
        kernel (n, n): K, float64.
        information (n, p): w; rows sum to one.

    Cost: p n^3 multiply-adds and (p + 1) arrays of n x n.
    Source: Rasmussen and Williams 2006, section 3.5. Their algorithm 3.3 omits log|M| from the
    evidence; the determinant identity above includes it.
    """

    def __init__(self, kernel: Tensor, information: Tensor) -> None:
        self.information = information
        self.scale = information.mT.sqrt().contiguous()  # (p, n)
        inner = self.scale.unsqueeze(2) * kernel * self.scale.unsqueeze(1)
        inner.diagonal(dim1=1, dim2=2).add_(1.0)
        self.factor, _ = cholesky(inner, name="I + W^1/2 K W^1/2", ladder=(0.0,))
        del inner
        self.blocks = inverse_of_factor(self.factor)
        self.blocks.mul_(self.scale.unsqueeze(1)).mul_(self.scale.unsqueeze(2))
        self.joint, _ = cholesky(
            self.blocks.sum(0), name="the sum over classes of (K + W^-1)^-1", ladder=(0.0,)
        )

    @property
    def log_determinant(self) -> Tensor:
        """As in ``SiteMatrix``."""
        logs = self.factor.diagonal(dim1=1, dim2=2).log().sum()
        return 2.0 * (logs + self.joint.diagonal().log().sum())

    def root(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``; first projects out the unit vector of square roots of w."""
        unit = self.scale.mT
        return unit * (vector - unit * (unit * vector).sum(1, keepdim=True))

    def _multiply_blocks(self, vector: Tensor) -> Tensor:
        """E_c v_c of every class, (n, p)."""
        return torch.bmm(self.blocks, vector.mT.unsqueeze(2)).squeeze(2).mT

    def solve(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        by_class = self._multiply_blocks(vector)
        shared = torch.cholesky_solve(by_class.sum(1, keepdim=True), self.joint)
        return by_class - self._multiply_blocks(shared.expand_as(vector))

    def precision(self) -> Tensor:
        """As in ``SiteMatrix``."""
        total = self.blocks.sum(0)
        for block in self.blocks:
            half = torch.linalg.solve_triangular(self.joint, block, upper=False)
            total.addmm_(half.mT, half, alpha=-1.0)
        return total

    def variance_reduction(self, cross: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        scaled = cross.mT.unsqueeze(0) * self.scale.unsqueeze(2)
        diagonal = torch.linalg.solve_triangular(self.factor, scaled, upper=False).square().sum(1)
        joint = torch.linalg.solve_triangular(self.joint, self.blocks @ cross.mT, upper=False)
        return torch.diag_embed(diagonal.mT) - torch.einsum("cnt,dnt->tcd", joint, joint)


class SeparateSites(SiteMatrix):
    """p latent functions with the same kernel that the sites do not couple: W_c = diag(w_c).

    Args:
        kernel (n, n): K, float64.
        information (n, p): w, not negative.

    Cost: p times that of ``ScalarSites``, and p arrays of n x n.
    """

    def __init__(self, kernel: Tensor, information: Tensor) -> None:
        self.information = information
        self.each = ScalarSites(kernel, information.mT.contiguous())

    @property
    def log_determinant(self) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.each.log_determinant.sum()

    def root(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.each.root(vector.mT).mT

    def solve(self, vector: Tensor) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.each.solve(vector.mT).mT

    def precision(self) -> Tensor:
        """As in ``SiteMatrix``."""
        return self.each.precision().sum(0)

    def variance_reduction(self, cross: Tensor) -> Tensor:
        """As in ``SiteMatrix``; diagonal matrices."""
        return torch.diag_embed(self.each.variance_reduction(cross).mT)


def site_matrix(kernel: Tensor, information: Tensor, *, separate: bool = False) -> SiteMatrix:
    """The matrix of its kind, by the shape of w: (n,) for one latent function, (n, p).

    Args:
        kernel (n, n), information: of every kind.
        separate: whether the sites of p latent functions are separate (``SeparateSites``) or
            couple classes (``ClassSites``).

    Raises:
        NotPositiveDefinite: numbers that are not finite, or class probabilities that all underflow.
    """
    if information.ndim == 1:
        return ScalarSites(kernel, information)
    return (SeparateSites if separate else ClassSites)(kernel, information)


class Moments(NamedTuple):
    """Gaussian posterior of f - m (latents minus the mean function) at the data.

    Attributes:
        weights (..., n): a = K^-1 times the mean.
        mean, variance (..., n).
        prior (..., n): the variance without sites.
    """

    weights: Tensor
    mean: Tensor
    variance: Tensor
    prior: Tensor


def moments_with_sites(kernel: Tensor, matrix: ScalarSites, sites: Tensor) -> Moments:
    """The posterior that Gaussian sites leave.

    Args:
        kernel (..., n, n): K.
        matrix: K and the precisions of the sites.
        sites (2, ..., n): precision, and precision times mean, of each site in f - m.

    Cost: a triangular solve with n columns, n^3 / 2 multiply-adds; two where sites are precise.
    """
    prior = kernel.diagonal(dim1=-2, dim2=-1)
    variance = not_zero(matrix.posterior_variance(kernel))
    prior = not_zero(prior)
    # v - R K v of precise sites, as those of large counts, would be a small difference of large
    # numbers: all but a share 1 / (1 + w k) of v goes as R W^-1 v
    others = sites[1] / (1.0 + sites[0] * prior)
    weights = others - matrix.solve(
        torch.addcmul(_times(kernel, others), prior, others, value=-1.0)
    )
    return Moments(weights, _times(kernel, weights), variance, prior)


def not_zero(variance: Tensor) -> Tensor:
    """Kernels such as Linear are zero at the origin, and precisions must stay finite."""
    return variance.clamp_min(torch.finfo(variance.dtype).tiny ** 0.5)


def _times(kernel: Tensor, vector: Tensor) -> Tensor:
    """K v, (..., n). As rows: a problem then has the same bits whatever is beside it in a batch."""
    return (vector.unsqueeze(-2) @ kernel).squeeze(-2)
