"""Sparse regression with a mean corrected by conjugate gradients on the full kernel matrix."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import ClassVar, Literal

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inducing import Selector
from gpx.inference.auxiliary import AuxiliarySolver
from gpx.inference.joint_law import Projected
from gpx.inference.nystrom import BlockStore, NystromSums
from gpx.inference.nystrom_matrix import NystromMatrix
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import EvidenceBound, SolveReport, UnconvergedWarning, conjugate_gradients, lanczos
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, no_joint_law
from gpx.methods.sparse.cg_lower_bound import matrices
from gpx.methods.sparse.sgpr import SGPR, SGPRPosterior
from gpx.sampling import SHARED, Frequencies
from gpx.tensor_checks import check_at_least, check_num_data, check_one_of
from gpx.warned_line import users_line

VarianceName = Literal["sgpr", "lanczos", "exact"]
VARIANCES: tuple[VarianceName, ...] = ("sgpr", "lanczos", "exact")

PREDICTION_SOLVER = AuxiliarySolver(epsilon=1e-3, max_iterations=1000)
"""Default solver for v before predicting."""

TEST_COLUMNS = 64
"""Test points whose systems K^{-1} k_* are solved together."""


class CGLB(SGPR):
    """``SGPR`` and a vector v close to K^{-1} (y - m(x)) (Artemev et al. 2021).

    The posterior mean is k_*^T v + q_*^T Q^{-1} (y - m(x) - K v): that of sparse regression at
    v = 0, the exact one at v = K^{-1} (y - m(x)) or if Q = K. The bound does not imply a predictive
    variance, which is therefore an option.

    Args:
        kernel, mean, likelihood, num_inputs, num_inducing, selector, fit_noise, jitter: as in
            ``SGPR``.
        num_data: n, the length of v.
        solver: for v, before predicting. None: ``PREDICTION_SOLVER``.
        variance: "sgpr" (neither an upper nor a lower bound on the exact variance; M^2 per point),
            "lanczos" (an upper bound; time n ``lanczos_rank`` per point, and as much memory) or
            "exact" (a linear system per point, to the solver's ``epsilon``).
        lanczos_rank: t, steps of the Lanczos cache.

    Attributes:
        auxiliary (n,): v, a buffer that the objective updates; constant in all gradients.

    Source: Burt thesis, sections 4.3.3 and 4.4.2.
    """

    takes_row_noise = False  # v is solved for with one noise variance
    auxiliary: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_inputs: int,
        num_data: int,
        num_inducing: int = 512,
        selector: Selector | None = None,
        fit_noise: bool = True,
        jitter: float | None = None,
        solver: AuxiliarySolver | None = None,
        variance: VarianceName = "sgpr",
        lanczos_rank: int = 100,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            num_inputs=num_inputs,
            num_inducing=num_inducing,
            num_data=num_data,
            selector=selector,
            fit_noise=fit_noise,
            jitter=jitter,
        )
        check_one_of(VARIANCES, variance=variance)
        check_at_least(1, lanczos_rank=lanczos_rank)
        self.solver = PREDICTION_SOLVER if solver is None else solver
        self.variance: VarianceName = variance
        self.lanczos_rank = lanczos_rank
        self.register_buffer("auxiliary", torch.zeros(num_data))

    def check(self, x: Tensor) -> None:
        """As in ``SGPR``; also that x has ``num_data`` rows."""
        check_num_data(len(self.auxiliary), x)
        super().check(x)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """As in ``SGPR``; v starts at zero.

        Raises:
            ConfigError: x has not ``num_data`` rows.
        """
        check_num_data(len(self.auxiliary), x)
        super().initialise(x, y, generator=generator)
        self.auxiliary.zero_()

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> CGLBPosterior:
        """Posterior given x (n, d), y (n,); solves for v, starting from ``auxiliary``.

        A solve that does not converge is an ``UnconvergedWarning``; see ``posterior.report``.

        Cost: that of ``SGPR.condition`` and one product with the kernel matrix per step.
        """
        posterior = self.new_posterior()
        target, noise = y - self.mean(x), self.likelihood.noise_variance
        start = self.auxiliary if self.auxiliary.shape == y.shape else None
        matrix, nystrom = matrices(self, self.solver, x, target)
        found = self.solver.solve(matrix, nystrom, target, start, warn=True)
        corrected = nystrom.with_target(found.residual)
        posterior.report = found.report
        posterior.fill(nystrom.store.whitener, nystrom.inner.factor, corrected.inner.weights)
        posterior.keep(x, inputs=x, auxiliary=found.vector, noise_variance=noise)
        if self.variance == "lanczos":
            run = lanczos(matrix, matrix(torch.ones_like(y)), self.lanczos_rank)
            posterior.keep(x, basis=run.basis[0][: run.steps], tridiagonal=run.tridiagonal()[0])
        return posterior

    def new_posterior(self) -> CGLBPosterior:
        """As in ``Model``."""
        return CGLBPosterior(self.kernel, self.mean, self.solver, self.variance)


class CGLBPosterior(SGPRPosterior):
    """Posterior process of ``CGLB``; holds its training inputs.

    Attributes:
        inducing_points, factor, inner_factor, weights: as in ``SGPRPosterior``, for targets
            y - m(x) - K v.
        inputs (n, d), auxiliary (n,), noise_variance (): x, v and the noise.
        basis (t, n), tridiagonal (t, t): orthonormal U^T and T = U^T K U; empty unless the variance
            is "lanczos".
        report: of the solve for v; None after loading from a file.
    """

    data_sized: ClassVar[tuple[str, ...]] = (
        *SGPRPosterior.data_sized,
        "inputs",
        "auxiliary",
        "noise_variance",
        "basis",
        "tridiagonal",
    )
    inputs: Tensor
    auxiliary: Tensor
    noise_variance: Tensor
    basis: Tensor
    tridiagonal: Tensor

    def __init__(
        self, kernel: Kernel, mean: Mean, solver: AuxiliarySolver, variance: VarianceName
    ) -> None:
        super().__init__(kernel, mean)
        self.solver, self.variance = solver, variance
        self.report: SolveReport | None = None

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        found: dict[str, bool | int | float | str] = {"variance": self.variance}
        if self.report is not None:
            found["solver_iterations"] = self.report.iterations
            found["solver_converged"] = self.report.converged
            found["solver_residual"] = self.report.residual
        return found

    def project_rows(self, x: Tensor) -> Projected:
        """As in ``JointLaw``; only for ``variance="sgpr"``.

        Cost: that of ``SGPRPosterior``, and n kernel evaluations per row.
        """
        if self.variance != "sgpr":
            raise no_joint_law(self)
        found = super().project_rows(x)
        return found._replace(mean=found.mean + self._correction(x))

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: n kernel evaluations and M^2 multiply-adds per row, plus the variance (see ``CGLB``).
        """
        if torch.is_grad_enabled():  # x requires a gradient
            return self.projected_marginals(x)
        sparse = super().predict(x)
        mean = sparse.mean + self._correction(x)
        if self.variance == "sgpr" or not x.shape[0]:
            return Marginals(mean, sparse.variance)
        explain = self._lanczos_explained if self.variance == "lanczos" else self._exact_explained()
        prior = self.kernel.diagonal(x)
        variance = torch.empty_like(prior)
        for rows in row_slices(x.shape[0], TEST_COLUMNS):
            cross = self.kernel.evaluate(self.inputs, x[rows])
            variance[rows] = prior[rows] - explain(cross)
        return Marginals(mean, variance.clamp_(min=0.0))

    def _correction(self, x: Tensor) -> Tensor:
        """k(x, inputs) v, without storing the matrix."""
        if not x.shape[0]:
            return x.new_zeros(0)
        if torch.compiler.is_exporting():  # all rows at once, regardless of the budget
            return self.kernel.evaluate(x, self.inputs) @ self.auxiliary
        matrix = self.kernel(x, self.inputs, memory_budget=self.solver.budget)
        return matrix @ self.auxiliary

    def _lanczos_explained(self, cross: Tensor) -> Tensor:
        """k_*^T U T^{-1} U^T k_*, at most k_*^T K^{-1} k_*."""
        low = self.basis @ cross
        return (low * torch.linalg.solve(self.tridiagonal, low)).sum(0)

    def _exact_explained(self) -> Callable[[Tensor], Tensor]:
        """k_*^T K^{-1} k_* by conjugate gradients, low by at most 2 epsilon noise variances."""
        matrix = self.solver.matrix(self.kernel, self.inputs, self.noise_variance)
        nystrom = self._nystrom()
        stop = EvidenceBound(self.solver.epsilon * float(self.noise_variance))

        def explain(cross: Tensor) -> Tensor:
            found = conjugate_gradients(
                matrix,
                cross,
                preconditioner=nystrom,
                stop=stop,
                max_iterations=self.solver.max_iterations,
                on_failure="return",
            )
            if not found.report.converged:
                warnings.warn(
                    f"predictive variances: {found.report.reason}",
                    UnconvergedWarning,
                    stacklevel=users_line(),
                )
            return ((cross + found.residual) * found.solution).sum(0)

        return explain

    def _nystrom(self) -> NystromMatrix:
        """Q from the stored factors; sums that predictions do not use are zero."""
        store = BlockStore(self._whitener(), self.inputs)
        inner = self.inner_factor @ self.inner_factor.mT
        inner.diagonal().sub_(1.0)
        zero = self.factor.new_zeros(())
        sums = NystromSums(
            inner * self.noise_variance,
            torch.zeros_like(self.weights),
            zero,
            zero,
            torch.zeros(0, dtype=torch.bool),
        )
        return NystromMatrix(store, sums, self.noise_variance)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """As in ``SGPRPosterior``, with its covariance and the corrected mean.

        Cost: that of ``SGPRPosterior``, and n kernel evaluations per row.
        """
        sparse = super().sample_paths(num, generator=generator, frequencies=frequencies)

        def paths(x: Tensor) -> Tensor:
            return sparse(x) + self._correction(x)

        return paths
