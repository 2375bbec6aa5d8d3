"""The Vecchia approximation: blocks of data conditioned on the nearest data before them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.backends import row_slices
from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.inference.neighbour_conditional import (
    Conditional,
    NearRows,
    near_coordinates,
    neighbour_conditional,
)
from gpx.inference.neighbour_likelihood import CHUNK_BYTES
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals
from gpx.methods.base.sampled_functions import sampled_functions
from gpx.methods.nearest.ordering import conditioning_groups
from gpx.sampling import SHARED, Frequencies
from gpx.tensor_checks import check_at_least


class Vecchia(Model):
    """Gaussian process regression in which blocks of data condition on their nearest predecessors.

    p(y) = prod_b p(y_b | y_N(b)) over blocks of nearby rows in maximin order, with N(b) the k
    nearest rows of earlier blocks. This is the exact density of another Gaussian process, which
    equals the original one for k = n. Blocks condition on noisy targets, not on latent values. A
    prediction conditions on the data nearest to its input.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_neighbours: k, number of rows that a block conditions on.
        block_size: s, approximate number of rows of a block, which share a factorisation. 1 gives
            the classical approximation, with (k + 1)^3 operations per row instead of
            (k + s)^3 / s.
        prediction_neighbours: number of rows that a prediction conditions on.
        research: number of times that neighbours are searched again with the optimised
            lengthscales, each followed by another optimisation.

    Attributes:
        given (B, k), blocks (B, s): row indices, padded with -1.

    Raises:
        ConfigError: a size below one.

    Source: Vecchia 1988; Guinness 2018; Katzfuss and Guinness 2021; blocks: Quiroz, Prates, Dey and
    Rue 2023 (block nearest-neighbour processes).
    """

    takes_row_noise = True
    data_sized = ("given", "blocks")
    kernel: Kernel
    mean: Mean
    likelihood: Gaussian
    given: Tensor
    blocks: Tensor
    rounds_argument = "research"

    def __init__(
        self,
        *,
        kernel: Kernel,
        mean: Mean,
        likelihood: Gaussian,
        num_neighbours: int = 120,
        block_size: int = 32,
        prediction_neighbours: int = 256,
        research: int = 1,
    ) -> None:
        super().__init__()
        check_at_least(
            1,
            num_neighbours=num_neighbours,
            block_size=block_size,
            prediction_neighbours=prediction_neighbours,
        )
        check_at_least(0, research=research)
        self.kernel = kernel
        self.mean = mean
        self.likelihood = likelihood
        self.num_neighbours = num_neighbours
        self.block_size = block_size
        self.prediction_neighbours = prediction_neighbours
        self.research = research
        self._round = 0
        self.register_data_sized()

    @torch.no_grad()
    def find_groups(self, x: Tensor) -> None:
        """Find blocks, their order and neighbours in x (n, d), at the current lengthscales."""
        points = near_coordinates(self.kernel, x.double())
        self.given, self.blocks = conditioning_groups(points, self.block_size, self.num_neighbours)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """As in ``Model``: ``find_groups``; rounds of an earlier run are forgotten."""
        self._round = 0
        self.find_groups(x)

    @property
    def num_rounds(self) -> int:
        """As in ``Model``: the first optimisation and those of ``research``."""
        return 1 + self.research

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """As in ``Model``: searches neighbours again with the optimised lengthscales."""
        self._round += 1
        if self._round >= self.num_rounds:
            return False
        before = self.given, self.blocks
        self.find_groups(x)
        same = torch.equal(before[0], self.given) and torch.equal(before[1], self.blocks)
        self.note = "neighbours searched again: " + ("no change" if same else "changed")
        return not same

    def rounds_state(self) -> dict[str, Any]:
        """As in ``Model``."""
        return {"round": self._round}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """As in ``Model``."""
        self._round = state["round"]

    def condition(self, x: Tensor, y: Tensor) -> VecchiaPosterior:
        """Posterior given x (n, d) and y (n,), which stores the data; all work is in predictions.

        Raises:
            DataError: targets that are not finite.
        """
        posterior = self.new_posterior()
        if self.row_noise is not None:
            posterior.know_noise(self.row_noise.like(x))
        posterior.condition_(x, y)
        return posterior

    def new_posterior(self) -> VecchiaPosterior:
        """As in ``Model``."""
        return VecchiaPosterior(
            self.kernel, self.mean, self.likelihood, num_neighbours=self.prediction_neighbours
        )


class VecchiaPosterior(GaussianPosterior):
    """Posterior process in which every value conditions on the data nearest to its input.

    Args:
        kernel, mean, likelihood: as in ``GaussianPosterior``.
        num_neighbours: number of rows that a value conditions on; at most all.
    """

    derived = ("_near",)

    def __init__(
        self, kernel: Kernel, mean: Mean, likelihood: Gaussian, *, num_neighbours: int
    ) -> None:
        super().__init__(kernel, mean, likelihood)
        self.num_neighbours = num_neighbours
        self._near: NearRows | None = None

    def condition_(self, x: Tensor, y: Tensor) -> None:
        """As in ``GaussianPosterior``: only stores the rows."""
        self.keep_data(x, y)

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: number of rows that a prediction conditions on."""
        return {"prediction_neighbours": min(self.num_neighbours, self.inputs.shape[0])}

    def _conditional(self, x: Tensor) -> Conditional:
        """f at x (t, d) given the data nearest to each, in float64, without the prior mean."""
        search = NearRows.of(self._near, self.kernel, self.inputs)
        if not torch.compiler.is_exporting():
            self._near = search
        near, noise = search(x, self.num_neighbours), self.noise_variances().double()
        inputs, residual = self.inputs.double(), self.residual.double()
        return neighbour_conditional(self.kernel, noise, inputs, residual, x.double(), near)

    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of f at x (t, d).

        Cost: O(k^3) per row, and the search, whose tree of all data the first call makes.
        """
        found = self._conditional(x)
        return Marginals(self.mean(x) + found.mean.to(x), found.variance.to(x))

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), by pathwise conditioning.

        f(x) = prior(x) + w(x)^T (y - prior(X) - noise)_N(x), with w(x) the weights of a prediction
        and prior functions from random Fourier features (Wilson et al. 2020). Their marginals are
        those of ``predict`` up to the error of the features. Like the predictive mean, they jump
        where the set of nearest data changes.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        prior, gap = self.prior_paths(num, generator, frequencies)

        @sampled_functions(self)
        def paths(x: Tensor) -> Tensor:
            found, updates = self._conditional(x), x.new_empty(num, len(x))
            weights = found.weights.to(x)
            size = max(1, CHUNK_BYTES // (gap.element_size() * num * weights.shape[1]))
            for rows in row_slices(len(x), size, at_least_one=True):
                updates[:, rows] = (gap[:, found.near[rows]] * weights[rows]).sum(2)
            return prior(x) + self.mean(x) + updates

        return paths
