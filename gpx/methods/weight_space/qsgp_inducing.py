"""Quadruply stochastic Gaussian processes with one kernel function per training input."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gpx.backends import row_slices
from gpx.bases.inducing_points import InducingPoints
from gpx.errors import ConfigError, class_name
from gpx.inference.exact_solver import IterativeOptions, VarianceName
from gpx.inference.iterative_posterior import BLOCK_BYTES, IterativePosterior
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian
from gpx.linalg import SolveReport
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals
from gpx.methods.weight_space.model import require_zero_mean
from gpx.tensor_checks import check_at_least, check_num_data, check_one_of

WeightVariance = Literal["augmented", "mean_field", "projection", "collapsed"]
VARIANCE_RULES: dict[str, VarianceName] = {"projection": "lanczos", "collapsed": "sgpr"}
"""Rules of ``IterativePosterior`` for the variances that are not those of q."""


def augmentation(cross_square: Tensor, prior: Tensor, noise: Tensor) -> Tensor:
    """Variance (b,) that an additional basis function centred on the test point contributes.

    The weight of k(., x_*) is taken as uncorrelated with the others under q. Its optimal variance
    is c^2 = noise / (k_*^T k_* + noise k_**), and it contributes c^2 k_**^2.

    Args:
        cross_square (b,): k_*^T k_*, over the training inputs.
        prior (b,): k_**.
        noise (): noise variance.

    Far from the data it tends to the prior variance of f.
    Source: QSGP paper proposition 4; thesis proposition D.1 (which writes V[y] for V[f]).
    """
    return noise * prior.square() / (cross_square + noise * prior)


def optimal_scales(kernel: Kernel, points: Tensor, column_square: Tensor, noise: Tensor) -> Tensor:
    """Optimal c_r^2 (n,), noise / (k_r^T k_r + noise k_rr), in float64.

    Args:
        kernel, points (n, d): k_r = k(., x_r).
        column_square (n,): k_r^T k_r.
        noise (): noise variance.

    Source: QSGP paper proposition 2 of the covariance (closed-form diagonal).
    """
    noise = noise.detach().double()
    prior = kernel.diagonal(points).detach().double()
    return noise / (column_square.double() + noise * prior)


class InducingPosterior(IterativePosterior):
    """f(x) = k(x, X) w under q(w) = N(alpha, diag(c)^2), or with a richer variance.

    Args:
        kernel, mean, likelihood, options: as in IterativePosterior.
        variance_family: ``mean_field`` is that of q, ``augmented`` adds ``augmentation``;
            ``projection`` and ``collapsed`` are upper bounds of the exact posterior variance (see
            ``predictive_variance``).

    Sampled functions are those of the exact posterior (pathwise conditioning), because independent
    weights of overlapping kernel functions would give rough paths.

    Cost of prediction: n kernel entries and O(n) per point for the first two, O(n rank) for the
    others. State: O(n d).
    """

    data_sized = (*IterativePosterior.data_sized, "scales")
    scales: Tensor

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        options: IterativeOptions,
        variance_family: WeightVariance,
    ) -> None:
        rule = VARIANCE_RULES.get(variance_family, "lanczos")
        super().__init__(kernel, mean, likelihood, replace(options, variance=rule))
        self.variance_family = variance_family

    @torch.no_grad()
    def condition_(self, x: Tensor, y: Tensor) -> SolveReport:
        """As in ``IterativePosterior``, with the scales of x: n^2 further kernel entries."""
        report = super().condition_(x, y)
        squares = InducingPoints(self.kernel, self.inputs).column_squares(self.inputs)
        noise = self.likelihood.noise_variance
        self.scales = optimal_scales(self.kernel, self.inputs, squares, noise)
        return report

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: certified error of the mean (NaN: not solved for), variance rule."""
        found = super().facts()
        found["solver"] = "weights"
        found["variance"] = self.variance_family
        return found

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d)."""
        if self.variance_family in VARIANCE_RULES:
            return super().predict(x)
        kernel, inputs = copy.deepcopy(self.kernel).double(), self.inputs.double()
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        noise = self.likelihood.noise_variance.double()
        budget = BLOCK_BYTES.get(x.device.type, BLOCK_BYTES["cpu"])
        for rows in row_slices(x.shape[0], max(1, budget // (8 * self.inputs.shape[0]))):
            # large weights of both signs cancel, so covariances and sums are in float64
            wide = x[rows].double()
            cross = kernel.evaluate(wide, inputs)
            mean[rows] = (cross @ self.alpha.double()).to(x.dtype)
            # without a graph, the covariances are not used again
            square = cross.square() if cross.requires_grad else cross.square_()
            found = square @ self.scales.double()
            if self.variance_family == "augmented":
                found = found + augmentation(square.sum(1), kernel.diagonal(wide), noise)
            variance[rows] = found.to(x.dtype)
        return Marginals(mean + self.mean(x), variance)


Hyperparameters = Literal["fixed"]

DEFAULT_RANK = 1000
"""Default number of greedy points."""


class QSGPInducing(Model):
    """y = sum_i w_i k(x, x_i) + noise over all training inputs, w ~ N(0, K^-1), q(w) Gaussian.

    Phi = S = K: the prior on the training values is that of the kernel, and the optimum of the
    weight mean is (K + noise I)^-1 y, the exact posterior mean. q has a diagonal covariance factor
    in closed form, c_r^2 = noise / (k_r^T k_r + noise k_rr). Neither K nor a factor of it is
    stored; the state is O(n d).

    ``InducingSteps`` solves for the weight mean; ``FirstOrder`` with ``InducingELBO`` takes the
    published stochastic gradient steps.

    Args:
        kernel: covariance function; its hyperparameters are not trained, only initialised.
        mean: must be Zero.
        likelihood: must be Gaussian.
        num_data, num_inputs: n and d of the training inputs.
        variance: rule for predictive variances. ``mean_field`` is that of q; ``augmented`` adds a
            basis function at the test point; ``projection`` projects onto greedy points and Krylov
            vectors; ``collapsed`` is the collapsed sparse posterior at the greedy points.
        rank: greedy points of the preconditioner and of the last two rules; None: 1,000, at most n.
        variance_rank: number of greedy points that ``projection`` uses; None: all.
        variance_steps: number of Krylov vectors that ``projection`` uses.
        variance_neighbours: training points near each test point that ``projection`` also uses.
        memory_budget: of kernel products; half of it may hold a stored matrix.
        memory_budget_gib: earlier name of ``memory_budget``, in GiB.
        hyperparameters: ``fixed``.

    Raises:
        ConfigError: a mean, likelihood or option that does not fit.

    Source: QSGP paper, inducing-point experiments (table 3), proposition 4; thesis 6.4, appendix D.
    Deviations: exact solves in addition to AdaGrad; the rules ``projection`` and ``collapsed``.
    """

    likelihood: Gaussian
    column_square: Tensor
    mean_error: Tensor
    weight_rest: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: nn.Module,
        num_data: int,
        num_inputs: int,
        variance: WeightVariance = "projection",
        rank: int | None = None,
        variance_rank: int | None = 500,
        variance_steps: int = 100,
        variance_neighbours: int = 128,
        memory_budget: int | str | None = None,
        hyperparameters: str = "fixed",
        memory_budget_gib: float | None = None,
    ) -> None:
        super().__init__()
        require_zero_mean(mean, "QSGPInducing")
        if not isinstance(likelihood, Gaussian):
            found = class_name(likelihood)
            raise ConfigError(
                f"model=QSGPInducing() needs likelihood=Gaussian(), got {found}; use model=QSGP() "
                "for log-concave sites, or model=SVGP(), which takes any likelihood"
            )
        if hyperparameters not in get_args(Hyperparameters):
            raise ConfigError(
                f"hyperparameters={hyperparameters}: the prior precision S = K is dense and "
                "has no diagonal, so empirical Bayes cannot estimate log|S|; keep fixed, and learn "
                "them by init=SubsetInitialisation() or model=QSGP()"
            )
        check_one_of(get_args(WeightVariance), variance=variance)
        check_at_least(1, num_data=num_data, num_inputs=num_inputs)
        if rank is None:
            rank = min(DEFAULT_RANK, num_data)
        if rank > num_data:
            raise ConfigError(
                f"rank={rank} is above the {num_data} training points; lower it, "
                "or None for 1,000 at most"
            )
        options = IterativeOptions(
            rank=rank,
            variance_rank=variance_rank,
            variance_steps=variance_steps,
            variance_neighbours=variance_neighbours,
            memory_budget=memory_budget,
            memory_budget_gib=memory_budget_gib,
        )
        self.options = options
        self.variance: WeightVariance = variance
        self.basis = InducingPoints(kernel, torch.zeros(num_data, num_inputs))
        self.mean = mean
        self.likelihood = likelihood
        self.weight_mean = nn.Parameter(torch.zeros(num_data, 1))
        self.register_buffer("column_square", torch.zeros(num_data))
        self.register_buffer("mean_error", torch.full((), torch.nan))
        self.register_buffer("weight_rest", torch.zeros(num_data))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickle, also of versions that kept the weights in one precision only."""
        super().__setstate__(state)
        if "weight_rest" not in self._buffers:
            self.register_buffer("weight_rest", torch.zeros_like(self.weight_mean.data[:, 0]))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load states, also of versions that kept the weights in one precision only."""
        state_dict.setdefault(prefix + "weight_rest", torch.zeros_like(self.weight_rest))
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def kernel(self) -> Kernel:
        """Covariance function; the basis owns it."""
        return self.basis.kernel

    @property
    def noise_variance(self) -> Tensor:
        """Noise variance of the likelihood, 0-d."""
        return self.likelihood.noise_variance

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also that x has ``num_data`` rows."""
        check_num_data(len(self.basis.centres), x)
        super().check(x)

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Set the centres to the training inputs; compute k_r^T k_r from n^2 kernel entries."""
        check_num_data(len(self.basis.centres), x)
        self.basis.centres.copy_(x)
        self.column_square.copy_(self.basis.column_squares(x))

    def scales(self) -> Tensor:
        """Optimal c_r^2 (n,) in float64 (``optimal_scales``)."""
        return optimal_scales(
            self.kernel, self.basis.centres, self.column_square, self.noise_variance
        )

    @torch.no_grad()
    def set_weights(self, weights: Tensor) -> None:
        """Set the weight mean to ``weights`` (n,), float64, without loss of precision.

        What rounding to the dtype of ``weight_mean`` leaves is kept in ``weight_rest``: the weights
        are large and of both signs, and the rounding of each would show in their sum.
        """
        self.weight_mean.copy_(weights[:, None])
        self.weight_rest.copy_(weights - self.weight_mean[:, 0].double())

    @torch.no_grad()
    def weights(self) -> Tensor:
        """The weight mean (n,) in float64, with what rounding left of it."""
        rounded = self.weight_mean[:, 0]
        whole = rounded.double() + self.weight_rest.double()
        # gradient steps may have moved a weight since; then its rest, unless it is below rounding,
        # belongs to an earlier value
        return torch.where(whole.to(rounded.dtype) == rounded, whole, rounded.double())

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: the weight mean. Hyperparameters are fixed."""
        return {"variational": [self.weight_mean]}

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> InducingPosterior:
        """The posterior process under q."""
        posterior = self.new_posterior()
        posterior.keep(x, inputs=x, residual=y - self.mean(x), mean_error=self.mean_error)
        posterior.alpha = self.weights()
        posterior.scales = self.scales()
        return posterior

    def new_posterior(self) -> InducingPosterior:
        """As in ``Model``."""
        return InducingPosterior(
            self.kernel, self.mean, self.likelihood, self.options, self.variance
        )
