"""Exact Gaussian process regression."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.bases.grid_eigenfunctions.factors import ProductFactors
from gpx.errors import ConfigError
from gpx.inference.exact_solver import (
    IterativeOptions,
    SolverChoice,
    SolverName,
    cholesky_memory,
    choose_solver,
)
from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.inference.iterative_posterior import IterativePosterior
from gpx.inference.joint_law import JointLaw, Projected
from gpx.inference.leave_one_out import LeftOut
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import CholeskyReport, cholesky_in_place, require_memory, upper_solve
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals
from gpx.sampling import SHARED, ConditionedFunctions, Frequencies
from gpx.warned_line import users_line

BLOCK_BYTES = {"cpu": 2**23, "cuda": 2**28}
"""Bytes of one block of kernel rows: large enough to hide overheads, small beside n x n."""


FLOAT32_LIMIT = 0.5
"""Value of n v eps above which a warning says that float32 is inaccurate; v is the largest ratio of
signal to noise variance, eps = 1.2e-7. At the limit, 200 or 800 rows and an RBF kernel: gradients
off by 4 to 8 % of their norm and predicted means by a third of their standard deviation with two
inputs, by as much as they are and by one deviation with a single one, where variances may be zero;
with a Matern-3/2 kernel a tenth of that."""
JITTER_SHARE = 0.01
"""Jitter, as a share of the noise variance, above which a warning says that there is one."""


def warn_of_rounding(rounding: float) -> None:
    """Warn if n v eps is above ``FLOAT32_LIMIT``."""
    if rounding > FLOAT32_LIMIT:
        warnings.warn(
            "float32 has too few digits for noise this far below the variance of the functions: "
            "gradients of the evidence and predictions may be off by some percent, small entries "
            "of gradients and small variances by more; take dtype=float64",
            stacklevel=users_line(),
        )


def row_blocks(n: int, width: int, like: Tensor) -> Iterator[slice]:
    """Slices of 0 .. n such that a block of rows by ``width`` columns fits in BLOCK_BYTES."""
    budget = BLOCK_BYTES.get(like.device.type, BLOCK_BYTES["cpu"])
    yield from row_slices(n, max(1, budget // (max(width, 1) * like.element_size())))


@torch.no_grad()
def kernel_matrix(kernel: Kernel, x: Tensor) -> Tensor:
    """k(x, x) (n, n), computed in blocks of rows, so that only one n x n array is held."""
    matrix = x.new_empty(len(x), len(x))
    for rows in row_blocks(len(x), len(x), x):
        matrix[rows] = kernel.evaluate(x[rows], x)
    return matrix


def noisy_cholesky(kernel: Kernel, x: Tensor, noise: Tensor) -> tuple[Tensor, CholeskyReport]:
    """Upper factor U (n, n), U^T U = k(x, x) + noise (+ reported jitter), in one n x n array.

    Warns as ``factor_with_noise`` does.

    Args:
        noise: variance () of all rows, or (n,) of each.

    Raises:
        ConfigError: the array does not fit into free memory.
        NotPositiveDefinite: see ``gpx.linalg.cholesky``.
    """
    n = x.shape[0]
    require_memory(
        cholesky_memory(x),
        x.device,
        f"an exact Gaussian process on {n} training points",
        "use solver=iterative, model=SGPR(), SVGP() or QSGP(), fewer points, or dtype=float32",
    )

    def fill(buffer: Tensor) -> None:
        for rows in row_blocks(n, n, x):
            columns = slice(0, rows.stop)  # the lower triangle
            buffer[rows, columns] = kernel.evaluate(x[rows], x[columns])

    return factor_with_noise(fill, x, noise, lambda: kernel.diagonal(x).max())


def factor_with_noise(
    fill: Callable[[Tensor], object], x: Tensor, noise: Tensor, largest: Callable[[], Tensor]
) -> tuple[Tensor, CholeskyReport]:
    """Upper factor U (n, n), U^T U = K + noise (+ reported jitter), in one n x n array.

    Warns if float32 has too few digits (``FLOAT32_LIMIT``) or the jitter is no longer small beside
    the noise (``JITTER_SHARE``).

    Args:
        fill: writes the lower triangle of K into the buffer (n, n) it is given.
        x (n, d): inputs of the rows, for messages.
        noise: variance () of all rows, or (n,) of each.
        largest: -> entry () of K's diagonal.

    Raises:
        NotPositiveDefinite: see ``gpx.linalg.cholesky``.
    """
    n = x.shape[0]

    def fill_with_noise(buffer: Tensor) -> None:
        fill(buffer)
        buffer.diagonal().add_(noise)

    name = f"the kernel matrix of {n} training points plus noise"
    with torch.no_grad():
        smallest = mean = math.inf  # without rows
        if n:
            told = [noise.min(), noise.mean()]
            if x.dtype == torch.float32:
                told.append(largest())
            smallest, mean, *most = torch.stack(told).tolist()  # one transfer from the device
            for prior in most:
                warn_of_rounding(n * prior / smallest * torch.finfo(x.dtype).eps)
        upper, report = cholesky_in_place(
            fill_with_noise,
            x.new_empty(n, n),
            name=name,
            hint=lambda: (
                f"other hyperparameters (the noise variance is {mean:.2e}){_repeated_rows(x)}"
            ),
        )
    if report.jitter > JITTER_SHARE * smallest:
        better = "" if x.dtype == torch.float64 else "dtype=float64 or "
        # without numbers: Python shows a text once, and every trial point has other numbers
        warnings.warn(
            f"{name} has a Cholesky factor only with a jitter added to the noise variance that is "
            f"above {JITTER_SHARE:.0%} of it, and evidence and predictions are those of the sum: "
            f"take {better}a larger noise variance",
            stacklevel=users_line(),
        )
    return upper, report


def _repeated_rows(x: Tensor) -> str:
    """What to do about the rows of x (n, d) that repeat another one, for an error; or nothing."""
    n = len(x)
    repeated = n - len(torch.unique(x, dim=0))
    if not repeated:
        return ""
    return (
        f"; {repeated} of the {n} rows have the inputs of another row: give one row of the mean "
        "target in place of those that agree, and their number as its weight (weights=)"
    )


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
