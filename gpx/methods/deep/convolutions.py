"""Convolutions with Monte Carlo dropout, and other building blocks of convolutional networks."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from gpx.errors import ConfigError
from gpx.kernels.convolutional import ImageShape
from gpx.methods.deep.weights import MaskedLayer, apply_mask, check_keep, truncated_normal

INITIAL_DEVIATION = 0.1
"""Standard deviation of the normals from which initial filters and biases are drawn."""


class DroppedConvolution(MaskedLayer):
    """A size-preserving convolution with dropout of its input activations, not rescaled.

    Filters and biases have a prior N(0, I), and q of Monte Carlo dropout. Masks are also used in
    predictions.

    Args:
        channels: numbers of input and output channels.
        size: of the filters, odd.
        keep: probability that an activation is kept; 1: no masks.
        penalty: whether filters and biases have a prior, which ``kl`` accounts for.
        stride: of the filters; 2 halves height and width, rounded up.
        groups: number of groups of channels that are convolved separately.
        xavier: initialise filters by their numbers of inputs and outputs, and biases at zero.

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
        self.keep, self.penalty = check_keep(keep), penalty
        self.stride, self.groups, self.xavier = stride, groups, xavier
        self.weight = nn.Parameter(torch.zeros(channels[1], channels[0] // groups, size, size))
        self.bias = nn.Parameter(torch.zeros(channels[1]))

    def draw_start(self, generator: torch.Generator) -> None:
        """Draw filters and biases from truncated normals of deviation 0.1, or by Xavier."""
        if self.xavier:
            area = self.weight[0, 0].numel()
            fans = area * (self.weight.shape[1] + self.weight.shape[0])
            truncated_normal(self.weight, (2.0 / fans) ** 0.5, generator)
            return
        truncated_normal(self.weight, INITIAL_DEVIATION, generator)
        truncated_normal(self.bias, INITIAL_DEVIATION, generator)

    def forward(self, x: Tensor) -> Tensor:
        """(n, c, h, w) -> (n, c', h, w)."""
        if self.keep < 1.0:
            x = apply_mask(self, x, self.keep)
        padding = self.weight.shape[2] // 2
        return functional.conv2d(x, self.weight, self.bias, self.stride, padding, 1, self.groups)

    def kl(self) -> Tensor:
        """keep / 2 |W|^2 + |b|^2 / 2, up to a constant."""
        if not self.penalty:
            return self.weight.new_zeros(())
        return 0.5 * (self.keep * self.weight.square().sum() + self.bias.square().sum())


class Images(nn.Module):
    """Reshapes rows of pixels (n, d) to images (n, channels, height, width), padding small ones.

    On a CPU images are in channels-last layout, which makes max pooling many times faster.

    Args:
        shape: of the images.
        min_side: smaller heights and widths are padded with zeros to this.
    """

    def __init__(self, shape: ImageShape, min_side: int = 1) -> None:
        super().__init__()
        self.shape = shape
        height, width = (max(0, min_side - side) for side in shape[1:])
        self.padding = (width // 2, width - width // 2, height // 2, height - height // 2)

    def forward(self, x: Tensor) -> Tensor:
        """As the class says."""
        images = x.view(len(x), *self.shape)
        if any(self.padding):
            images = functional.pad(images, self.padding)
        return images.to(memory_format=torch.channels_last) if x.is_cpu else images


class BatchNorm(nn.BatchNorm2d):
    """Batch normalisation that uses batch statistics only when gradients are computed.

    Otherwise it uses running statistics and leaves them unchanged: predictions, and the bound of
    all data, must not depend on how rows are batched. Scales and shifts have no prior.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise each channel of (n, c, h, w)."""
        learning = self.training and torch.is_grad_enabled()
        if learning:
            return super().forward(input)
        return functional.batch_norm(
            input, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )


class ResponseNorm(nn.LocalResponseNorm):
    """torch's local response normalisation x / (k + alpha mean(x^2))^(3/4), in fewer passes.

    Means over neighbouring channels are a product with a band matrix, not a pooling.

    The window must be odd, and ``beta`` 3/4.
    """

    def forward(self, input: Tensor) -> Tensor:
        """(n, c, h, w) -> the same."""
        channels, reach = input.shape[1], self.size // 2
        ones = torch.ones(channels, channels, dtype=input.dtype, device=input.device)
        band = (self.alpha / self.size) * ones.tril(reach).triu(-reach)
        # no convolution: on a GPU that would round to ten bits
        means = (input.square().movedim(1, -1) @ band).movedim(-1, 1)
        root = (means + self.k).rsqrt()
        return input * (root * root.sqrt())


class ResidualBlock(nn.Module):
    """x + convolution(ReLU(norm(convolution(ReLU(norm(x)))))): a pre-activation residual block.

    If the number of channels grows, height and width are halved; the shortcut then averages 2 x 2
    pixels and pads with channels of zeros on both sides.

    Args:
        channels: numbers of input and output channels.
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
    """Mean over all pixels: (n, c, h, w) -> (n, c)."""

    def forward(self, x: Tensor) -> Tensor:
        """As the class says."""
        return x.mean((2, 3))
