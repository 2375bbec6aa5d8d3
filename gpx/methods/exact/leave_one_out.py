"""Leave-one-out log predictive density of an exact Gaussian process, with its gradient."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from torch import Tensor

from gpx.constants import LOG_TWO_PI
from gpx.errors import ConfigError
from gpx.inference.dense_factor import noisy_cholesky, row_blocks
from gpx.inference.exact_density import matrix_gradient
from gpx.inference.log_density import LogDensityGradient, LogDensityTerms
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import CholeskyReport, inverse_from_factor, upper_solve
from gpx.methods.base.objective import Evidence, Facts, Objective
from gpx.methods.exact.exact_mll import exact_evidence
from gpx.methods.exact.model import ExactModel


def leave_one_out_log_density(
    kernel: Kernel, x: Tensor, residual: Tensor, noise: Tensor, *, gradient: bool
) -> tuple[LogDensityTerms, LogDensityGradient | None, CholeskyReport]:
    """sum_i log p(y_i | all other y) under N(r; 0, K), K = k(x, x) + noise, and its gradient.

    With alpha = K^{-1} r and c_i = (K^{-1})_ii every term is -log(2 pi / c_i) / 2 - alpha_i^2 /
    (2 c_i). With w_i = (1 + alpha_i^2 / c_i) / (2 c_i) and b = K^{-1} (alpha / c) the derivative
    with respect to K is G = (b alpha^T + alpha b^T) / 2 - K^{-1} diag(w) K^{-1}, computed in blocks
    of rows.

    Args:
        x (n, d), residual (n,), noise () or (n,): inputs, y - m(x), noise variance of all rows or
            of each.
        gradient: whether to compute the gradient.

    Exactness: exact up to rounding, jitter included, as ``log_marginal_likelihood``.
    Cost: n^3 multiply-adds for the value, half as many more with the gradient; memory one n x n
    array.
    Raises: NotPositiveDefinite; ConfigError when the array does not fit.
    Source: Rasmussen and Williams 2006, section 5.4.2.
    """
    n = x.shape[0]
    with torch.no_grad():
        upper, report = noisy_cholesky(kernel, x.detach(), noise.detach())
        alpha = upper_solve(upper, residual.detach().unsqueeze(1)).squeeze(1)
        inverse = inverse_from_factor(upper)
        precision = inverse.diagonal().clone()
        misfit = alpha.square() / precision
        terms = LogDensityTerms(
            fit=-0.5 * misfit.double().sum(),
            complexity=0.5 * precision.double().log().sum(),
            constant=upper.new_tensor(-0.5 * n * LOG_TWO_PI, dtype=torch.float64),
        )
        if not gradient:
            return terms, None, report
        w = 0.5 * (1.0 + misfit) / precision
        b = inverse @ (alpha / precision)

        def twice_gradient(rows: slice, columns: slice) -> Tensor:
            block = torch.outer(b[rows], alpha[columns])
            block.addr_(alpha[rows], b[columns])
            return block.addmm_(inverse[rows] * w, inverse[:, columns], alpha=-2.0)

        squares = [inverse[rows].square() @ w for rows in row_blocks(n, n, x)]
        diagonal = b * alpha - torch.cat(squares)
        found = matrix_gradient(kernel, x, noise, -b, twice_gradient, diagonal, report)
    return terms, found, report


class LeaveOneOut(Objective[ExactModel]):
    """Log density of every row given all others, summed, of an ``ExactGP`` with Gaussian noise.

    A predictive score to train on in place of the log marginal likelihood, which it neither bounds
    nor approximates; it is more robust when the model is misspecified.

    Exactness, cost and source: ``leave_one_out_log_density``.
    """

    batching = "full"
    takes_row_noise = True
    kind = "estimate"
    models = (ExactModel,)
    made_for = "ExactGP"
    likelihoods: ClassVar[tuple[type[Likelihood], ...]] = (Gaussian,)

    def check(self, model: ExactModel) -> None:
        """As in ``Objective``; the model's solver must be Cholesky."""
        super().check(model)
        solver = getattr(model, "solver", "cholesky")
        if solver not in ("cholesky", "auto"):
            raise self._no_factor(solver)

    def evidence(
        self, model: ExactModel, x: Tensor, y: Tensor, *, generator: torch.Generator | None = None
    ) -> Evidence:
        """The sum in nats, in float64; parts are ``fit``, ``complexity`` and ``constant``.

        Raises:
            DataError: targets that are not finite.
            ConfigError: the model solves iteratively.
        """
        solver = model.solver_for(x).name
        if solver != "cholesky":
            raise self._no_factor(solver)
        known = getattr(model, "row_noise", None)
        found = exact_evidence(model, x, y, self.kind, known, leave_one_out_log_density)
        facts: Facts = {"evidence_of": "leave-one-out log density in its place"}
        return replace(found, facts=found.facts | facts)

    @staticmethod
    def _no_factor(solver: str) -> ConfigError:
        return ConfigError(
            f"leave-one-out densities need the diagonal of the inverse, which solver={solver} does "
            "not have: take solver=cholesky, or another objective="
        )
