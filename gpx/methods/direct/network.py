"""A Bayesian neural network with squared activations, discrete weights and an exact bound."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.backends import DEFAULT_BUDGET
from gpx.bases.sufficient_statistics import SufficientStatistics, accumulate_statistics
from gpx.errors import ConfigError
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.direct.grids import NoiseGrid, WeightGrid, effective_log_prior, require_grid
from gpx.methods.direct.mean_field import best_noise_logits, negative_divergence, total
from gpx.methods.direct.network_posterior import DirectNetworkPosterior
from gpx.methods.direct.polynomial import (
    expectations,
    moments,
    network_polynomial,
    num_terms,
    pair_expectations,
)
from gpx.methods.direct.rounds import SweptRounds
from gpx.methods.direct.summed import SummedRegression
from gpx.tensor_checks import check_at_least, check_widths

START_WIDTH = 0.25
"""Standard deviation of q at the start, in units of the prior's."""


class DirectNetwork(SummedRegression, SweptRounds):
    """Regression by a network, y = u(x) + noise, whose weights take one of a few values each.

    Activations are squares, so that the network is a polynomial of h terms in inputs and weights.
    Under q the weights are independent, and the evidence lower bound is an exact sum over pairs of
    terms; after one pass over the data its cost does not depend on n. There is no kernel and no
    mean function.

    Args:
        likelihood: Gaussian.
        num_inputs: d.
        hidden: neurons of every hidden layer; () is a linear model. Every layer squares h, which
            grows with d^2 for one layer and with d^4 for two.
        bias: whether to append a constant input of one.
        weights: possible values of a weight, in units of 1 / sqrt(inputs of its neuron), and their
            prior; None: ``WeightGrid()``.
        noise: possible noise variances and their prior; None: the noise variance stays as
            initialised.
        starts: number of draws from the prior; q starts concentrated around the one with the
            largest bound. Started at the prior, the neurons of a layer would stay identical.
        restarts: number of restarts of the gradient search, each after sweeps of coordinate ascent.

    Attributes:
        logits (b, k): their softmax gives the probabilities of q.
        noise_logits (k_s,): of q(noise variance); empty if it is known.
        gram (h, h), projected (h,), totals (2,): C^T C and C^T y for the coefficients C (n, h) of
            the terms at the data, |y|^2 and n.

    Raises:
        ConfigError: sizes below one, or so many terms that their pairs do not fit into memory.

    Exactness: see ``DirectNetworkELBO``.
    Cost: n h^2 / 2 multiply-adds once; O(h^2 b) per evaluation with gradient, independent of n.
    Source: Evans thesis, appendix E.
    """

    data_sized: ClassVar[tuple[str, ...]] = ("gram", "projected", "logits")

    def __init__(
        self,
        *,
        likelihood: Gaussian,
        num_inputs: int,
        hidden: Sequence[int] = (3,),
        bias: bool = True,
        weights: WeightGrid | None = None,
        noise: NoiseGrid | None = None,
        starts: int = 100,
        restarts: int = 3,
    ) -> None:
        super().__init__()
        require_grid(weights, WeightGrid, "weights")
        check_widths("hidden", hidden)
        check_at_least(1, num_inputs=num_inputs, starts=starts)
        check_at_least(0, restarts=restarts)
        widths = [*hidden, 1]
        terms = num_terms(num_inputs + bias, widths)
        if 8 * terms**2 > DEFAULT_BUDGET // 8:
            raise ConfigError(
                f"hidden={list(hidden)} on {num_inputs} inputs makes {terms} terms, and the bound "
                "is a sum over all pairs of them; take fewer neurons or layers"
            )
        self.likelihood = likelihood
        self.inputs, self.hidden, self.bias = num_inputs, tuple(widths[:-1]), bias
        self.weights = WeightGrid() if weights is None else weights
        self.starts, self.restarts = starts, restarts
        self.register_sums(noise)
        self.polynomial = network_polynomial(num_inputs + bias, widths)
        empty = torch.zeros(0, dtype=torch.float64)
        self.logits = nn.Parameter(empty.new_zeros(0, len(self.weights)))

    @property
    def num_inputs(self) -> int:
        """d."""
        return self.inputs

    def values(self) -> Tensor:
        """Values (b, k) that each weight may take."""
        scale = self.polynomial.fan_in.to(self.gram).rsqrt()
        return scale.unsqueeze(1) * self.weights.values.to(self.gram)

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedRegression``, for the coefficients of the terms."""
        blocks = ((made.mT, y[rows], None) for rows, made in self.new_posterior().blocks(x))
        return accumulate_statistics(blocks, len(self.polynomial.counts), x)

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Compute the sums over the data and choose the start of q."""
        self.statistics = self.sums(x, y)
        grid = self.weights.values.to(self.gram)
        best = None
        for _ in range(self.starts):
            self.logits.data = self._start(grid, generator)
            if self.noise is not None:
                self.noise_logits.data = self.best_noise_logits(self.bound_terms()["fit"])
            value = self.bound_value()
            if best is None or value > best[0]:
                best = value, self.logits.data, self.noise_logits.data
        assert best is not None
        _, self.logits.data, self.noise_logits.data = best
        count, terms = len(self.logits), len(self.gram)
        self.note = f"{count} weights of {len(grid)} values, {terms} terms"

    def _start(self, grid: Tensor, generator: torch.Generator) -> Tensor:
        """Logits (b, k) of a q that is concentrated around a draw from the prior.

        For the Gaussian prior, from the standard normal whose density it has at the values.
        """
        count, prior = self.polynomial.exponents.shape[1], self.weights.log_prior.to(self.gram)
        if self.weights.prior == "gaussian":
            draws = torch.randn(
                (count, 1), generator=generator, dtype=torch.float64, device=generator.device
            )
        else:
            share = prior.exp().to(generator.device)
            chosen = torch.multinomial(share, count, replacement=True, generator=generator)
            draws = grid[chosen.to(grid.device)].unsqueeze(1)
        return prior - 0.5 * ((grid - draws.to(grid)) / START_WIDTH).square()

    def bound_terms(self) -> dict[str, Tensor]:
        """Terms of the bound in nats: fit, constant, weights and noise. Cost: O(h^2 b)."""
        log_q, noise = self.logits.log_softmax(-1), self.noise_terms()
        q = log_q.exp()
        prior, prior_constant = effective_log_prior(q, self.weights)
        return {
            "fit": self._fit(q),
            "constant": noise.constant,
            "weights": negative_divergence(log_q, prior).sum() + prior_constant,
            "noise": noise.prior,
        }

    def _fit(self, q: Tensor) -> Tensor:
        """-E |y - u(x)|^2 E 1/s / 2 () for probabilities q (b, k)."""
        exponents = self.polynomial.exponents
        highest, exponents = 2 * int(exponents.max()), exponents.to(q.device)
        of_weights = moments(q, self.values(), highest)
        error = (
            self.totals[0]
            - 2.0 * self.projected @ expectations(of_weights, exponents)
            + (self.gram * pair_expectations(of_weights, exponents)).sum()
        )
        return -0.5 * self.noise_terms().precision * error

    @torch.no_grad()
    def sweep(self) -> None:
        """As in ``SweptRounds``; the fit is linear in the probabilities of a single weight.

        The moments of all weights but one are multiplied half of the weights by half, and so on
        within each half: probabilities that are new in the first half hold for the second.

        Cost: O(h^2 b log b), in b sequential updates of small operations; memory O(h^2 log b).
        """
        q = self.logits.softmax(-1)
        prior, _ = effective_log_prior(q, self.weights)
        exponents = self.polynomial.exponents
        degrees = torch.arange(2 * int(exponents.max()) + 1, device=q.device)
        powers = self.values().unsqueeze(-1) ** degrees  # (b, k, degrees)
        of_weights = (q.unsqueeze(-1) * powers).sum(-2)
        exponents = exponents.mT.to(q.device)

        def update(weights: list[int], single: Tensor, pair: Tensor) -> None:
            """Update ``weights``; single (h,), pair (h, h) have the moments of all others."""
            if len(weights) > 1:
                halves = weights[: len(weights) // 2], weights[len(weights) // 2 :]
                for own, others in (halves, halves[::-1]):
                    of_terms, of_pairs = single.clone(), pair.clone()
                    for table, power in zip(of_weights[others], exponents[others], strict=True):
                        of_terms *= table[power]
                        of_pairs *= table[power.unsqueeze(0) + power.unsqueeze(1)]
                    update(own, of_terms, of_pairs)
                return
            weight, power = weights[0], exponents[weights[0]]
            by_moment = torch.zeros_like(of_weights[weight])  # derivatives of E |y - u(x)|^2
            by_moment.index_add_(0, power, single, alpha=-2.0)
            in_pairs = power.unsqueeze(0) + power.unsqueeze(1)
            by_moment.index_add_(0, in_pairs.flatten(), pair.flatten())
            if self.noise is not None:
                error = self.totals[0] + by_moment @ of_weights[weight]
                self.noise_logits.copy_(
                    best_noise_logits(error, self.totals[1], *self.noise_grid())
                )
            slope = -0.5 * self.noise_terms().precision * (powers[weight] @ by_moment)
            self.logits[weight] = prior + slope
            of_weights[weight] = self.logits[weight].softmax(-1) @ powers[weight]

        update(list(range(len(q))), self.projected, self.gram)

    def bound_value(self) -> float:
        """As in ``SweptRounds``."""
        return float(total(self.bound_terms()).detach())

    def sparsity(self) -> float:
        """Expected share of zero weights in a draw from q; ConfigError if zero is not a value."""
        zero = self.weights.place_of_zero()
        return float(self.logits.detach().softmax(-1)[:, zero].mean())

    def facts(self) -> dict[str, bool | int | float | str]:
        """Sizes, and the sparsity if zero is a value, as plain values for the run's record."""
        found: dict[str, bool | int | float | str] = {
            "num_weights": self.polynomial.exponents.shape[1],
            "num_terms": len(self.polynomial.counts),
            "num_values": len(self.weights),
        }
        return found if self.weights.zero is None else found | {"sparsity": self.sparsity()}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q of the weights, and of the noise variance unless it is known."""
        return {"variational": self.with_noise_logits(self.logits)}

    def new_posterior(self) -> DirectNetworkPosterior:
        """As in ``Model``; the training data are not part of the posterior."""
        noise = None if self.noise is None else self.noise.values
        posterior = DirectNetworkPosterior(
            self.polynomial, self.inputs, self.hidden, self.bias, noise
        )
        return posterior.to(self.gram.device, self.likelihood.noise_variance.dtype)

    @torch.no_grad()
    def condition(self, x: Tensor, y: Tensor) -> DirectNetworkPosterior:
        """The posterior at the present q; x and y are not read."""
        posterior = self.new_posterior()
        noise = self.noise_terms().log_q.exp()
        posterior.fill(self.values(), self.logits.softmax(-1), noise)
        return posterior
