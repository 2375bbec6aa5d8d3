"""Convolutions whose masks are their own q, and what networks are made of besides."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.methods.deep.weights import MaskedLayer, checked_keep, masked, truncated_normal

START = 0.1
"""Deviation of the normals that filters and biases start from."""


class DroppedConvolution(MaskedLayer):
    """A convolution that keeps the size, whose input activations are dropped and not rescaled.

    The masks make its filters random: q of Monte Carlo dropout, prior N(0, I) of filters and
    biases. They stay on at prediction.

    Args:
        channels: in and out.
        size: of the filters, odd.
        keep: probability that an activation is kept; 1: no masks.
        penalty: whether ``kl`` counts; without it the filters have no prior.
        stride: of the filters; with 2 the height and the width are halved, rounded up.
        groups: parts of the channels that do not see each other.
        xavier: start filters at a deviation by the number of their inputs and outputs, biases at
            zero.

    Raises:
        ConfigError: a probability out of range, or an even size.

    Source: Gal and Ghahramani, "Bayesian convolutional neural networks with Bernoulli approximate
    variational inference", 2016.
    """

    def __init__(
        self,
        channels: tuple[int, int],
        size: int,
        keep: float = 0.5,
        *,
        penalty: bool = True,
        stride: int = 1,
        groups: int = 1,
        xavier: bool = False,
    ) -> None:
        super().__init__()
        if size % 2 == 0:
            raise ConfigError(f"size={size} of the filters must be odd")
        self.keep, self.penalty = checked_keep(keep), penalty
        self.stride, self.groups, self.xavier = stride, groups, xavier
        self.weight = nn.Parameter(torch.zeros(channels[1], channels[0] // groups, size, size))
        self.bias = nn.Parameter(torch.zeros(channels[1]))

    def draw_start(self, generator: torch.Generator) -> None:
        """Filters and biases from a normal of deviation 0.1, cut at two of them, or by Xavier."""
        if self.xavier:
            area = self.weight[0, 0].numel()
            fans = area * (self.weight.shape[1] + self.weight.shape[0])
            truncated_normal(self.weight, (2.0 / fans) ** 0.5, generator)
            return
        truncated_normal(self.weight, START, generator)
        truncated_normal(self.bias, START, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c', h, w)."""
        if self.keep < 1.0:
            x = masked(self, x, self.keep)
        padding = self.weight.shape[2] // 2
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)

    def kl(self) -> Tensor:
        """keep / 2 |W|^2 + |b|^2 / 2, up to a constant."""
        if not self.penalty:
            return self.weight.new_zeros(())
        return 0.5 * (self.keep * self.weight.square().sum() + self.bias.square().sum())


class ImageShape(NamedTuple):
    """Channels, height, width."""

    channels: int
    height: int
    width: int


class Images(nn.Module):
    """Rows of pixels (n, d) as images (n, channels, height, width), with zeros around small ones.

    On a CPU the channels of a pixel lie side by side in memory, which the layers behind it keep:
    the largest of four pixels is then taken for many channels at once, 15 times as fast.

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
        if any(self.padding):
            images = functional.pad(images, self.padding)
        return images.to(memory_format=torch.channels_last) if x.is_cpu else images


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation by the batch where gradients are taken, else by running statistics.

    A posterior, or the bound of all the data, must not depend on which rows come together, and must
    not move the statistics: both are evaluated without gradients. Scales and shifts have no prior.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(n, c, h, w), each channel of mean zero and variance one before scale and shift."""
        learning = self.training and torch.is_grad_enabled()
        if learning:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class ResidualBlock(nn.Module):
    """x + convolution(ReLU(norm(convolution(ReLU(norm(x)))))): a block with pre-activations.

    Where channels are doubled, the size is halved, and the shortcut is the average of 2 x 2 pixels
    with channels of zeros, half of them in front.

    Args:
        channels: in and out.
        keep, penalty: of both convolutions, see ``DroppedConvolution``.

    Source: He et al., "Identity mappings in deep residual networks", 2016.
    """

    def __init__(self, channels: tuple[int, int], keep: float, *, penalty: bool) -> None:
        super().__init__()
        inputs, outputs = channels
        self.halves = inputs != outputs
        self.added = outputs - inputs
        self.first_norm, self.second_norm = BatchNorm(inputs), BatchNorm(outputs)
        stride = 2 if self.halves else 1
        self.first = DroppedConvolution(
            channels, 3, keep, penalty=penalty, stride=stride, xavier=True
        )
        self.second = DroppedConvolution((outputs, outputs), 3, keep, penalty=penalty, xavier=True)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c', h', w')."""
        found = self.first(self.first_norm(x).relu())
        found = self.second(self.second_norm(found).relu())
        if self.halves:
            x = functional.avg_pool2d(x, 2, ceil_mode=True)
            front = self.added // 2
            x = functional.pad(x, (0, 0, 0, 0, front, self.added - front))
        return x + found


class GlobalAverage(nn.Module):
    """(n, c, h, w) -> (n, c): the mean over all pixels."""

    def forward(self, x: Tensor) -> Tensor:
        """As the class says."""
        return x.mean((2, 3))
