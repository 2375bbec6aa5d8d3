"""Deep Gaussian processes by random features, of any depth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gpx.bases.random_directions import Directions
from gpx.bases.sufficient_statistics import accumulate_statistics
from gpx.inference.nystrom import NystromSums
from gpx.inference.variational import raise_noise, row_scale
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.likelihoods.gaussian import Gaussian
from gpx.linalg import cholesky
from gpx.means import Zero
from gpx.methods.base.batch import batches_in_order
from gpx.methods.base.model import Hyperparameters
from gpx.methods.deep.draws import draws_of
from gpx.methods.deep.features import Frequency
from gpx.methods.deep.layer import Covariance, GPLayer
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.tensor_checks import check_at_least

START_CHUNK = 4096
"""Rows whose features are in memory at once when computing the optimal start of q."""


def concatenate_columns(left: Tensor, right: Tensor) -> Tensor:
    """Concatenate (n, a) and (n, b) to (n, a + b)."""
    if torch.compiler.is_exporting():  # torch.cat would fix n as a constant in the export
        return F.pad(left, (0, right.shape[1])) + F.pad(right, (left.shape[1], 0))
    return torch.cat([left, right], 1)


class DeepBody(nn.Module):
    """Hidden layers F_1(x), F_l([F_{l-1}, x]): a skip connection feeds the inputs to every layer.

    Args:
        layers: the first has d inputs, each later one as many as its predecessor has outputs, plus
            d with ``skip``.
        skip: whether later layers and the head also get the inputs.
    """

    def __init__(self, layers: Sequence[nn.Module], skip: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, width + d) with skip connections, (n, width) without; x without layers."""
        f = x
        for layer in self.layers:
            f = layer(f)
            f = concatenate_columns(f, x) if self.skip else f
        return f


def feature_layers(
    kernel: Kernel,
    num_inputs: int,
    num_outputs: int,
    num_features: int,
    *,
    depth: int,
    width: int,
    skip: bool,
    seed: int,
    **options: Any,
) -> tuple[list[GPLayer], GPLayer]:
    """Hidden layers of a ``DeepBody`` and the last layer, each with its own seed.

    Args:
        kernel, num_inputs, num_outputs, num_features, options: as in ``GPLayer``.
        depth, width, skip, seed: as in ``DeepGP``.
    """
    later = width + num_inputs if skip else width
    sizes = [num_inputs, *[later] * (depth - 1)]
    outputs = [*[width] * (depth - 1), num_outputs]
    *hidden, last = [
        GPLayer(kernel, each, out, num_features, seed=seed + number, **options)
        for number, (each, out) in enumerate(zip(sizes, outputs, strict=True))
    ]
    return hidden, last


@torch.no_grad()
def copy_kernel_parameters(
    source: nn.Module, target: nn.Module, num_inputs: int, *, sees_inputs: bool = True
) -> None:
    """Copy kernel parameters to a later layer; lengthscales only of the inputs it also sees."""
    for name, value in source.named_parameters():
        own = target.get_parameter(name)
        if value.ndim and not sees_inputs:
            continue  # a number for each input; one for all of them has no dimension
        if own.shape == value.shape:
            own.copy_(value)
        elif len(own) > num_inputs and len(value) == num_inputs:
            own[-num_inputs:] = value


class DeepGP(NetworkModel):
    """A chain of Gaussian process layers by random features, trained on mini-batches.

    f = F_L([F_{L-1}, x]), F_l = phi_l(.) W_l with W_l ~ N(0, I). With depth one it is the
    weight-space Gaussian process of its features. A prediction averages the marginals of the last
    layer over draws of the hidden layers.

    Args:
        kernel: initial kernel of every layer; each layer gets a copy, with one lengthscale per
            input of the layer if ``kernel`` has one per input.
        likelihood: any; the last layer has one output for each of its latent functions.
        num_inputs: d.
        depth: number of layers L.
        width: number of outputs of a hidden layer.
        num_features: m, of every layer; even for stationary kernels.
        frequencies, directions, covariance, keep: see ``GPLayer``.
        skip: feed the inputs to every layer.
        warm_start: with a Gaussian likelihood, start q of the last layer and the noise variance at
            their optimum given the untrained hidden layers, so that training starts near a
            single-layer Gaussian process.
        predict_samples: number of draws that a prediction averages.
        seed: of frequencies, and of the draws in predictions.

    Raises:
        ConfigError: sizes below one, or options that do not fit ``GPLayer``.

    Cost: O(L B m (width + d)) per step. Source: Cutajar, Bonilla, Michiardi and Filippone, "Random
    feature expansions for deep Gaussian processes", ICML 2017; skip connections: Duvenaud et al.,
    "Avoiding pathologies in very deep networks", 2014.
    """

    def __init__(
        self,
        *,
        kernel: Kernel,
        likelihood: Likelihood,
        num_inputs: int,
        depth: int = 2,
        width: int = 5,
        num_features: int = 200,
        frequencies: Frequency = "fixed",
        directions: Directions = "independent",
        covariance: Covariance = "mean_field",
        keep: float = 0.5,
        skip: bool = True,
        warm_start: bool = True,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        check_at_least(1, depth=depth, width=width)
        check_at_least(0, seed=seed)
        hidden, head = feature_layers(
            kernel,
            num_inputs,
            likelihood.num_latents,
            num_features,
            depth=depth,
            width=width,
            skip=skip,
            seed=seed,
            frequencies=frequencies,
            directions=directions,
            covariance=covariance,
            keep=keep,
        )
        super().__init__(
            Network(DeepBody(hidden, skip), head),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=predict_samples,
            seed=seed,
        )
        self.depth, self.warm_start = depth, warm_start
        self._no_mean = Zero()

    @property
    def layers(self) -> list[GPLayer]:
        """All layers in order."""
        body, head = self.network.body, self.network.head
        assert isinstance(body, DeepBody)
        assert isinstance(head, GPLayer)
        return [*(m for m in body.layers if isinstance(m, GPLayer)), head]

    def hyperparameters(self) -> Hyperparameters:
        """The kernel of the first layer, no mean function, and the likelihood."""
        kernel = self.layers[0].kernel
        assert isinstance(kernel, Kernel)
        return Hyperparameters(kernel, self._no_mean, self.likelihood)

    @torch.no_grad()
    def initialise(self, x: Tensor, y: Tensor, *, generator: torch.Generator) -> None:
        """Copy the first layer's kernel parameters to later ones; draw and fit initial values."""
        first, *others = self.layers
        body = self.network.body
        assert isinstance(body, DeepBody)
        for layer in others:
            copy_kernel_parameters(first.kernel, layer.kernel, x.shape[1], sees_inputs=body.skip)
        super().initialise(x, y, generator=generator)
        if self.warm_start and isinstance(self.likelihood, Gaussian):
            self._start_head(x, y, generator)

    def _start_head(self, x: Tensor, y: Tensor, generator: torch.Generator) -> None:
        """Start q of the last layer at its optimum given draws of the layers before it.

        The noise variance is set to its optimum if that is larger. It usually is: its initial value
        comes from an exact Gaussian process on a subset of the data, which fits better.
        """
        likelihood, head = self.likelihood, self.network.head
        assert isinstance(likelihood, Gaussian)
        assert isinstance(head, GPLayer)

        def blocks() -> Iterator[tuple[Tensor, Tensor, None]]:
            for rows, targets, _, known in batches_in_order(self, x, y, START_CHUNK):
                features = head.features(self.network.body(rows)).double()
                target = targets.double()
                scale = row_scale(known, likelihood)
                if scale is not None:
                    features, target = features * scale.unsqueeze(1), target * scale
                yield features.mT, target, None

        with draws_of(self.network, generator):
            found = accumulate_statistics(blocks(), head.weights.num_inputs, x)
        sums = NystromSums.of_features(found)
        if self.row_noise is None:
            raise_noise(sums, len(x), likelihood)
        noise = likelihood.noise_variance.double()
        precision = sums.gram / noise
        precision.diagonal().add_(1.0)
        factor, _ = cholesky(precision, name="the precision of the last layer's weights")
        projected = (sums.projected / noise).unsqueeze(1)
        head.weights.start(torch.cholesky_solve(projected, factor), precision)
