"""The variational nearest-neighbour Gaussian process: inducing values at all the data."""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding

from gpx.errors import ConfigError, class_name
from gpx.inference.exact_solver import require_finite
from gpx.inference.neighbour_conditional import local_regression, local_system, near_coordinates
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.kernels.base import Kernel
from gpx.likelihoods import Gaussian, Likelihood
from gpx.linalg import Jacobi, UnconvergedWarning, conjugate_gradients
from gpx.linalg.stopping import RelativeResidual
from gpx.means.base import Mean
from gpx.methods.base.model import Marginals, Model
from gpx.methods.base.required_likelihood import require_one_latent
from gpx.methods.nearest.ordering import earlier_rows, maximin_order
from gpx.methods.nearest.posterior import NearestPosterior
from gpx.tensor_checks import check_at_least, check_not_negative

REFIT_TOLERANCE = 1e-4
"""Relative residual of the solve for the best q(u)."""

REFIT_ITERATIONS = 500


class RowTerms(NamedTuple):
    """What the bound asks of some rows of the data.

    Attributes:
        marginals: of f there under q, (b,) each.
        kl (b,): E_q(u_N) KL(q(u_j) || p(u_j | u_N)), N the row's neighbours before it, in nats.
    """

    marginals: Marginals
    kl: Tensor


class VNNGP(Model):
    """Variational inference for the nearest-neighbour process, with inducing values at every row.

    p(u) = prod_j p(u_j | u_N(j)), N(j) the k nearest rows before j in a maximin order, and
    q(u) = prod_j N(m_j, s_j^2): the bound is a sum over rows, each a k x k problem, for
    mini-batches and any likelihood of one latent function. With a Gaussian likelihood the best
    q(u) has a closed form: m solves a sparse system, s_j^2 is the inverse of a diagonal entry of
    its matrix.

    Args:
        kernel, mean, likelihood: parts of the model.
        num_inputs: d.
        num_data: n, which is the number of inducing values.
        num_neighbours: k, of the prior and of predictions.
        warm_start: Gaussian likelihood: start q(u) at the best one; otherwise at the one nearest
            to the prior, with zero mean.
        refit: Gaussian likelihood: predict with the best q(u) given the trained hyperparameters.
        jitter: variance added to u, relative to the kernel's.

    Attributes:
        inducing (n, d), near (n, k): rows of the data, and the numbers of their neighbours before
            them, -1 where there are fewer.

    Raises:
        ConfigError: sizes below one or not whole, a negative jitter.

    Cost: b k^3 per step; O(n^2) distances once, for order and neighbours. Memory of n (k + d)
    numbers, which is why rows in files are refused: ``SWSGP`` has inducing values at some of them.
    Source: Wu, Pleiss and Cunningham 2022.
    """

    data_sized = ("inducing", "near")
    why_no_streams = (
        "keeps a value, its neighbours and the inputs of every training row, so that its memory "
        "would grow with them"
    )
    kernel: Kernel
    mean: Mean
    likelihood: Likelihood
    inducing: Tensor
    near: Tensor

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
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_data=num_data, num_neighbours=num_neighbours)
        check_not_negative(jitter=jitter)
        self.kernel = kernel
        self.mean = mean
        self.likelihood = require_one_latent(likelihood, "model=VNNGP()")
        self.num_neighbours = min(num_neighbours, max(1, num_data - 1))
        self.warm_start = warm_start
        self.refit = refit
        self.jitter = jitter
        self._shape = num_data, num_inputs
        self.q_mean = nn.Parameter(torch.zeros(num_data, 1))
        self.q_log_deviation = nn.Parameter(torch.zeros(num_data, 1))
        self.register_data_sized()

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Order and neighbours of the data in the kernel's metric, and where q(u) starts.

        Raises:
            ConfigError: other sizes than those that the model was made for.
            DataError: targets that are not finite.
        """
        if tuple(x.shape) != self._shape:
            raise ConfigError(
                "the model was made for num_data={} and num_inputs={}, the data are {} rows of "
                "{}".format(*self._shape, *x.shape)
            )
        with torch.no_grad():
            points = near_coordinates(self.kernel, x.double())
            order = maximin_order(points)
            near = earlier_rows(points, order[:, None], self.num_neighbours)
            self.inducing = x.clone()
            self.near = torch.empty_like(near).index_copy_(0, order, near)
            if self.warm_start and isinstance(self.likelihood, Gaussian):
                noise, residual = self.likelihood.noise_variance, y - self.mean(x)
                require_finite(residual)
                local = local_regression(self.kernel, noise, x, residual, x)
                self.q_mean.copy_(local.mean.unsqueeze(1))
                self.fit_variational(x, y)
            else:
                # of all independent values those nearest to the prior: with its own variances they
                # would not cancel in the weights of near neighbours, and f would reach far beyond
                self.q_mean.zero_()
                precision = self._precision_diagonal(*self._all_conditionals(), noisy=False)
                self.q_log_deviation.copy_(-0.5 * precision.log().unsqueeze(1))

    @property
    def num_inputs(self) -> int:
        """d: the bound looks at the inputs of its start, not at those of a step."""
        return self._shape[1]

    @property
    def refits(self) -> bool:
        """Whether the posterior is that of the best q(u)."""
        return self.refit and isinstance(self.likelihood, Gaussian)

    # --- the prior, row by row -------------------------------------------------------------------

    def conditionals(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """p(u_j | u_N(j)) of rows (b,): weights (b, k) and variances (b,).

        Weights are zero where there is no neighbour. In float64, differentiable with respect to the
        kernel.
        """
        near, x = self.near[rows], self.inducing.double()
        variance = self.kernel.diagonal(self.inducing[:1]).double().mean().detach()
        jitter = self.jitter * variance
        system = local_system(
            self.kernel, x[near.clamp_min(0)], x[rows].unsqueeze(1), jitter, near >= 0
        )
        return system.weights.squeeze(2), system.rest.squeeze(1) + jitter

    def row_terms(self, rows: Tensor) -> RowTerms:
        """q(f) at rows (b,) of the data and the divergence that each adds."""
        weights, rest = self.conditionals(rows)
        near = self.near[rows].clamp_min(0)
        own_mean, own = (self._look_up(p, rows).double() for p in self._q)
        means, others = (self._look_up(p, near).double() for p in self._q)
        variance = (2.0 * own).exp()
        gap = own_mean - (weights * means).sum(1)
        spread = (weights.square() * (2.0 * others).exp()).sum(1)
        kl = 0.5 * ((variance + gap.square() + spread) / rest - 1.0 + rest.log()) - own
        x = self.inducing[rows]
        return RowTerms(Marginals(own_mean.to(x) + self.mean(x), variance.to(x)), kl.to(x))

    @property
    def _q(self) -> tuple[Tensor, Tensor]:
        return self.q_mean, self.q_log_deviation

    @staticmethod
    def _look_up(values: Tensor, rows: Tensor) -> Tensor:
        return embedding(rows, values, sparse=True).squeeze(-1)

    # --- the best q(u) under Gaussian noise ------------------------------------------------------

    def _all_conditionals(self) -> tuple[Tensor, Tensor]:
        size = max(1, CHUNK_BYTES // (8 * (self.num_neighbours + 1) ** 2))
        rows = torch.arange(len(self.near), device=self.near.device)
        parts = [self.conditionals(part) for part in rows.split(size)]
        weights, rest = (torch.cat(pieces) for pieces in zip(*parts, strict=True))
        return weights, rest

    def _precision_diagonal(self, weights: Tensor, rest: Tensor, *, noisy: bool) -> Tensor:
        """diag((I - B)^T F^{-1} (I - B)), and I / noise where values are ``noisy``."""
        diagonal = 1.0 / rest
        if noisy:
            assert isinstance(self.likelihood, Gaussian)
            diagonal = diagonal + 1.0 / self.likelihood.noise_variance.double()
        near = self.near.clamp_min(0).flatten()
        return diagonal.index_add(0, near, (weights.square() / rest.unsqueeze(1)).flatten())

    @torch.no_grad()
    def fit_variational(self, x: Tensor, y: Tensor) -> bool:
        """Set q(u) to the best one given the hyperparameters and Gaussian noise.

        Returns:
            whether the solve met its tolerance; where it did not, the bound has risen all the same.

        Raises:
            ConfigError: the likelihood is not Gaussian.

        Cost: n k^3 operations, and n k for every iteration of conjugate gradients.
        """
        mean, log_deviation, converged = self._best(x, y)
        self.q_mean.copy_(mean)
        self.q_log_deviation.copy_(log_deviation)
        return converged

    def _best(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, bool]:
        """Means and logarithms of deviations (n, 1) of the best q(u); whether the solve ended."""
        if not isinstance(self.likelihood, Gaussian):
            raise ConfigError(
                "the best q(u) has a closed form for the Gaussian likelihood only, not "
                f"{class_name(self.likelihood)}"
            )
        weights, rest = self._all_conditionals()
        diagonal = self._precision_diagonal(weights, rest, noisy=True)
        noise = self.likelihood.noise_variance.double()
        near, flat = self.near.clamp_min(0), self.near.clamp_min(0).flatten()

        def precision(v: Tensor) -> Tensor:
            gap = (v - torch.einsum("nk,nkc->nc", weights, v[near])) / rest.unsqueeze(1)
            back = (weights.unsqueeze(2) * gap.unsqueeze(1)).flatten(0, 1)
            return (gap + v / noise).index_add(0, flat, back, alpha=-1.0)

        residual = (y - self.mean(x)).double().unsqueeze(1)
        solved = conjugate_gradients(
            precision,
            residual / noise,
            preconditioner=Jacobi(diagonal),
            x0=self.q_mean.double(),
            stop=RelativeResidual(REFIT_TOLERANCE),
            max_iterations=REFIT_ITERATIONS,
            on_failure="return",
        )
        return solved.solution, -0.5 * diagonal.log().unsqueeze(1), solved.report.converged

    # --- prediction ------------------------------------------------------------------------------

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> NearestPosterior:
        """The posterior process of q: as trained, or the best one with ``refit``."""
        mean, log_deviation, converged = *self._q, True
        if self.refits:
            mean, log_deviation, converged = self._best(x, y)
        if not converged:
            warnings.warn(
                f"the solve for the best q(u) stopped after {REFIT_ITERATIONS} iterations, short "
                f"of its relative residual of {REFIT_TOLERANCE}, and predictions are made from "
                "there; fewer neighbours make it easier, and refit=False does without it",
                UnconvergedWarning,
                stacklevel=2,
            )
        posterior = self.new_posterior()
        posterior.keep(
            self.inducing,
            inducing=self.inducing,
            q_mean=mean.squeeze(1),
            q_root=log_deviation.squeeze(1).exp(),
        )
        return posterior

    def new_posterior(self) -> NearestPosterior:
        """As in ``Model``."""
        return NearestPosterior(
            self.kernel,
            self.mean,
            num_neighbours=self.num_neighbours,
            rule="euclidean",
            jitter=self.jitter,
        )

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``touched``: q(u), with sparse gradients; ``hyperparameters``: the rest."""
        chosen = [self.q_mean, self.q_log_deviation]
        rest = [p for p in self.parameters() if all(p is not q for q in chosen)]
        return {"touched": chosen, "hyperparameters": rest}
