"""Posterior process of Laplace's approximation, of EP and of the variational approximation."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution

from gpx.backends import row_chunks
from gpx.data_sized import PartlyInDouble
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood, class_law
from gpx.likelihoods.softmax import class_shares
from gpx.means.base import Mean
from gpx.methods.base.gradients import no_gradient
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.classification.prior_matrix import prior_matrix, prior_variances
from gpx.methods.classification.site_matrix import ScalarSites, SiteMatrix, site_matrix
from gpx.sampling import SHARED, Frequencies, prior_functions

SOBOL_POINTS = 1024
"""Points of a scrambled Sobol sequence for averaging class probabilities over the latents."""


class SitePosterior(PartlyInDouble, Posterior):
    """Posterior process N(m + k a, k** - k R k^T) of Laplace's approximation, of EP and of ``VGP``.

    R = (K + W^-1)^-1, with the precisions W of the Gaussians that replace the likelihood terms.
    The state is O(n); the factor for the variances is recomputed at the first prediction after
    loading.

    Args:
        kernel, mean: copied.
        num_latents: p.
        separate: whether the sites of p > 1 latents leave them independent.

    Attributes:
        inputs (n, d), weights (n,) or (n, p), information (n,) or (n, p): X, a, and W in the form
            of ``gpx.likelihoods.Curvature``, or if ``separate`` its diagonal. The last two stay in
            float64, which large counts need.
    """

    data_sized = ("inputs", "weights", "information")
    in_double = ("weights", "information")
    derived = ("_sites",)
    inputs: Tensor
    weights: Tensor
    information: Tensor

    separate = False  # of posteriors that were pickled before there was a choice

    def __init__(
        self, kernel: Kernel, mean: Mean, num_latents: int = 1, *, separate: bool = False
    ) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.num_latents = num_latents
        self.separate = separate
        self.register_data_sized()
        self._sites: SiteMatrix | None = None

    @torch.no_grad()
    def fill(self, x: Tensor, weights: Tensor, information: Tensor) -> None:
        """Store copies of X (n, d), a and W; the last two in float64."""
        self.keep(x, inputs=x)
        self.keep(weights.double(), weights=weights, information=information)
        self._sites = None

    @torch.no_grad()
    def sites(self) -> SiteMatrix:
        """K and W, factorised at first use."""
        if self._sites is None:
            kernel = prior_matrix(self.kernel, self.inputs)
            self._sites = site_matrix(kernel, self.information.double(), separate=self.separate)
        return self._sites

    def joint(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (t, p) and covariance (t, p, p) of the p latents at each row of x (t, d).

        For one latent (t,) and (t,). Cost: p n^2 multiply-adds per row, in blocks of rows.
        """
        p, n = self.num_latents, self.inputs.shape[0]
        sites, weights = self.sites(), self.weights.double()
        means, covariances = [], []
        for rows in row_chunks(x.shape[0], 3 * 8 * n * p):
            cross = prior_matrix(self.kernel, x[rows], self.inputs)
            offset, prior = self.mean(x[rows]).double(), prior_variances(self.kernel, x[rows])
            reduction = sites.variance_reduction(cross)
            if p == 1:
                means.append(offset + cross @ weights)
                covariances.append((prior - reduction).clamp_min(0.0))
            else:
                means.append(offset.unsqueeze(1) + cross @ weights)
                identity = torch.eye(p, dtype=prior.dtype, device=prior.device)
                covariances.append(prior[:, None, None] * identity - reduction)
        if not means:
            shape = () if p == 1 else (p,)
            return x.new_zeros(0, *shape), x.new_zeros(0, *shape, *shape)
        return torch.cat(means).to(x.dtype), torch.cat(covariances).to(x.dtype)

    def predict(self, x: Tensor) -> Marginals:
        """As in ``Posterior``: (t,), or (t, p) for p latents (``joint`` has their correlations)."""
        mean, covariance = self.joint(x)
        if self.num_latents > 1:
            covariance = covariance.diagonal(dim1=1, dim2=2).clamp_min(0.0)
        return Marginals(mean, covariance)

    def joint_covariance(self, x: Tensor) -> Tensor:
        """As in ``Posterior``, of one latent function, differentiable in x.

        Raises:
            NotAvailable: several latent functions.
        """
        sites = self.sites()
        if not isinstance(sites, ScalarSites):
            return super().joint_covariance(x)
        half = sites.explained(prior_matrix(self.kernel, x, self.inputs))
        return (prior_matrix(self.kernel, x) - half.mT @ half).to(x.dtype)

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """As in ``Posterior``; for several classes under the joint distribution of the latents.

        Where the sites couple them, class probabilities are averages over ``SOBOL_POINTS``
        quasi-random points, the same for every row and call, with errors of about 1e-3.

        Raises:
            NotAvailable: several classes, and x requires a gradient.
        """
        if self.num_latents == 1 or self.separate:
            return super().predictive(x, likelihood)
        if torch.is_grad_enabled():  # roots by eigenvectors have no derivative
            raise no_gradient(self, " of classes")
        mean, covariance = (part.double() for part in self.joint(x))
        values, vectors = torch.linalg.eigh(covariance)
        root = vectors * values.clamp_min(0.0).sqrt().unsqueeze(1)
        points = _normal_points(self.num_latents).to(mean)
        total = torch.zeros_like(mean)
        for rows in row_chunks(x.shape[0], 4 * 8 * SOBOL_POINTS * self.num_latents):
            drawn = mean[rows] + torch.einsum("sp,tcp->stc", points, root[rows])
            total[rows] = class_shares(likelihood, drawn).mean(0)
        return class_law((total / total.sum(1, keepdim=True)).to(x.dtype))

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), or (num, t, p), of the Gaussian process.

        Pathwise conditioning: a prior function g from random Fourier features plus the update
        k (a - R g(X) - (I - R K) Q z), with Q Q^T = W and standard normal z. The mean is exact; the
        error of the variance is that of the features (``Frequencies``).

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        p, (n, num_inputs) = self.num_latents, self.inputs.shape
        prior = prior_functions(
            self.kernel, num * p, num_inputs, generator=generator, frequencies=frequencies
        )
        sites, kernel = self.sites(), prior_matrix(self.kernel, self.inputs)
        shape = (n,) if p == 1 else (n, p)
        at_data = prior(self.inputs).double().view(num, p, n).mT.reshape(num, *shape)
        noise = at_data.new_empty(at_data.shape).normal_(generator=generator)
        weights = []
        for values, draw in zip(at_data, noise, strict=True):
            scaled = sites.root(draw)
            weights.append(self.weights - sites.solve(values - kernel @ scaled) - scaled)
        updates = torch.stack(weights).to(self.inputs.dtype)

        def paths(x: Tensor) -> Tensor:
            cross, offset = self.kernel.evaluate(x, self.inputs), self.mean(x)
            prior_values = prior(x).view(num, p, -1).mT
            if p == 1:
                return prior_values.squeeze(2) + updates @ cross.mT + offset
            return prior_values + cross @ updates + offset.unsqueeze(1)

        return paths


def _normal_points(dimension: int) -> Tensor:
    """Quasi-random standard normals (SOBOL_POINTS, dimension), float64; with a fixed seed."""
    sobol = torch.quasirandom.SobolEngine(dimension, scramble=True, seed=0)
    uniform = sobol.draw(SOBOL_POINTS, dtype=torch.float64).clamp(1e-12, 1.0 - 1e-12)
    return torch.special.ndtri(uniform)
