"""Posterior processes of effective priors."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import ClassVar

import torch
from linear_operator import LinearOperator, to_linear_operator
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing.features import POINTS, InducingFeatures
from gpx.inducing.partition import Regions
from gpx.inference.joint_law import Projected
from gpx.inference.nystrom import BlockStore
from gpx.kernels.base import Kernel
from gpx.means.base import Mean
from gpx.methods.base.gradients import no_gradient
from gpx.methods.base.posterior import Marginals, no_joint_law
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.sparse.residual_noise import BlockNoise
from gpx.methods.sparse.sgpr_posterior import SGPRPosterior
from gpx.operators import LowRankPlusDiagonal
from gpx.sampling import SHARED, Frequencies, prior_functions

TEST_ROWS = 4096
"""Test points of one block that are predicted at a time."""


class EffectivePosterior(SGPRPosterior):
    """Posterior of SoR, DTC, FITC, FIC and PITC; needs no training data.

    The data enter through q(u) only: u = f(Z) = L v with v ~ N(weights, B^{-1}). The conditional
    covariance of test points given u is that of the kernel ("full"), its diagonal ("diagonal"), or
    zero ("none").

    Args:
        kernel, mean, features: as in ``SGPRPosterior``.
        prior: name of the approximation, for ``facts``.
        test: the part of K - Q kept among test points.
    """

    def __init__(
        self, kernel: Kernel, mean: Mean, features: InducingFeatures, prior: str, test: str
    ) -> None:
        super().__init__(kernel, mean, features)
        self.prior, self.test = prior, test

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: prior and M."""
        return {"prior": self.prior, "num_inducing": len(self.inducing_points)}

    def _unexplained(self, x: Tensor, block: Tensor) -> Tensor:
        if self.test == "none":
            return block.new_zeros(x.shape[0])
        return super()._unexplained(x, block)

    @torch.no_grad()
    def covariance(self, x: Tensor) -> LinearOperator:
        """Joint covariance (t, t) of the latent function at x (t, d).

        W^T W with W = LB^{-1} A of the test points, plus the part of K - Q that ``test`` keeps: an
        operator of rank M plus diagonal, or dense for "full".

        Cost: t M^2 multiply-adds; memory t M, for "full" t^2.
        """
        block = self._whitened_rows(x)
        kept = self._unexplained(x, block)
        root = torch.linalg.solve_triangular(self.inner_factor, block.mT, upper=False).mT
        if self.test != "full":
            return LowRankPlusDiagonal(root.contiguous(), kept)
        dense = self.kernel.evaluate(x, x) - block @ block.mT + root @ root.mT
        return to_linear_operator(dense)

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``; only for ``test="full"``."""
        if self.test != "full":
            raise no_joint_law(self)
        return super().project_rows(x)

    def projected_marginals(self, x: Tensor) -> Marginals:
        """As in ``JointLaw``, for every ``test``."""
        found = super().project_rows(x)
        if self.test == "none":
            assert found.added is not None
            return Marginals(found.mean, found.added.square().sum(-1))
        return self._marginals_of(found)

    def joint_covariance(self, x: Tensor) -> Tensor:
        """As in ``Posterior``: ``covariance`` as an array; differentiable for ``test="full"``."""
        if torch.is_grad_enabled():  # x requires a gradient
            if self.test != "full":
                raise no_gradient(self)
            return super().joint_covariance(x)
        return self.covariance(x).to_dense()

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t).

        For SoR exact, for any kernel: K_xz K_zz^{-1} u with u ~ q. For ``test="full"`` as in
        ``SGPRPosterior``.

        Raises:
            ConfigError: FIC, whose test points are independent given u; and as in
                ``SGPRPosterior``.
        """
        if self.test == "full":
            return super().sample_paths(num, generator=generator, frequencies=frequencies)
        if self.test == "diagonal":
            raise ConfigError(
                "FIC has no sampled functions: given the inducing points its test points are "
                "independent of each other; use prior=fitc, which has the same marginals"
            )
        drawn = self._whitened_draws(num, generator)
        weights = torch.linalg.solve_triangular(self.factor.mT, drawn, upper=True).mT

        def paths(x: Tensor) -> Tensor:
            rows = self.features.cross_rows(self.kernel, self.inducing_points, x)
            return weights @ rows + self.mean(x)

        return paths


class BlockPosterior(SGPRPosterior):
    """Posterior of PIC: a test point is also conditioned on the training points of its own block.

    The state includes the training inputs in the order of blocks, O(n d), for the covariance with
    them. A test point belongs to the block of its nearest centre; in a block without training
    points, predictions are those of the inducing points.

    Attributes:
        inputs (n, d), point_weights (n,): X in the order of blocks, and p = S^{-1} r.
        residual (n,): r = y - m(x), for sampled functions.
        noise (): noise variance.
        bounds (K + 1,): first row of every block, and n.
        regions: assigns inputs to blocks.
    """

    data_sized: ClassVar[tuple[str, ...]] = (
        *SGPRPosterior.data_sized,
        "inputs",
        "residual",
        "point_weights",
        "noise",
        "bounds",
    )
    inputs: Tensor
    residual: Tensor
    point_weights: Tensor
    noise: Tensor
    bounds: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        features: InducingFeatures = POINTS,
        regions: Regions | None = None,
    ) -> None:
        super().__init__(kernel, mean, features)
        self.regions = Regions() if regions is None else copy.deepcopy(regions)

    @torch.no_grad()
    def fill_blocks(self, x: Tensor, residual: Tensor, noise: Tensor, bounds: list[int]) -> None:
        """Store x (n, d) and r (n,), in the order of blocks; called after ``fill``.

        Cost: n M^2 / 2 multiply-adds and that of the blocks.
        """
        self.keep(x, inputs=x, residual=residual, noise=noise)
        self.bounds = torch.tensor(bounds, device=x.device)
        self.point_weights = torch.empty_like(self.residual)
        store = BlockStore(self._whitener(), self.inputs, bounds=bounds)
        for rows, block in store:
            gap = self.residual[rows] - block @ self.weights
            part = BlockNoise(store, rows, block, self.noise)
            self.point_weights[rows] = part.solve(gap.unsqueeze(1)).squeeze(1)

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        size = len(self.inducing_points)
        return {"prior": "pic", "num_inducing": size, "num_blocks": len(self.bounds) - 1}

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``: not available."""
        raise no_joint_law(self)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        With R = k(x, X_b) - Q(x, X_b) of the block b of x: mean a^T beta + R p_b, variance
        k - q - R D_b^{-1} R^T + |LB^{-1} (a - A_b D_b^{-1} R^T)|^2.

        Cost: each block with a test point b M^2 / 2 + b^2 M + b^3 / 3 multiply-adds, each test
        point M^2 + b M + b^2; memory of one block.
        """
        whitener = self._whitener()
        mean, variance = self.mean(x).clone(), x.new_empty(len(x))
        labels = self.regions.nearest(x)
        for number in labels.unique().tolist():
            part, known = None, self._block(number)
            if known.stop > known.start:
                store = BlockStore(
                    whitener, self.inputs[known], bounds=[0, known.stop - known.start]
                )
                ((own, low),) = store
                part = BlockNoise(store, own, low, self.noise)
                solved = part.whiten(low)
            for rows in (labels == number).nonzero().squeeze(1).split(TEST_ROWS):
                block = self._whitened_rows(x[rows])
                mean[rows] += block @ self.weights
                left = self._unexplained(x[rows], block)
                if part is not None:
                    shared = self.kernel.evaluate(x[rows], self.inputs[known]) - block @ low.mT
                    mean[rows] += shared @ self.point_weights[known]
                    white = part.whiten(shared.mT)
                    left = left - white.square().sum(0)
                    block = block - white.mT @ solved
                column = torch.linalg.solve_triangular(self.inner_factor, block.mT, upper=False)
                variance[rows] = left.clamp(min=0.0) + column.square().sum(0)
        return Marginals(mean, variance)

    def _block(self, number: int) -> slice:
        return slice(int(self.bounds[number]), int(self.bounds[number + 1]))

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        Given u, the residual processes of different blocks are independent: each block has a prior
        function of its own, corrected at Z and conditioned on the residuals of the block. The
        functions jump at block boundaries, as under the prior. Exact in the mean; the variance is
        that of the feature approximation (``frequencies``).

        Raises:
            ConfigError: the kernel has no random Fourier features, or the inducing variables are
                not function values.

        Cost: num (M^2 + n M) multiply-adds and the blocks once; memory num (n + K M).
        """
        self.features.require_sampled()
        whitener, z = self._whitener(), self.inducing_points
        drawn = self._whitened_draws(num, generator)  # (M, num)
        store = BlockStore(whitener, self.inputs, bounds=self.bounds.tolist())
        noise = z.new_empty(num, len(self.inputs)).normal_(generator=generator)
        priors, inducing, points = [], [], torch.zeros_like(noise)
        for number in range(len(self.bounds) - 1):
            known = self._block(number)
            prior = prior_functions(
                self.kernel, num, z.shape[1], generator=generator, frequencies=frequencies
            )
            low = drawn - torch.linalg.solve_triangular(self.factor, prior(z).mT, upper=False)
            if known.stop > known.start:
                x = self.inputs[known]
                block = whitener.block(x, x.new_empty(len(x), len(z)))
                part = BlockNoise(store, known, block, self.noise)
                prior_targets = prior(x) + (block @ low).mT + self.noise.sqrt() * noise[:, known]
                points[:, known] = part.solve((self.residual[known] - prior_targets).mT).mT
                low = low - block.mT @ points[:, known].mT
            priors.append(prior)
            inducing.append(torch.linalg.solve_triangular(self.factor.mT, low, upper=True).mT)

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            found = self.mean(x).expand(num, len(x)).clone()
            labels = self.regions.nearest(x)
            for number in labels.unique().tolist():
                rows, known = (labels == number).nonzero().squeeze(1), self._block(number)
                there = x[rows]
                found[:, rows] += priors[number](there)
                found[:, rows] += inducing[number] @ self.kernel.evaluate(z, there)
                found[:, rows] += points[:, known] @ self.kernel.evaluate(self.inputs[known], there)
            return found

        return paths
