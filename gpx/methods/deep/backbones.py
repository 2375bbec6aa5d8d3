"""Convolutional backbones, by their names."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import torch
from torch import nn

from gpx.kernels.convolutional import ImageShape
from gpx.methods.deep.convolutions import (
    BatchNorm,
    DroppedConvolution,
    GlobalAverage,
    Images,
    ResidualBlock,
    ResponseNorm,
)
from gpx.methods.deep.draws import draws_of
from gpx.tensor_checks import check_at_least, check_one_of

Backbone = Literal[
    "lenet_small",
    "lenet_mnist",
    "lenet_cifar",
    "lenet_3conv",
    "resnet",
    "alexnet",
    "alexnet_quarter",
]
"""``lenet_small``: two convolutions of 3 x 3 (32 and 64 channels) for small images;
``alexnet_quarter``: a quarter of the channels of ``alexnet``; the others are published ones."""


MIN_SIDE = 4
"""Height and width that two halvings need; smaller images are padded with zeros."""


def _norm(radius: int, alpha: float) -> nn.Module:
    # torch divides alpha by the size of the window
    size = 2 * radius + 1
    return ResponseNorm(size, alpha=alpha * size, beta=0.75, k=1.0)


def _halve(size: int) -> nn.Module:
    return nn.MaxPool2d(size, stride=2, padding=(size - 1) // 2)


def convolutional_features(
    name: Backbone, shape: ImageShape, keep: float = 1.0, *, penalty: bool = False, blocks: int = 5
) -> tuple[nn.Sequential, int]:
    """A network from rows of pixels (n, d) to features (n, h), and h.

    Args:
        name: ``lenet_small``, ``lenet_mnist`` (images padded to 32 x 32, 4,096 features there),
            ``lenet_cifar`` (4,096 features of 32 x 32 images), ``lenet_3conv`` (1,024),
            ``resnet`` (64), ``alexnet`` (4,096), ``alexnet_quarter`` (1,024).
        shape: of the images.
        keep: probability that dropout keeps an activation before a convolution; there is no dropout
            before the first.
        penalty: whether filters and biases have a prior N(0, I).
        blocks: number b of blocks in each of the three stages of ``resnet``, which has 6 b + 1
            convolutions.

    Raises:
        ConfigError: no such network, or no block.

    Source: the published implementation of Tran et al., "Calibrating deep convolutional Gaussian
    processes", AISTATS 2019; ``lenet_small`` is the first with filters of 3 x 3 and no padding.
    """
    check_one_of(get_args(Backbone), backbone=name)
    check_at_least(1, blocks=blocks)
    if name == "resnet":
        layers = _resnet(shape, keep, penalty, blocks)
    elif name in ("alexnet", "alexnet_quarter"):
        layers = _alexnet(shape, keep, penalty, 1 if name == "alexnet" else 4)
    else:
        layers = _lenet(name, shape, keep, penalty)
    network = nn.Sequential(*layers)
    with torch.no_grad(), draws_of(network, torch.Generator()):  # leaves the global generator alone
        pixels = torch.zeros(1, shape.channels * shape.height * shape.width)
        return network, network(pixels).shape[1]


def _lenet(name: Backbone, shape: ImageShape, keep: float, penalty: bool) -> list[nn.Module]:
    # ReLU after max pooling gives the same as before it, for a quarter of the units
    convolution = partial(DroppedConvolution, penalty=penalty)
    if name in ("lenet_small", "lenet_mnist"):
        size = 3 if name == "lenet_small" else 5
        return [
            Images(shape, MIN_SIDE if name == "lenet_small" else 32),
            *(convolution((shape.channels, 32), size, 1.0), nn.MaxPool2d(2), nn.ReLU()),
            *(convolution((32, 64), size, keep), nn.MaxPool2d(2), nn.ReLU()),
            nn.Flatten(),
        ]
    layers = [
        *(Images(shape, MIN_SIDE), convolution((shape.channels, 64), 5, 1.0)),
        *(_halve(3), nn.ReLU(), _norm(4, 0.001 / 9)),
    ]
    for _ in range(2 if name == "lenet_3conv" else 1):
        layers += [convolution((64, 64), 5, keep), nn.ReLU(), _norm(4, 0.001 / 9), _halve(3)]
    return [*layers, nn.Flatten()]


def _resnet(shape: ImageShape, keep: float, penalty: bool, blocks: int) -> list[nn.Module]:
    first = DroppedConvolution((shape.channels, 16), 3, 1.0, penalty=penalty, xavier=True)
    layers: list[nn.Module] = [Images(shape, MIN_SIDE), first, BatchNorm(16), nn.ReLU()]
    width = 16
    for channels in (16, 32, 64):
        for _ in range(blocks):
            layers.append(ResidualBlock((width, channels), keep, penalty=penalty))
            width = channels
    return [*layers, BatchNorm(64), nn.ReLU(), GlobalAverage()]


def _alexnet(shape: ImageShape, keep: float, penalty: bool, part: int) -> list[nn.Module]:
    convolution = partial(DroppedConvolution, penalty=penalty)
    a, b, c = 64 // part, 256 // part, 384 // part
    return [
        Images(shape, 8),
        *(convolution((shape.channels, a), 11, 1.0), nn.ReLU(), _norm(2, 2e-5), _halve(3)),
        *(convolution((a, b), 5, keep, groups=2), nn.ReLU(), _norm(2, 2e-5), _halve(3)),
        *(convolution((b, c), 3, keep), nn.ReLU()),
        *(convolution((c, c), 3, keep, groups=2), nn.ReLU()),
        *(convolution((c, b), 3, keep, groups=2), _halve(3), nn.ReLU()),
        nn.Flatten(),
    ]
