"""Posterior process of sparse regression with inducing points."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inference.joint_law import JointLaw, Projected
from gpx.inference.nystrom import BlockStore, NystromSums, Whitener
from gpx.kernels.base import Kernel
from gpx.linalg import CholeskyReport
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, untrained
from gpx.methods.sparse.certified_selection import KLCertifier
from gpx.sampling import SHARED, ConditionedFunctions, Frequencies, prior_functions


class Certificate(NamedTuple):
    """Arguments of ``KLCertifier.bound`` for one q, which is evaluated when facts are read."""

    certifier: KLCertifier
    whitener: Whitener
    sums: NystromSums
    report: CholeskyReport


class SGPRPosterior(JointLaw):
    """Posterior process of ``SGPR``; needs no training data.

    With u = f(Z) = L v, q(v) = N(weights, B^{-1}) and LB = chol(B).

    Attributes:
        inducing_points (M, d), factor (M, M): Z and L = chol(K_zz).
        features: kind of the inducing variables.
        inner_factor (M, M), weights (M,): LB and the mean of v.
        certificate: with ``num_inducing="auto"``; it holds the training data. None otherwise, after
            loading from a file, and in copies and pickles.
    """

    data_sized: ClassVar[tuple[str, ...]] = (
        "inducing_points",
        "factor",
        "inner_factor",
        "weights",
    )
    inducing_points: Tensor
    factor: Tensor
    inner_factor: Tensor
    weights: Tensor

    def __init__(self, kernel: Kernel, mean: Mean, features: InducingFeatures = POINTS) -> None:
        super().__init__()
        self.features = copy.deepcopy(features)
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.certificate: Certificate | None = None
        self.register_data_sized()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "certificate": None}

    def inducing_variables(self) -> tuple[Tensor, InducingFeatures]:
        """As in ``Posterior``."""
        return self.inducing_points, self.features

    def fill(self, whitener: Whitener, inner_factor: Tensor, weights: Tensor) -> None:
        """Store Z and L, LB (M, M) and the mean (M,) of v, in the dtype of Z."""
        z, factor = whitener.z, whitener.factor
        self.keep(z, inducing_points=z, factor=factor, inner_factor=inner_factor, weights=weights)

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: M, and the bound on KL(q || posterior) if certified."""
        found: dict[str, bool | int | float | str] = {"num_inducing": len(self.inducing_points)}
        if self.certificate is not None:
            certifier, whitener, sums, report = self.certificate
            kl, tolerance = certifier.bound(whitener, sums, report), certifier.tolerance
            found |= {"kl_upper_bound": kl, "kl_tolerance": tolerance, "certified": kl <= tolerance}
        return found

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: M^2 multiply-adds per row; memory of one block of kernel rows beside the output.
        """
        if torch.is_grad_enabled():  # x requires a gradient
            return self.projected_marginals(x)
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        for rows, block in BlockStore(self._whitener(), x):
            mean[rows] = self.mean(x[rows]) + block @ self.weights
            unexplained = self._unexplained(x[rows], block)
            column = block.mT
            torch.linalg.solve_triangular(self.inner_factor, column, upper=False, out=column)
            variance[rows] = unexplained + torch.linalg.vecdot(block, block)
        return Marginals(mean, variance)

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``: prior minus Q, plus the covariance of u under q.

        Cost: M^2 multiply-adds per row.
        """
        rows = self.features.cross_rows(self.kernel, self.inducing_points, x)
        white = torch.linalg.solve_triangular(self.factor, rows, upper=False)
        root = torch.linalg.solve_triangular(self.inner_factor, white, upper=False)
        return Projected(x, self.mean(x) + self.weights @ white, white.mT, root.mT)

    def _whitener(self) -> Whitener:
        return Whitener(self.kernel, self.inducing_points, self.factor, self.features)

    def _whitened_rows(self, x: Tensor) -> Tensor:
        """Rows of A^T (b, M) at x (b, d); differentiable where gradients are enabled."""
        if torch.is_grad_enabled():
            return SGPRPosterior.project_rows(self, x).explained
        return self._whitener().block(x, x.new_empty(len(x), len(self.weights)))

    def _unexplained(self, x: Tensor, block: Tensor) -> Tensor:
        """Variance (b,) of f at x (b, d) given u, from rows of A^T (b, M)."""
        return (self.kernel.diagonal(x) - torch.linalg.vecdot(block, block)).clamp_(min=0.0)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        f(x) = prior(x) + K_xz K_zz^{-1} (u - prior(Z)) with u ~ q: a prior function from random
        Fourier features, corrected at the inducing points (Wilson et al. 2020). Exact in the mean;
        the variance away from Z is that of the feature approximation. ``frequencies`` sets the
        number of features and whether paths share them, and documents the error.

        Raises:
            ConfigError: the kernel has no random Fourier features, or the inducing variables are
                not function values.

        Cost: num M^2 multiply-adds once, O(num M) per row.
        """
        self.features.require_sampled()
        z = self.inducing_points
        prior = prior_functions(
            self.kernel, num, z.shape[1], generator=generator, frequencies=frequencies
        )
        v = self._whitened_draws(num, generator)
        v = v - torch.linalg.solve_triangular(self.factor, prior(z).mT, upper=False)
        weights = torch.linalg.solve_triangular(self.factor.mT, v, upper=True).mT
        return ConditionedFunctions(prior, weights, z, self.kernel, self.mean)

    def _whitened_draws(self, num: int, generator: torch.Generator) -> Tensor:
        """``num`` draws of v ~ N(weights, B^{-1}), (M, num)."""
        w = self.weights
        noise = torch.randn(len(w), num, generator=generator, dtype=w.dtype, device=w.device)
        drawn = torch.linalg.solve_triangular(self.inner_factor.mT, noise, upper=True)
        return w.unsqueeze(1) + drawn
