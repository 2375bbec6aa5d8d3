"""Convolutional networks with Gaussian process layers on top."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from gpx.bases.random_directions import Directions
from gpx.kernels.arc_cosine import ArcCosine
from gpx.kernels.base import Kernel
from gpx.kernels.convolutional import shape_of_images
from gpx.likelihoods.base import Likelihood
from gpx.methods.deep.backbones import Backbone, convolutional_features
from gpx.methods.deep.deep_gp import DeepBody, feature_layers
from gpx.methods.deep.features import Frequency
from gpx.methods.deep.layer import Covariance
from gpx.methods.deep.model import NetworkModel
from gpx.methods.deep.network import Network
from gpx.tensor_checks import check_at_least


class CNNGP(NetworkModel):
    """Gaussian process layers by random features on a convolutional network, trained end to end.

    F = phi(c(x)) W with features c of a convolutional network, W ~ N(0, I) and filters ~ N(0, I).
    Filters, frequencies and weights have Monte Carlo dropout: masks, not rescaled, on the inputs of
    every convolution but the first, of the frequencies and of the weights, in training and
    prediction. Predictions average class probabilities over masks.

    Args:
        likelihood: any.
        num_inputs: d, pixels of an image.
        kernel: of the features c; None: ``ArcCosine(1)``, rectified linear units.
        image_shape: (height, width) or (channels, height, width); None: square.
        backbone, blocks: see ``gpx.methods.deep.backbones``.
        depth: number of Gaussian process layers; later ones also get c.
        width: outputs of hidden layers; None: the number of features c.
        num_features: random features of a layer; None: the number of features c.
        frequencies, directions, covariance: see ``GPLayer``.
        learn_kernel: train lengthscales and outputscale; unstable with trained frequencies.
        keep: probability that a mask keeps an activation.
        predict_samples: number of masks that a prediction averages.
        seed: of frequencies, and of the masks in predictions.

    Raises:
        ConfigError: options out of range, or a number of pixels that does not fit the shape.

    In narrow networks ``keep=0.5`` makes predictions underconfident, however many data there are;
    raise it there.
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
        blocks: int = 5,
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
        check_at_least(1, depth=depth, width=width, num_features=num_features)
        shape = shape_of_images(num_inputs, image_shape)
        body, size = convolutional_features(backbone, shape, keep, penalty=True, blocks=blocks)
        layers, top = feature_layers(
            ArcCosine(1) if kernel is None else kernel,
            size,
            likelihood.num_latents,
            num_features or size,
            depth=depth,
            width=width or size,
            skip=True,
            seed=seed,
            frequencies=frequencies,
            directions=directions,
            covariance=covariance,
            keep=keep,
        )
        for layer in (*layers, top):
            layer.kernel.requires_grad_(learn_kernel)
        super().__init__(
            Network(nn.Sequential(body, DeepBody(layers, True)) if layers else body, top),
            likelihood,
            num_inputs=num_inputs,
            predict_samples=predict_samples,
            seed=seed,
        )
