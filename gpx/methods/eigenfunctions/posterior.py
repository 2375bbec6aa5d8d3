"""Posterior process of regression on the eigenfunctions of a grid."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from gpx.bases.frozen import fixed_copy
from gpx.bases.grid_eigenfunctions.data_pass import EigenfunctionPass
from gpx.bases.grid_eigenfunctions.eigenfunctions import GridEigenfunctions, GridModes
from gpx.bases.grid_eigenfunctions.products import ProductPlan
from gpx.bases.sufficient_statistics import WeightPosterior
from gpx.data_sized import InDoublePrecision
from gpx.means.base import Mean
from gpx.methods.base.posterior import Marginals, Posterior, untrained
from gpx.methods.base.sampled_functions import functions_by_blocks


class GRIEFPosterior(InDoublePrecision, Posterior):
    """Posterior process of ``GRIEF``; needs no training data.

    f(x) = m(x) + (scale * F(x))^T v with F the unit eigenfunctions, v ~ N(weights, B^{-1}) and
    B = factor factor^T.

    Attributes:
        transforms (d, m, c), index (p, d): the eigenfunctions, see ``GridModes``.
        scale (p,), weights (p,), factor (p, p): see above.
    """

    data_sized = ("transforms", "index", "scale", "weights", "factor")
    derived = ("_modes",)
    transforms: Tensor
    index: Tensor
    scale: Tensor
    weights: Tensor
    factor: Tensor

    def __init__(self, basis: GridEigenfunctions, mean: Mean, correction: bool) -> None:
        super().__init__()
        self.basis = fixed_copy(basis)
        self.mean = untrained(mean)
        self.correction = correction
        like = basis.nodes
        self.register_buffer("transforms", like.new_zeros(0, 0, 0))
        self.register_buffer("index", torch.zeros(0, 0, dtype=torch.int64, device=like.device))
        self.register_buffer("scale", like.new_zeros(0))
        self.register_buffer("weights", like.new_zeros(0))
        self.register_buffer("factor", like.new_zeros(0, 0))
        self._modes: GridModes | None = None

    def fill(self, modes: GridModes, weights: WeightPosterior) -> None:
        """Store eigenfunctions and the posterior of their weights."""
        self.transforms, self.index = modes.transforms, modes.plan.index
        self.scale, self.weights, self.factor = weights.scale.clone(), weights.mean, weights.factor
        self._modes = modes

    @property
    def _of_weights(self) -> WeightPosterior:
        return WeightPosterior(self.scale, self.weights, self.factor)

    @property
    def modes(self) -> GridModes:
        """The eigenfunctions with their product plan."""
        if self._modes is None:
            self._modes = GridModes(self.transforms, ProductPlan(self.index))
        return self._modes

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``."""
        return {
            "log10_inducing": self.basis.log10_grid_size,
            "num_eigenfunctions": len(self.scale),
        }

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d).

        Cost: p^2 / 2 multiply-adds per row; memory of one block of features beside the output.
        """
        mean, variance = x.new_empty(x.shape[0]), x.new_empty(x.shape[0])
        functions = EigenfunctionPass(self.basis, self.modes, x)
        for rows in functions.blocks():
            unit = self._features(functions, x, rows)
            found, variance[rows] = self._of_weights.marginals(unit)
            mean[rows] = self.mean(x[rows]) + found
            if self.correction:
                missed = (1.0 - unit.square().sum(0)).clamp_(min=0.0)
                variance[rows] += self.basis.factors.outputscale.to(x.dtype) * missed
        return Marginals(mean, variance)

    def _features(self, functions: EigenfunctionPass, x: Tensor, rows: slice) -> Tensor:
        """Features (p, b) of a block of ``functions`` at x, with a graph where one is wanted."""
        if torch.is_grad_enabled():  # the blocks of ``functions`` keep none
            return self.basis.features(x[rows], self.modes)
        return functions(rows)

    @torch.no_grad()
    def sample_paths(self, num: int, *, generator: torch.Generator) -> Callable[[Tensor], Tensor]:
        """``num`` posterior functions x (t, d) -> (num, t): draws of the p weights.

        Without ``correction``, which is independent noise at every point.

        Cost: num p^2 / 2 multiply-adds once, O(num p) per row.
        """
        weights = self._of_weights.draw(num, generator=generator)

        def blocks(x: Tensor) -> Iterator[Tensor]:
            functions = EigenfunctionPass(self.basis, self.modes, x)
            return (
                weights.to(x.dtype) @ self._features(functions, x, rows)
                for rows in functions.blocks()
            )

        return functions_by_blocks(self, num, blocks, self.mean)
