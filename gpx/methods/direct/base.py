"""Functions of a basis with discrete weights: what every likelihood and family of q shares."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gpx.bases import Basis, basis_of
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.grid_eigenfunctions.start import require_sums
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.direct.grids import NoiseGrid, WeightGrid, prior_at, require_grid
from gpx.methods.direct.mean_field import best_noise, squared_error, swept
from gpx.methods.direct.posterior import DirectPosterior
from gpx.methods.direct.summed import SummedRegression


class DiscreteWeights(InDoublePrecision, Model):
    """Functions of a basis with discrete weights; a subclass has data, likelihood and q.

    f(x) = m(x) + sum_i phi_i(x) sd_i w_i, where sd_i is the standard deviation that the prior of
    the basis gives weight i, and w_i takes one of the ``weights``' values, the same few for all.
    Basis, kernel and mean stay as initialised.

    Args:
        kernel: of the basis.
        mean: stays.
        likelihood: a subclass says which.
        basis: on ``kernel``; or a class, or any callable, that makes one of ``kernel`` and
            ``num_basis``.
        num_basis: m, at most.
        weights: values of the weights and their prior; None: ``WeightGrid()``.

    Attributes:
        scale (m,): sd.

    Raises:
        ConfigError: a basis whose prior has correlations.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("scale",)

    mean: Mean
    scale: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        basis: Basis | Callable[..., Basis],
        num_basis: int,
        weights: WeightGrid | None,
    ) -> None:
        super().__init__()
        require_grid(weights, WeightGrid, "weights")
        self.basis = basis_of(basis, kernel, num_basis)
        if self.basis.dense_prior:
            raise ConfigError(
                f"basis {class_name(self.basis)} gives its weights a prior with correlations, and "
                "discrete weights are independent; use basis=RandomFourier or another with "
                "variances"
            )
        self.mean = mean
        self.likelihood = likelihood
        self.weights = WeightGrid() if weights is None else weights
        self.register_buffer("scale", torch.zeros(0, dtype=torch.float64))

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        kernel = self.basis.kernel
        assert isinstance(kernel, Kernel)
        return kernel

    def values(self) -> Tensor:
        """The values (k,) of the weights."""
        return self.weights.values.to(self.scale.device)

    def log_prior(self) -> Tensor:
        """Logarithm of the prior (k,) of a weight at the values; of a mixture, the marginal."""
        return self.weights.log_prior.to(self.scale.device)

    @abstractmethod
    def sparsity(self) -> float:
        """Expected share of weights that are zero in a draw from q.

        Raises:
            ConfigError: zero is not one of the values.
        """

    def place_of_zero(self) -> int:
        """Among the values; raises ConfigError where zero is none of them."""
        zero = self.weights.zero
        if zero is None:
            raise ConfigError("sparsity counts zeros, and no value of the weights is zero")
        return zero

    def take_scale(self) -> None:
        """Note the prior deviations of the weights, once the functions are fixed."""
        self.scale = self.basis.log_variances().detach().double().mul(0.5).exp()
        self.note += f"; weights of {len(self.weights)} values"

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records: sizes, and the sparsity where zero is a value."""
        found: dict[str, bool | int | float | str] = {
            "num_basis": self.basis.num_basis,
            "num_values": len(self.weights),
        }
        if self.weights.zero is not None:
            found["sparsity"] = self.sparsity()
        return found | self.basis.facts()

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return DirectPosterior(self.basis, self.mean, None)


class DiscreteRegression(SummedRegression, DiscreteWeights):
    """Discrete weights under Gaussian noise: sums over the data, and the noise variance's grid.

    Args:
        kernel, mean, basis, num_basis, weights: as for ``DiscreteWeights``.
        likelihood: Gaussian.
        noise: values of the noise variance and their prior; None: it stays as initialised.

    Attributes:
        noise_logits (k_s,): of the noise variance; empty where it is known.
        gram (m, m), projected (m,), totals (2,): Phi^T Phi and Phi^T r of the functions times sd_i,
            |r|^2 and n.

    Raises:
        ConfigError: as ``DiscreteWeights``.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("gram", "projected", "scale")

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        basis: Basis | Callable[..., Basis],
        num_basis: int = 1000,
        weights: WeightGrid | None = None,
        noise: NoiseGrid | None = None,
    ) -> None:
        super().__init__(
            kernel=kernel,
            mean=mean,
            likelihood=likelihood,
            basis=basis,
            num_basis=num_basis,
            weights=weights,
        )
        self.start_sums(noise)

    def settle(self, x: Tensor) -> dict[str, tuple[Any, str]]:
        """As in ``Model``: nothing to settle, but sums of m x m must fit into memory."""
        self.basis.place(x)
        require_sums("num_basis", self.basis.num_basis, x.device)
        return {}

    @torch.no_grad()
    def fix(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Fix the functions and sum over the data x (n, d), y (n,)."""
        noise = self.likelihood.noise_variance
        start = fix_functions(self.basis, x, y - self.mean(x), noise, generator=generator)
        self.likelihood.noise_variance = start.noise.to(noise)
        self.note = start.note
        self.take_scale()
        self.statistics = start.statistics.of_standardised(self.scale)
        if self.noise is not None:
            self.note += f", noise variances of {len(self.noise)}"

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedRegression``, of the functions times sd_i and of y - m(x)."""
        sums = sufficient_statistics(self.basis, x, y - self.mean(x))
        return sums.of_standardised(self.scale)

    @torch.no_grad()
    def annealed(self, levels: int) -> Tensor:
        """Logits (m, k) of a mean field after sweeps under a precision that rises to the noise's.

        Where values are far apart for how much the data say, a weight takes one value at the first
        sweep, or the first step of a gradient search, and stays; weights that are loose to begin
        with share what there is to explain before they settle.

        Args:
            levels: of the precision, from a ten thousandth, two sweeps each; 0: q is the prior.

        Cost: 2 levels m (m + k).
        """
        logits = self.log_prior().detach().expand(len(self.scale), -1).clone()
        for share in torch.logspace(-4.0, 0.0, levels, dtype=torch.float64).tolist():
            for _ in range(2):
                q = logits.softmax(-1)
                if self.noise is not None:
                    error = squared_error(self.statistics, q, self.values()).value
                    self.noise_logits.copy_(best_noise(error, self.totals[1], *self.noise_grid()))
                logits = swept(
                    self.gram,
                    self.projected,
                    logits,
                    self.values(),
                    self.prior_now(q),
                    share * self.noise_terms().precision,
                )
        return logits

    def prior_now(self, q: Tensor) -> Tensor:
        """Logarithm of the prior (k,) of every weight under q (m, k); see ``prior_at``."""
        return prior_at(q, self.weights)[0]

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        noise = None if self.noise is None else self.noise.values
        return DirectPosterior(self.basis, self.mean, noise)
