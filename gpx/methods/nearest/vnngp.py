"""The variational nearest-neighbour Gaussian process, with an inducing value at every input."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from gpx.errors import ConfigError, class_name
from gpx.inference.neighbour_conditional import local_system, near_coordinates
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.inference.variational import has_concave_start
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.likelihoods.row_noise import training_noise
from gpx.linalg import UnconvergedWarning
from gpx.means.base import Mean
from gpx.methods.base.batch import resolve_row_noise
from gpx.methods.base.posterior import Marginals
from gpx.methods.nearest import value_prior
from gpx.methods.nearest.local_values import LocalValues
from gpx.methods.nearest.ordering import distinct_rows, earlier_rows, maximin_order
from gpx.methods.nearest.posterior import NearestPosterior
from gpx.methods.nearest.seen_points import JITTER_HINT
from gpx.methods.nearest.value_prior import (
    IndependentValues,
    RowsOfValues,
    ValuePrior,
    best_under_likelihood,
    best_under_noise,
)
from gpx.tensor_checks import check_at_least, check_num_data
from gpx.warned_line import users_line


class RowTerms(NamedTuple):
    """Terms of the bound for some rows of the data.

    Attributes:
        marginals: of f at the rows under q, (b,) each.
        kl (b,): E_q(u_N) KL(q(u_j) || p(u_j | u_N)) in nats, with N the preceding neighbours of the
            row's value; divided by the number of rows with the same input.
    """

    marginals: Marginals
    kl: Tensor


class VNNGP(LocalValues):
    """Variational inference for the nearest-neighbour process, with a value u_j at every input.

    p(u) = prod_j p(u_j | u_N(j)), with N(j) the k nearest inputs before j in a maximin order, and
    q(u) = prod_j N(m_j, s_j^2). The bound is a sum over rows with a k x k problem each, for
    mini-batches and any likelihood of one latent function. With a Gaussian likelihood the optimal
    q(u) has a closed form: m solves a sparse system, and s_j^2 is the inverse of a diagonal entry
    of its matrix. With a log-concave one of classes, counts or positive targets two to ten such
    solves find it.

    Rows with the same input share a value. (Two values, independent under q but equal up to jitter
    under p, would each get the variance of the jitter.) Means are trained in units of their initial
    standard deviation (``unit``), because the cost of an error in m_j is relative to its variance
    given its neighbours, which is much smaller among nearby inputs.

    Args:
        kernel, mean, likelihood: parts of the model.
        num_inputs: d.
        num_data: n, rows of the data.
        num_neighbours: k, of the prior and of predictions.
        warm_start: start at the optimal q(u) of those likelihoods; otherwise start at zero mean
            and the deviations closest to the prior.
        refit: with them, predict with the optimal q(u) at the trained hyperparameters.
        jitter: variance added to u, relative to the kernel's.

    Attributes:
        inducing (m, d), near (m, k): distinct inputs, and the indices of their preceding
            neighbours, padded with -1.
        value_of (n,), repeats (m,): index of each row's value, and number of rows of each value.
        unit (m,): standard deviations of q(u) at the start or the last refit.

    Raises:
        ConfigError: sizes below one or not whole, a negative jitter.

    Cost: b k^3 per step; O(n^2) distances once, for order and neighbours. Memory of n (k + d)
    numbers, so that rows in files are refused; use ``SWSGP`` for these.
    Source: Wu, Pleiss and Cunningham 2022.
    """

    data_sized = ("inducing", "near", "value_of", "repeats", "unit")
    why_no_streams = (
        "keeps a value, its neighbours and the inputs of every training row, so that its memory "
        "would grow with them"
    )
    near: Tensor
    value_of: Tensor
    repeats: Tensor

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Likelihood,
        num_inputs: int,
        num_data: int,
        num_neighbours: int = 64,
        warm_start: bool = True,
        refit: bool = True,
        jitter: float = 1e-6,
    ) -> None:
        check_at_least(1, num_inputs=num_inputs, num_data=num_data, num_neighbours=num_neighbours)
        super().__init__(
            kernel,
            mean,
            likelihood,
            num_values=num_data,  # of which one per distinct input is used
            num_neighbours=min(num_neighbours, num_data),
            warm_start=warm_start,
            jitter=jitter,
        )
        self.refit = refit
        self._shape = num_data, num_inputs
        self.register_data_sized()

    def check(self, x: Tensor) -> None:
        """As in ``Model``; also that x has ``num_data`` rows."""
        check_num_data(self._shape[0], x)
        super().check(x)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Find order and neighbours of the data in the kernel's metric, and start q(u).

        Raises:
            ConfigError: sizes other than those that the model was made for.
            DataError: targets that are not finite.
        """
        check_num_data(self._shape[0], x)
        with torch.no_grad():
            first, self.value_of = distinct_rows(x)
            self.inducing, self.repeats = x[first], self.value_of.bincount().to(x)
            points = near_coordinates(self.kernel, self.inducing.double())
            order = maximin_order(points)
            others = max(1, min(self.num_neighbours, self._shape[0] - 1))  # a prediction sees all
            near = earlier_rows(points, order[:, None], others)
            self.near = torch.empty_like(near).index_copy_(0, order, near)
            local = self._local_start(x, y)
            # the mean field closest to the prior; with the prior's variances, independent
            # values would not cancel in the weights of neighbours, and f would vary too much
            prior = self._value_prior()
            deviation = prior.precision_diagonal().rsqrt()
            mean = torch.zeros_like(deviation) if local is None else local[0]
            if self.warm_start and self.computes_best_q:
                mean, deviation, _ = self._best_q(x, y, mean, deviation, prior)
            self.set_q(mean, deviation, unit=deviation)

    @property
    def num_inputs(self) -> int:
        """d; the bound uses the inputs given to ``initialise``."""
        return self._shape[1]

    @property
    def computes_best_q(self) -> bool:
        """Whether the optimal q(u) given the hyperparameters can be computed."""
        return isinstance(self.likelihood, Gaussian) or has_concave_start(self.likelihood)

    @property
    def refits(self) -> bool:
        """Whether predictions use the optimal q(u)."""
        return self.refit and self.computes_best_q

    # --- the prior, row by row -------------------------------------------------------------------

    def conditionals(self, values: Tensor) -> tuple[Tensor, Tensor]:
        """p(u_j | u_N(j)) of values j (b,): weights (b, k) and variances (b,).

        Weights are zero for missing neighbours. In float64, differentiable in the kernel.
        """
        near, x, jitter = self.near[values], self.inducing.double(), self._jitter()
        system = local_system(
            self.kernel,
            x[near.clamp_min(0)],
            x[values].unsqueeze(1),
            jitter,
            near >= 0,
            hint=JITTER_HINT,
        )
        return system.weights.squeeze(2), system.rest.squeeze(1) + jitter

    def row_terms(self, rows: Tensor) -> RowTerms:
        """q(f) at rows (b,) of the data, and the divergence of each.

        Raises:
            ConfigError: ``initialise`` was not called.
        """
        self._require_neighbours()
        values = self.value_of[rows]
        weights, rest = self.conditionals(values)
        near = self.near[values].clamp_min(0)
        own_mean, own = self.means_of(values), self.log_deviations_of(values)
        means, others = self.means_of(near), self.log_deviations_of(near)
        variance = (2.0 * own).exp()
        gap = own_mean - (weights * means).sum(1)
        spread = (weights.square() * (2.0 * others).exp()).sum(1)
        kl = 0.5 * ((variance + gap.square() + spread) / rest - 1.0 + rest.log()) - own
        kl = kl / self.repeats[values]
        x = self.inducing[values]
        return RowTerms(Marginals(own_mean.to(x) + self.mean(x), variance.to(x)), kl.to(x))

    def _require_neighbours(self) -> None:
        if not len(self.value_of):
            raise ConfigError(
                "VNNGP knows no neighbours yet: call initialise(x, y, generator=...) first"
            )

    def _require_rows(self, x: Tensor) -> None:
        """Raise ConfigError unless x (n, d) are the rows of ``initialise``, in their order."""
        # in float32, so that a model that was in that precision knows its rows again
        if len(x) != len(self.value_of) or not torch.equal(
            self.inducing[self.value_of].float(), x.float()
        ):
            raise ConfigError(
                f"VNNGP has a value for every one of the {len(self.value_of)} rows that it was "
                f"initialised with, and these are {len(x)} others, or in another order: give it "
                "those rows, or call initialise(x, y, generator=...) with these"
            )

    # --- the best q(u) ---------------------------------------------------------------------------

    def _value_prior(self) -> ValuePrior:
        size = max(1, CHUNK_BYTES // (8 * (self.num_neighbours + 1) ** 2))
        values = torch.arange(len(self.near), device=self.near.device)
        parts = [self.conditionals(part) for part in values.split(size)]
        weights, rest = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return ValuePrior(self.near.clamp_min(0), weights, rest)

    @torch.no_grad()
    def fit_variational(self, x: Tensor, y: Tensor) -> bool:
        """Set q(u) to the optimal one given the hyperparameters.

        Returns:
            whether it met its tolerances; if not, the bound has still risen.

        Raises:
            ConfigError: the likelihood is neither Gaussian nor of classes, counts or positive
                targets and log-concave, or x are not the rows of ``initialise``.

        Cost: n k^3 operations, and n k per iteration of conjugate gradients; for other than
        Gaussian likelihoods two to ten such solves.
        """
        found = self._best_q(x, y, self.q_mean, self.q_deviation)
        self.set_q(found.mean, found.deviation, unit=found.deviation)
        return found.converged

    def _best_q(
        self,
        x: Tensor,
        y: Tensor,
        mean: Tensor,
        deviation: Tensor,
        prior: ValuePrior | None = None,
    ) -> IndependentValues:
        """The optimal q(u), by solves or steps that begin at this mean and deviation (m,)."""
        if not self.computes_best_q:
            raise ConfigError(
                "the best q(u) is computed for the Gaussian and for log-concave likelihoods, not "
                f"for {class_name(self.likelihood)}"
            )
        self._require_neighbours()
        self._require_rows(x)
        prior, mean = prior or self._value_prior(), mean.double()
        if isinstance(self.likelihood, Gaussian):
            rows = RowsOfValues(y.double(), self.mean(x).double(), self.value_of)
            precision = training_noise(self, x).double().reciprocal().expand(len(y))
            return best_under_noise(prior, rows, precision, mean)
        noise = resolve_row_noise(self, None, len(x), self._shape[0])
        shares = None if noise is None else noise.relative.double().reciprocal()
        rows = RowsOfValues(y.double(), self.mean(x).double(), self.value_of, shares)
        return best_under_likelihood(prior, rows, self.likelihood, mean, deviation.double())

    # --- prediction ------------------------------------------------------------------------------

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> NearestPosterior:
        """The posterior process of q as trained, or of the optimal q(u) with ``refit``.

        Raises:
            ConfigError: with ``refit``, x are not the rows of ``initialise``.
        """
        mean, deviation, converged = self.q_mean, self.q_deviation, True
        if self.refits:
            mean, deviation, converged = self._best_q(x, y, mean, deviation)
        if not converged:
            warnings.warn(
                "the best q(u) was not found to its tolerance (by solves of at most "
                f"{value_prior.REFIT_ITERATIONS} iterations), and predictions use the last "
                "iterate; use fewer neighbours, or refit=False",
                UnconvergedWarning,
                stacklevel=users_line(),
            )
        return self._posterior(mean, deviation)
