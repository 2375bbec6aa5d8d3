"""The posterior of a function and its derivatives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gpx.inference.dense_factor import row_blocks
from gpx.inference.several_targets import TargetsPosterior
from gpx.kernels.base import Kernel
from gpx.kernels.derivatives import Moved
from gpx.likelihoods.gaussian import GaussianOutputs
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.derivatives.covariance import DerivativeSystem, as_inputs, prior_means
from gpx.methods.derivatives.mll import SOLVER
from gpx.sampling import SHARED, Frequencies, prior_functions


class DerivativePosterior(TargetsPosterior[DerivativeSystem]):
    """Exact posterior process of a function and of its derivatives by some inputs.

    Predictions have a column for the function and one for each of these derivatives, also of those
    that were never observed.

    Args:
        kernel, mean, likelihood, with_respect_to: of ``DerivativeGP``; modules are copied.
    """

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: GaussianOutputs,
        with_respect_to: Sequence[int],
    ) -> None:
        super().__init__(kernel, mean, likelihood)
        self.with_respect_to = tuple(with_respect_to)

    def prior_mean(self, x: Tensor) -> Tensor:
        """As in ``TargetsPosterior``: m and its derivatives."""
        return prior_means(self.mean, x, as_inputs(self.with_respect_to))

    def _factorised(self) -> DerivativeSystem:
        inputs = as_inputs(self.with_respect_to)
        return DerivativeSystem(self.kernel, inputs, self.inputs, self.residual, self._noise())

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "solver": SOLVER,
            "missing_targets": int(self.residual.isnan().sum()),
            "jitter": 0.0 if self._made is None else self._made.report.jitter,
        }

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance (t, p) of the function and its derivatives at x (t, d), without noise.

        Cost: p N^2 multiply-adds per row, for N observed values and derivatives.
        """
        return self._marginals(x)

    def joint_outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (t, p) and covariance (t, p, p) of function and derivatives of each row.

        Without noise. Cost: that of ``predict``.
        """
        system, p = self._system(), 1 + len(self.with_respect_to)
        covariance, weights = system.covariance, system.known(self.alpha)
        mean, found = x.new_empty(len(x), p), x.new_empty(len(x), p, p)
        for rows in row_blocks(len(x), 3 * p * len(self.inputs) * p, x):
            cross = covariance.cross(x[rows])
            root = system.root(cross)
            mean[rows] = self.prior_mean(x[rows]) + cross @ weights
            found[rows] = covariance.prior(x[rows]) - root @ root.mT
        return mean, found

    @torch.no_grad()
    def outputs_covariance(self, x: Tensor) -> Tensor:
        """Covariance (t, p, t, p) of function and derivatives at all pairs of t inputs.

        Without noise. Cost: that of ``predict``, and p^2 N multiply-adds for every pair of rows.
        """
        system = self._system()
        root = system.root(system.covariance.cross(x)).flatten(0, 1)
        prior = system.covariance.between(x, x)
        return prior - (root @ root.mT).view(prior.shape)

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t, p) by pathwise conditioning.

        A prior function from random Fourier features and its own derivatives, corrected at the data
        (Wilson et al. 2020), so that the columns are one function and its derivatives. Exact in the
        mean; elsewhere as ``frequencies`` says.

        Raises:
            ConfigError: the kernel has no random Fourier features.

        Cost: O(num N^2) once, O(num p N) per row.
        """
        system = self._system()
        inputs, covariance = system.covariance.inputs, system.covariance
        functions = prior_functions(
            self.kernel,
            num,
            self.inputs.shape[1],
            generator=generator,
            frequencies=frequencies,
        )

        def prior(x: Tensor) -> Tensor:
            moved = Moved(lambda rows: functions(rows).mT, x)
            columns = [moved.at if i is None else moved.by(i) for i in inputs]
            return torch.stack(columns, 2).transpose(0, 1)

        like = self.residual
        noise = torch.randn(
            num, *like.shape, generator=generator, dtype=like.dtype, device=like.device
        )
        noise *= self._noise().sqrt()
        weights = system.known(system.solve(self.residual - prior(self.inputs) - noise))

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            known = torch.einsum("tpm,km->ktp", covariance.cross(x), weights)
            return prior(x) + known + self.prior_mean(x)

        return paths
