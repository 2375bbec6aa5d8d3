"""Convolutional networks without a Gaussian process, plain or with Monte Carlo dropout."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gpx.kernels.convolutional import shape_of_images
from gpx.likelihoods.base import Likelihood
from gpx.methods.deep.backbones import Backbone, convolutional_features
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.methods.deep.weights import DroppedWeights
from gpx.tensor_checks import check_at_least


class HiddenDense(nn.Module):
    """A dense hidden layer with rectified linear units."""

    def __init__(self, weights: DroppedWeights) -> None:
        super().__init__()
        self.weights = weights

    def forward(self, x: Tensor) -> Tensor:
        """(n, d) -> (n, p), non-negative."""
        return torch.relu(self.weights(x))


class CNN(NetworkModel):
    """A convolutional network with a dense hidden layer and an output layer.

    With ``dropout`` it is a Bayesian network by Monte Carlo dropout: masks, not rescaled, on the
    inputs of every layer but the first, in training and prediction, and a prior N(0, I) on all
    weights. Without it there are neither masks nor priors.

    Args:
        likelihood: any.
        num_inputs: d, pixels of an image.
        image_shape: (height, width) or (channels, height, width); None: square.
        backbone, blocks: see ``gpx.methods.deep.backbones``.
        num_features: rectified linear units of the dense layer; None: the number of convolutional
            features.
        dropout: whether weights are random.
        keep: probability that a mask keeps an activation.
        predict_samples: number of masks that a prediction averages.
        seed: of the masks in predictions.

    Raises:
        ConfigError: options out of range, or a number of pixels that does not fit the shape.

    Source: Gal and Ghahramani, "Bayesian convolutional neural networks with Bernoulli approximate
    variational inference", 2016.
    """

    def __init__(
        self,
        *,
        likelihood: Likelihood,
        num_inputs: int,
        image_shape: Sequence[int] | None = None,
        backbone: Backbone = "lenet_small",
        blocks: int = 5,
        num_features: int | None = None,
        dropout: bool = False,
        keep: float = 0.5,
        predict_samples: int = 50,
        seed: int = 0,
    ) -> None:
        check_at_least(1, num_features=num_features)
        shape = shape_of_images(num_inputs, image_shape)
        kept = keep if dropout else 1.0
        body, size = convolutional_features(backbone, shape, kept, penalty=dropout, blocks=blocks)
        units = num_features or size
        hidden = DroppedWeights(size, units, kept, bias=True, penalty=dropout)
        head = DroppedWeights(units, likelihood.num_latents, kept, bias=True, penalty=dropout)
        super().__init__(
            Network(nn.Sequential(body, HiddenDense(hidden)), head),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=predict_samples if dropout else 1,
            seed=seed,
        )
