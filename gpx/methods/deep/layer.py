"""A layer of Gaussian processes by random features: a module for any torch network."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gpx.bases.random_directions import Directions
from gpx.kernels.base import Kernel
from gpx.kernels.for_inputs import for_inputs
from gpx.methods.base.posterior import Marginals
from gpx.methods.deep.draws import is_random, repeated
from gpx.methods.deep.features import Frequency, layer_features
from gpx.methods.deep.output_layer import check_columns
from gpx.methods.deep.weights import (
    DroppedWeights,
    FullWeights,
    MeanFieldWeights,
    RandomWeights,
    check_keep,
)
from gpx.tensor_checks import check_at_least, check_one_of

Covariance = Literal["mean_field", "full", "dropout"]
"""The family of q over the weights; see ``gpx.methods.deep.weights``."""


class GPLayer(nn.Module):
    """p functions f_j(x) = phi(x) . W_:j with W_ij ~ N(0, 1): Gaussian processes with one kernel.

    Their covariance is phi(x) . phi(z), which equals the kernel in expectation over the
    frequencies. The layer can be used anywhere in a torch network::

        network = nn.Sequential(backbone, GPLayer(RBF(), num_inputs=64, num_outputs=10))

    The loss is the negative log-likelihood of all n data plus ``total_kl(network)``.

    Args:
        kernel: stationary or arc-cosine; copied, and resized to ``num_inputs``.
        num_inputs: d.
        num_outputs: p.
        num_features: m; even for stationary kernels.
        frequencies: ``fixed``: drawn once (lengthscales are still learned); ``learned``: with a
            Gaussian posterior each; ``dropout``: Monte Carlo dropout of inputs; ``point``: trained
            under their prior, without masks; ``fixed_signs`` and ``learned_signs``: products of
            Hadamard matrices and random signs (``SignFrequencies``), which need only O(m) numbers.
        directions: of the frequencies: ``independent``, ``orthogonal``, ``structured`` by Hadamard
            matrices, ``fastfood``.
        covariance: q(W): ``mean_field``, ``full`` or ``dropout``.
        keep: probability that dropout keeps an input.
        seed: of the frequencies.

    Raises:
        ConfigError: an unknown option, sizes below one, or a kernel without such features.

    Cost per pass: O(n m (d + p)), and O(n m^2 p) for a full covariance.
    Source: Cutajar et al., "Random feature expansions for deep Gaussian processes", ICML 2017.
    """

    def __init__(
        self,
        kernel: Kernel,
        num_inputs: int,
        num_outputs: int = 1,
        num_features: int = 200,
        *,
        frequencies: Frequency = "fixed",
        directions: Directions = "independent",
        covariance: Covariance = "mean_field",
        keep: float = 0.5,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_at_least(1, num_inputs=num_inputs, num_outputs=num_outputs, num_features=num_features)
        check_one_of(get_args(Covariance), covariance=covariance)
        check_keep(keep)
        self.num_inputs = num_inputs
        self.features = layer_features(
            for_inputs(kernel, num_inputs),
            num_features,
            num_inputs,
            frequencies=frequencies,
            directions=directions,
            seed=seed,
            keep=keep,
        )
        self.weights: RandomWeights
        if covariance == "dropout":
            self.weights = DroppedWeights(num_features, num_outputs, keep)
        else:
            family = FullWeights if covariance == "full" else MeanFieldWeights
            self.weights = family(num_features, num_outputs)

    @property
    def kernel(self) -> nn.Module:
        """The covariance function of this layer."""
        kernel: nn.Module = self.features.kernel
        return kernel

    @property
    def drawn(self) -> bool:
        """As in ``OutputLayer``: whether frequencies or masks are drawn."""
        return is_random(self.features) or self.weights.drawn

    def forward(self, x: Tensor) -> Tensor:
        """A draw of f(x) under q: (n, d) -> (n, p); see ``RandomLayer``."""
        check_columns(self, x, self.num_inputs)
        found: Tensor = self.weights(self.features(x))
        return found

    def marginals(self, x: Tensor) -> Marginals:
        """Mean and variance (n, p) of f(x) under q(W), given a draw of random frequencies.

        With dropout of the weights, these are drawn too and the variance is zero.
        """
        check_columns(self, x, self.num_inputs)
        return self.weights.marginals(self.features(x))

    def sample(self, x: Tensor, num: int) -> Tensor:
        """``num`` draws at each row of x (n, d), independent of one another: (num, n, p)."""
        return repeated(self, x, num)

    @torch.no_grad()
    def prior_covariance(self, x: Tensor) -> Tensor:
        """phi(x) phi(x)^T (n, n), the prior covariance of each output given the frequencies."""
        features = self.features(x)
        return features @ features.mT
