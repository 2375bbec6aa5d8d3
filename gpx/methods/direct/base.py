"""Functions of a basis with discrete weights: what every likelihood and family of q shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gpx.bases import Basis, basis_of
from gpx.bases.fixed_functions import fix_functions, sufficient_statistics
from gpx.bases.grid_eigenfunctions.start import require_sums
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.data_sized import InDoublePrecision
from gpx.errors import ConfigError, class_name
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.direct.grids import WeightGrid, prior_at, require_grid
from gpx.methods.direct.mean_field import Bound, best_noise, bound, squared_error, swept
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
        logits (m, k): of q, its probabilities their softmax; of a mixture (r, m, k).

    Raises:
        ConfigError: a basis whose prior has correlations.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("scale",)

    mean: Mean
    scale: Tensor
    logits: nn.Parameter

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

    def mixture(self) -> tuple[Tensor, Tensor]:
        """Shares (r,) of the components of q and probabilities (r, m, k); r = 1 of a mean field."""
        return self.scale.new_ones(1), self.logits.softmax(-1).unsqueeze(0)

    @torch.no_grad()
    def sparsity(self) -> float:
        """Expected share of weights that are zero in a draw from q.

        Raises:
            ConfigError: zero is not one of the values.
        """
        shares, q = self.mixture()
        return float(shares @ q[..., self.weights.place_of_zero()].mean(1))

    def take_scale(self) -> None:
        """Note the prior deviations of the weights, once the functions are fixed.

        Warns where the functions hardly stand for the kernel.
        """
        self.basis.warn_of_few()
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

    def noise_probabilities(self) -> Tensor:
        """Of the values of the noise variance (k_s,); empty where it is known, or there is none."""
        return self.scale.new_zeros(0)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> DirectPosterior:
        """The posterior at the present q; x and y are not read."""
        posterior = self.new_posterior()
        shares, q = self.mixture()
        posterior.fill(self.scale, self.values(), q, self.noise_probabilities(), shares)
        return posterior

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        return DirectPosterior(self.basis, self.mean, None)


class DiscreteRegression(SummedRegression, DiscreteWeights):
    """Discrete weights under Gaussian noise: sums over the data, and the noise variance's grid.

    Attributes:
        gram (m, m), projected (m,), totals (2,): Phi^T Phi and Phi^T r of the functions times sd_i,
            |r|^2 and n.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("gram", "projected", "scale")

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
        self.statistics = start.statistics.standardised(self.scale)
        if self.noise is not None:
            self.note += f", noise variances of {len(self.noise)}"

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedRegression``, of the functions times sd_i and of y - m(x)."""
        sums = sufficient_statistics(self.basis, x, y - self.mean(x))
        return sums.standardised(self.scale)

    @torch.no_grad()
    def annealed(self, levels: int) -> Tensor:
        """Logits (m, k) of a mean field after sweeps under a precision that rises to the noise's.

        Where values are further apart than the posterior is wide, a weight becomes certain of one
        value at the first sweep, or the first step of a gradient search, and keeps it. At a low
        precision no weight is certain yet, and each explains a part of the targets.

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
                logits = self.swept(logits, share)
        return logits

    def prior_at(self, q: Tensor) -> tuple[Tensor, Tensor]:
        """Logarithm of the prior (k,) of every weight under q (m, k), and (); see ``prior_at``."""
        return prior_at(q, self.weights)

    @torch.no_grad()
    def swept(self, logits: Tensor, share: float = 1.0) -> Tensor:
        """Logits (m, k) of a mean field after one sweep of coordinate ascent.

        Args:
            logits (m, k): to start from.
            share: of the precision of the noise.

        Cost: O(m^2 + m k).
        """
        prior, _ = self.prior_at(logits.softmax(-1))
        precision = share * self.noise_terms().precision
        return swept(self.gram, self.projected, logits, self.values(), prior, precision)

    @torch.no_grad()
    def bound(self, logits: Tensor) -> Bound:
        """The evidence lower bound of a mean field of ``logits`` (m, k), with its gradient.

        Cost: O(m^2 + m k).
        """
        log_q = logits.log_softmax(-1)
        prior, gained = self.prior_at(log_q.exp())
        grid = None if self.noise is None else self.noise_grid()
        found = bound(self.statistics, log_q, self.values(), prior, self.noise_terms(), grid)
        return found._replace(value=found.value + gained, weights=found.weights + gained)

    def noise_probabilities(self) -> Tensor:
        """As in ``DiscreteWeights``."""
        return self.noise_terms().log_q.exp()

    def new_posterior(self) -> DirectPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        noise = None if self.noise is None else self.noise.values
        return DirectPosterior(self.basis, self.mean, noise)
