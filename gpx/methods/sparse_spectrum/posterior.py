"""Posterior process of regression on learned trigonometric features."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.backends import DEFAULT_BUDGET, row_chunks
from gpx.bases.sufficient_statistics import WeightPosterior
from gpx.data_sized import InDoublePrecision
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import functions_by_blocks
from gpx.methods.sparse_spectrum.spectrum import LearnedSpectrum


class SparseSpectrumPosterior(InDoublePrecision, Posterior):
    """Posterior process of ``SSGP`` and ``VSSGP``; needs no training data.

    f(x) = m(x) + phi(x)^T w with w ~ N(weights, B^{-1}), B = factor factor^T; uncertain frequencies
    add the variance of the features times E w^2.

    Attributes:
        weights (m,), factor (m, m): see above.
        squares (m,): E w^2.
    """

    data_sized = ("weights", "factor", "squares")
    weights: Tensor
    factor: Tensor
    squares: Tensor

    def __init__(self, spectrum: LearnedSpectrum, mean: Mean) -> None:
        super().__init__()
        self.spectrum, self.mean = untrained(spectrum), untrained(mean)
        device = spectrum.points.device
        for name in self.data_sized:
            self.register_buffer(name, torch.zeros(0, dtype=torch.float64, device=device))

    def fill(self, found: WeightPosterior) -> None:
        """Store the posterior of the weights. Cost: m^3 / 3 multiply-adds."""
        self.weights, self.factor = found.mean.clone(), found.factor.clone()
        self.squares = torch.cholesky_inverse(found.factor).diagonal() + found.mean.square()

    @property
    def num_inputs(self) -> int | None:
        """Columns of the inputs."""
        return self.spectrum.num_inputs

    @property
    def _of_weights(self) -> WeightPosterior:
        return WeightPosterior(torch.ones_like(self.weights), self.weights, self.factor)

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {"num_basis": self.spectrum.num_basis}

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        With uncertain frequencies f is not Gaussian; these are its moments.

        Cost: m^2 / 2 multiply-adds per row; memory of a block of features.
        """
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        found = self._of_weights
        for rows in self._blocks(x):
            features, own = self.spectrum.moments(x[rows])
            latent, variance[rows] = found.marginals(features.mT)
            mean[rows] = self.mean(x[rows]) + latent
            if own is not None:
                variance[rows] += own @ self.squares.to(x.dtype)
        return Marginals(mean, variance)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t): draws of weights and frequencies.

        Cost: num m^2 / 2 multiply-adds once, O(num m d) per row.
        """
        weights = self._of_weights.draw(num, generator=generator)
        functions = self.spectrum.paths(num, generator=generator)
        return functions_by_blocks(
            self,
            num,
            lambda x: (functions(x[rows], weights.to(x.dtype)) for rows in self._blocks(x)),
            self.mean,
        )

    def _blocks(self, x: Tensor) -> Any:
        return row_chunks(x.shape[0], 4 * 8 * self.spectrum.num_basis, DEFAULT_BUDGET)
