"""Exact Gaussian process regression."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.errors import ConfigError
from gpx.inference.exact_posterior import ExactPosterior
from gpx.inference.exact_solver import (
    IterativeOptions,
    SolverChoice,
    SolverName,
    choose_solver,
)
from gpx.inference.iterative_posterior import IterativePosterior
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.means.base import Mean
from gpx.methods.base.model import Model


@runtime_checkable
class ExactModel(Protocol):
    """What the objectives of exact inference need of a model."""

    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    iterative: IterativeOptions

    def solver_for(self, x: Tensor) -> SolverChoice:
        """The solver for K + noise at training inputs x (n, d)."""


class ExactGP(Model):
    """Gaussian process regression without approximation of the model.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        solver: "cholesky"; "iterative" or "barely_biased", which use kernel products only and
            memory O(n); "auto": Cholesky if time and memory allow, else iterative. ``settle``
            records in the run's config what "auto" was resolved to.
        iterative: options of the two iterative solvers.

    Cost: see ``ExactMLL``, ``IterativeMLL`` and ``BarelyBiasedMLL``.
    """

    takes_row_noise = True
    certifiable = True
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        solver: SolverName = "cholesky",
        iterative: IterativeOptions | None = None,
    ) -> None:
        super().__init__()
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.iterative = IterativeOptions() if iterative is None else iterative
        self.solver = solver
        choose_solver(solver, torch.empty(0))  # fails early

    def solver_for(self, x: Tensor) -> SolverChoice:
        """The solver for training inputs x (n, d), never "auto", and why."""
        return choose_solver(self.solver, x)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: resolves ``solver="auto"``.

        Raises:
            ConfigError: ``preconditioner="grief"`` with a kernel that is no product over inputs.
        """
        if self.iterative.preconditioner == "grief":
            ProductFactors(self.kernel, x.shape[1])
        if self.solver != "auto":
            return {}
        choice = self.solver_for(x)
        self.solver = choice.name
        return {"solver": (choice.name, choice.reason)}

    def know_noise(self, noise: RowNoise | Tensor) -> None:
        """As in ``Model``; rows must be given in the order of ``noise``.

        Raises:
            ConfigError: a solver other than Cholesky.
        """
        if self.solver != "cholesky":
            raise ConfigError(
                f"solver={self.solver} takes one noise variance for all rows, and noise= or "
                "weights= give each row its own: take solver=cholesky, or leave them out"
            )
        super().know_noise(noise)

    def condition(self, x: Tensor, y: Tensor) -> ExactPosterior | IterativePosterior:
        """Posterior given x (n, d) and y (n,).

        Cost: Cholesky n^3/3 multiply-adds, one n x n array; iterative one solve.

        Raises:
            DataError: targets that are not finite.
        """
        with torch.no_grad():
            posterior = self._posterior(self.solver_for(x).name)
            if isinstance(posterior, ExactPosterior) and self.row_noise is not None:
                posterior.know_noise(self.row_noise.like(x))
            posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> ExactPosterior | IterativePosterior:
        """As in ``Model``; "auto" counts as Cholesky if ``settle`` was not called."""
        return self._posterior("cholesky" if self.solver == "auto" else self.solver)

    def _posterior(self, solver: SolverName) -> ExactPosterior | IterativePosterior:
        parts = (self.kernel, self.mean, self.likelihood)
        if solver == "cholesky":
            return ExactPosterior(*parts)
        return IterativePosterior(*parts, self.iterative)
