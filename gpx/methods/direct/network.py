"""A Bayesian network with squares for activations and discrete weights: its bound is exact."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import ClassVar

import torch
from torch import Tensor, nn

from gpx.backends import DEFAULT_BUDGET
from gpx.bases.sufficient_statistics import SufficientStatistics
from gpx.errors import ConfigError
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.direct.grids import NoiseGrid, WeightGrid, prior_at, require_grid
from gpx.methods.direct.mean_field import negative_divergence
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

NARROW = 0.25
"""Standard deviation of q at the start, in units of the prior's."""


class DirectNetwork(SummedRegression, SweptRounds):
    """Regression by a network y = u(x) + noise whose weights take one of a few values each.

    Its activations are squares, so that it is a polynomial of h terms in inputs and weights. q
    makes the weights independent, and the evidence lower bound is an exact sum over pairs of terms,
    free of n once the terms were summed over the data. It has no kernel and no mean function.

    Args:
        likelihood: Gaussian.
        num_inputs: d.
        hidden: neurons of every hidden layer; () is a linear model. Every layer squares h, which
            grows with d^2 for one and with d^4 for two.
        bias: a further input that is one.
        weights: values of every weight, in units of 1 / sqrt(inputs of its neuron), and their
            prior; None: ``WeightGrid()``.
        noise: values of the noise variance and their prior; None: it stays as initialised.
        starts: draws from the prior of which the one of largest bound is where q starts, narrow
            around it: under the prior the neurons of a layer are alike, and would stay so.
        restarts: of a gradient search, each after sweeps of coordinate ascent.

    Attributes:
        logits (b, k): of q, its probabilities their softmax.
        noise_logits (k_s,): of the noise variance; empty where it is known.
        gram (h, h), projected (h,), totals (2,): sums over the data of products of coefficients of
            the terms, of these and the targets, |y|^2 and n.

    Raises:
        ConfigError: sizes below one, or more terms than memory holds in pairs.

    Exactness: see ``DirectNetworkELBO``.
    Cost: n h^2 / 2 multiply-adds once; an evaluation with gradient O(h^2 b), whatever n.
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
        self.start_sums(noise)
        self.polynomial = network_polynomial(num_inputs + bias, widths)
        empty = torch.zeros(0, dtype=torch.float64)
        self.logits = nn.Parameter(empty.new_zeros(0, len(self.weights)))

    @property
    def num_inputs(self) -> int:
        """d."""
        return self.inputs

    def values(self) -> Tensor:
        """Values (b, k) of the weights."""
        scale = self.polynomial.fan_in.to(self.gram).rsqrt()
        return scale.unsqueeze(1) * self.weights.values.to(self.gram)

    def sums(self, x: Tensor, y: Tensor) -> SufficientStatistics:
        """As in ``SummedRegression``, of the coefficients of the terms."""
        total = SufficientStatistics.empty(len(self.polynomial.counts), x.device)
        for rows, made in self.new_posterior().blocks(x):
            target = y[rows].double()
            total = total + SufficientStatistics(
                made.mT @ made, made.mT @ target, target @ target, len(target)
            )
        return total

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Sum over the data, once, and look for a start of q."""
        self.statistics = self.sums(x, y)
        grid = self.weights.values.to(self.gram)
        best = None
        for _ in range(self.starts):
            self.logits.data = self._start(grid, generator)
            if self.noise is not None:
                self.noise_logits.data = self.best_noise(self.bound_terms()["fit"])
            value = self.bound_value()
            if best is None or value > best[0]:
                best = value, self.logits.data, self.noise_logits.data
        assert best is not None
        _, self.logits.data, self.noise_logits.data = best
        count, terms = len(self.logits), len(self.gram)
        self.note = f"{count} weights of {len(grid)} values, {terms} terms"

    def _start(self, grid: Tensor, generator: torch.Generator) -> Tensor:
        """Logits (b, k) of q a quarter as wide as the prior, around a draw from it."""
        shape = (self.polynomial.exponents.shape[1], 1)
        draws = torch.randn(
            shape, generator=generator, dtype=torch.float64, device=generator.device
        )
        prior = self.weights.log_prior.to(self.gram)
        return prior - 0.5 * ((grid - draws.to(grid)) / NARROW).square()

    def bound_terms(self) -> dict[str, Tensor]:
        """Terms of the bound in nats: fit, constant, weights and noise. Cost: O(h^2 b)."""
        log_q, noise = self.logits.log_softmax(-1), self.noise_terms()
        prior, gained = prior_at(log_q.detach().exp(), self.weights)
        return {
            "fit": self._fit(log_q.exp()),
            "constant": noise.constant,
            "weights": negative_divergence(log_q, prior)[0].sum() + gained,
            "noise": noise.prior,
        }

    def _fit(self, q: Tensor) -> Tensor:
        """-E |y - u(x)|^2 E 1/s / 2 (), of probabilities q (b, k)."""
        exponents = self.polynomial.exponents
        highest, exponents = 2 * int(exponents.max()), exponents.to(q.device)
        of_weights = moments(q, self.values(), highest)
        error = (
            self.totals[0]
            - 2.0 * self.projected @ expectations(of_weights, exponents)
            + (self.gram * pair_expectations(of_weights, exponents)).sum()
        )
        return -0.5 * self.noise_terms().precision * error

    def sweep(self) -> None:
        """As in ``SweptRounds``: the fit is linear in the probabilities of one weight.

        Cost: O(h^2 b^2), in b rounds of small operations, on the CPU whatever the device: a round
        waits for the one before.
        """
        if self.logits.is_cpu:
            self._sweep()
            return
        here = copy.deepcopy(self).cpu()
        here._sweep()
        self.logits.data.copy_(here.logits)
        self.noise_logits.data.copy_(here.noise_logits)

    def _sweep(self) -> None:
        prior, _ = prior_at(self.logits.detach().softmax(-1), self.weights)
        for weight in range(len(self.logits)):
            if self.noise is not None:
                self.noise_logits.data = self.best_noise(self.bound_terms()["fit"])
            q = self.logits.detach().softmax(-1).requires_grad_()
            with torch.enable_grad():
                (slope,) = torch.autograd.grad(self._fit(q), q)
            self.logits.data[weight] = prior + slope[weight]

    def bound_value(self) -> float:
        """As in ``SweptRounds``."""
        return float(torch.stack(list(self.bound_terms().values())).sum().detach())

    def sparsity(self) -> float:
        """Expected share of weights that are zero in a draw from q; ConfigError without zero."""
        zero = self.weights.place_of_zero()
        return float(self.logits.detach().softmax(-1)[:, zero].mean())

    def facts(self) -> dict[str, bool | int | float | str]:
        """Plain values for records: sizes, and the sparsity where zero is a value."""
        found: dict[str, bool | int | float | str] = {
            "num_weights": self.polynomial.exponents.shape[1],
            "num_terms": len(self.polynomial.counts),
            "num_values": len(self.weights),
        }
        return found if self.weights.zero is None else found | {"sparsity": self.sparsity()}

    def parameter_groups(self) -> dict[str, list[nn.Parameter]]:
        """``variational``: q of the weights, and of the noise variance where it has one."""
        return {"variational": self.and_noise(self.logits)}

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
