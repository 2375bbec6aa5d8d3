"""Convolutional networks below a head: layers whose masks are their own q, and named stacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.methods.deep.draws import RandomLayer
from gpx.methods.deep.weights import checked_keep, masked, truncated_normal

Backbone = Literal["lenet_small", "lenet_mnist", "lenet_cifar", "lenet_3conv"]
"""Two convolutions of 3 x 3 (32 and 64 channels) for small images; the published ones of 5 x 5."""


LEAST = 4
"""Pixels of height and width that two halvings need; smaller images get zeros around them."""


class ImageShape(NamedTuple):
    """Channels, height, width."""

    channels: int
    height: int
    width: int


def shape_of_images(num_inputs: int, given: Sequence[int] | None = None) -> ImageShape:
    """The shape of images of ``num_inputs`` pixels; where none is given, that of square ones.

    Args:
        num_inputs: d = channels height width.
        given: (height, width) or (channels, height, width); None: square, of one channel or three.

    Raises:
        ConfigError: the pixels do not make such an image.
    """
    if given is None:
        for channels in (1, 3):
            side = round((num_inputs / channels) ** 0.5)
            if channels * side * side == num_inputs:
                return ImageShape(channels, side, side)
        raise ConfigError(
            f"{num_inputs} inputs are no square image of one or three channels; give their shape, "
            "such as image_shape=[3, 20, 30]"
        )
    sizes = tuple(int(size) for size in given)
    if len(sizes) == 2:
        sizes = (1, *sizes)
    if len(sizes) != 3 or min(sizes) < 1 or sizes[0] * sizes[1] * sizes[2] != num_inputs:
        raise ConfigError(
            f"image_shape={list(given)} does not hold {num_inputs} inputs; expected [height, "
            "width] or [channels, height, width] with that many pixels"
        )
    return ImageShape(*sizes)


class DroppedConvolution(RandomLayer):
    """A convolution with "same" padding whose input activations are dropped, not rescaled.

    The masks make its filters random: q of Monte Carlo dropout, prior N(0, I) of filters and
    biases. They stay on at prediction.

    Args:
        channels: in and out.
        size: of the filters, odd.
        keep: probability that an activation is kept; 1: no masks.
        penalty: whether ``kl`` counts; without it the filters have no prior.

    Raises:
        ConfigError: a probability out of range.

    Source: Gal and Ghahramani, "Bayesian convolutional neural networks with Bernoulli approximate
    variational inference", 2016.
    """

    known_kl = False

    def __init__(
        self, channels: tuple[int, int], size: int, keep: float = 0.5, *, penalty: bool = True
    ) -> None:
        super().__init__()
        self.keep, self.penalty = checked_keep(keep), penalty
        self.weight = nn.Parameter(torch.zeros(channels[1], channels[0], size, size))
        self.bias = nn.Parameter(torch.zeros(channels[1]))

    def draw_start(self, generator: torch.Generator) -> None:
        """Filters and biases from a normal of deviation 0.1, cut at two of them."""
        truncated_normal(self.weight, 0.1, generator)
        truncated_normal(self.bias, 0.1, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c', h, w)."""
        if self.keep < 1.0:
            x = masked(self, x, self.keep)
        return functional.conv2d(x, self.weight, self.bias, padding="same")

    def kl(self) -> Tensor:
        """keep / 2 |W|^2 + |b|^2 / 2, up to a constant."""
        if not self.penalty:
            return self.weight.new_zeros(())
        return 0.5 * (self.keep * self.weight.square().sum() + self.bias.square().sum())


class Images(nn.Module):
    """Rows of pixels (n, d) as images (n, channels, side, side), with zeros around small ones.

    Args:
        shape: of the images.
        least: height and width that are padded to, where they are smaller.
    """

    def __init__(self, shape: ImageShape, least: int = 1) -> None:
        super().__init__()
        self.shape = shape
        height, width = (max(0, least - side) for side in shape[1:])
        self.padding = (width // 2, width - width // 2, height // 2, height - height // 2)

    def forward(self, x: Tensor) -> Tensor:
        """As the class says."""
        images = x.view(len(x), *self.shape)
        return functional.pad(images, self.padding) if any(self.padding) else images


def _norm() -> nn.Module:
    # torch divides alpha by the size, which is 2 radius + 1 = 9
    return nn.LocalResponseNorm(9, alpha=0.001, beta=0.75, k=1.0)


def _halve(size: int) -> nn.Module:
    return nn.MaxPool2d(size, stride=2, padding=(size - 1) // 2)


def convolutional_features(
    name: Backbone, shape: ImageShape, keep: float = 1.0, *, penalty: bool = False
) -> tuple[nn.Sequential, int]:
    """Rows of pixels (n, d) -> features (n, h), and their number h.

    Args:
        name: ``lenet_small``, ``lenet_mnist`` (images padded to 32 x 32, 4,096 features there),
            ``lenet_cifar`` (4,096 features of 32 x 32 images), ``lenet_3conv`` (1,024).
        shape: of the images.
        keep: probability that an activation before a convolution is kept; the first convolution
            sees the whole image.
        penalty: whether filters and biases have a prior N(0, I).

    Raises:
        ConfigError: no such network.

    Source: the published implementation of Tran et al., "Calibrating deep convolutional Gaussian
    processes", AISTATS 2019; ``lenet_small`` is the first with filters of 3 x 3 and no padding.
    """
    if name not in get_args(Backbone):
        raise ConfigError(f"backbone={name}: expected one of {', '.join(get_args(Backbone))}")

    def convolution(inputs: int, outputs: int, size: int, kept: float) -> DroppedConvolution:
        return DroppedConvolution((inputs, outputs), size, kept, penalty=penalty)

    first = shape.channels
    if name in ("lenet_small", "lenet_mnist"):
        size = 3 if name == "lenet_small" else 5
        layers: list[nn.Module] = [
            Images(shape, LEAST if name == "lenet_small" else 32),
            *(convolution(first, 32, size, 1.0), nn.ReLU(), nn.MaxPool2d(2)),
            *(convolution(32, 64, size, keep), nn.ReLU(), nn.MaxPool2d(2)),
        ]
    else:
        second = [convolution(64, 64, 5, keep), nn.ReLU(), _norm(), _halve(3)]
        layers = [
            Images(shape, LEAST),
            convolution(first, 64, 5, 1.0),
            nn.ReLU(),
            _halve(3),
            _norm(),
        ]
        layers += second
        if name == "lenet_3conv":
            layers += [convolution(64, 64, 5, keep), nn.ReLU(), _norm(), _halve(3)]
    network = nn.Sequential(*layers, nn.Flatten())
    with torch.no_grad():
        zeros = torch.zeros(1, shape.channels * shape.height * shape.width)
        for layer in network:  # a mask drawn here would be one that no generator is asked for
            if isinstance(layer, DroppedConvolution):
                zeros = zeros.new_zeros(1, len(layer.weight), *zeros.shape[2:])
            else:
                zeros = layer(zeros)
    return network, zeros.shape[1]
