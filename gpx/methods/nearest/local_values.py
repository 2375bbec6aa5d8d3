"""What SWSGP and VNNGP share: q(u) over values of which every input sees the nearest few."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.inference.exact_solver import require_finite
from gpx.inference.neighbour_conditional import local_regression
from gpx.inference.variational import has_concave_start
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.row_noise import training_noise
from gpx.means.base import Mean
from gpx.methods.base.batch import resolve_row_noise
from gpx.methods.base.model import Model
from gpx.methods.base.required_likelihood import require_one_latent
from gpx.methods.nearest.local_laplace import local_laplace
from gpx.methods.nearest.nearness import Nearness, mean_variance
from gpx.methods.nearest.posterior import NearestPosterior
from gpx.tensor_checks import check_jitter


class LocalValues(Model):
    """A model with a Gaussian q(u) over values u, minus the prior mean, at inducing points.

    The values are not whitened. Their means are trained in units of a deviation of each value
    (``unit``), their standard deviations as logarithms. The parameters have a row per value, so
    that gradients can be sparse in the values that a batch uses.

    Args:
        kernel, mean, likelihood: parts of the model; any likelihood of one latent function.
        num_values: number of values for which there are parameters; ``unit`` may have fewer.
        num_neighbours: inducing points that an input sees.
        warm_start: start at local regressions on the data; with a log-concave likelihood of
            classes, counts or positive targets at Laplace's approximation on the data near each.
        jitter: relative to the kernel's mean variance at the inducing points.

    Attributes:
        inducing (m, d): inducing points.
        unit (m,): positive.
    """

    takes_row_noise = True
    fixed_shapes = True
    starts_by_laplace = True
    kernel: Kernel
    mean: Mean
    likelihood: Likelihood
    inducing: Tensor
    unit: Tensor
    q_log_deviation: nn.Parameter | None
    rule: Nearness = "euclidean"

    def __init__(
        self,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        *,
        num_values: int,
        num_neighbours: int,
        warm_start: bool,
        jitter: float,
    ) -> None:
        super().__init__()
        check_jitter(jitter=jitter)
        self.kernel = kernel
        self.mean = mean
        self.likelihood = require_one_latent(likelihood, f"model={type(self).__name__}()")
        self.num_neighbours = num_neighbours
        self.warm_start = warm_start
        self.jitter = jitter
        self.q_scaled_mean = nn.Parameter(torch.zeros(num_values, 1))
        self.q_log_deviation = nn.Parameter(torch.zeros(num_values, 1))

    @property
    def q_mean(self) -> Tensor:
        """Mean (m,) of q(u), of the values minus the prior mean."""
        return self.unit * self.q_scaled_mean[: len(self.unit), 0]

    @property
    def q_deviation(self) -> Tensor:
        """Standard deviations (m,) of independent values."""
        assert self.q_log_deviation is not None
        return self.q_log_deviation[: len(self.unit), 0].exp()

    @torch.no_grad()
    def set_q(self, mean: Tensor, deviation: Tensor, unit: Tensor | None = None) -> None:
        """Set q(u) to independent values N(mean_j, deviation_j^2), (m,) each.

        Args:
            unit (m,): in which the means are trained, positive; None: as it is.
        """
        if unit is not None and unit.shape == self.unit.shape:
            self.unit.copy_(unit)  # in place, for recorded steps
        elif unit is not None:
            self.unit = unit.to(self.inducing)
        self.q_scaled_mean.zero_()[: len(mean)] = (mean / self.unit).unsqueeze(1)
        if self.q_log_deviation is not None:
            self.q_log_deviation.zero_()[: len(mean)] = deviation.log().unsqueeze(1)

    @torch.no_grad()
    def _local_start(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor] | None:
        """Mean and variance (m,) of the values given the data near each; None: start at the prior.

        By regressions, of log-concave likelihoods of other targets by Laplace's approximation.
        """
        if not self.warm_start:
            return None
        if isinstance(self.likelihood, Gaussian):
            noise, residual = training_noise(self, x), y - self.mean(x)
            require_finite(residual)
            local = local_regression(self.kernel, noise, x, residual, self.inducing)
            return local.mean, local.variance
        if not has_concave_start(self.likelihood):
            return None
        noisy = resolve_row_noise(self, None, len(x), len(x))
        shares = None if noisy is None else noisy.relative.reciprocal()
        prior = self.mean(x)
        return local_laplace(self.kernel, self.likelihood, prior, x, y, shares, self.inducing)

    @property
    def sparse_gradients(self) -> bool:
        """Whether gradients of q(u) are sparse: for independent values."""
        return self.q_log_deviation is not None

    def means_of(self, values: Tensor) -> Tensor:
        """Means of values (...), in float64."""
        scaled = embedding(values, self.q_scaled_mean, sparse=self.sparse_gradients).squeeze(-1)
        return (scaled * self.unit[values]).double()

    def log_deviations_of(self, values: Tensor) -> Tensor:
        """Log standard deviations of independent values (...), in float64."""
        assert self.q_log_deviation is not None
        return embedding(values, self.q_log_deviation, sparse=True).squeeze(-1).double()

    def _jitter(self) -> Tensor:
        """Variance (float64) added to the values."""
        return self.jitter * mean_variance(self.kernel, self.inducing).double()

    @torch.no_grad()
    def _posterior(self, mean: Tensor, root: Tensor) -> NearestPosterior:
        posterior = self.new_posterior()
        posterior.keep(self.inducing, inducing=self.inducing, q_mean=mean, q_root=root)
        return posterior

    def new_posterior(self) -> NearestPosterior:
        """As in ``Model``."""
        return NearestPosterior(
            self.kernel,
            self.mean,
            num_neighbours=self.num_neighbours,
            rule=self.rule,
            jitter=self.jitter,
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """q(u): ``touched`` with sparse gradients, else ``variational``; Z if trained; the rest."""
        own = dict(self.named_parameters(recurse=False))
        chosen = [p for name, p in own.items() if name.startswith("q_")]
        points = own.get("inducing")
        taken = {id(p) for p in (*chosen, points)}
        return {
            "touched" if self.sparse_gradients else "variational": chosen,
            **({"inducing": [points]} if points is not None and points.requires_grad else {}),
            "hyperparameters": [p for p in self.parameters() if id(p) not in taken],
        }
