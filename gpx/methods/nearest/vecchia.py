"""The Vecchia approximation: every block of data given the nearest data before it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gpx.inference.gaussian_posterior import GaussianPosterior
from gpx.inference.neighbour_conditional import local_regression, near_coordinates
from gpx.kernels.base import Kernel
from gpx.likelihoods.gaussian import Gaussian
from gpx.means.base import Mean
from gpx.methods.base.model import Model
from gpx.methods.base.posterior import Marginals
from gpx.methods.nearest.ordering import conditioning_groups
from gpx.sampling import SHARED, Frequencies
from gpx.tensor_checks import check_at_least


class Vecchia(Model):
    """Gaussian process regression in which every block of data is given its nearest predecessors.

    p(y) = prod_b p(y_b | y_N(b)) over blocks of near rows, in an order that spreads (maximin), with
    N(b) the k nearest rows of earlier blocks: the exact density of a Gaussian process of its own,
    which is the one asked for when k = n. Values carry their noise (the response is conditioned on,
    not the latent function). A prediction is given the nearest data of its input.

    Args:
        kernel, mean, likelihood: the likelihood must be Gaussian.
        num_neighbours: k, rows that a block is given.
        block_size: s, rows of a block, about; they share a factorisation. 1: every row for itself
            (the classical approximation), (k + s)^3 / s operations a row against (k + 1)^3.
        prediction_neighbours: rows that a prediction is given.
        research: times that neighbours are searched for anew, in the metric of the hyperparameters
            that an optimisation has found, each followed by another one.

    Attributes:
        given (B, k), blocks (B, s): rows of the data, -1 where there are fewer.

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
        """Blocks, their order and their neighbours among x (n, d), at the current lengthscales."""
        points = near_coordinates(self.kernel, x.double())
        self.given, self.blocks = conditioning_groups(points, self.block_size, self.num_neighbours)

    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """As in ``Model``: ``find_groups``."""
        self.find_groups(x)

    @property
    def num_rounds(self) -> int:
        """The first optimisation and those of ``research``."""
        return 1 + self.research

    def next_round(self, x: Tensor, y: Tensor, loss: float, *, generator: torch.Generator) -> bool:
        """As in ``Model``: the neighbours of the lengthscales that were found."""
        self._round += 1
        if self._round >= self.num_rounds:
            return False
        before = self.given, self.blocks
        self.find_groups(x)
        same = torch.equal(before[0], self.given) and torch.equal(before[1], self.blocks)
        self.note = "neighbours searched anew: " + ("the same" if same else "others")
        return not same

    def rounds_state(self) -> dict[str, Any]:
        """As in ``Model``."""
        return {"round": self._round}

    def load_rounds_state(self, state: dict[str, Any]) -> None:
        """As in ``Model``."""
        self._round = state["round"]

    def condition(self, x: Tensor, y: Tensor) -> VecchiaPosterior:
        """Posterior given x (n, d) and y (n,): it keeps them, and works when it is asked.

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
    """Posterior process of which every value is given the data nearest to its input.

    Args:
        kernel, mean, likelihood: as in ``GaussianPosterior``.
        num_neighbours: data that a value is given; all of them where there are fewer.
    """

    def __init__(
        self, kernel: Kernel, mean: Mean, likelihood: Gaussian, *, num_neighbours: int
    ) -> None:
        super().__init__(kernel, mean, likelihood)
        self.num_neighbours = num_neighbours

    def condition_(self, x: Tensor, y: Tensor) -> None:
        """As in ``GaussianPosterior``: the rows are kept, and work is done when it is asked."""
        self.keep_data(x, y)

    def facts(self) -> dict[str, bool | int | float | str]:
        """As in ``Posterior``: how many data each prediction was given."""
        return {"prediction_neighbours": min(self.num_neighbours, self.inputs.shape[0])}

    @torch.no_grad()
    def predict(self, x: Tensor) -> Marginals:
        """Mean and variance of the latent function at x (t, d): O(k^3) a row, and the search."""
        noise = self.noise_variances()
        found = local_regression(
            self.kernel, noise, self.inputs, self.residual, x, self.num_neighbours
        )
        return Marginals(self.mean(x) + found.mean.to(x), found.variance.to(x))

    @torch.no_grad()
    def sample_paths(
        self, num: int, *, generator: torch.Generator, frequencies: Frequencies = SHARED
    ) -> Callable[[Tensor], Tensor]:
        """``num`` functions x (t, d) -> (num, t), the same wherever they are asked.

        f(x) = prior(x) + w(x)^T (y - prior(X) - noise)_N(x) with w(x) the weights of a prediction:
        prior functions from random Fourier features, corrected at the nearest data (Wilson et al.
        2020). Their marginals are those of ``predict`` but for the features' error; they jump, as
        its mean does, where the nearest data change.

        Raises:
            ConfigError: the kernel has no random Fourier features.
        """
        prior, gap = self.prior_paths(num, generator, frequencies)

        @torch.no_grad()
        def paths(x: Tensor) -> Tensor:
            noise = self.noise_variances()
            found = local_regression(
                self.kernel, noise, self.inputs, self.residual, x, self.num_neighbours
            )
            corrections = (gap[:, found.near] * found.weights.to(x)).sum(2)
            return prior(x) + self.mean(x) + corrections

        return paths
