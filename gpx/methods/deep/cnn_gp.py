"""Convolutional networks with a Gaussian process for a head, and what they are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gpx.bases.random_directions import Directions
from gpx.errors import ConfigError
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.base import Kernel
from gpx.likelihoods.base import Likelihood
from gpx.methods.deep.backbones import Backbone, convolutional_features, shape_of_images
from gpx.methods.deep.deep_gp import DeepBody
from gpx.methods.deep.features import Frequency
from gpx.methods.deep.layer import Covariance, GPLayer
from gpx.methods.deep.model import Network, NetworkModel
from gpx.methods.deep.weights import DroppedWeights, RandomWeights

Head = Literal["gp", "dropout", "dense"]
"""Random features; a dense layer with Monte Carlo dropout; the plain network, with no prior."""


class HiddenDense(nn.Module):
    """A dense hidden layer with rectified linear units, of a head without Gaussian processes."""

    def __init__(self, weights: DroppedWeights) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, p), none negative."""
        return torch.relu(self.weights(x))


class CNNGP(NetworkModel):
    """Convolutional features below Gaussian process layers by random features, trained end to end.

    F = phi(c(x)) W with features c of a convolutional network, W ~ N(0, I) and filters ~ N(0, I).
    Filters, frequencies and weights have the posterior of Monte Carlo dropout: masks, not rescaled,
    on the inputs of every convolution but the first, of the frequencies and of the weights, at
    training and at prediction. Predictions average class probabilities over masks.

    Args:
        likelihood: any.
        num_inputs: d, pixels of an image.
        kernel: of the features c; None: ``ArcCosine(1)``, rectified linear units.
        image_shape: (height, width) or (channels, height, width); None: square.
        backbone: see ``gpx.methods.deep.backbones``.
        head: ``gp``; or a competitor with a dense layer of ``num_features`` rectified linear units
            in its place: ``dropout``, the Bayesian network of Monte Carlo dropout, or ``dense``,
            the plain network without masks or priors.
        depth: Gaussian process layers; each later one also sees c.
        width: outputs of hidden ones; None: the number of features c.
        num_features: random features of a layer; None: the number of features c.
        frequencies, directions, covariance: of the head, see ``GPLayer``.
        learn_kernel: train lengthscales and outputscale; with trained frequencies it is unstable.
        keep: probability that a mask keeps an activation.
        predict_samples: masks that a prediction averages.
        seed: of frequencies, and of the masks of predictions.

    Raises:
        ConfigError: options out of range, or pixels that make no image.

    With few data the priors of unit variance dominate, and the model is under-confident.
    Source: Tran, Bonilla, Cunningham, Michiardi and Filippone, "Calibrating deep convolutional
    Gaussian processes", AISTATS 2019.
    """

    def __init__(
        self,
        *,
        likelihood: Likelihood,
        num_inputs: int,
        kernel: Kernel | None = None,
        image_shape: Sequence[int] | None = None,
        backbone: Backbone = "lenet_small",
        head: Head = "gp",
        depth: int = 1,
        width: int | None = None,
        num_features: int | None = None,
        frequencies: Frequency = "dropout",
        directions: Directions = "independent",
        covariance: Covariance = "dropout",
        learn_kernel: bool = False,
        keep: float = 0.5,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        if head not in get_args(Head):
            raise ConfigError(f"head={head}: expected one of {', '.join(get_args(Head))}")
        if min(depth, width or 1, num_features or 1) < 1:
            raise ConfigError(
                f"depth={depth}, width={width} and num_features={num_features} must be at least 1"
            )
        if head != "gp" and depth > 1:
            raise ConfigError(
                f"depth={depth} counts layers of Gaussian processes, and head={head} has none; "
                "give depth=1, or head='gp'"
            )
        shape = shape_of_images(num_inputs, image_shape)
        kept = 1.0 if head == "dense" else keep
        body, size = convolutional_features(backbone, shape, kept, penalty=head != "dense")
        features, latents = num_features or size, likelihood.num_latents
        top: GPLayer | RandomWeights
        if head == "gp":
            chosen = ArcCosine(1) if kernel is None else kernel
            options: dict[str, Any] = {
                "frequencies": frequencies,
                "directions": directions,
                "covariance": covariance,
                "keep": keep,
            }
            middle = width or size
            sizes = [size, *[middle + size] * (depth - 1)]
            layers = [
                GPLayer(chosen, inputs, middle, features, seed=seed + number, **options)
                for number, inputs in enumerate(sizes[:-1])
            ]
            top = GPLayer(chosen, sizes[-1], latents, features, seed=seed + depth - 1, **options)
            body = nn.Sequential(body, DeepBody(layers, True)) if layers else body
            for layer in (*layers, top):
                layer.kernel.requires_grad_(learn_kernel)
        else:
            dense: dict[str, Any] = {"bias": True, "penalty": head == "dropout"}
            hidden = DroppedWeights(size, features, kept, **dense)
            body = nn.Sequential(body, HiddenDense(hidden))
            top = DroppedWeights(features, latents, kept, **dense)
        super().__init__(
            Network(body, top),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=1 if head == "dense" else predict_samples,
            seed=seed,
        )
