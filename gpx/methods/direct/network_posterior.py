"""Posterior process of a network of discrete weights: mean and variance are exact sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.data_sized import InDoublePrecision
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.methods.base.model import Marginals, Posterior
from gpx.methods.direct.mean_field import codes_in_bytes, drawn_codes
from gpx.methods.direct.polynomial import Polynomial, expectations, moments, pair_expectations


class DirectNetworkPosterior(InDoublePrecision, Posterior):
    """Posterior process of ``DirectNetwork``; needs no training data.

    Args:
        polynomial: of the network.
        num_inputs: d.
        hidden: neurons of the hidden layers.
        bias: whether a further input of the polynomial is one.
        noise_values (k_s,): of the noise variance, where it has a distribution; None: it is that of
            the likelihood.

    Attributes:
        values (b, k), probabilities (b, k): of every weight.
        noise_probabilities (k_s,): of the values of the noise variance; empty where it is known.
        expected (h,), covariance (h, h): of the terms of the network.
    """

    data_sized = ("values", "probabilities", "noise_probabilities", "expected", "covariance")
    in_double = ("noise_values",)
    values: Tensor
    probabilities: Tensor
    noise_probabilities: Tensor
    expected: Tensor
    covariance: Tensor
    noise_values: Tensor

    def __init__(
        self,
        polynomial: Polynomial,
        num_inputs: int,
        hidden: tuple[int, ...],
        bias: bool,
        noise_values: Tensor | None,
    ) -> None:
        super().__init__()
        self.polynomial, self.inputs, self.bias = polynomial, num_inputs, bias
        self.hidden = hidden
        empty = torch.zeros(0, dtype=torch.float64)
        for name in self.data_sized:
            self.register_buffer(name, empty.clone())
        self.register_buffer("noise_values", empty if noise_values is None else noise_values)
        # all else is in float64 whatever the data: this one number has the precision of the data
        self.register_buffer("unit", torch.ones(()), persistent=False)

    @property
    def num_inputs(self) -> int:
        """d."""
        return self.inputs

    def fill(self, values: Tensor, probabilities: Tensor, noise_probabilities: Tensor) -> None:
        """Take q; the arguments are the attributes. Cost: O(h^2 b)."""
        exponents = self.polynomial.exponents
        highest, exponents = 2 * int(exponents.max()), exponents.to(values.device)
        of_weights = moments(probabilities, values, highest)
        expected = expectations(of_weights, exponents)
        self.keep(
            self.values,
            values=values,
            probabilities=probabilities,
            noise_probabilities=noise_probabilities,
            expected=expected,
            covariance=pair_expectations(of_weights, exponents) - torch.outer(expected, expected),
        )

    def coefficients(self, x: Tensor) -> Tensor:
        """Of the terms (n, h) at x (n, d)."""
        ones = x.new_ones(len(x), int(self.bias))
        polynomial = Polynomial(*(part.to(x.device) for part in self.polynomial))
        return polynomial.coefficients(torch.cat([x, ones], 1))

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Exact mean and variance of the network at x (t, d). Cost: t h^2 multiply-adds."""
        found = x.new_empty(2, len(x))
        for rows in row_chunks(len(x), 4 * 8 * len(self.expected), DEFAULT_BUDGET):
            made = self.coefficients(x[rows].double())
            found[0, rows] = (made @ self.expected).to(x.dtype)
            found[1, rows] = ((made @ self.covariance) * made).sum(1).clamp(min=0.0).to(x.dtype)
        return Marginals(found[0], found[1])

    def noise_variance(self, likelihood: Likelihood) -> Tensor:
        """Expected noise variance ()."""
        if len(self.noise_values):
            return self.noise_probabilities @ self.noise_values
        assert isinstance(likelihood, Gaussian)
        return likelihood.noise_variance.detach()

    @torch.no_grad()
    def predictive(self, x: Tensor, likelihood: Likelihood) -> Distribution:
        """Normal with the exact mean and variance of y."""
        mean, variance = self.predict(x)
        return Normal(mean, (variance + self.noise_variance(likelihood).to(x.dtype)).sqrt())

    @torch.no_grad()
    def sample_codes(self, num: int, *, generator: torch.Generator) -> Tensor:
        """Places of the values in ``num`` draws of the weights: (num, b), uint8.

        Raises:
            ConfigError: there are more than 256 values.
        """
        one = self.probabilities.new_ones(1)
        return codes_in_bytes(one, self.probabilities[None], num, generator)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` networks x (t, d) -> (num, t). Cost: num h multiply-adds a row."""
        one = self.probabilities.new_ones(1)
        codes = drawn_codes(one, self.probabilities[None], num, generator)
        drawn = self.values[torch.arange(len(self.values), device=codes.device), codes]
        polynomial = Polynomial(*(part.to(drawn.device) for part in self.polynomial))
        terms = polynomial.at(drawn)

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            return (terms @ self.coefficients(x.double()).mT).to(x.dtype)

        return paths

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        found: dict[str, bool | int | float | str] = {
            "num_weights": len(self.values),
            "num_terms": len(self.expected),
        }
        zeros = self.values == 0.0
        if not bool(zeros.any()):
            return found
        return found | {"sparsity": float(self.probabilities[zeros].mean())}
