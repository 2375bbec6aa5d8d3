"""Posterior of an exact Gaussian process by a Cholesky factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.inference.dense_factor import noisy_cholesky, row_blocks
from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.inference.joint_law import JointLaw, Projected
from gpx.inference.leave_one_out import LeftOut
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import CholeskyReport, upper_solve
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.sampling import SHARED, ConditionedFunctions, Frequencies


class ExactPosterior(JointLaw, GaussianPosterior):
    """Exact posterior process.

    The state holds the training inputs, the residuals y - m(x) and the weights alpha = K^{-1} r:
    O(n d), not O(n^2). The Cholesky factor for variances is recomputed at the first prediction
    after loading.

    Attributes:
        inputs (n, d), residual (n,), alpha (n,): see above.
    """

    data_sized = (*GaussianPosterior.data_sized, "alpha")
    alpha: Tensor
    factor: Tensor | None

    def __init__(self, kernel: Kernel, mean: Mean, likelihood: Gaussian) -> None:
        super().__init__(kernel, mean, likelihood)
        self.register_buffer("factor", None, persistent=False)

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> CholeskyReport:
        """Condition on x (n, d) and y (n,); return the report of the factorisation.

        Raises:
            DataError: targets that are not finite.
        """
        self.keep_data(x, y)
        return self.solve_()

    @torch.no_grad()
    def solve_(self) -> CholeskyReport:
        """Condition on the data that are kept already; return the report of the factorisation."""
        factor, report = self._factorise()
        self.alpha = upper_solve(factor, self.residual.unsqueeze(1)).squeeze(1)
        return report

    def _factorise(self) -> tuple[Tensor, CholeskyReport]:
        self.factor, report = noisy_cholesky(self.kernel, self.inputs, self.noise_variances())
        return self.factor, report

    def _factor(self) -> Tensor:
        """Cholesky factor of K, recomputed if it is not stored."""
        return self._factorise()[0] if self.factor is None else self.factor

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"solver": "cholesky"}

    def training_targets(self) -> Tensor:
        """The targets (n,) that it was conditioned on."""
        return self.residual + self.mean(self.inputs)

    @torch.no_grad()
    def leave_one_out(self) -> LeftOut:
        """Prediction of every training value given all others, at these hyperparameters.

        Cost: that of ``LeftOut.of``; the posterior is not conditioned again.
        """
        return LeftOut.of(self._factor(), self.residual, upper=True)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: n^2 multiply-adds per row; memory of one block of kernel rows beside the factor.
        """
        if torch.is_grad_enabled():  # x requires a gradient
            return self.projected_marginals(x)
        n, factor = self.inputs.shape[0], self._factor()
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        for rows in row_blocks(x.shape[0], n, x):
            cross = self.kernel.evaluate(x[rows], self.inputs).contiguous()
            mean[rows] = self.mean(x[rows]) + cross @ self.alpha
            column = cross.mT  # (n, rows) in LAPACK's layout: solved in place
            torch.linalg.solve_triangular(factor.mT, column, upper=False, out=column)
            explained = cross.square_().sum(1)
            variance[rows] = (self.kernel.diagonal(x[rows]) - explained).clamp_(min=0.0)
        return Marginals(mean, variance)

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``. Cost: n^2 multiply-adds per row."""
        cross = self.kernel.evaluate(x, self.inputs)
        root = torch.linalg.solve_triangular(self._factor().mT, cross.mT, upper=False)
        return Projected(x, self.mean(x) + cross @ self.alpha, root.mT)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t) by pathwise conditioning.

        f(x) = prior(x) + k(x, X) K^{-1} (y - prior(X) - noise): a prior function from random
        Fourier features, corrected at the data (Wilson et al. 2020). Exact in the mean; the
        variance away from the data is that of the feature approximation. ``frequencies`` sets the
        number of features and whether paths share them, and documents the error.

        Raises:
            ConfigError: the kernel has no random Fourier features.

        Cost: num n^2 multiply-adds once, O(num n) per row.
        """
        prior, gap = self.prior_paths(num, generator, frequencies)
        weights = upper_solve(self._factor(), gap.mT.contiguous()).mT
        return ConditionedFunctions(prior, weights, self.inputs, self.kernel, self.mean)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        self.factor = None
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the n x n factor out of copies and pickles."""
        state = super().__getstate__()
        return state | {"_buffers": state["_buffers"] | {"factor": None}}
