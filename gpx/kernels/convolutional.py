"""The convolutional kernel: weighted sums over patches of images of one kernel of patches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from gpx.errors import ConfigError, ShapeError, class_name
from gpx.kernels.base import Kernel
from gpx.kernels.stationary import Stationary

MAX_ENTRIES = 2**22
"""Largest number of pairs of patches held at once, but at least those of one image."""


class ImageShape(NamedTuple):
    """Channels, height, width."""

    channels: int
    height: int
    width: int


def shape_of_images(num_inputs: int, given: Sequence[int] | None = None) -> ImageShape:
    """The shape of images with ``num_inputs`` pixels.

    Args:
        num_inputs: d = channels x height x width.
        given: (height, width) or (channels, height, width); None: square, with one or three
            channels.

    Raises:
        ConfigError: the number of pixels does not fit the shape.
    """
    if given is None:
        for channels in (1, 3):
            side = round((num_inputs / channels) ** 0.5)
            if channels * side * side == num_inputs:
                return ImageShape(channels, side, side)
        raise ConfigError(
            f"{num_inputs} inputs are no square image of one or three channels; give the shape, "
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


class Convolutional(Kernel):
    """k(x, x') = sum over patches p, p' of w_p w_p' g(x[p], x'[p']): f(x) = sum_p w_p g(x[p]).

    Args:
        patch_kernel: g, stationary, of the pixels of a patch.
        image_shape: (height, width) or (channels, height, width) of the rows x.
        patch_size: (height, width) of a patch; one number for both.
        weighted: learn the weights w, from 1 / P for P patches; otherwise they are fixed to it.
        active_dims: columns of x that the kernel uses; None for all.

    Raises:
        ConfigError: another patch kernel, or a patch that does not fit into the image.
        ShapeError: when evaluated at inputs with another number of columns.

    Cost: O(n1 n2 P^2) for a matrix, O(n P^2) for a diagonal; memory of ``MAX_ENTRIES`` numbers
    unless one image needs more. Source: van der Wilk, Rasmussen and Hensman, "Convolutional
    Gaussian processes", NeurIPS 2017.
    """

    weights: Tensor

    def __init__(
        self,
        patch_kernel: Kernel,
        image_shape: Sequence[int],
        patch_size: int | Sequence[int] = 5,
        *,
        weighted: bool = True,
        active_dims: Sequence[int] | None = None,
    ) -> None:
        super().__init__(active_dims)
        if not isinstance(patch_kernel, Stationary):
            raise ConfigError(
                f"patch_kernel={class_name(patch_kernel)} is not stationary; give RBF() or "
                "Matern32()"
            )
        shape = tuple(int(side) for side in image_shape)
        shape = (1, *shape) if len(shape) == 2 else shape
        sides = (patch_size, patch_size) if isinstance(patch_size, int) else tuple(patch_size)
        if len(shape) != 3 or len(sides) != 2 or min(*shape, *sides) < 1:
            raise ConfigError(
                f"image_shape={list(image_shape)} and patch_size={patch_size} must be [height, "
                "width] or [channels, height, width], and [height, width] or one number"
            )
        if sides[0] > shape[1] or sides[1] > shape[2]:
            raise ConfigError(
                f"a patch of {sides[0]} x {sides[1]} pixels does not fit into images of "
                f"{shape[1]} x {shape[2]}; make patch_size smaller"
            )
        self.patch_kernel = patch_kernel
        self.image_shape, self.patch_size = shape, sides
        self.num_patches = (shape[1] - sides[0] + 1) * (shape[2] - sides[1] + 1)
        start = torch.full((self.num_patches,), 1.0 / self.num_patches)
        if weighted:
            self.weights = nn.Parameter(start)
        else:
            self.register_buffer("weights", start, persistent=False)

    @property
    def patch_inputs(self) -> int:
        """Pixels of a patch, over all channels."""
        return self.image_shape[0] * self.patch_size[0] * self.patch_size[1]

    def patches(self, x: Tensor) -> Tensor:
        """All patches of the images x (n, d): (n, P, q), row by row."""
        return self._cut(self._select(x))

    def _cut(self, x: Tensor) -> Tensor:
        channels, height, width = self.image_shape
        if x.shape[1] != channels * height * width:
            raise ShapeError(
                f"Convolutional kernel of images {self.image_shape} got inputs of {x.shape[1]} "
                f"columns; expected {channels * height * width}"
            )
        images = x.reshape(len(x), channels, height, width)
        return functional.unfold(images, self.patch_size).mT

    def cross_with_patches(self, x: Tensor, points: Tensor) -> Tensor:
        """Covariance of f(x) at images x (n, d) with g at patches (M, q): (M, n)."""
        found = []
        size = max(1, MAX_ENTRIES // (self.num_patches * max(1, len(points))))
        for rows in self.patches(x).split(size):
            each = self.patch_kernel.evaluate(points, rows.flatten(0, 1))
            found.append(
                each.view(len(points), len(rows), self.num_patches) @ self.weights.to(each.dtype)
            )
        return torch.cat(found, 1)

    def covariance(self, x1: Tensor, x2: Tensor) -> Tensor:
        """As in ``Kernel``."""
        rows, columns = self._cut(x1), self._cut(x2)
        weights = self.weights.to(columns.dtype)
        flat, found = columns.flatten(0, 1), []
        size = max(1, MAX_ENTRIES // (self.num_patches * max(1, len(flat))))
        for part in rows.split(size):
            each = self.patch_kernel.evaluate(part.flatten(0, 1), flat)
            each = each.view(*part.shape[:2], *columns.shape[:2]) @ weights
            found.append((each * weights.view(-1, 1)).sum(1))
        matrix = torch.cat(found)
        if x1 is not x2:
            return matrix
        upper = matrix.triu(1)
        return upper + upper.mT + torch.diag_embed(self.variance(x1))

    def variance(self, x: Tensor) -> Tensor:
        """As in ``Kernel``; all pairs of patches of one image, some images at a time."""
        found = []
        for rows in self._cut(x).split(max(1, MAX_ENTRIES // self.num_patches**2)):
            if torch.is_grad_enabled() and self.num_patches**2 * len(x) > MAX_ENTRIES:
                found.append(checkpoint(self._variance_of_patches, rows, use_reentrant=False))
            else:
                found.append(self._variance_of_patches(rows))
        return torch.cat(found)

    def _variance_of_patches(self, patches: Tensor) -> Tensor:
        """Of images with these patches (n, P, q): (n,)."""
        kernel = self.patch_kernel
        z = kernel.coordinates(kernel._select(patches.flatten(0, 1)))
        z = z.view(*patches.shape[:2], z.shape[1])
        z = z - z.detach().mean(1, keepdim=True)
        squares = z.square().sum(2)
        r2 = squares.unsqueeze(2) + squares.unsqueeze(1) - 2.0 * z @ z.mT
        # a square root has an infinite derivative at zero: equal patches are masked
        level = 1e-14 if z.dtype == torch.float64 else 1e-6
        equal = r2.detach() <= level * squares.detach().amax(1).view(-1, 1, 1)
        profile = kernel.of_squared_distance(r2.masked_fill(equal, 1.0)).masked_fill(equal, 1.0)
        weights = self.weights.to(profile.dtype)
        return kernel.outputscale * ((profile @ weights) @ weights)
