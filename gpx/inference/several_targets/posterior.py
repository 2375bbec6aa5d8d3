"""What posteriors of several targets with a joint law in each row have in common."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import ClassVar, Generic, Protocol, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, MultivariateNormal

from gpx.errors import DataError, NotPositiveDefinite
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian, GaussianOutputs, NoisyOutputs
from gpx.likelihoods.row_noise import RowNoise
from gpx.linalg import cholesky
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import normal_draws
from gpx.tensor_checks import check_at_least


class TargetsSystem(Protocol):
    """The covariance C of the observed targets, factorised."""

    def solve(self, right: Tensor) -> Tensor:
        """C^{-1} r for r (..., n, p); missing targets are ignored, and 0 in the result."""


SystemT = TypeVar("SystemT", bound=TargetsSystem)


class TargetsPosterior(Posterior, Generic[SystemT]):
    """An exact posterior of p targets, correlated in each row and between rows.

    Subclasses define ``prior_mean``, ``joint_outputs``, ``outputs_covariance`` and the
    factorisation. The state holds the training inputs, the residuals and the weights:
    O(n (d + p)). The factorisation for variances and samples is recomputed when first needed.

    Args:
        kernel, mean, likelihood: copied.

    Attributes:
        inputs (n, d), residual (n, p): the data; NaN where a target is missing.
        alpha (n, p): C^{-1} residual, zero where a target is missing.
        likelihood: noise variances (p,).
        row_noise: ``RowNoise.packed`` of the data; None: nothing is known.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("inputs", "residual", "alpha", "row_noise")
    derived: ClassVar[tuple[str, ...]] = ("_made",)
    inputs: Tensor
    residual: Tensor
    alpha: Tensor
    likelihood: GaussianOutputs
    row_noise: Tensor | None

    def __init__(self, kernel: Kernel, mean: Mean, likelihood: GaussianOutputs) -> None:
        super().__init__()
        self.kernel, self.mean = untrained(kernel), untrained(mean)
        self.likelihood = untrained(likelihood)
        self.register_data_sized()
        self.row_noise = None  # then it is not part of the saved state
        self._made: SystemT | None = None

    @property
    def num_inputs(self) -> int | None:
        """As in ``Posterior``: that of the data; None before there are any."""
        return self.inputs.shape[1] if self.inputs.ndim == 2 else None

    @abstractmethod
    def prior_mean(self, x: Tensor) -> Tensor:
        """Of the targets (n, p) at x (n, d)."""

    @abstractmethod
    def _factorised(self) -> SystemT:
        """C of the data, factorised."""

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> None:
        """Condition on x (n, d) and y (n, p), NaN where a target is missing.

        Raises:
            DataError: infinite targets, or too few.
        """
        residual = y - self.prior_mean(x)
        require_no_infinity(residual)
        self._made = None
        self.keep(x, inputs=x, residual=residual)
        self.keep(x, alpha=self._system().solve(self.residual))

    @torch.no_grad()
    def _system(self) -> SystemT:
        if self._made is None:
            self._made = self._factorised()
        return self._made

    def with_observations(
        self,
        x: Tensor,
        y: Tensor,
        likelihood: Gaussian | NoisyOutputs,
        noise: RowNoise | None = None,
    ) -> Posterior:
        """As in ``Posterior``, for y (m, p); conditions on all rows again."""
        made = copy.deepcopy(self)
        known = self._noise_with(x, noise)
        if known is not None:
            made.know_noise(known)
        targets = self.residual + self.prior_mean(self.inputs).detach()
        made.condition_(torch.cat([self.inputs, x]), torch.cat([targets, y]))
        return made

    def know_noise(self, noise: RowNoise) -> None:
        """Set the noise of the rows, before ``condition_``."""
        self.row_noise = noise.packed()

    def _noise(self) -> Tensor:
        """Noise variances (p,), or (n, p) of the cells if something is known of them."""
        learned = self.likelihood.noise_variance
        if self.row_noise is None:
            return learned
        return RowNoise.unpacked(self.row_noise).variances(learned)

    @abstractmethod
    def joint_outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (t, p) and covariance (t, p, p) of each row, without noise."""

    @abstractmethod
    def outputs_covariance(self, x: Tensor) -> Tensor:
        """Covariance (t, p, t, p) at all pairs of t inputs, without noise."""

    @torch.no_grad()
    def sample(self, x: Tensor, num: int = 1, *, generator: torch.Generator) -> Tensor:
        """``num`` draws (num, t, p) at x (t, d), exactly and jointly.

        As in ``Posterior``; for kernels without random features, too. Cost: O((p t)^3).
        """
        check_at_least(1, num=num)
        mean = self.predict(x).mean
        covariance = self.outputs_covariance(x).reshape(mean.numel(), mean.numel())
        drawn = normal_draws(covariance, num, generator=generator)
        return mean + drawn.view(num, *mean.shape).to(mean)

    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Joint law of the p targets of each row, correlated as their functions are."""
        if not isinstance(likelihood, GaussianOutputs):
            return super().predictive(x, likelihood)
        return self._law(x, likelihood.noise_variance)

    def predictive_of_rows(
        self, x: Tensor, likelihood: Gaussian | NoisyOutputs, noise: RowNoise
    ) -> Distribution:
        """As ``predictive``; weight w of a row divides the noise of its targets by w."""
        if not isinstance(likelihood, GaussianOutputs):
            return super().predictive_of_rows(x, likelihood, noise)
        return self._law(x, likelihood.noise_of_rows(noise))

    def _law(self, x: Tensor, noise: Tensor) -> MultivariateNormal:
        """Law of the targets at x (t, d), with noise variances (p,) or (t, p)."""
        mean, covariance = self.joint_outputs(x)
        factor = target_cholesky(covariance.double(), noise.double())
        return MultivariateNormal(mean, scale_tril=factor.to(mean), validate_args=False)

    def _marginals(self, x: Tensor) -> Marginals:
        """Of ``joint_outputs``."""
        mean, covariance = self.joint_outputs(x)
        return Marginals(mean, covariance.diagonal(dim1=1, dim2=2).clamp_min(0.0))

    def _noise_with(self, x: Tensor, noise: RowNoise | None) -> RowNoise | None:
        """The noise of the data followed by that of further rows x; None: nothing is known."""
        if noise is None and self.row_noise is None:
            return None
        kept = self.row_noise
        before = RowNoise.plain(self.inputs[:, 0]) if kept is None else RowNoise.unpacked(kept)
        return before.concatenated(RowNoise.plain(x[:, 0]) if noise is None else noise.like(x))


def target_cholesky(covariance: Tensor, noise: Tensor) -> Tensor:
    """Cholesky factors (t, p, p) of covariances of functions (t, p, p) plus noise, float64.

    If rounding (of float32) left a covariance not positive definite even with noise, its negative
    eigenvalues are set to zero.

    Args:
        noise (p,) or (t, p): variances.
    """
    name = "the covariance of the targets of a row"
    try:
        return cholesky(covariance + torch.diag_embed(noise), name=name, ladder=(0.0,))[0]
    except NotPositiveDefinite:
        values, vectors = torch.linalg.eigh(covariance)
        positive = (vectors * values.clamp_min(0.0).unsqueeze(-2)) @ vectors.mT
        return cholesky(positive + torch.diag_embed(noise), name=name)[0]


def require_no_infinity(residual: Tensor) -> None:
    """Raise DataError if y - m(x) (n, p) has infinite entries; NaN is a missing target."""
    wrong = residual.isinf()
    if bool(wrong.any()):
        row, output = wrong.nonzero()[0].tolist()
        raise DataError(
            f"{int(wrong.sum())} targets are infinite, the first in row {row} of output {output}; "
            "remove them, or make them NaN, which stands for a missing target"
        )
