"""Strategies: the variables that q is over, and the marginals of the function that follow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.nystrom import Whitener, factorise_gram
from gpx.inference.variational.distribution import WhitenedGaussian
from gpx.inference.variational.moments import gaussian_kl, project
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport
from gpx.linalg.triangular import inverse_lower


class Whitening(NamedTuple):
    """Factorised covariance of the inducing variables.

    Attributes:
        k_zz (M, M): covariance in float64, with its gradient graph.
        cholesky (M, M): factor L of covariance plus jitter in float64, without a gradient graph.
        report: jitter used, relative to the mean diagonal.
    """

    k_zz: Tensor
    cholesky: Tensor
    report: CholeskyReport


@dataclass(frozen=True)
class InducingVariables:
    """The inducing variables u under the prior, at the current hyperparameters.

    Attributes:
        kernel: shared by the p latent functions.
        z (M, q): inducing inputs, or the parameters of other ``features``; shared as well.
        jitter: smallest jitter on the covariance of u, relative to its mean diagonal; larger ones
            are tried on failure, and reported.
        features: the inducing features that z defines.
    """

    kernel: Kernel
    z: Tensor
    jitter: float
    features: InducingFeatures = POINTS

    def whitening(self) -> Whitening:
        """Evaluate and factorise cov(u, u) in float64, whatever the dtype of the model.

        K_zz has no noise on its diagonal, so that rounding its entries to float32 would change
        eigenvalues by more than a useful jitter. In float64 the evaluation and factorisation take
        a few milliseconds at M = 512, and the first attempt succeeds.

        Raises:
            NotPositiveDefinite: no jitter was enough.
        """
        k_zz = self.features.gram(self.kernel, self.z.double())
        with torch.no_grad():
            factor, report = factorise_gram(k_zz.detach(), self.jitter)
        return Whitening(k_zz, factor, report)

    def cross(self, x: Tensor) -> Tensor:
        """cov(u, f(x)) (M, B) for x (B, d), differentiable."""
        return self.features.cross_rows(self.kernel, self.z, x)

    def whitener(self) -> Whitener:
        """L for streamed sums over the data; no gradients."""
        with torch.no_grad():
            return Whitener(self.kernel, self.z, self.whitening().cholesky, self.features)


class StrategyTerms(NamedTuple):
    """Marginals of the zero-mean latent functions at B inputs under q, and the KL of q.

    Attributes:
        mean (p, B), variance (p, B): differentiable in everything. Rounding can make variances
            slightly negative; they are clamped at zero.
        kl (): KL(q(u) || p(u)) in nats, summed over the latent functions.
        report: factorisation of K_zz.
    """

    mean: Tensor
    variance: Tensor
    kl: Tensor
    report: CholeskyReport


class Strategy(ABC):
    """The variables that q is over, a linear image of v = L^{-1} (u - mean(u)), L L^T = K_zz.

    The prior of v is N(0, I). The optimum for Gaussian noise and stored posteriors are in terms of
    v, so that a strategy also converts between v and its own variables.
    """

    @abstractmethod
    def terms(self, u: InducingVariables, q: WhitenedGaussian, x: Tensor) -> StrategyTerms:
        """Marginals at x (B, d), and KL."""

    @abstractmethod
    def kl(self, u: InducingVariables, q: WhitenedGaussian) -> Tensor:
        """KL(q(u) || p(u)) in nats; ()."""

    @abstractmethod
    def to_whitened(self, q: WhitenedGaussian, cholesky: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (p, M) and lower factor (p, M, M) of v under q, given L."""

    @abstractmethod
    def from_whitened(
        self, q: WhitenedGaussian, mean: Tensor, factor: Tensor, cholesky: Tensor
    ) -> None:
        """Set q such that v is N(mean, factor factor^T), or nearest to it within the family."""


class Whitened(Strategy):
    """q is over v itself: u = mean(u) + L v.

    mean = A^T m, variance = k(x, x) - diag(A^T A) + diag(A^T S S^T A), A = L^{-1} K_zx.

    Cost: O(M^3 + p M^2 B) time, O(p M^2 + p M B) memory.
    Source: Burt thesis, sections 2.1 and 2.2.
    """

    def terms(self, u: InducingVariables, q: WhitenedGaussian, x: Tensor) -> StrategyTerms:
        """As in ``Strategy``."""
        white = u.whitening()
        with torch.no_grad():
            inverse = inverse_lower(white.cholesky).to(x.dtype)
        projection = project(white.k_zz, u.cross(x), inverse, white.report.relative)
        mean, excess, kl = q.terms(projection)
        variance = (u.kernel.diagonal(x).unsqueeze(0) + excess).relu()
        return StrategyTerms(mean, variance, kl, white.report)

    def kl(self, u: InducingVariables, q: WhitenedGaussian) -> Tensor:
        """As in ``Strategy``; depends on q alone."""
        return q.kl(q.root())

    def to_whitened(self, q: WhitenedGaussian, cholesky: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and factor of q itself."""
        return q.mean, q.factor()

    def from_whitened(
        self, q: WhitenedGaussian, mean: Tensor, factor: Tensor, cholesky: Tensor
    ) -> None:
        """Assign both unchanged."""
        q.assign(mean, factor)


class Unwhitened(Strategy):
    """q is over w = u - mean(u) = L v, the values of the function at the inducing points.

    Where the data determine u well, q hardly depends on the kernel, and optimisation is faster than
    with ``Whitened``; where they do not, ``Whitened`` is faster. Marginals and divergence are those
    of v = L^{-1} w, with L^{-1} as a function of the kernel, in float64.

    Cost: O(p M^3 + p M^2 B) time, O(p M^2 + p M B) memory.
    Source: Burt thesis, sections 2.1 and 2.2.
    """

    def terms(self, u: InducingVariables, q: WhitenedGaussian, x: Tensor) -> StrategyTerms:
        """As in ``Strategy``."""
        white = u.whitening()
        with torch.no_grad():
            inverse = inverse_lower(white.cholesky)
        projection = project(white.k_zz, u.cross(x), inverse.to(x.dtype), white.report.relative)
        mean, factor = _of_whitened(q, white, inverse)
        spread = (factor.to(x.dtype).mT @ projection).square().sum(1)
        variance = u.kernel.diagonal(x) - projection.square().sum(0) + spread
        return StrategyTerms(
            mean.to(x.dtype) @ projection, variance.relu(), _kl(mean, factor), white.report
        )

    def kl(self, u: InducingVariables, q: WhitenedGaussian) -> Tensor:
        """As in ``Strategy``."""
        white = u.whitening()
        with torch.no_grad():
            inverse = inverse_lower(white.cholesky)
        return _kl(*_of_whitened(q, white, inverse))

    def to_whitened(self, q: WhitenedGaussian, cholesky: Tensor) -> tuple[Tensor, Tensor]:
        """L^{-1} times both."""
        mean = torch.linalg.solve_triangular(cholesky, q.mean.to(cholesky).mT, upper=False).mT
        factor = torch.linalg.solve_triangular(cholesky, q.factor().to(cholesky), upper=False)
        return mean, factor

    def from_whitened(
        self, q: WhitenedGaussian, mean: Tensor, factor: Tensor, cholesky: Tensor
    ) -> None:
        """L times both."""
        q.assign(mean.to(cholesky) @ cholesky.mT, cholesky @ factor.to(cholesky))


def _of_whitened(q: WhitenedGaussian, white: Whitening, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (p, M) and lower factor (p, M, M) of L^{-1} w, differentiable in q and the kernel."""
    identity = torch.eye(len(inverse), dtype=inverse.dtype, device=inverse.device)
    whitener = project(white.k_zz, identity, inverse, white.report.relative)
    return q.mean.to(whitener) @ whitener.mT, whitener @ q.factor().to(whitener)


def _kl(mean: Tensor, factor: Tensor) -> Tensor:
    return gaussian_kl(mean, factor, factor.diagonal(dim1=-2, dim2=-1).log())
