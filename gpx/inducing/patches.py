"""Inducing patches of a convolutional process: values of its function of patches."""

from __future__ import annotations

import torch
from torch import Tensor

from gpx.errors import ConfigError
from gpx.inducing.base import Selector
from gpx.inducing.features import InducingFeatures
from gpx.kernels.base import Kernel
from gpx.kernels.convolutional import Convolutional

MAX_PATCHES = 20_000
"""Largest number of training patches from which inducing patches are chosen."""


class Patches(InducingFeatures):
    """u_m = g(z_m) where f(x) = sum_p w_p g(x[p]): row m of z (M, q) is a patch.

    Cost: n M P for cross, of images with P patches. Source: van der Wilk, Rasmussen and Hensman,
    "Convolutional Gaussian processes", NeurIPS 2017.
    """

    trainable = True
    sampled = True

    def require(self, kernel: Kernel) -> None:
        """A ``Convolutional`` kernel."""
        if not isinstance(kernel, Convolutional):
            raise ConfigError(
                f"inducing patches are those of a Convolutional kernel, got {kernel.name}; give "
                "features=None"
            )

    def width(self, kernel: Kernel, num_inputs: int) -> int:
        """Pixels of a patch."""
        return _require_convolutional(kernel).patch_inputs

    def path_kernel(self, kernel: Kernel) -> Kernel:
        """The patch kernel."""
        return _require_convolutional(kernel).patch_kernel

    def path_inputs(self, kernel: Kernel, x: Tensor) -> Tensor:
        """All patches of all images: (n P, q)."""
        return _require_convolutional(kernel).patches(x).flatten(0, 1)

    def path_values(self, kernel: Kernel, values: Tensor) -> Tensor:
        """Weighted sums over the patches of each image."""
        made = _require_convolutional(kernel)
        rows = values.shape[-1] // made.num_patches
        each = values.reshape(*values.shape[:-1], rows, made.num_patches)
        return each @ made.weights.to(values.dtype)

    @torch.no_grad()
    def choose(
        self,
        x: Tensor,
        kernel: Kernel,
        num: int,
        *,
        selector: Selector,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """The selector's choice among distinct patches of uniformly drawn training images.

        All of them, if there are fewer than ``num``.
        """
        made = _require_convolutional(kernel)
        images = max(1, MAX_PATCHES // made.num_patches)
        order = torch.randperm(len(x), generator=generator, device=x.device)[:images]
        found = torch.unique(made.patches(x[order]).flatten(0, 1), dim=0)
        return selector(found, made.patch_kernel, min(num, len(found)), generator=generator)

    def cross(self, kernel: Kernel, x: Tensor, z: Tensor) -> Tensor:
        """sum_p w_p g(x[p], z)."""
        return self.cross_rows(kernel, z, x).mT

    def cross_rows(self, kernel: Kernel, z: Tensor, x: Tensor) -> Tensor:
        """The transpose of ``cross``."""
        return _require_convolutional(kernel).cross_with_patches(x, z)

    def gram(self, kernel: Kernel, z: Tensor) -> Tensor:
        """The patch kernel's."""
        return _require_convolutional(kernel).patch_kernel.evaluate(z, z)

    def gram_diagonal(self, kernel: Kernel, z: Tensor) -> Tensor:
        """The patch kernel's."""
        return _require_convolutional(kernel).patch_kernel.diagonal(z)


def _require_convolutional(kernel: Kernel) -> Convolutional:
    Patches().require(kernel)
    assert isinstance(kernel, Convolutional)
    return kernel
