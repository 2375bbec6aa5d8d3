"""Posterior process of a network with discrete weights, with exact mean and variance."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import functions_by_blocks
from gpx.methods.direct.mean_field import draw_codes
from gpx.methods.direct.polynomial import Polynomial, expectations, moments, pair_expectations
from gpx.methods.direct.posterior import DiscretePosterior


class DirectNetworkPosterior(DiscretePosterior):
    """Posterior process of ``DirectNetwork``; needs no training data.

    Args:
        polynomial: the network in expanded form.
        num_inputs: d.
        hidden: neurons of the hidden layers.
        bias: whether the polynomial has a further input, which is one.
        noise_values (k_s,): possible noise variances; None: the likelihood's noise variance.

    Attributes:
        values (b, k), probabilities (b, k): of every weight.
        expected (h,), covariance (h, h): of the weight products of the polynomial's terms.
    """

    data_sized = ("values", "probabilities", "noise_probabilities", "expected", "covariance")
    values: Tensor
    probabilities: Tensor
    expected: Tensor
    covariance: Tensor

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
        self.register_state(noise_values)
        # its dtype is that of the data; all other buffers are float64 whatever the data
        self.register_buffer("unit", torch.ones(()), persistent=False)

    @property
    def num_inputs(self) -> int:
        """d."""
        return self.inputs

    def fill(self, values: Tensor, probabilities: Tensor, noise_probabilities: Tensor) -> None:
        """Store q; the arguments are the attributes of the same names. Cost: O(h^2 b)."""
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
        """Coefficients of the polynomial's terms (n, h) at x (n, d)."""
        ones = x.new_ones(len(x), int(self.bias))
        polynomial = Polynomial(*(part.to(x.device) for part in self.polynomial))
        return polynomial.coefficients(torch.cat([x, ones], 1))

    def blocks(self, x: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """``coefficients`` in float64, in blocks of rows of x (n, d) within the memory budget."""
        for rows in row_chunks(len(x), 4 * 8 * len(self.polynomial.counts), DEFAULT_BUDGET):
            yield rows, self.coefficients(x[rows].double())

    def predict(self, x: Tensor) -> Marginals:
        """Exact mean and variance of the network at x (t, d). Cost: t h^2 multiply-adds."""
        mean, variance = x.new_empty(len(x)), x.new_empty(len(x))
        for rows, made in self.blocks(x):
            mean[rows] = (made @ self.expected).to(x.dtype)
            variance[rows] = ((made @ self.covariance) * made).sum(1).clamp(min=0.0).to(x.dtype)
        return Marginals(mean, variance)

    def mixture(self) -> tuple[Tensor, Tensor]:
        """As in ``DiscretePosterior``."""
        return self.probabilities.new_ones(1), self.probabilities.unsqueeze(0)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` networks x (t, d) -> (num, t). Cost: num h multiply-adds a row."""
        codes = draw_codes(*self.mixture(), num, generator)
        drawn = self.values[torch.arange(len(self.values), device=codes.device), codes]
        polynomial = Polynomial(*(part.to(drawn.device) for part in self.polynomial))
        terms = polynomial.at(drawn)
        return functions_by_blocks(
            self, num, lambda x: ((terms @ made.mT).to(x.dtype) for _, made in self.blocks(x))
        )

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
